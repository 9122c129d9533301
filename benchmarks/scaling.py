"""Held-out masked-LM loss of the modern recipes by size, number of tokens and batch size.

    python benchmarks/scaling.py SHARDS --work FOLDER [--recipes modern-tiny modern-mini] [--threads 1] [--out FILE]

Trains each run of `RUNS` from the start, with its own schedule, so that every point is the end of a complete run: a point
in the middle of a longer run would have a higher learning rate, and a higher loss. The loss is that of BERT's masks (15 %,
80/10/10) on held-out sequences of one document, as in speedrun.py. A stopped benchmark resumes.

`bertie plan` expects losses from these points, so FILE is part of the package. SHARDS: the Simple English Wikipedia,
prepared with a vocabulary of 30,000 entries.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import bertie
from bertie.base import config, runtime, storage
from bertie.corpus.shards import open_shards
from bertie.model.config import TransformerConfig
from bertie.pretraining import scaling
from bertie.pretraining.recipe import PretrainConfig
from results import environment
from speedrun import held_out_loss


class Run(NamedTuple):
    """A run of the grid."""

    recipe: str
    batch_size: int
    """Sequences of 128 tokens per step."""
    tokens: int


STEP = 16 * 128  # tokens of a step of the smaller modern recipes
TOKENS = {
    "modern-tiny": [250 * STEP * 2**n for n in range(5)],
    "modern-mini": [250 * STEP * 2**n for n in range(4)],
    "modern-small": [250 * STEP * 2**n for n in range(2)],
}
RUNS = [Run(recipe, 16, tokens) for recipe, amounts in TOKENS.items() for tokens in amounts]
RUNS += [Run("modern-tiny", batch, 500 * STEP) for batch in (8, 32)]
RUNS += [Run("modern-tiny", 32, 4000 * STEP)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=list(TOKENS))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, default=scaling.OWN)
    args = parser.parse_args()
    for run in RUNS:
        if run.recipe in args.recipes:
            measure(run, args.shards, args.work, args.threads)
    points = [json.loads(path.read_text()) for path in sorted(args.work.glob("*.json"))]
    storage.write_json(args.out, {"environment": environment(runtime.use_threads()), "points": points})
    for point in points:
        print(point)


def measure(run: Run, folder: Path, work: Path, threads: int) -> None:
    """Train one model, and write its loss to WORK/RECIPE-BATCH-TOKENS.json."""
    name = f"{run.recipe}-{run.batch_size}-{run.tokens}"
    if (work / f"{name}.json").exists():
        return
    recipe = config.load(PretrainConfig, {"extends": run.recipe, **changes(run)}, "pretrain")
    result = bertie.pretrain(recipe, folder, work / name, threads=threads)
    shards = open_shards(folder)
    loss = held_out_loss(work / name, shards, "documents")
    assert isinstance(recipe.model, TransformerConfig)
    parameters = scaling.layer_parameters(recipe.model)
    storage.write_json(
        work / f"{name}.json",
        {**run._asdict(), "parameters": parameters, "loss": loss, "unigram_loss": shards.unigram_loss},
    )
    print(name, loss, result["eval"], flush=True)


def changes(run: Run) -> dict[str, Any]:
    """Return the settings in which a run differs from its recipe."""
    steps = run.tokens // (run.batch_size * 128)
    training = {"steps": steps, "batch_size": run.batch_size, "eval_every": steps, "checkpoint_every": steps}
    return {"training": training}


if __name__ == "__main__":
    main()
