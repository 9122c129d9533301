"""What pre-training is worth on GLUE: a run against the same model from scratch, same sweep, same steps, five seeds.

    python benchmarks/transfer.py RUN GLUE_FOLDER --out benchmarks/results/transfer.json [--tasks sst2-2000 mrpc …]

Learning rates are chosen on a held-back tenth of the training examples, for each start on its own; dev is only scored.
Every finished model is written to the results at once, so a stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertie import config, runtime, streams
from bertie.checkpoints.folder import Checkpoint, read_checkpoint
from bertie.tasks.examples import Example, read_examples
from bertie.tasks.metrics import difference, mean_and_interval
from bertie.training.finetune import FinetuneConfig, finetune

RATES = (1e-4, 3e-4, 1e-3)
SEEDS = range(5)


@dataclass(frozen=True)
class Setting:
    train: str
    dev: str
    metric: str
    epochs: int
    examples: int = 0  # 0: all
    max_length: int = 128


SETTINGS = {
    "sst2-2000": Setting("SST-2/train.tsv", "SST-2/dev.tsv", "accuracy", 5, 2000),
    "mrpc": Setting("MRPC/train.tsv", "MRPC/dev.tsv", "f1", 3),
    "qnli": Setting("QNLI/train-subset.tsv", "QNLI/dev.tsv", "accuracy", 3),
    "sst2": Setting("SST-2/train.tsv", "SST-2/dev.tsv", "accuracy", 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("glue", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    args = parser.parse_args()
    threads = runtime.use_threads()
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"scores": {}}
    results["environment"] = runtime.environment(threads)
    checkpoint = read_checkpoint(args.run)
    for task in args.tasks:
        measure(task, args.glue, checkpoint, results["scores"], lambda: save(args.out, results))
        print(line(task, results["scores"]), flush=True)


def measure(task: str, glue: Path, checkpoint: Checkpoint, scores: dict[str, Any], done: Any) -> None:
    """Fill scores["task/start/rate or seed"] with the models that are not there yet."""
    setting = SETTINGS[task]
    train, dev = read_examples(glue / setting.train), read_examples(glue / setting.dev)
    order = streams.generator(0, streams.SUBSET).permutation(len(train))
    train = [train[i] for i in (order[: setting.examples] if setting.examples else order)]
    held_back, rest = train[: len(train) // 10], train[len(train) // 10 :]
    for start in ("pre-trained", "scratch"):
        for rate in RATES:
            key = f"{task}/{start}/sweep {rate:g}"
            if key not in scores:
                scores[key] = score(setting, checkpoint, start, rate, 0, rest, held_back)
                done()
        best = max(RATES, key=lambda rate, start=start: scores[f"{task}/{start}/sweep {rate:g}"])
        for seed in SEEDS:
            key = f"{task}/{start}/seed {seed}"
            if key not in scores:
                scores[key] = score(setting, checkpoint, start, best, seed, train, dev)
                done()


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
    training = replace(base.training, epochs=setting.epochs, learning_rate=rate)
    chosen = replace(base, training=training, seed=seed, max_length=setting.max_length, from_scratch=start == "scratch")
    return finetune(chosen, train, dev, checkpoint).scores[setting.metric]


def line(task: str, scores: dict[str, float]) -> str:
    """One row of the table in Markdown: both means with 95 % intervals, and the gain with its standard error."""
    values = {start: [scores[f"{task}/{start}/seed {seed}"] for seed in SEEDS] for start in ("pre-trained", "scratch")}
    cells = []
    for start in values:
        mean, _, half = mean_and_interval(values[start])
        cells.append(f"{100 * mean:.1f} ± {100 * half:.1f}")
    gain, error = difference(values["pre-trained"], values["scratch"])
    return f"| {task} | {SETTINGS[task].metric} | {' | '.join(cells)} | {100 * gain:+.1f} (SE {100 * error:.1f}) |"


def save(out: Path, results: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
