"""Speed of pre-training: bertie, transformers, and the bare matrix products of a step.

    python benchmarks/pretrain_speed.py SHARDS --out benchmarks/results/pretrain_speed.json [--sizes mini base] [--rounds 5]

Speed is in tokens per second, without padding, on the same sequences. Each round times, in turn, a step of bertie, a
step of BertForPreTraining of transformers (padded to 128, sdpa, fused AdamW), and the bare matrix products of bertie's
step (forward pass, gradients of inputs and of weights), in each precision. Both sides have the paper's dropout. Ratios
are computed per round; medians and extremes are written. OMP_NUM_THREADS sets the threads.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
import transformers
from torch import Tensor

from bertie.base import config, runtime, storage
from bertie.base.contracts import FILLER, MicroBatch
from bertie.batches.loader import Position, Step
from bertie.corpus.shards import open_shards
from bertie.model.config import TransformerConfig
from bertie.model.model import Model
from bertie.pretraining.feed import Feed
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.length import StepCount
from bertie.training.loop import LoopSettings, train_steps
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay
from results import environment

BATCH = {"tiny": 32, "mini": 32, "small": 16, "medium": 16, "base": 16, "large": 8}  # × 128 tokens
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Figures:
    """Results of one size and precision. Ratios are [lowest, median, highest] over the rounds."""

    tokens: int
    ours: float  # median tokens per second
    theirs: float
    against_transformers: list[float]
    share_of_bare_products: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", default=["mini", "base"], choices=list(BATCH))
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    threads = runtime.use_threads()
    results: dict[str, Any] = {"environment": environment(threads), "transformers": transformers.__version__}
    for size in args.sizes:
        for precision in args.precisions:
            figures = measure(size, precision, args.shards, args.rounds)
            results[f"{size} {precision}"] = asdict(figures)
            print(size, precision, figures, flush=True)
            storage.write_json(args.out, results)


def measure(size: str, precision: Precision, shards: Path, rounds: int) -> Figures:
    recipe, steps = feed(size, shards)
    assert isinstance(recipe.model, TransformerConfig)
    work = list(islice(steps, rounds + 1))
    ours = stepper(new_model(recipe.model, recipe.objectives, 0).train(), precision)
    theirs = their_stepper(recipe.model, precision, 128)
    [micro] = work[0].micro_batches
    bare = bare_products(recipe.model, micro, precision)
    times: list[tuple[float, float, float]] = []
    for step in work:
        times.append((timed(partial(ours, step)), timed(partial(theirs, step)), timed(bare)))
    times = times[1:]  # the first warms up
    tokens = [micro.tokens for step in work[1:] for micro in step.micro_batches]
    speeds = [[t / seconds[i] for t, seconds in zip(tokens, times, strict=True)] for i in (0, 1)]
    gc.collect()
    return Figures(
        tokens[0],
        median(speeds[0]),
        median(speeds[1]),
        spread([b / a for a, b, _ in times]),
        spread([c / a for a, _, c in times]),
    )


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: list[float]) -> list[float]:
    return [round(value, 3) for value in (min(values), median(values), max(values))]


def feed(size: str, shards: Path) -> tuple[PretrainConfig, Iterator[Step]]:
    """Steps of one row, by the paper's recipe but for its batch."""
    recipe = config.load(PretrainConfig, f"{size}-paper", "pretrain")
    opened = open_shards(shards)
    training = replace(recipe.training, batch_size=BATCH[size], row_tokens=BATCH[size] * 128)
    recipe = with_vocab_size(replace(recipe, training=training, phases=()), opened.tokenizer)
    made = Feed(recipe.resolved_phases, opened, recipe.objectives, 0, 1, 0, SINGLE_PROCESS, recipe.length())
    return recipe, made.steps(0, Position())


def stepper(
    model: Model, precision: Precision, wait: bool = True, weights: dict[str, float] | None = None
) -> Callable[[Step], None]:
    """Return a function that runs one step of bertie. wait: until the step is finished. weights: of the losses."""
    waiting: list[Step] = []
    weights = weights or {"mlm": 1.0, "nsp": 1.0}
    settings = LoopSettings(StepCount(10_000), 1e-4, 1.0, 0, precision, weights, constant_tokens=True)
    loop = train_steps(model, iter(waiting.pop, None), AdamW().build(model), LinearDecay(), settings)

    def step(work: Step) -> None:
        waiting.append(work)
        progress = next(loop)
        if wait:
            float(progress.grad_norm)

    return step


def their_stepper(
    size: TransformerConfig, precision: Precision, length: int, wait: bool = True, compiled: bool = False
) -> Callable[[Step], None]:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    names += ("hidden_dropout_prob", "attention_probs_dropout_prob")
    settings = transformers.BertConfig(**{name: getattr(size, name) for name in names})
    device = runtime.device()
    model = transformers.BertForPreTraining(settings).train()
    torch.nn.Module.to(model, device)
    forward = torch.compile(model) if compiled else model

    def loss(work: Step) -> Tensor:
        return forward(**{name: value.to(device) for name, value in padded(work.micro_batches[0], length).items()}).loss

    return plain_stepper(list(model.parameters()), loss, precision, wait)


