"""Similarity of raw and fine-tuned sentence embeddings, for every choice of layers.

    python benchmarks/raw_vectors.py --model NAME=CHECKPOINT [--model …] --glue FOLDER --sick SICK.txt --work FOLDER
        --out benchmarks/results/raw_vectors.json [--seeds 0 1]

Measures Spearman's correlation (× 100) of dot products and of cosines with human scores, on STS-B dev and on all pairs
of SICK, with [CLS] and mean pooling. It then fine-tunes the same checkpoint with `bertie finetune --task embed` on the
training pairs and scores of STS-B (4 epochs, batches of 16, learning rate 2e-5, as Reimers & Gurevych 2019), and
measures again. Fine-tuned models stay in --work. Each model has its own result file, named after --out. Every row is
written at once, so a stopped benchmark resumes. OMP_NUM_THREADS sets the threads.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
from scipy.stats import spearmanr

import bertie
from bertie.base import config, runtime
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.texts import SCORES, Example, LabeledTexts
from bertie.finetuning.finetune import finetune
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.heads.layer_selection import Fixed
from bertie.model.pooling import Pooling
from bertie.predict.predictor import Predictor
from results import Results
from sick import sick

POOLINGS: tuple[Pooling, ...] = ("cls", "mean")
Pairs = dict[str, list[Example]]
Scores = dict[str, dict[str, float | None]]
Rows = dict[tuple[str, Pooling], Scores]


@dataclass(frozen=True)
class Read:
    """The features of a model that is not fine-tuned."""

    layers: Fixed
    pooling: Pooling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=CHECKPOINT")
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--sick", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    dev, train = (
        valid_examples(Reader(LabeledTexts(label_names=SCORES)).read(args.glue / "STS-B" / f"{part}.tsv"), part)
        for part in ("dev", "train")
    )
    pairs = {"STS-B dev": dev, "SICK": sick(args.sick, "relatedness_score")}
    for named in args.model:
        name, checkpoint = named.split("=", 1)
        results = Results(args.out.with_stem(f"{args.out.stem}-{name}"), checkpoint, runtime.use_threads())
        rows = before(checkpoint, pairs, results)
        for seed in args.seeds:
            settings = tuning(seed)
            work = partial(after, settings, checkpoint, train, pairs, args.work / f"{name}-{seed}")
            rows[f"tuned, seed {seed}", "mean"] = results.measure(f"tuned/seed {seed}", settings, work)
        print(shown(name, rows), flush=True)


def tuning(seed: int) -> FinetuneConfig:
    base = config.load(FinetuneConfig, "embed", "finetune")
    return replace(base, seed=seed, training=replace(base.training, epochs=4, batch_size=16, learning_rate=2e-5))


def before(checkpoint: str, pairs: Pairs, results: Results) -> Rows:
    model, rows = bertie.load(checkpoint), Rows()
    for layers in get_args(Fixed):
        for pooling in POOLINGS:

            def work(layers: Fixed = layers, pooling: Pooling = pooling) -> Scores:
                return scores(vectors_of(model, pairs, pooling, layers), pairs)

            rows[f"`{layers}`", pooling] = results.measure(f"raw/{layers}/{pooling}", Read(layers, pooling), work)
    return rows


def after(settings: FinetuneConfig, checkpoint: str, train: list[Example], pairs: Pairs, run: Path) -> Scores:
    finetune(settings, train, checkpoint, run, dev=pairs["STS-B dev"])
    return scores(vectors_of(bertie.load(run), pairs), pairs)


def vectors_of(
    model: Predictor, pairs: Pairs, pooling: Pooling | None = None, layers: Fixed = "last"
) -> dict[str, np.ndarray]:
    """Return the vector of every text, float64 [E]. Each is computed once."""
    texts = sorted({text for examples in pairs.values() for each in examples for text in sides(each)})
    return dict(zip(texts, model.embed(texts, pooling, layers).astype(np.float64), strict=True))


def sides(example: Example) -> tuple[str, str]:
    return example.text, example.text_pair or ""


def scores(vectors: dict[str, np.ndarray], pairs: Pairs) -> Scores:
    found: Scores = {}
    for name, examples in pairs.items():
        gold = [float(example.label or 0) for example in examples]
        first, second = (np.stack([vectors[sides(each)[side]] for each in examples]) for side in (0, 1))
        dot = (first * second).sum(1)
        cosine = dot / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
        found[name] = {of: correlation(gold, by) for of, by in (("dot", dot), ("cosine", cosine))}
    return found


def correlation(gold: list[float], found: np.ndarray) -> float | None:
    """Return the correlation, or None if all values are equal up to rounding, as for [CLS] in the embedding layer."""
    return (
        None
        if np.ptp(found) < 1e-4 * np.abs(found).max()
        else round(100 * float(np.asarray(spearmanr(gold, found))[0]), 1)
    )


def shown(name: str, rows: Rows) -> str:
    heads = [f"{of}, {by}" for of, found in next(iter(rows.values())).items() for by in found]
    lines = [f"| {name} | Pooling | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for (what, pooling), found in rows.items():
        values = [value for sides in found.values() for value in sides.values()]
        lines.append(f"| {what} | {pooling} | {' | '.join('–' if v is None else str(v) for v in values)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
