"""Find the learning rate that suits a small model: four rates on four tasks with 1,000 examples each.

    python benchmarks/finetune_defaults.py --data ../shared/data --model runs/mini --out results.jsonl

Each task has 1,000 training examples, of which 100 are held out as the dev set, and at least 1,000 test examples. All rates run
with seed 0, then the default and the best rate with seeds 1 and 2. A second call with the same --out continues. The table has
the mean score of the default and of the best rate, and the 95 % interval of their difference over seeds (Student's t, paired).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import bertie
from bertie.base import config as configuration
from bertie.base import console
from bertie.finetuning import defaults
from bertie.finetuning.recipe import FinetuneConfig
from bertie.tasks.scoring import labeled_examples

RATES, SEEDS = (1e-4, 3e-4, 1e-3, 3e-3), (0, 1, 2)
TRAIN, TEST = 1000, 1500


@dataclass(frozen=True)
class Task:
    """A task: its recipe, its files, and the score that counts. Without a test file, the training file gives both."""

    recipe: str
    train: str
    test: str
    metric: str


TASKS = {
    "SST-2": Task("classify", "glue/SST-2/train.tsv", "", "accuracy"),
    "SICK": Task("classify", "sick/SICK.txt", "", "accuracy"),
    "STS-B": Task("regress", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", "spearman"),
    "WNUT-17": Task("tag", "ner/wnut17train.conll", "ner/emerging.test.annotated", "f1"),
}


def parts(task: Task, data: Path) -> tuple[list[Any], list[Any]]:
    """Return the training examples and the test examples."""
    reader = configuration.load(FinetuneConfig, task.recipe, "finetune").task.reader
    path = data / task.train
    if path.suffix == ".txt":  # SICK is a table
        path = Path("SICK.tsv")
        path.write_bytes((data / task.train).read_bytes())
    examples = labeled_examples(reader, path)
    chosen = [examples[i] for i in np.random.default_rng(0).permutation(len(examples))]
    test = labeled_examples(reader, data / task.test) if task.test else chosen[TRAIN:]
    return chosen[:TRAIN], test[:TEST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    lines = args.out.read_text().splitlines() if args.out.is_file() else []
    done = {(task, rate, seed): score for task, rate, seed, score in map(json.loads, lines)}

    size = bertie.load(args.model).model.encoder.config

    def score(name: str, rate: float, seed: int) -> float:
        """Fine-tune, unless it is done, and return the test score."""
        if (name, rate, seed) not in done:
            task, (train, test) = TASKS[name], parts(TASKS[name], args.data)
            recipe = {"extends": task.recipe, "seed": seed, "training": {"learning_rate": rate}}
            with console.silenced():
                tuned = bertie.finetune(recipe, train, args.model, test=test, threads=1)
            assert tuned.test_scores is not None
            done[name, rate, seed] = tuned.test_scores[task.metric]
            with args.out.open("a") as file:
                file.write(json.dumps([name, rate, seed, done[name, rate, seed]]) + "\n")
        return done[name, rate, seed]

    for name in TASKS:
        first = {rate: score(name, rate, 0) for rate in RATES}
        best = max(RATES, key=first.__getitem__)
        default = defaults.default_rate(configuration.load(FinetuneConfig, TASKS[name].recipe, "finetune").task, size)
        runs = np.array([[score(name, rate, seed) for seed in SEEDS] for rate in (default, best)])
        gap = runs[0] - runs[1]
        half = stats.t.ppf(0.975, len(SEEDS) - 1) * gap.std(ddof=1) / len(SEEDS) ** 0.5
        rates = ", ".join(f"{rate:g} {value:.4f}" for rate, value in first.items())
        means = f"default {runs[0].mean():.4f}, best ({best:g}) {runs[1].mean():.4f}"
        print(f"{args.model.name} {name}: {rates}; {means}; {gap.mean():+.4f} ± {half:.4f}", flush=True)


if __name__ == "__main__":
    main()
