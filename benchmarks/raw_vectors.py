"""Can vectors of a model be compared by a product before it was tuned for that? Every choice of layers, before and after.

    python benchmarks/raw_vectors.py --model NAME=CHECKPOINT [--model …] --glue FOLDER --sick SICK.txt --work FOLDER
        --out benchmarks/results/raw_vectors.json [--seeds 0 1]

Spearman's correlation of products and of cosines with people's scores, × 100, on STS-B dev and all of SICK's pairs, of [CLS]
and of the mean. Then the same checkpoint tuned by `bertie finetune --task embed` on STS-B's train pairs with their scores
(4 epochs, batches of 16, 2e-5, as Reimers & Gurevych 2019 have it) and read as it was tuned. Tuned models stay in --work.
OMP_NUM_THREADS sets the threads. Every row is written at once, so a stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy.stats import spearmanr

import bertie
from bertie import config, runtime, storage
from bertie.checkpoints.folder import locate
from bertie.model.mixing import Fixed
from bertie.model.pooling import Pooling
from bertie.predict.predictor import Predictor
from bertie.tasks.data.rows import kept
from bertie.tasks.data.texts import SCORES, Columns, Example, Texts
from bertie.training.finetune import finetune
from bertie.training.settings import FinetuneConfig
from results import environment

POOLINGS: tuple[Pooling, ...] = ("cls", "mean")
Pairs = dict[str, list[Example]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=CHECKPOINT")
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--sick", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    sick = shutil.copyfile(args.sick, args.work / "sick.tsv")
    pairs = {
        "STS-B dev": read(args.glue / "STS-B" / "dev.tsv"),
        "SICK": read(sick, Columns("sentence_A", "sentence_B", "relatedness_score")),
    }
    train = read(args.glue / "STS-B" / "train.tsv")
    for named in args.model:
        name, checkpoint = named.split("=", 1)
        weights = storage.sha256(locate(checkpoint) / "model.safetensors")
        table = Table(args.out, name, weights, {of: len(examples) for of, examples in pairs.items()})
        before(checkpoint, pairs, table)
        for seed in args.seeds:
            table.measure(
                {"tuned": True, "seed": seed, "layers": "last", "pooling": "mean"},
                partial(after, checkpoint, train, pairs, args.work / f"{name}-{seed}", seed),
            )
        print(shown(name, table.rows), flush=True)


class Table:
    """Of one model, in the file of all: {name: {"weights", "pairs", "environments", "rows"}}; each row is written at once."""

    def __init__(self, path: Path, name: str, weights: str, pairs: dict[str, int]):
        self.path, self.name = path, name
        fresh = {"weights": weights, "pairs": pairs, "environments": [], "rows": []}
        self.kept = (json.loads(path.read_text()) if path.exists() else {}).get(name, fresh)
        if self.kept["weights"] != weights:
            raise SystemExit(f"{path} holds results of another {name}: give another name")
        self.environment = environment(runtime.use_threads())

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.kept["rows"]

    def measure(self, row: dict[str, Any], work: Callable[[], dict[str, Any]]) -> None:
        """Unless it is there already."""
        if any(row.items() <= there.items() for there in self.rows):
            return
        found = row | work()
        if self.environment not in self.kept["environments"]:
            self.kept["environments"].append(self.environment)
        self.rows.append(found | {"environment": self.kept["environments"].index(self.environment)})
        written = json.loads(self.path.read_text()) if self.path.exists() else {}
        storage.write_json(self.path, written | {self.name: self.kept})
        print(found, flush=True)


def read(path: Path, columns: Columns = Columns()) -> list[Example]:
    return kept(Texts(columns, SCORES).read(path), str(path), strict=True)


def tuning(seed: int) -> FinetuneConfig:
    base = config.load(FinetuneConfig, "embed", "finetune")
    return replace(base, seed=seed, training=replace(base.training, epochs=4, batch_size=16, learning_rate=2e-5))


def before(checkpoint: str, pairs: Pairs, table: Table) -> None:
    model = bertie.load(checkpoint)
    for layers in get_args(Fixed):
        for pooling in POOLINGS:
            table.measure(
                {"tuned": False, "layers": layers, "pooling": pooling},
                lambda layers=layers, pooling=pooling: scores(vectors_of(model, pairs, pooling, layers), pairs),
            )


def after(checkpoint: str, train: list[Example], pairs: Pairs, run: Path, seed: int) -> dict[str, Any]:
    finetune(tuning(seed), train, pairs["STS-B dev"], checkpoint, run)
    return scores(vectors_of(bertie.load(run), pairs), pairs)


def vectors_of(
    model: Predictor, pairs: Pairs, pooling: Pooling | None = None, layers: Fixed = "last"
) -> dict[str, np.ndarray]:
    """float64 [E] of every text; each is computed once."""
    texts = sorted({text for examples in pairs.values() for each in examples for text in sides(each)})
    return dict(zip(texts, model.embed(texts, pooling, layers).astype(np.float64), strict=True))


def sides(example: Example) -> tuple[str, str]:
    return example.text, example.text_pair or ""


def scores(vectors: dict[str, np.ndarray], pairs: Pairs) -> dict[str, dict[str, float]]:
    found = {}
    for name, examples in pairs.items():
        gold = [float(example.label or 0) for example in examples]
        first, second = (np.stack([vectors[sides(each)[side]] for each in examples]) for side in (0, 1))
        dot = (first * second).sum(1)
        cosine = dot / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
        found[name] = {of: correlation(gold, by) for of, by in (("dot", dot), ("cosine", cosine))}
    return found


def correlation(gold: list[float], found: np.ndarray) -> float | None:
    """None where all are the same, but for rounding: [CLS] of the embeddings says nothing of a text."""
    return (
        None
        if np.ptp(found) < 1e-4 * np.abs(found).max()
        else round(100 * float(np.asarray(spearmanr(gold, found))[0]), 1)
    )


def shown(name: str, table: list[dict[str, Any]]) -> str:
    sets = [key for key in table[0] if isinstance(table[0][key], dict)]
    heads = [f"{of}, {by}" for of in sets for by in ("dot", "cosine")]
    lines = [f"| {name} | Pooling | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for row in table:
        what = f"tuned, seed {row['seed']}" if row["tuned"] else f"`{row['layers']}`"
        lines.append(
            f"| {what} | {row['pooling']} | {' | '.join(str(row[of][by] or '–') for of in sets for by in row[of])} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
