"""Speed and memory of pre-training on a GPU: bertie and transformers. Not yet run to its end on a GPU.

    python benchmarks/gpu_speed.py SHARDS --out benchmarks/results/gpu_speed.json [--cases base-128 large-512] [--rounds 5]

A case is a model size and a sequence length. Both sides process the same sequences in bf16, alternating, with as many
rows per forward pass as fit. bertie runs with compiled layers, with and without the paper's dropout. BertForPreTraining
of transformers runs padded to the length, with sdpa and fused AdamW, both uncompiled and compiled. Each round times
several steps between two synchronizations. FLOPs are those of bertie/model/flops.py (6 × n·k·m for every required
matrix product) for both sides, so padding does not count.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers

from bertie import config, runtime, storage
from bertie.batches.loader import Position, Step
from bertie.model.config import TransformerConfig
from bertie.model.flops import training_flops
from bertie.pretraining.compile_layers import compile_if_possible
from bertie.pretraining.feed import Feed
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.text.shards import open_shards
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.memory import rows_that_fit
from pretrain_speed import spread, stepper, their_stepper
from results import environment

ROW, STEPS = 4096, 5
CASES = {"base-128": ("base", 128), "large-128": ("large", 128), "base-512": ("base", 512), "large-512": ("large", 512)}
# Dense bf16 FLOPS without sparsity, from NVIDIA's data sheets (the SXM variant if there are several).
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "4090": 165e12}


@dataclass(frozen=True)
class Figures:
    """Results of one case. Lists are [lowest, median, highest] over the rounds.

    memory: peak bytes during a step, minus the bytes allocated between steps.
    """

    micro_batch: int
    tokens_per_second: list[float]
    share_of_peak: list[float] | None  # None: unknown peak of the GPU
    share_of_measured_rate: list[float]
    against_transformers: list[float]
    memory: int
    seconds_to_compile: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=["base-128", "large-512"], choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    results: dict[str, Any] = {"environment": environment(0), "transformers": transformers.__version__}
    for case in args.cases:
        for dropout in (0.0, 0.1):
            found = measure(*CASES[case], dropout, args.shards, args.rounds)
            results[f"{case} dropout {dropout}"] = {name: asdict(figures) for name, figures in found.items()}
            print(case, dropout, found, flush=True)
            storage.write_json(args.out, results)


def measure(size: str, length: int, dropout: float, shards: Path, rounds: int) -> dict[str, Figures]:
    """Measure bertie, and transformers uncompiled and compiled."""
    recipe, work, rows, compiling, ours = prepare(size, length, dropout, shards, rounds)
    assert isinstance(recipe.model, TransformerConfig)
    runs: dict[str, Callable[[Step], None]] = {"bertie": ours}
    runs["transformers"] = their_stepper(recipe.model, "bf16", length, wait=False)
    runs["transformers compiled"] = their_stepper(recipe.model, "bf16", length, wait=False, compiled=True)
    memory, times = dict.fromkeys(runs, 0), {name: [] for name in runs}
    for number in range(rounds + 1):
        steps = work[number * STEPS : (number + 1) * STEPS]
        for name, run in runs.items():
            torch.cuda.reset_peak_memory_stats()
            allocated = torch.cuda.memory_allocated()
            times[name].append(timed(run, steps))
            memory[name] = max(memory[name], torch.cuda.max_memory_allocated() - allocated)
    parts = [work[number * STEPS : (number + 1) * STEPS] for number in range(1, rounds + 1)]  # the first round warms up
    flops = [
        sum(training_flops(recipe.model, micro) for step in part for micro in step.micro_batches) for part in parts
    ]
    tokens = [sum(micro.tokens for step in part for micro in step.micro_batches) for part in parts]
    peak = next((value for name, value in PEAKS.items() if name in torch.cuda.get_device_name()), None)
    rate = runtime.matrix_rate("bf16", runtime.device())
    found = {}
    for name in runs:
        taken = times[name][1:]
        done = [f / t for f, t in zip(flops, taken, strict=True)]
        found[name] = Figures(
            rows,
            spread([n / t for n, t in zip(tokens, taken, strict=True)]),
            spread([value / peak for value in done]) if peak else None,
            spread([value / rate for value in done]),
            spread([b / a for a, b in zip(taken, times["transformers"][1:], strict=True)]),
            memory[name],
            compiling if name == "bertie" else 0.0,
        )
    del runs, ours
    gc.collect()
    torch.cuda.empty_cache()
    return found


def prepare(
    size: str, length: int, dropout: float, shards: Path, rounds: int
) -> tuple[PretrainConfig, list[Step], int, float, Callable[[Step], None]]:
    """Return the recipe, steps of one forward pass, rows per pass, seconds of compilation, and bertie's stepper."""
    recipe, opened = config.load(PretrainConfig, f"{size}-paper", "pretrain"), open_shards(shards)
    model = replace(recipe.model, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    layout = replace(recipe.layout, max_length=length)
    training = replace(recipe.training, batch_size=64 * ROW // length, row_tokens=ROW)
    recipe = with_vocab_size(
        replace(recipe, model=model, layout=layout, training=training, phases=()), opened.tokenizer
    )
    feed = Feed(recipe.resolved_phases, opened, recipe.objectives, 0, 1, 0, SINGLE_PROCESS)
    made = new_model(recipe.model, recipe.objectives, 0).to(runtime.device()).train()
    # A sixth of what fits: transformers, which pads and computes logits for every token, shares the memory.
    rows = max(1, rows_that_fit(made, recipe.optimizer.build(made), feed.samples(), "bf16", feed.ranks) // 6)
    recipe = replace(recipe, training=replace(training, batch_size=rows * ROW // length))
    feed = replace(feed, phases=recipe.resolved_phases, micro_batch=rows)
    started = time.perf_counter()
    compile_if_possible(made, feed, "bf16")
    torch.cuda.synchronize()
    compiling = time.perf_counter() - started
    work = list(islice(feed.steps(0, Position()), (rounds + 1) * STEPS))
    return recipe, work, rows, compiling, stepper(made, "bf16", wait=False)


def timed(run: Callable[[Step], None], steps: list[Step]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for step in steps:
        run(step)
    torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
