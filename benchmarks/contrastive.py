"""Time and memory of a contrastive step: bertie's parts beside one part, and beside sentence-transformers' cached loss.

    python benchmarks/contrastive.py PAIRS.jsonl MODEL --threads 2
    python benchmarks/contrastive.py PAIRS.jsonl MODEL --memory 1024

The file has lines with "query" and "positive". A step is the loss and the gradients of 64 pairs, whose texts are cut at 256
tokens, without an update. All ways take turns in each round; the table has the median of the rounds. sentence-transformers gets
several sizes of mini-batches, and its texts sorted by length. With --memory: one step of so many pairs of 256 tokens each, and
the peak memory of the process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertie.base import runtime
from bertie.base.contracts import Sequence
from bertie.checkpoints.read import read_checkpoint
from bertie.finetuning.micro_batches import MicroBatcher
from bertie.finetuning.recipe import read_recipe
from bertie.finetuning.single_run import initialized_model
from bertie.tasks.known_positives import with_relation
from bertie.tasks.scoring import training_examples

LENGTH = 256


def bertie_step(source: str, pairs: list[Any], row_tokens: int) -> Callable[[], float]:
    checkpoint = read_checkpoint(source)
    training = {"row_tokens": row_tokens, "batch_size": len(pairs)}
    config = read_recipe({"extends": "embed", "max_length": LENGTH, "training": training, "hidden_dropout_prob": 0.1})
    task, examples = training_examples(config.task, pairs)
    task = task.of_model(None, "").fit(examples)
    units = task.training_units(task.encode(examples, checkpoint.tokenizer, LENGTH))
    return _step(initialized_model(config, task, checkpoint)[0], MicroBatcher(config, task, 0, "first", 1), units)


def _step(model: Any, batcher: MicroBatcher, units: list[list[Sequence]]) -> Callable[[], float]:
    model.train()

    def step() -> float:
        model.zero_grad()
        loss = model(batcher.compared(units).tensors())["embed"]
        (loss.total / loss.count).backward()
        return float(loss.total.detach() / loss.count)

    return step


def peers_step(source: str, pairs: list[Any], **mini_batch: Any) -> Callable[[], float]:
    import sentence_transformers

    library: Any = sentence_transformers

    model = library.SentenceTransformer(source, device="cpu")
    model.max_seq_length = LENGTH
    model.train()
    loss = importlib.import_module(
        "sentence_transformers.sentence_transformer.losses"
    ).CachedMultipleNegativesRankingLoss(model, **mini_batch)
    ordered = sorted(pairs, key=lambda pair: len(pair[1]))
    sides: Any = [model.tokenize([pair[side] for pair in ordered]) for side in (0, 1)]

    def step() -> float:
        model.zero_grad()
        value = loss(sides, torch.zeros(0))
        value.backward()
        return float(value.detach())

    return step


def memory(source: str, count: int, row_tokens: int) -> None:
    rng = np.random.default_rng(0)
    checkpoint = read_checkpoint(source)
    config = read_recipe(
        {"extends": "embed", "max_length": LENGTH, "training": {"batch_size": count, "row_tokens": row_tokens}}
    )
    task: Any = config.task

    def text(number: int, part: int) -> Sequence:
        ids = rng.integers(1000, 20000, LENGTH).astype(np.int32)
        return Sequence(ids, np.zeros_like(ids), ids > 0, example=number, part=part)

    units = task.training_units(with_relation([text(number, part) for number in range(count) for part in (0, 1)]))
    step = _step(initialized_model(config, task, checkpoint)[0], MicroBatcher(config, task, 0, "first", 1), units)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, time.monotonic()
    step()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{count} pairs of {LENGTH} tokens: {after:.2f} GB, {before:.2f} before; {time.monotonic() - started:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--row-tokens", type=int, default=4096)
    args = parser.parse_args()
    runtime.use_threads(args.threads)
    if args.memory:
        memory(args.model, args.memory, args.row_tokens)
        return
    rows = [json.loads(line) for line in args.pairs.read_text(encoding="utf-8").splitlines()]
    chosen = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:64]]
    pairs = [(row["query"], row["positive"]) for row in chosen]
    ways = {
        f"bertie, parts of {size:,} tokens": bertie_step(args.model, pairs, size)
        for size in (1 << 20, 8192, 4096, 2048)
    }
    for mini in (
        {"mini_batch_size": 8},
        {"mini_batch_size": 16},
        {"mini_batch_size": 32},
        {"mini_batch_num_tokens": 4096},
    ):
        ways[f"sentence-transformers, {mini}"] = peers_step(args.model, pairs, **mini)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses = {name: step() for name, step in ways.items()}
    for _ in range(args.rounds):
        for name, step in ways.items():
            started = time.monotonic()
            step()
            seconds[name].append(time.monotonic() - started)
    first = statistics.median(next(iter(seconds.values())))
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:<60} {median:7.3f} s  {median / first:5.2f}  loss {losses[name]:.4f}")


if __name__ == "__main__":
    main()