def plain_stepper(
    parameters: list[torch.nn.Parameter], loss: Callable[[Step], Tensor], precision: Precision, wait: bool = True
) -> Callable[[Step], None]:
    """Return a function that runs one step of a plain training loop: autocast, gradient clipping, fused AdamW."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

    def step(work: Step) -> None:
        products = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # torch's default, which bertie changes on some processors
        with runtime.autocast(precision, runtime.device()):
            total = loss(work)
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if wait:
            float(norm)
        torch.set_float32_matmul_precision(products)

    return step


def padded(micro: MicroBatch, length: int) -> dict[str, Tensor]:
    """Convert sequences and targets to the padded tensors of transformers: [S, length]."""
    batch = micro.batch
    pair_label = batch.pair_label[batch.example != FILLER]
    return {
        "input_ids": grid(micro, batch.input_ids, length),
        "token_type_ids": grid(micro, batch.token_type_ids, length),
        "attention_mask": grid(micro, np.ones_like(batch.input_ids), length),
        "labels": grid(micro, masked_labels(micro), length, -100),
        "next_sentence_label": torch.from_numpy(np.where(pair_label >= 0, pair_label, -100)).long(),
    }


def masked_labels(micro: MicroBatch) -> np.ndarray:
    """Return the original tokens at the positions that masked language modeling predicts, and -100 elsewhere: [T]."""
    labels, mlm = np.full(len(micro.batch.input_ids), -100), micro.targets["mlm"]
    chosen = mlm.weight > 0
    labels[micro.rows[mlm.index[chosen]]] = mlm.label[chosen]
    return labels


def grid(micro: MicroBatch, values: np.ndarray, length: int, padding: int = 0) -> Tensor:
    """Lay out the values of the tokens, without filler, as [S, length]: int64, or the type of the values if it is not int32."""
    batch = micro.batch
    real, lengths = batch.example != FILLER, batch.ragged.lengths
    token = np.repeat(real, lengths)
    made = np.full((real.sum(), length), padding, np.int64 if values.dtype == np.int32 else values.dtype)
    made[np.repeat(np.arange(len(made)), lengths[real]), batch.position_ids[token]] = values[token]
    return torch.from_numpy(made)


def bare_products(size: TransformerConfig, micro: MicroBatch, precision: Precision) -> Callable[[], None]:
    """Return a function that runs only the matrix products of a step: [n, k] × [k, m] and its two gradients."""
    width, inner, vocabulary = size.hidden_size, size.intermediate_size, size.vocab_size
    tokens, rows, predicted = len(micro.batch.input_ids), len(micro.rows), len(micro.targets["mlm"].index)
    heads, longest = size.num_attention_heads, 128
    grids = len(micro.batch.example) * heads
    layer = [(tokens, width, 3 * width), (tokens, width, width), (tokens, width, inner), (tokens, inner, width)]
    last = [
        (tokens, width, 2 * width),
        (rows, width, width),
        (rows, width, width),
        (rows, width, inner),
        (rows, inner, width),
    ]
    head = [(predicted, width, width), (predicted, width, vocabulary)]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    linear = [*layer * (size.num_hidden_layers - 1), *last, *head]
    made: dict[tuple[int, int, int], tuple[Tensor, Tensor, Tensor]] = {
        (n, k, m): (torch.randn(n, k, dtype=dtype), torch.randn(m, k, dtype=dtype), torch.randn(n, m, dtype=dtype))
        for n, k, m in set(linear)
    }
    asked = -(-rows // len(micro.batch.example))  # queries of the last layer per sequence
    grid = [(longest, width // heads, longest)] * (size.num_hidden_layers - 1) + [(asked, width // heads, longest)]
    shapes = {(q, h, k): ((grids, q, h), (grids, k, h), (grids, q, k)) for q, h, k in set(grid)}
    cubes = {key: tuple(torch.randn(shape, dtype=dtype) for shape in three) for key, three in shapes.items()}

    def run() -> None:
        for key in linear:
            x, w, g = made[key]
            torch.nn.functional.linear(x, w)
            torch.matmul(g, w)
            torch.matmul(g.t(), x)
        for key in grid:
            q, k, s = cubes[key]
            for _ in range(2):  # scores; in the backward pass, gradients of attention weights
                torch.matmul(q, k.transpose(1, 2))
            for _ in range(2):  # outputs, and gradients of queries
                torch.matmul(s, k)
            for _ in range(2):  # gradients of keys and values
                torch.matmul(s.transpose(1, 2), q)

    return run


if __name__ == "__main__":
    main()
