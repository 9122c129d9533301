"""What attention heads of a run learn, and when: best heads, attention to [SEP], losses and layers of its checkpoints.

    python benchmarks/inspect_training.py NAME=RUN --checkpoints FOLDER [FOLDER …] --treebank FILE.conllu
        --coreference FILE --text FILE [--text-column NAME] --out benchmarks/results/inspect_training.json
        [--picture dev/measurements/images/inspect-training.svg]

Reads the run and every checkpoint with the functions of `bertie inspect`. The relations and the coreference are those of
inspect_syntax.py. --text are passages as long as those of pre-training: on them, the attention to [SEP] and to punctuation,
the loss, and the CKA of each layer with the same layer of the run at its end. Prints tables; --picture draws them. Every
model is written at once, so a stopped benchmark resumes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bertie
from bertie.base import runtime, storage
from bertie.inspect.attention import Group, read_attention, require_transformer
from bertie.inspect.heads.heads import inspect_coreference, inspect_relations
from bertie.inspect.heads.importance import first_sequences, text_losses
from bertie.inspect.heads.layers import inspect_layers
from bertie.inspect.heads.statistics import HeadStatistics
from bertie.inspect.tables import Table
from bertie.inspect.texts import TextFile
from bertie.inspect.treebank import ParsedSentence, read_treebank
from bertie.inspect.words import encode_words
from bertie.predict.predictor import Predictor
from results import Results

FOUND = ("relations", "coreference_best", "heads", "uniform_head", "anisotropy", "cka")  # tables that are kept
RELATIONS = ("det", "case", "nsubj", "obj", "obl")  # relations that are kept
LOSS_TOKENS = 32768
AT_ONCE = 1024  # sentences
GREY = "#7d838a"  # readable on white and on black


@dataclass(frozen=True)
class Inputs:
    """What the measurements of a model depend on."""

    treebank: str
    coreference: str
    text: str
    texts: int
    length: int
    model: str
    """sha256 of the weights."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="NAME=RUN")
    parser.add_argument("--checkpoints", nargs="*", default=[], metavar="FOLDER")
    parser.add_argument("--treebank", type=Path, required=True)
    parser.add_argument("--coreference", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--text-column", default="")
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    name, run = args.run.split("=", 1)
    results = Results(args.out.with_stem(f"{args.out.stem}-{name}"), run, runtime.use_threads())
    treebank, coreference, text = map(storage.sha256, (args.treebank, args.coreference, args.text))
    found = {}
    for model in (*args.checkpoints, run):
        inputs = Inputs(treebank, coreference, text, args.texts, args.length, storage.sha256(weights(model)))
        key = "end" if model == run else Path(model).name
        found[key] = results.measure(key, inputs, partial(measure, model, run, args))
    print(table(found))
    if args.picture:
        draw(found, last_step(run), args.picture)


def weights(model: str) -> Path:
    return Path(model) / "model.safetensors"


def measure(model: str, run: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return all measurements of a model."""
    predictor = bertie.load(model)
    predictor = replace(predictor, max_length=min(predictor.max_length, args.length))
    parts = [inspect_relations(predictor, args.treebank), inspect_coreference(predictor, args.coreference)]
    parts.append(inspect_layers(predictor, texts_of(predictor, args), [] if model == run else [run]))
    found = [*(table for part in parts for table in part.tables), *statistics(predictor, args)]
    tables = {table.name: kept(table) for table in found if table.name in FOUND}
    facts = {part.name: part.facts for part in parts}
    return {"facts": facts, "tables": tables, "loss": loss(predictor, args), "to_sep": to_sep(predictor, args.treebank)}


def kept(table: Table) -> dict[str, list[Any]]:
    """Return a table without other relations and without CKA of different layers, rounded to five digits."""
    rows = [row for row in table.rows() if row.get("relation", RELATIONS[0]) in RELATIONS]
    rows = [row for row in rows if row.get("layer_a") == row.get("layer_b")]
    return {name: [rounded(row[name]) for row in rows] for name in table.columns}


def rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def texts_of(predictor: Predictor, args: argparse.Namespace) -> TextFile:
    return TextFile(args.text, predictor.tokenizer, predictor.max_length, args.text_column, args.texts)


def statistics(predictor: Predictor, args: argparse.Namespace) -> list[Table]:
    """Return the table `heads` and others of the texts."""
    analysis = HeadStatistics(require_transformer(predictor.model.encoder), predictor.tokenizer)
    for sequences in texts_of(predictor, args).blocks():
        read_attention(predictor.model, sequences, analysis.see)
    return analysis.tables()


def loss(predictor: Predictor, args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the loss of pre-training on the texts. None: the model has no head that could be measured."""
    try:
        losses = text_losses(predictor, first_sequences(texts_of(predictor, args).blocks(), LOSS_TOKENS), 0)
    except bertie.UserError:
        return None
    with torch.inference_mode():
        found = [losses.model(micro.tensors(losses.model.device))[losses.kind] for micro in losses.batches]
    total, count = (sum(float(getattr(each, name)) for each in found) for name in ("total", "count"))
    return {"kind": losses.kind, "loss": total / count, "predictions": count}


def to_sep(predictor: Predictor, treebank: Path) -> dict[str, Any]:
    """Return the mean attention to [SEP] of every head, from words with a relation to their head and from all others.

    Returns:
        {relation: {"words": number, "with": [layers, heads], "without": [layers, heads]}}: the attention from the first
        token of the words that have the relation, and from that of the other words. If heads use [SEP] when they have
        nothing to find, the head of a relation attends to it from the other words (Clark et al. 2019, section 3.2).
    """
    config = require_transformer(predictor.model.encoder).config
    shape = config.num_hidden_layers, config.num_attention_heads
    sums = {relation: np.zeros((2, *shape)) for relation in RELATIONS}
    counts = {relation: np.zeros(2, int) for relation in RELATIONS}
    sentences = [each for each in read_treebank(treebank) if isinstance(each, ParsedSentence)]
    for start in range(0, len(sentences), AT_ONCE):
        block = sentences[start : start + AT_ONCE]
        encoded = encode_words(predictor.tokenizer, [each.words for each in block], predictor.max_length)

        def see(group: Group, layer: int, probabilities: Tensor, block: list[ParsedSentence] = block) -> None:
            for s, sequence in enumerate(group.sequences):
                assert sequence.offsets is not None
                firsts = np.flatnonzero(sequence.offsets[:, 1] == 0)
                own = [block[sequence.example].relations[word] for word in sequence.offsets[firsts, 0]]
                attention = probabilities[s, :, firsts, len(sequence) - 1].numpy()
                for relation in RELATIONS:
                    has = np.array([name.split(":")[0] == relation for name in own], bool)
                    for side, chosen in enumerate((has, ~has)):
                        sums[relation][side, layer] += attention[:, chosen].sum(1)
                        counts[relation][side] += chosen.sum() * (layer == 0)

        read_attention(predictor.model, encoded.sequences, see)
    means = {relation: sums[relation] / counts[relation][:, None, None] for relation in RELATIONS}
    return {
        relation: {
            "words": int(counts[relation][0]),
            "with": mean[0].round(5).tolist(),
            "without": mean[1].round(5).tolist(),
        }
        for relation, mean in means.items()
    }


def table(found: dict[str, Any]) -> str:
    """Return a table with one row per model: the loss, held-out gains in points, and attention to [SEP] by layer."""
    lines = [
        f"| Model | Loss | {' | '.join(RELATIONS)} | antecedent | CKA with the end, layer 0 … | [SEP], layer 1 … |"
    ]
    lines.append("|---" * (5 + len(RELATIONS)) + "|")
    for name, each in found.items():
        gains = [gain(each, "relations", "relation", relation) for relation in RELATIONS]
        cells = [*gains, gain(each, "coreference_best", "mention_type", "all")]
        shown = [f"{100 * value:+.1f} [{100 * low:.1f}, {100 * high:.1f}]" for value, low, high in cells]
        value = "–" if each["loss"] is None else f"{each['loss']['loss']:.2f}"
        cka = " ".join(f"{value:.2f}" for value in same_layer(each))
        sep = " ".join(f"{100 * value:.1f}" for value in by_layer(each, "to_sep"))
        lines.append(f"| {name} | {value} | {' | '.join(shown)} | {cka} | {sep} |")
    return "\n".join(lines)


def gain(each: dict[str, Any], table: str, column: str, name: str) -> tuple[float, float, float]:
    """Return the held-out gain over the best baseline, and its interval."""
    columns = each["tables"][table]
    row = columns[column].index(name)
    value, low, high = (columns[f"held_out_gain{end}"][row] for end in ("", "_low", "_high"))
    return value, low, high


def same_layer(each: dict[str, Any]) -> list[float]:
    """Return the debiased CKA of each layer with the same layer of the run at its end."""
    cka = each["tables"]["cka"]
    rows = list(zip(*(cka[name] for name in ("model_a", "layer_a", "model_b", "layer_b", "cka_debiased")), strict=True))
    others = [row for row in rows if row[0] != row[2]] or rows
    return [row[4] for row in others if row[1] == row[3]]


def by_layer(each: dict[str, Any], statistic: str) -> list[float]:
    """Return the mean of a statistic over the heads of each layer."""
    heads = each["tables"]["heads"]
    layers = np.array(heads["layer"])
    return [float(np.array(heads[statistic])[layers == layer].mean()) for layer in sorted(set(heads["layer"]))]


def last_step(run: str) -> int:
    return max(int(path.name.removeprefix("step-")) for path in Path(run, "checkpoints").glob("step-*"))


def draw(found: dict[str, Any], last: int, path: Path) -> None:
    """Draw the gains and the CKA against the steps. Checkpoints without a step in their name are step 0."""
    import matplotlib.pyplot as plt

    steps = [int(name.removeprefix("step-")) if name.startswith("step-") else 0 for name in found]
    steps[-1] = last
    colors = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), GREY)
    style = {**colors, "svg.hashsalt": "inspect", "svg.fonttype": "none", "font.family": "sans-serif"}
    with plt.rc_context(style):  # pyright: ignore[reportArgumentType]
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained")
        for relation in RELATIONS:
            cells = [gain(each, "relations", "relation", relation) for each in found.values()]
            value, low, high = 100 * np.array(cells).T
            [line] = left.plot(steps, value, label=relation, marker=".")
            left.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        left.axhline(0, color=GREY, linewidth=1)
        left.set_ylabel("best head minus best offset,\nheld out, points")
        for layer, values in enumerate(np.array([same_layer(each) for each in found.values()]).T):
            right.plot(steps, values, label="embeddings" if layer == 0 else f"layer {layer}", marker=".")
        right.set_ylabel("CKA with the end of the run")
        right.set_ylim(0, 1.03)
        for axes in (left, right):
            axes.set_xlabel("step")
            axes.grid(axis="y", alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(
                frameon=False, fontsize=8, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1), columnspacing=1
            )
        figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
