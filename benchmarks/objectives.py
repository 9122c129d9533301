"""The cost of a pre-training step by objective, relative to a step of masked LM.

    OMP_NUM_THREADS=1 python benchmarks/objectives.py SHARDS --out benchmarks/results/objectives.json [--rounds 7]

Each recipe trains on rows of the same number of tokens, in fp32, without dropout. Each round times one step of every recipe in
turn, in processor time. `time` is the ratio to the step of `mini` in the same round: lowest, median, highest. `operations` is
the ratio of the matrix products, and `excess` the ratio of the two: an excess of 1 costs what its operations cost. The teacher
of `mini-distil` is `mini` with random weights.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base import config, runtime, storage
from bertie.batches.loader import Position, Step
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import read_checkpoint
from bertie.corpus.shards import open_shards
from bertie.model.encoder import spell_entries
from bertie.model.flops import model_flops
from bertie.pretraining.feed import Feed
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.training.distributed import SINGLE_PROCESS
from pretrain_speed import spread, stepper
from results import environment

ROW_TOKENS = 4096
REFERENCE = "mini"


class Run(NamedTuple):
    """A recipe that is ready to train."""

    step: Callable[[Step], None]
    work: list[Step]
    flops: float  # of the matrix products of all steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    recipes = [name for name in config.shipped("pretrain") if name.startswith("mini") and not name.endswith("-paper")]
    usual = [name for name in recipes if name != "mini-xlm"]  # its shards have languages
    parser.add_argument("--recipes", nargs="+", default=usual, choices=recipes)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    threads = runtime.use_threads()
    names = [REFERENCE, *(name for name in args.recipes if name != REFERENCE)]
    runs = {name: prepare(name, args.shards, args.rounds + 1) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(args.rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run.step(run.work[number])
            times[name].append(time.process_time() - start)
    found: dict[str, Any] = {"environment": environment(threads), "tokens": ROW_TOKENS}
    for name in names:
        ratios = [own / other for own, other in zip(times[name][1:], times[REFERENCE][1:], strict=True)]
        share = runs[name].flops / runs[REFERENCE].flops
        excess = spread([ratio / share for ratio in ratios])
        found[name] = {"time": spread(ratios), "operations": round(share, 3), "excess": excess}
        print(name, found[name], flush=True)
    storage.write_json(args.out, found)


def load(name: str) -> PretrainConfig:
    """Load a recipe with one row per step and without dropout."""
    recipe = config.load(PretrainConfig, name, "pretrain")
    size = ROW_TOKENS // recipe.layout.max_length
    return replace(recipe, training=replace(recipe.training, batch_size=size, row_tokens=ROW_TOKENS), phases=())


def prepare(name: str, shards: Path, steps: int) -> Run:
    """Build the model of a recipe and the data of `steps` steps."""
    opened = open_shards(shards)
    recipe = with_vocab_size(load(name), opened.tokenizer)
    feed = Feed(recipe.resolved_phases, opened, recipe.objectives, 0, 1, 0, SINGLE_PROCESS, recipe.length())
    teacher = None
    if any(objective.kind == "distil" for objective in recipe.objectives):
        mini = with_vocab_size(load(REFERENCE), opened.tokenizer)
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), new_model(mini.model, mini.objectives, 0), opened.tokenizer)
            teacher = read_checkpoint(folder)
    model = new_model(recipe.model, recipe.objectives, 0, teacher=teacher).train()
    spell_entries(model.encoder, opened.tokenizer)
    weights = {objective.kind: objective.weight for objective in recipe.objectives}
    work = list(islice(feed.steps(0, Position()), steps))
    flops = sum(model_flops(model, micro) for step in work for micro in step.micro_batches)
    return Run(stepper(model, "fp32", weights=weights), work, flops)


if __name__ == "__main__":
    main()
