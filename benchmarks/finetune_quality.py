"""Quality of fine-tuning: bertie and transformers on every kind of task, with several seeds.

    python benchmarks/finetune_quality.py MODEL DATA --who bertie|transformers|same-start --out FILE.json [--tasks cola …]
        [--seeds 0 …] [--whole] [--precision bf16] [--work FOLDER]
    python benchmarks/finetune_table.py OURS.json THEIRS.json [WHOLE.json]

Both sides use the same checkpoint, examples, batch size, epochs and learning rate. DATA contains glue/, squad/,
choice/codah and ner/. The peer is a plain PyTorch loop over the models and tokenizers of transformers
(finetune_transformers.py) with AdamW, gradient clipping at 1 and its linear schedule. `same-start` is the peer with a
task head whose initial weights have the standard deviation of bertie's. Precision is fp32 (for bertie also bf16),
dropout 0.1. Every finished model is written at once, so a stopped benchmark resumes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertie.base import config, runtime, seeding
from bertie.checkpoints.read import read_checkpoint
from bertie.examples.left_out import valid_examples
from bertie.finetuning.finetune import finetune
from bertie.finetuning.recipe import FinetuneConfig
from finetune_settings import SETTINGS, WARMUP, Setting
from results import Results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--who", choices=["bertie", "transformers", "same-start"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--whole", action="store_true", help="use all training and dev examples")
    parser.add_argument(
        "--precision", choices=["fp32", "bf16"], default="fp32", help="of bertie; that of the peer is fp32"
    )
    parser.add_argument("--work", type=Path, help="folder for bertie's runs, TASK-SEED; stopped ones resume")
    args = parser.parse_args()
    if args.precision != "fp32" and args.who != "bertie":
        parser.error("--precision applies to bertie only: the peer computes in fp32")
    results = Results(args.out, args.model, runtime.use_threads())
    for task in args.tasks:
        setting = replace(SETTINGS[task], examples=0, dev_examples=0) if args.whole else SETTINGS[task]
        base, train, dev = examples(setting, args.data)
        for seed in args.seeds:

            def measure(task=task, base=base, setting=setting, train=train, dev=dev, seed=seed) -> dict[str, float]:
                started = time.monotonic()
                if args.who == "bertie":
                    run = args.work / f"{task}-{seed}" if args.work else None
                    settings = settings_of(base, setting, seed, args.precision)
                    scores = finetune(settings, train, read_checkpoint(args.model), run, dev=dev).scores
                else:
                    import finetune_transformers

                    scores = finetune_transformers.run(args.model, setting, train, dev, seed, args.who == "same-start")
                return {"score": scores[setting.metric], "seconds": round(time.monotonic() - started, 1)}

            key = f"{task}/{args.who}/seed {seed}"
            print(key, results.measure(key, setting, measure), flush=True)


def examples(setting: Setting, data: Path) -> tuple[FinetuneConfig, list[Any], list[Any]]:
    base = config.load(FinetuneConfig, setting.kind, "finetune")
    train, dev = (valid_examples(base.task.reader.read(data / name), name) for name in (setting.train, setting.dev))
    return base, random_subset(train, setting.examples), random_subset(dev, setting.dev_examples)


def random_subset(found: list[Any], most: int) -> list[Any]:
    order = seeding.generator(0, seeding.SUBSET).permutation(len(found))
    return [found[i] for i in order[: most or len(found)]]


def settings_of(base: FinetuneConfig, setting: Setting, seed: int, precision: runtime.Precision) -> FinetuneConfig:
    training = replace(
        base.training,
        epochs=setting.epochs,
        learning_rate=setting.learning_rate,
        batch_size=setting.batch_size,
        precision=precision,
    )
    schedule = replace(base.schedule, warmup=WARMUP)
    return replace(base, training=training, schedule=schedule, seed=seed, max_length=setting.max_length)


if __name__ == "__main__":
    main()
