"""Where a pre-training step on a CPU spends its time: every operator, and the step beside its bare matrix products.

    OMP_NUM_THREADS=1 python benchmarks/pretrain_profile.py SHARDS --out mini-bf16.json [--size mini] [--precision bf16]

First, new steps and the bare products of `pretrain_speed.py` alternate, without a profiler; the share of the products is the
ratio of the two in a round: lowest, median and highest. Then one step is profiled repeatedly. Of each operator the file has
the fastest time, since other work on the machine only adds. All times are milliseconds of processor time, without what an
operator's own calls take.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bertie.base import runtime, storage
from bertie.model.config import TransformerConfig
from bertie.model.flops import model_flops
from bertie.pretraining.initial_weights import new_model
from pretrain_speed import BATCH, bare_products, feed, spread, stepper
from results import environment

WARMUP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="mini", choices=list(BATCH))
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    threads = runtime.use_threads()
    recipe, steps = feed(args.size, args.shards)
    assert isinstance(recipe.model, TransformerConfig)
    work = list(islice(steps, WARMUP + args.rounds))
    step = stepper(new_model(recipe.model, recipe.objectives, 0).train(), args.precision)
    [micro] = work[0].micro_batches
    bare = bare_products(recipe.model, micro, args.precision)
    rounds = [(processor_ms(partial(step, one)), processor_ms(bare)) for one in work][WARMUP:]
    gigaflops = model_flops(new_model(recipe.model, recipe.objectives, 0), micro) / 1e9
    ours, products = (median(times) for times in zip(*rounds, strict=True))
    found: dict[str, Any] = {
        "environment": environment(threads),
        "step_ms": ours,
        "bare_products_ms": products,
        "share_of_bare_products": spread([b / a for a, b in rounds]),
        "gflops": {"step": 1e3 * gigaflops / ours, "bare_products": 1e3 * gigaflops / products},
        "matrix_gflops": runtime.matrix_rate(args.precision, torch.device("cpu")) / 1e9,
        "operators": operators(partial(step, work[-1]), args.rounds),
    }
    storage.write_json(args.out, found)
    print({name: value for name, value in found.items() if name not in ("environment", "operators")})
    for name, value in list(found["operators"].items())[:25]:
        print(f"{value['ms']:8.2f} ms  {value['calls']:5}  {name}")


def processor_ms(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


def operators(step: Callable[[], object], rounds: int) -> dict[str, dict[str, float]]:
    """Return calls and milliseconds of each operator in one step, the slowest first."""
    best: dict[tuple[str, str], tuple[float, int]] = {}
    for _ in range(rounds):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
            step()
        for event in recorded.key_averages(group_by_input_shape=True):
            key = (event.key, str(event.input_shapes))
            best[key] = min(best.get(key, (float("inf"), 0)), (event.self_cpu_time_total / 1e3, event.count))
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for (name, _), (ms, calls) in best.items():
        sums[name][0] += ms
        sums[name][1] += calls
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return {name: {"ms": round(ms, 3), "calls": calls} for name, (ms, calls) in ordered}


if __name__ == "__main__":
    main()
