"""Gain from pre-training on GLUE: a pre-trained run against the same model with random weights, over five seeds.

    python benchmarks/transfer.py RUN GLUE_FOLDER --out benchmarks/results/transfer.json [--tasks sst2-2000 mrpc …]

Both have the same sweep and the same number of steps. The learning rate is chosen separately for each, on a held-out
tenth of the training examples; the dev set is used only for the reported scores. OMP_NUM_THREADS sets the threads.
Every finished model is written at once, so a stopped benchmark resumes.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, variance

from bertie.base import config, runtime, seeding
from bertie.checkpoints.read import Checkpoint, read_checkpoint
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.texts import Example, LabeledTexts
from bertie.finetuning.finetune import finetune
from bertie.finetuning.recipe import FinetuneConfig
from bertie.tasks.metrics import mean_and_interval
from results import Results


def _difference(a: list[float], b: list[float]) -> tuple[float, float]:
    """Return mean(a) − mean(b) of two independent samples, and its standard error for unequal variances (Welch)."""
    return fmean(a) - fmean(b), math.sqrt(variance(a) / len(a) + variance(b) / len(b))


RATES = (1e-4, 3e-4, 1e-3)
SEEDS = range(5)
STARTS = ["pre-trained", "scratch"]


@dataclass(frozen=True)
class Setting:
    train: str
    dev: str
    metric: str
    epochs: int
    examples: int = 0  # 0: all
    max_length: int = 128
    rate: float = 0.0  # 0: the learning rate in the key of the sweep


SETTINGS = {
    "sst2-2000": Setting("SST-2/train.tsv", "SST-2/dev.tsv", "accuracy", 5, 2000),
    "mrpc": Setting("MRPC/train.tsv", "MRPC/dev.tsv", "f1", 3),
    "qnli": Setting("QNLI/train-subset.tsv", "QNLI/dev.tsv", "accuracy", 2),
    "sst2": Setting("SST-2/train.tsv", "SST-2/dev.tsv", "accuracy", 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("glue", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--starts", nargs="+", default=STARTS, choices=STARTS)
    args = parser.parse_args()
    results = Results(args.out, args.run, runtime.use_threads())
    checkpoint = read_checkpoint(args.run)
    for task in args.tasks:
        measure(task, args.glue, checkpoint, results, args.starts)
        print(line(task, results, args.starts), flush=True)


def measure(task: str, glue: Path, checkpoint: Checkpoint, results: Results, starts: list[str]) -> None:
    """Train the models that are missing in the results: "task/start/sweep RATE" and "task/start/seed N"."""
    setting = SETTINGS[task]
    train, dev = (
        valid_examples(Reader(LabeledTexts()).read(glue / name), name, strict=True)
        for name in (setting.train, setting.dev)
    )
    order = seeding.generator(0, seeding.SUBSET).permutation(len(train))
    train = [train[i] for i in (order[: setting.examples] if setting.examples else order)]
    held_back = apart(train[: len(train) // 10], train[len(train) // 10 :])
    rest = apart(train[len(train) // 10 :], held_back)
    for start in starts:
        sweep = {
            rate: results.measure(
                f"{task}/{start}/sweep {rate:g}",
                setting,
                lambda rate=rate, start=start: score(setting, checkpoint, start, rate, 0, rest, held_back),
            )
            for rate in RATES
        }
        best = max(sweep, key=lambda rate, sweep=sweep: sweep[rate])
        for seed in SEEDS:
            results.measure(
                f"{task}/{start}/seed {seed}",
                replace(setting, rate=best),
                lambda seed=seed, start=start, best=best: score(setting, checkpoint, start, best, seed, train, dev),
            )


def apart(examples: list[Example], others: list[Example]) -> list[Example]:
    """Return the examples whose texts are not contained in others: SST-2 trains on phrases of its sentences."""
    text = "\n".join(f"{example.text}\n{example.text_pair or ''}" for example in others)
    return [e for e in examples if e.text not in text and (not e.text_pair or e.text_pair not in text)]


def score(
    setting: Setting,
    checkpoint: Checkpoint,
    start: str,
    rate: float,
    seed: int,
    train: list[Example],
    dev: list[Example],
) -> float:
    base = config.load(FinetuneConfig, "classify", "finetune")
    training = replace(base.training, epochs=setting.epochs, learning_rate=rate, precision="fp32")
    chosen = replace(base, training=training, seed=seed, max_length=setting.max_length, from_scratch=start == "scratch")
    return finetune(chosen, train, checkpoint, dev=dev).scores[setting.metric]


def line(task: str, results: Results, starts: list[str]) -> str:
    """Return a row of a Markdown table: means with 95 % confidence intervals, and the gain from pre-training."""
    values = {start: [results[f"{task}/{start}/seed {seed}"] for seed in SEEDS] for start in starts}
    cells = [task, SETTINGS[task].metric]
    for start in starts:
        mean, half = mean_and_interval(values[start])
        cells.append(f"{100 * mean:.1f} ± {100 * half:.1f}")
    if len(starts) == 2:
        gain, error = _difference(*values.values())
        cells.append(f"{100 * gain:+.1f} (SE {100 * error:.1f})")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
