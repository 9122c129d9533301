"""Memory of a pre-training step: bertie and transformers, in fp32, without weights, gradients and optimizer state.

    python benchmarks/pretrain_memory.py SHARDS --out benchmarks/results/pretrain_memory.json [--sizes mini base]

Each side runs the same steps in its own process, with the paper's dropout and the same number of tokens. The result is
the peak resident size of the process, minus its size after reading the data and warming up torch, minus 16 bytes per
parameter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from bertie.base import runtime, storage
from bertie.model.config import TransformerConfig
from bertie.pretraining.initial_weights import new_model
from pretrain_speed import BATCH, feed, stepper, their_stepper
from results import environment

STEPS, BYTES = 4, 16  # bytes per parameter: weight, gradient and two moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", nargs="+", default=["mini", "base"], choices=list(BATCH))
    parser.add_argument("--who", choices=["bertie", "transformers"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.who:
        [size] = args.sizes
        print(json.dumps(above(size, args.who, args.shards)))
        return
    results: dict[str, Any] = {"environment": environment(runtime.use_threads())}
    for size in args.sizes:
        taken = {}
        for who in ("bertie", "transformers"):
            command = [sys.executable, __file__, str(args.shards), "--sizes", size, "--who", who]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            taken[who] = json.loads(done.stdout.splitlines()[-1])
        results[size] = {"tokens": BATCH[size] * 128, **taken, "ratio": taken["bertie"] / taken["transformers"]}
        print(size, results[size], flush=True)
        if args.out:
            storage.write_json(args.out, results)


def above(size: str, who: Literal["bertie", "transformers"], shards: Path) -> int:
    """Return the bytes of one side."""
    if who == "bertie":
        runtime.use_threads()  # it also changes how glibc frees memory, so the peer runs without it
    recipe, steps = feed(size, shards)
    assert isinstance(recipe.model, TransformerConfig)
    work = list(islice(steps, STEPS))
    torch.nn.functional.linear(torch.ones(512, 512), torch.ones(512, 512))
    before = _resident()
    if who == "bertie":
        step = stepper(new_model(recipe.model, recipe.objectives, 0).train(), "fp32")
    else:
        step = their_stepper(recipe.model, "fp32", 128)
    for each in work:
        step(each)
    with torch.device("meta"):
        parameters = new_model(recipe.model, recipe.objectives, 0).size
    return runtime.peak_memory() - before - BYTES * parameters


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
