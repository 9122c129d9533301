"""What attention and hidden states of a model tell about syntax, beside the numbers of the papers, and what its layers are like.

    python benchmarks/inspect_probes.py NAME=MODEL [NAME=MODEL …] --train FILE.conllu --test FILE.conllu
        [--every 3] [--vectors GLOVE] [--compare MODEL …] --out benchmarks/results/inspect_probes.json

Runs the functions of `bertie inspect`. Each model has its own result file, named after --out. Prints the tables of
dev/measurements/results-inspect-probes.md. A stopped benchmark resumes. OMP_NUM_THREADS sets the threads.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bertie
from bertie.base import runtime, storage
from bertie.inspect.heads.layers import inspect_layers
from bertie.inspect.probes.probes import RANK, inspect_probes
from bertie.inspect.tables import InputFindings
from bertie.inspect.texts import TextFile
from bertie.predict.predictor import Predictor
from results import Results

# Clark et al. (2019), table 3: UAS on the Wall Street Journal with Stanford Dependencies.
PUBLISHED_HEADS = {
    "attention": 61,
    "attention and vectors": 77,
    "distances and vectors": 58,
    "right-branching": 26,
    ("untrained", "attention and vectors"): 30,
}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ProbeInput:
    """What the probes depend on."""

    train: str
    train_sha256: str
    every: int
    test: str
    test_sha256: str
    epochs: int
    rank: int
    seed: int
    vectors: str


@dataclass(frozen=True)
class TextInput:
    """What the measures of layers depend on."""

    file: str
    sha256: str
    compared: tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="train on every so many sentences (default: all)")
    parser.add_argument("--vectors", default="", help="model whose word embeddings the dependency probes use, too")
    parser.add_argument("--compare", nargs="*", default=[], metavar="MODEL", help="models of the same tokenizer")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for named in args.models:
        name, model = named.split("=", 1)
        results = Results(args.out.with_stem(f"{args.out.stem}-{name}"), model, runtime.use_threads())
        predictor = bertie.load(model)
        print(f"## {name}\n")
        for vectors in dict.fromkeys(("", args.vectors)):
            found = results.measure(
                f"probes{vectors and f'/{Path(vectors).name}'}",
                probe_input(args.train, args.test, args.every, Path(vectors).name),
                partial(probe, predictor, args.train, args.test, args.every, vectors),
            )
            print(f"{found['facts']}\n\n{heads(found['tables'])}\n\n{structure(found['tables']['structural_probe'])}\n")
            print(f"{labels(found['tables'])}\n")
        compared: list[str] = args.compare
        given = TextInput(args.test.name, storage.sha256(args.test), tuple(Path(each).name for each in compared))
        found = results.measure("layers", given, partial(layers, predictor, args.test, compared))
        print(f"{geometry(found['tables'])}\n\n{similarity(found['tables']['cka'])}", flush=True)


def probe_input(train: Path, test: Path, every: int, vectors: str) -> ProbeInput:
    return ProbeInput(train.name, storage.sha256(train), every, test.name, storage.sha256(test), 5, RANK, 0, vectors)


def probe(predictor: Predictor, train: Path, test: Path, every: int, vectors: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / train.name
        sentences = train.read_text(encoding="utf-8").strip().split("\n\n")
        part.write_text("\n\n".join(sentences[::every]) + "\n\n", encoding="utf-8")
        work = partial(inspect_probes, vectors=bertie.load(vectors) if vectors else None)
        return measured(lambda: work(predictor, part, test, 5, 0))


def layers(predictor: Predictor, text: Path, compared: list[str]) -> dict[str, Any]:
    given = TextFile(text, predictor.tokenizer, predictor.max_length)
    return measured(lambda: inspect_layers(predictor, given, [Path(each) for each in compared]))


def measured(work: Any) -> dict[str, Any]:
    started = time.process_time()
    part: InputFindings = work()
    facts = {**part.facts, "cpu_seconds": round(time.process_time() - started)}
    return {"facts": facts, "tables": {table.name: table.plain() for table in part.tables}}


def rows(columns: dict[str, list[Any]]) -> Rows:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def heads(tables: dict[str, Any]) -> str:
    lines = [
        "| Heads from | Model | UAS | UAS without punctuation | LAS | LAS without punctuation | UAS of BERT base, WSJ |",
        "|---" * 7 + "|",
    ]
    for row in rows(tables["dependency_probes"]):
        key = (row["model"], row["probe"]) if row["model"] == "untrained" else row["probe"]
        shown = (with_interval(row, n) for n in ("uas", "uas_without_punctuation", "las", "las_without_punctuation"))
        lines.append(
            f"| {row['probe']} | {row['model'] or '–'} | {' | '.join(shown)} | {PUBLISHED_HEADS.get(key, '–')} |"
        )
    return "\n".join(lines)


def structure(columns: dict[str, list[Any]]) -> str:
    names = ("uuas", "distance_spearman", "root_accuracy", "depth_spearman")
    lines = ["| Model | Layer | UUAS | DSpr | Root | NSpr |", "|---" * 6 + "|"]
    for row in rows(columns):
        layer = "–" if row["layer"] is None else row["layer"]
        lines.append(f"| {row['model']} | {layer} | {' | '.join(with_interval(row, name) for name in names)} |")
    return "\n".join(lines)


def labels(tables: dict[str, Any]) -> str:
    lines = ["| Task | Model | Layer | Accuracy | Control task | Selectivity |", "|---" * 6 + "|"]
    for row in rows(tables["layer_probes"]):
        lines.append(
            f"| {row['task']} | {row['model']} | {row['layer']} | {with_interval(row, 'accuracy', '')} | "
            f"{with_interval(row, 'control_accuracy', 'control_')} | {with_interval(row, 'selectivity', 'selectivity_')} |"
        )
    for row in rows(tables["arc_labels"]):
        lines.append(
            f"| relation of an arc | {row['model']} | {row['layer']} | {with_interval(row, 'accuracy', '')} | – | – |"
        )
    for task in ("part of speech", "relation"):
        row = next(row for row in rows(tables["layer_probes"]) if row["task"] == task)
        lines.append(f"| {task}, most frequent label | – | – | {percent(row['majority'])} | – | – |")
        lines.append(f"| {task}, most frequent label of the word | – | – | {percent(row['usual_label'])} | – | – |")
    return "\n".join(lines)


def geometry(tables: dict[str, Any]) -> str:
    lines = ["| Model | Layer | Anisotropy | Self-similarity | Adjusted |", "|---" * 5 + "|"]
    for row in rows(tables["anisotropy"]):
        shown = " | ".join(f"{row[name]:.3f}" for name in ("anisotropy", "self_similarity", "adjusted"))
        lines.append(f"| {row['model']} | {row['layer']} | {shown} |")
    return "\n".join(lines)


def similarity(columns: dict[str, list[Any]]) -> str:
    """Return the debiased CKA of the layers of the model, and of equal layers of the other models."""
    found = rows(columns)
    own, own_rows = found[0]["model_a"], [row for row in found if row["model_a"] == row["model_b"]]
    count = 1 + max(row["layer_a"] for row in own_rows)
    lines = [f"| CKA | {' | '.join(f'layer {layer}' for layer in range(count))} |", "|---" * (count + 1) + "|"]
    for layer in range(count):
        values = [row["cka_debiased"] for row in own_rows if row["layer_a"] == layer]
        lines.append(f"| {own}, layer {layer} | {' | '.join(f'{value:.3f}' for value in values)} |")
    for other in dict.fromkeys(row["model_b"] for row in found if row["model_b"] != own):
        same = [row["cka_debiased"] for row in found if row["model_b"] == other and row["layer_a"] == row["layer_b"]]
        lines.append(f"| {other}, same layer | {' | '.join(f'{value:.3f}' for value in same)} |")
    return "\n".join(lines)


def with_interval(row: dict[str, Any], name: str, prefix: str | None = None) -> str:
    """Return a value with its interval, in percent. `prefix`: of the columns of the ends; None: the name."""
    start = f"{name}_" if prefix is None else prefix
    value, low, high = row[name], row[f"{start}low"], row[f"{start}high"]
    return "–" if value is None else f"{percent(value)} [{percent(low)}, {percent(high)}]"


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


if __name__ == "__main__":
    main()
