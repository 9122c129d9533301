"""Time until a held-out masked-LM loss, with recipes of bertie and with transformers.

    python benchmarks/speedrun.py run SHARDS modern-mini --work FOLDER [--seeds 0 1 2] [--budget 10m]
    python benchmarks/speedrun.py times SHARDS modern-mini --work FOLDER [--rounds 15]
    python benchmarks/speedrun.py table modern-mini --work FOLDER [--targets 6.02 5.78 5.09]

`run` runs `bertie pretrain RECIPE` in a process of its own and keeps many checkpoints. Afterwards it computes the loss of
each checkpoint on two fixed sets of held-out text with BERT's masks (15 %, 80/10/10), whatever the masks of the recipe are:
`documents`, sequences of one document, and `pairs`, BERT's sentence pairs. The time of a checkpoint counts from the start
of the process to the last byte of the checkpoint: Python, reading the shards, initial weights, steps, evaluations.

`times` measures the seconds per step of the recipe, of `mini`, and of the peer of time_to_loss.py (a plain loop over
transformers' BertForPreTraining, with the batch size and learning rate that were best for it), in turn in one process. The
peer needs hours for the targets, so its number of steps comes from benchmarks/results/time_to_loss.json.

`table` prints both. SHARDS: the Simple English Wikipedia, prepared with a vocabulary of 30,000 entries.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bertie.base import config, console, runtime, storage
from bertie.batches.contiguous import DocSentences
from bertie.batches.loader import Position
from bertie.batches.sentence_pairs import SentencePairs
from bertie.checkpoints.find import list_checkpoints
from bertie.checkpoints.read import Checkpoint, load_weights, read_checkpoint
from bertie.corpus.shards import Shards, open_shards
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.objectives import MaskedLM
from bertie.objectives.heads import build_heads
from bertie.pretraining.eval_set import eval_batches
from bertie.pretraining.feed import Feed
from bertie.pretraining.pretrain import set_up
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.job import TrainingJob
from bertie.training.loop import evaluate, train_steps
from results import environment
from time_to_loss import their_steps, theirs, time_in_turn

SETS = {"documents": DocSentences(max_length=128), "pairs": SentencePairs(max_length=128)}
EVAL_TOKENS = 131_072
SPACING = 1.12  # a checkpoint is scored if it has at least so many times the steps of the last one
MASKS = MaskedLM()
THEIR_PRECISIONS = {"transformers": "fp32", "transformers, bf16": "bf16"}
PEER = Path(__file__).parent / "results" / "time_to_loss.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "times", "table"])
    parser.add_argument("names", nargs="+", metavar="SHARDS RECIPE", help="table: only the recipe")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--every", type=int, default=25, help="steps between checkpoints")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--targets", type=float, nargs="+", default=[6.02, 5.78, 5.09])
    args = parser.parse_args()
    if min(args.targets) <= 0:
        parser.error("--targets: the entropy of text is above 0, so no model reaches this loss")
    args.work.mkdir(parents=True, exist_ok=True)
    if args.what == "table":
        print(table(args.names[0], args.work, args.targets))
        return
    shards, recipe = Path(args.names[0]), args.names[1]
    if args.what == "times":
        found = times(shards, recipe, args.rounds)
        storage.write_json(args.work / f"{recipe}-times.json", found)
        print(found["seconds_a_step"])
        return
    for seed in args.seeds:
        run(shards, recipe, seed, args.budget, args.every, args.work)
    print(table(recipe, args.work, args.targets))


def run(shards: Path, recipe: str, seed: int, budget: str, every: int, work: Path) -> None:
    """Train, and write the losses of all checkpoints to WORK/RECIPE-SEED.json."""
    out, result = work / f"{recipe}-{seed}", work / f"{recipe}-{seed}.json"
    if result.exists():
        return
    if out.exists():
        raise SystemExit(f"{out} was interrupted, and its time is unknown: remove it")
    command = [sys.executable, "-m", "bertie", "pretrain", recipe, "--data", str(shards), "--out", str(out)]
    settings = {"checkpoint-every": every, "keep-checkpoints": 1_000_000, "eval-every": 1_000_000}
    flags = [part for name, value in settings.items() for part in (f"--training.{name}", str(value))]
    begun = time.time()
    subprocess.run([*command, "--seed", str(seed), "--budget", budget, *flags], check=True)
    opened = open_shards(shards)
    points = []
    for folder in list_checkpoints(out):
        if points and int(folder.name[5:]) < SPACING * points[-1]["step"] and folder != list_checkpoints(out)[-1]:
            continue
        seconds = (folder / "manifest.json").stat().st_mtime - begun
        counters = json.loads((folder / "training_state" / "counters.json").read_text())
        scores = {name: held_out_loss(folder, opened, name) for name in SETS}
        points.append({"seconds": seconds, "step": counters["step"], "tokens": counters["tokens"], **scores})
        print(points[-1], flush=True)
    found = {"environment": environment(runtime.use_threads()), "recipe": recipe, "seed": seed, "budget": budget}
    storage.write_json(result, {**found, "unigram_loss": opened.unigram_loss, "points": points})


def held_out_loss(folder: Path, shards: Shards, name: str) -> float:
    """Return the masked-LM loss of the checkpoint in a folder on a set of held-out text, in nats."""
    return loss_of(read_checkpoint(folder), shards, name)


def loss_of(checkpoint: Checkpoint, shards: Shards, name: str) -> float:
    """Return the masked-LM loss of a checkpoint on a set of held-out text, in nats."""
    encoder = build_encoder(checkpoint.config)
    model = Model(encoder, build_heads((MASKS,), encoder, None))
    load_weights(model, checkpoint)
    return model_loss(model.to(runtime.device()), shards, name)


def model_loss(model: Model, shards: Shards, name: str) -> float:
    """Return the masked-LM loss of a model on a set of held-out text, in nats."""
    batches = eval_batches((MASKS,), SETS[name], shards.eval, shards.tokenizer, EVAL_TOKENS)
    loss = evaluate(model, batches, runtime.resolve_precision("auto", model.device))
    assert loss is not None
    return float(loss["mlm"].total / loss["mlm"].count)


def times(folder: Path, name: str, rounds: int) -> dict[str, Any]:
    """Measure the seconds per step of the recipe and of the peer, in turn."""
    shards, threads = open_shards(folder), runtime.use_threads()
    recipe = with_vocab_size(config.load(PretrainConfig, name, "pretrain"), shards.tokenizer)
    mini = with_vocab_size(config.load(PretrainConfig, "mini", "pretrain"), shards.tokenizer)
    peer = with_vocab_size(theirs(12_000, 8, 5e-4), shards.tokenizer)
    steppers = {side: our_steps(each, shards, threads) for side, each in ((name, recipe), ("mini", mini))}
    for side, precision in THEIR_PRECISIONS.items():
        feed = Feed(peer.resolved_phases, shards, peer.objectives, 0, 1, 0, SINGLE_PROCESS, peer.length())
        steppers[side] = their_steps(peer, feed.steps(0, Position()), shards, precision)
    seconds = time_in_turn(steppers, rounds)
    measured = {side: median(values) for side, values in seconds.items()}
    return {"environment": environment(threads), "seconds_a_step": measured, "rounds": seconds}


def our_steps(
    recipe: PretrainConfig, shards: Shards, threads: int, change: Callable[[TrainingJob], None] = lambda _: None
) -> Callable[[], float]:
    """Return a function that makes the next step of a run of `bertie pretrain`, which is not written to disk.

    Args:
        recipe: The recipe.
        shards: The text.
        threads: Number of CPU threads.
        change: What to change in the job before the first step.
    """
    with tempfile.TemporaryDirectory() as empty, console.silenced():
        job, _ = set_up(recipe, shards, Path(empty) / "run", threads, SINGLE_PROCESS).job(None)
    change(job)
    steps = train_steps(job.model.train(), job.stream(0, Position()), job.optimizer, job.schedule, job.settings)
    return lambda: float(next(steps).grad_norm)


def table(recipe: str, work: Path, targets: list[float]) -> str:
    """Return the median seconds to each target over the seeds, beside the peer if it was timed."""
    runs = [json.loads(path.read_text()) for path in sorted(work.glob(f"{recipe}-[0-9]*.json"))]
    lines = ["| Held-out loss | set | bertie, median (all seeds) | transformers | Ratio |", "|---|---|---|---|---|"]
    timed = work / f"{recipe}-times.json"
    timings = json.loads(timed.read_text())["seconds_a_step"] if timed.exists() else {}
    step = min((timings[side] for side in THEIR_PRECISIONS if side in timings), default=None)  # in its faster precision
    curve = json.loads(PEER.read_text())["curves"]["transformers"]
    notes: list[str] = []
    for target in targets:
        for name in SETS:
            reached = [seconds_to(each["points"], name, target) for each in runs]
            known = sorted(seconds for seconds in reached if seconds is not None)
            ours = f"{median(known):.0f} s ({', '.join(f'{s:.0f}' for s in known)})" if known else "–"
            if len(known) < len(runs):
                ours += f", not reached by {len(runs) - len(known)}"
            there = next((point["step"] for point in curve if point["mlm_loss"] <= target), None)
            other = "–" if step is None or name != "pairs" else f"{(there or curve[-1]['step']) * step:,.0f} s"
            other += " (not reached)" if there is None and other != "–" else ""
            ratio = f"{(there or curve[-1]['step']) * step / median(known):.0f}" if known and other != "–" else "–"
            ratio = ratio if there is not None or ratio == "–" else f"more than {ratio}"
            lines.append(f"| {target:.2f} | {name} | {ours} | {other} | {ratio} |")
            if runs and not known:
                lowest = min(point[name] for each in runs for point in each["points"])
                notes.append(f"\nNo run reached {target:.2f} ({name}): the lowest loss is {lowest:.2f}.")
    return "\n".join(lines + notes)


def seconds_to(points: list[dict[str, float]], name: str, target: float) -> float | None:
    """Return the time of the first checkpoint at or below the target. None: there is none."""
    return next((point["seconds"] for point in points if point[name] <= target), None)


if __name__ == "__main__":
    main()
