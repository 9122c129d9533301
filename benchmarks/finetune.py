"""Speed of fine-tuning: bertie and the Trainer of transformers.

    pip install accelerate   # required by the Trainer
    python benchmarks/finetune.py MODEL GLUE --out benchmarks/results/finetune.json [--size base] [--tasks sst2 mrpc]
        [--precisions fp32 bf16] [--steps 8] [--rounds 5]

Both sides train on the same examples, batches and epochs with dropout 0.1, alternating in one process. MODEL provides
the vocabulary, and also size and weights unless --size names a shipped configuration. A round is one epoch of --steps
batches of 32 GLUE examples, with other examples in each round. The first two steps do not count. The Trainer is
measured twice: with batches padded to their longest sequence, and padded to 128 tokens, the default of transformers'
run_glue.py. Reading, tokenization and loading of the model do not count for either side. Prints medians, and ratios to
bertie in the precision that is faster on this machine. OMP_NUM_THREADS sets the threads. On a machine with a GPU, both
sides use it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import torch
import transformers

from bertie.base import config, runtime, storage
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import read_checkpoint
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.texts import Example, LabeledTexts
from bertie.finetuning.finetune import finetune
from bertie.finetuning.recipe import FinetuneConfig
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.training.run_folder import read_metrics
from results import environment

FILES = {"sst2": "SST-2/train.tsv", "mrpc": "MRPC/train.tsv"}
BATCH, LONGEST, RATE, WARM = 32, 128, 5e-5, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("glue", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", help="base, small, …: random weights in this size")
    parser.add_argument("--tasks", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    threads = runtime.use_threads()
    found: dict[str, Any] = storage.read_json(args.out) if args.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        model = sized(args.model, args.size, Path(folder) / "start") if args.size else args.model
        for task in args.tasks:
            examples = valid_examples(Reader(LabeledTexts()).read(args.glue / FILES[task]), task)
            seconds = rounds(model, examples, args.precisions, args.steps, args.rounds)
            name = f"{args.size or args.model.name} {task}"
            found[name] = {"environment": environment(threads), "transformers": transformers.__version__}
            found[name] |= {"batch": BATCH, "steps": args.steps, "seconds_a_step": seconds}
            storage.write_json(args.out, found)
            print(f"{name}\n{summary(seconds)}", flush=True)


def sized(vocabulary: Path, size: str, folder: Path) -> Path:
    """Write a checkpoint of random weights."""
    tokenizer = read_checkpoint(vocabulary).tokenizer
    recipe = with_vocab_size(config.load(PretrainConfig, size, "pretrain"), tokenizer)
    folder.mkdir()
    write_model(folder, new_model(recipe.model, recipe.objectives, recipe.seed), tokenizer)
    return folder


def rounds(model: Path, examples: list[Any], precisions: list[str], steps: int, count: int) -> dict[str, list[float]]:
    sides: dict[str, Callable[[list[Example], int], float]] = {}
    for precision in precisions:
        sides[f"bertie {precision}"] = lambda part, seed, p=precision: ours(model, part, p, seed)
        sides[f"transformers {precision}"] = lambda part, seed, p=precision: theirs(model, part, p, seed, "longest")
        sides[f"transformers {precision}, to 128"] = lambda part, seed, p=precision: theirs(
            model, part, p, seed, "max_length"
        )
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    size = steps * BATCH
    for number in range(count):
        part = examples[number * size : (number + 1) * size]
        for side, work in sides.items():
            seconds[side].append(work(part, number))
    return seconds


def ours(model: Path, examples: list[Example], precision: Any, seed: int) -> float:
    base = config.load(FinetuneConfig, "classify", "finetune")
    training = replace(base.training, epochs=1, batch_size=BATCH, learning_rate=RATE, precision=precision)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = replace(base, training=training, max_length=LONGEST, seed=seed)
        finetune(settings, examples, model, run, dev=examples[:BATCH])
        ends = [record["seconds"] for record in read_metrics(run, "train")]
    return (ends[-1] - ends[WARM - 1]) / (len(ends) - WARM)


class Clock(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def theirs(model: Path, examples: list[Example], precision: str, seed: int, padding: str) -> float:
    labels = sorted({str(example.label) for example in examples})
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    texts = [[example.text for example in examples]]
    texts += [[example.text_pair for example in examples]] if examples[0].text_pair is not None else []
    found = tokenizer(*texts, truncation=True, max_length=LONGEST)
    rows = datasets.Dataset.from_dict({**found, "labels": [labels.index(str(example.label)) for example in examples]})
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model=transformers.AutoModelForSequenceClassification.from_pretrained(
                model, num_labels=len(labels), **dropout
            ),
            args=transformers.TrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                per_device_train_batch_size=BATCH,
                learning_rate=RATE,
                warmup_steps=0.1,
                bf16=precision == "bf16",
                use_cpu=not torch.cuda.is_available(),
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=seed,
            ),
            train_dataset=rows,  # pyright: ignore[reportArgumentType]  (as in the examples of transformers)
            data_collator=transformers.DataCollatorWithPadding(tokenizer, padding=padding, max_length=LONGEST),
            callbacks=[clock],
        )
        trainer.train()
    return (clock.ends[-1] - clock.ends[WARM - 1]) / (len(clock.ends) - WARM)


def summary(seconds: dict[str, list[float]]) -> str:
    """One line per side: seconds per step, and the ratio to bertie in its faster precision, over the rounds."""
    best = min((side for side in seconds if side.startswith("bertie")), key=lambda side: median(seconds[side]))
    lines = []
    for side, values in seconds.items():
        ratios = sorted(value / own for value, own in zip(values, seconds[best], strict=True))
        ratio = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(f"  {side:28} {median(values):.3f} s per step, ratio to {best}: {ratio}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
