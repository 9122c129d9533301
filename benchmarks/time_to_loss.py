"""Seconds until a held-out masked-LM loss is reached, `mini`, from process start with prepared shards: bertie, transformers.

    python benchmarks/time_to_loss.py SHARDS bertie --work FOLDER [--steps 4200]
    python benchmarks/time_to_loss.py SHARDS transformers --work FOLDER [--their-steps 12000]
    python benchmarks/time_to_loss.py SHARDS times --work FOLDER --out FILE.json [--same 100] [--rounds 15]

The first two train, and may be stopped when they are beyond the targets; the last measures, puts all together and prints a table.

The targets are the entropy of words in the held-out text − 1.0 and − 1.5 nats. bertie is `bertie pretrain mini` as it is
shipped. transformers is a plain loop over BertForPreTraining: sequences padded to 128, fused AdamW with the same betas and
decay, clipping, no dropout, BERT's own start, at the batch and rate that short runs found best for it (--batch-size,
--learning-rate).

What a step teaches does not depend on whose code computes it, and transformers takes hours. So its curve is computed by
bertie's engine from its recipe, and `times` shows that this is allowed: the losses of the first --same steps of the plain
loop are held against the engine's. There too each side's steps are timed in turn, in one process, in rounds of ten; medians
count. Held-out losses do not count as time, and transformers' start is taken as 0 seconds. OMP_NUM_THREADS sets the threads.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from bertie import config, runtime, storage
from bertie.batches.loader import Position, Step
from bertie.checkpoints.folder import write_model
from bertie.objectives import MaskedLM
from bertie.pretraining.feed import Feed
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.pretrain import pretrain
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.text.shards import Shards, open_shards
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.loop import LoopSettings, train_steps
from bertie.training.run_folder import read_metrics
from pretrain_speed import padded
from results import environment

BELOW_ENTROPY = (1.0, 1.5)
EVERY = 262_144  # tokens between evaluations
TOGETHER = 10  # steps that are timed as one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("what", choices=["bertie", "transformers", "times"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/time_to_loss.json"))
    parser.add_argument("--steps", type=int, default=4200)
    parser.add_argument("--their-steps", type=int, default=12_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--same", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    shards = open_shards(args.shards)
    sides = {"bertie": ours(args.steps), "transformers": theirs(args.their_steps, args.batch_size, args.learning_rate)}
    threads = runtime.use_threads()
    if args.what != "times":
        pretrain(sides[args.what], args.shards, args.work / args.what, threads=threads)
        return
    found: dict[str, Any] = {"environment": environment(threads), "transformers": transformers.__version__}
    found["entropy"] = shards.eval.unigram_entropy
    found["curves"] = {name: held_out(args.work / name) for name in sides}
    found |= times(sides, shards, args.shards, args.work, args.same, args.rounds)
    storage.write_json(args.out, found)
    print({name: value for name, value in found.items() if name not in ("environment", "curves")})
    print(table(found))


def ours(steps: int) -> PretrainConfig:
    return every_so_often(config.load(PretrainConfig, "mini", "pretrain"), steps=steps)


def theirs(steps: int, batch_size: int, learning_rate: float) -> PretrainConfig:
    recipe = config.load(PretrainConfig, "mini", "pretrain")
    start = [replace(o, initialization="random") if isinstance(o, MaskedLM) else o for o in recipe.objectives]
    sizes = {"batch_size": batch_size, "row_tokens": batch_size * 128, "learning_rate": learning_rate}
    return every_so_often(replace(recipe, objectives=tuple(start)), steps=steps, **sizes)


def every_so_often(recipe: PretrainConfig, **settings: Any) -> PretrainConfig:
    training = replace(recipe.training, precision="fp32", **settings)
    every = EVERY // (training.batch_size * 128)
    return replace(recipe, training=replace(training, eval_every=every, checkpoint_every=every))


def held_out(run: Path) -> list[dict[str, float]]:
    return [{name: record[name] for name in ("step", "tokens", "mlm_loss")} for record in read_metrics(run, "eval")]


def times(
    sides: dict[str, PretrainConfig], shards: Shards, folder: Path, work: Path, same: int, rounds: int
) -> dict[str, Any]:
    """Seconds a step, in turn; bertie's seconds before its first one; how far the losses are from those of the engine's run."""
    steppers, losses = {}, []
    for name, recipe in sides.items():
        recipe = with_vocab_size(recipe, shards.tokenizer)
        feed = Feed(recipe.resolved_phases, shards, recipe.objectives, 0, 1, 0, SINGLE_PROCESS).steps(0, Position())
        steppers[name] = our_steps(recipe, feed) if name == "bertie" else their_steps(recipe, feed, shards)
    for _ in range(same):
        losses.append(steppers["transformers"]())
    known = [record["loss"] for record in read_metrics(work / "transformers", "train")[:same]]
    away = max(abs(a - b) / b for a, b in zip(losses, known, strict=True))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):  # the first warms up
        for name, step in steppers.items():
            begun = time.perf_counter()
            for _ in range(TOGETHER):
                step()
            seconds[name].append((time.perf_counter() - begun) / TOGETHER)
    return {
        "losses_compared": same,
        "largest_relative_difference": away,
        "seconds_a_step": {name: median(values[1:]) for name, values in seconds.items()},
        "rounds": {name: values[1:] for name, values in seconds.items()},
        "seconds_before_bertie": median(before_the_first(folder) for _ in range(3)),
    }


def before_the_first(shards: Path) -> float:
    """All that `bertie pretrain mini` does but for its steps: seconds, of a run of two."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "bertie", "pretrain", "mini", "--data", str(shards), "--out", str(run)]
        begun = time.monotonic()
        subprocess.run(
            [*command, "--training.steps", "2", "--training.max-eval-tokens", "256"],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        whole = time.monotonic() - begun
        return whole - read_metrics(run, "train")[-1]["seconds"]


def our_steps(recipe: PretrainConfig, feed: Iterator[Step]) -> Callable[[], float]:
    model = new_model(recipe.model, recipe.objectives, recipe.seed).train()
    settings = recipe.training
    weights = {objective.kind: objective.weight for objective in recipe.objectives}
    descent = LoopSettings(settings.steps, settings.learning_rate, settings.max_grad_norm, recipe.seed, "fp32", weights)
    loop = train_steps(model, feed, recipe.optimizer.build(model), recipe.schedule, descent)

    def step() -> float:
        return float(next(loop).grad_norm)

    return step


def their_steps(recipe: PretrainConfig, feed: Iterator[Step], shards: Shards) -> Callable[[], float]:
    """The plain loop, from the weights that the engine's run starts from. What a call returns is the step's loss."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), new_model(recipe.model, recipe.objectives, recipe.seed), shards.tokenizer)
        model = transformers.BertForPreTraining.from_pretrained(folder).train()
    decayed, spared = ([p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), eps=1e-6, fused=True)
    numbers = iter(range(recipe.training.steps))

    def step() -> float:
        rate = recipe.training.learning_rate * recipe.schedule.factor(next(numbers), recipe.training.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        [micro] = next(feed).batches
        loss = model(**padded(micro, 128)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def table(found: dict[str, Any]) -> str:
    told = ["| Held-out loss | bertie | transformers | ratio |", "|---|---|---|---|"]
    for below in BELOW_ENTROPY:
        target, cells = found["entropy"] - below, []
        for name in ("bertie", "transformers"):
            points = found["curves"][name]
            step = found["seconds_a_step"][name]
            start = found["seconds_before_bertie"] if name == "bertie" else 0.0
            reached = next((point for point in points if point["mlm_loss"] <= target), None)
            last = reached or points[-1]
            cells.append((start + last["step"] * step, reached is not None))
        (own, there), (other, reached) = cells
        ratio = f"{other / own:.1f}" if reached else f"more than {other / own:.1f}"
        told.append(f"| {target:.2f} | {own:.0f} s{'' if there else ' (not reached)'} | {other:.0f} s | {ratio} |")
    return "\n".join(told)


if __name__ == "__main__":
    main()
