"""Seconds until `mini` reaches a held-out masked-LM loss: bertie and transformers.

    python benchmarks/time_to_loss.py SHARDS bertie --work FOLDER [--steps 4200]
    python benchmarks/time_to_loss.py SHARDS transformers --work FOLDER [--their-steps 12000]
    python benchmarks/time_to_loss.py SHARDS times --work FOLDER --out FILE.json [--same 100] [--rounds 15]

The first two commands train, and may be stopped once the losses are below the targets. The third one measures the time
per step and prints a table.

Time counts from process start, with prepared shards. The targets are the held-out loss of a unigram model of the training text
− 1.0 and − 1.5 nats. bertie runs `bertie pretrain mini` as shipped. transformers is a plain loop over BertForPreTraining:
sequences padded to 128, fused AdamW with the same betas and weight decay, gradient clipping, no dropout, BERT's own
initialization, and the batch size and learning rate that were best in short runs (--batch-size, --learning-rate).

The loss after a step does not depend on the code that computes it, and transformers takes hours. So bertie's engine
computes its curve from its recipe. `times` checks that this is valid: it compares the losses of the first --same steps
of the plain loop with those of the engine. It also times the steps of both sides in one process, alternating in rounds
of ten, and takes medians. Evaluations do not count as time, and the startup of transformers counts as 0 seconds.
OMP_NUM_THREADS sets the threads.
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

from bertie.base import config, runtime, storage
from bertie.batches.loader import Position, Step
from bertie.checkpoints.folder import write_model
from bertie.corpus.shards import Shards, open_shards
from bertie.objectives import MaskedLM
from bertie.pretraining.feed import Feed
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.pretrain import pretrain
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.loop import LoopSettings, train_steps
from bertie.training.run_folder import read_metrics
from pretrain_speed import padded
from results import environment

BELOW_UNIGRAMS = (1.0, 1.5)
EVERY = 262_144  # tokens between evaluations
STEPS_PER_ROUND = 10


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
    found["unigram_loss"] = shards.unigram_loss
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
    """Measure seconds per step of both sides, bertie's startup, and the difference of losses to those of the engine."""
    steppers, losses = {}, []
    for name, recipe in sides.items():
        recipe = with_vocab_size(recipe, shards.tokenizer)
        feed = Feed(recipe.resolved_phases, shards, recipe.objectives, 0, 1, 0, SINGLE_PROCESS, recipe.length())
        stream = feed.steps(0, Position())
        steppers[name] = our_steps(recipe, stream) if name == "bertie" else their_steps(recipe, stream, shards)
    for _ in range(same):
        losses.append(steppers["transformers"]())
    known = [record["loss"] for record in read_metrics(work / "transformers", "train")[:same]]
    away = max(abs(a - b) / b for a, b in zip(losses, known, strict=True))
    seconds = time_in_turn(steppers, rounds)
    return {
        "losses_compared": same,
        "largest_relative_difference": away,
        "seconds_a_step": {name: median(values) for name, values in seconds.items()},
        "rounds": seconds,
        "seconds_before_bertie": median(before_the_first(folder) for _ in range(3)),
    }


def time_in_turn(steppers: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds per step of each side in each round. All sides take turns; a first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(rounds + 1):
        for name, step in steppers.items():
            begun = time.perf_counter()
            for _ in range(STEPS_PER_ROUND):
                step()
            seconds[name].append((time.perf_counter() - begun) / STEPS_PER_ROUND)
    return {name: values[1:] for name, values in seconds.items()}


def before_the_first(shards: Path) -> float:
    """Return the seconds that `bertie pretrain mini` takes besides its steps, from a run of two steps."""
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
    loop_settings = LoopSettings(
        recipe.length(), settings.learning_rate, settings.max_grad_norm, recipe.seed, "fp32", weights
    )
    loop = train_steps(model, feed, recipe.optimizer.build(model), recipe.schedule, loop_settings)

    def step() -> float:
        return float(next(loop).grad_norm)

    return step


def their_steps(
    recipe: PretrainConfig, feed: Iterator[Step], shards: Shards, precision: str = "fp32"
) -> Callable[[], float]:
    """Return a function that runs one step of the plain loop and returns its loss. Initial weights are the engine's.

    Args:
        recipe: The recipe of the plain loop.
        feed: The steps of the recipe.
        shards: For the tokenizer.
        precision: fp32, or bf16: matrix products in bf16, by autocast.
    """
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
        [micro] = next(feed).micro_batches
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**padded(micro, 128)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def table(found: dict[str, Any]) -> str:
    lines = ["| Held-out loss | bertie | transformers | ratio |", "|---|---|---|---|"]
    for below in BELOW_UNIGRAMS:
        target, cells = found["unigram_loss"] - below, []
        for name in ("bertie", "transformers"):
            points = found["curves"][name]
            step = found["seconds_a_step"][name]
            start = found["seconds_before_bertie"] if name == "bertie" else 0.0
            reached = next((point for point in points if point["mlm_loss"] <= target), None)
            last = reached or points[-1]
            cells.append((start + last["step"] * step, reached is not None))
        (own, there), (other, reached) = cells
        ratio = f"{other / own:.1f}" if reached else f"more than {other / own:.1f}"
        lines.append(f"| {target:.2f} | {own:.0f} s{'' if there else ' (not reached)'} | {other:.0f} s | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
