"""A pre-training before it begins: what would be read, what it takes, three steps to see that it goes; nothing is written."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from bertie import config as configuration
from bertie import console, runtime
from bertie.batches.loader import Position
from bertie.checkpoints.folder import list_checkpoints
from bertie.checkpoints.training_state import Counters, has_checkpoint, load_state
from bertie.contracts import FILLER, MicroBatch
from bertie.pretraining.feed import rows_per_pass
from bertie.pretraining.memory import MemoryEstimate, estimate_memory
from bertie.pretraining.phases import ResolvedPhase
from bertie.pretraining.pretrain import Setup, set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.text.tokenizer import Tokenizer
from bertie.training.distributed import process_group
from bertie.training.job import TrainingJob
from bertie.training.loop import train_steps
from bertie.training.records import loss_metrics
from bertie.training.run_folder import run_status

STEPS = 3


def dry_run(
    config: PretrainConfig | str | dict[str, Any], data: str | Path, out: str | Path, *, threads: int = 0
) -> dict[str, Any]:
    """What `pretrain` of the same arguments would do, said line by line, and its first three steps.

    Of a run that has begun, the next three. Returns {"status": "new", "begun" or "finished" (then nothing else),
    "parameters", "phases": [{"steps", "tokens", "rows", "epochs", "filler", "memory": bytes}], "memory_free": bytes,
    "checkpoint": bytes, "disk_free": bytes, "losses", "tokens_per_second", "seconds": of all steps}, {} on other ranks
    than the first. Errors: as `pretrain`.
    """
    with process_group() as ranks:
        setup = set_up(config, Path(data), Path(out), threads, ranks)
        where = ranks.broadcast(run_status(setup.out, configuration.plain(setup.config)) if ranks.first else "")
        if where == "finished":
            console.info(f"{out} is finished: there is nothing to do")
            return {"status": where} if ranks.first else {}
        job, rows = setup.job(None)
        counters = _restore(setup, job)
        console.info(setup.description(job))
        _say_text(setup)
        phases = [_phase(setup, number, rows) for number in range(len(setup.feed.phases))]
        told = {"status": where, "parameters": job.model.size, "phases": phases, **_room(job, Path(out))}
        told |= _steps(setup, job, counters)
        return told if ranks.first else {}


def _restore(setup: Setup, job: TrainingJob) -> Counters:
    """Where a run that has begun stands; its model and optimizer into the job."""
    counters = Counters()
    if setup.ranks.first and has_checkpoint(setup.out):
        newest = list_checkpoints(setup.out)[-1]
        counters = load_state(newest, job.model, job.optimizer)
        console.info(f"{setup.out} would go on after step {counters.step} of {job.settings.steps}")
    counters = Counters(**setup.ranks.broadcast(asdict(counters)))
    setup.ranks.broadcast_state(job.model, job.optimizer)
    return counters


def _say_text(setup: Setup) -> None:
    tokenizer, text = setup.shards.tokenizer, setup.shards.train
    console.info(
        f"vocabulary   {tokenizer.size:,} entries, {'lower case' if tokenizer.lowercase else 'cased'}\n"
        f"text         {int(text.document_starts[-1]):,} tokens in {len(text.document_starts) - 1:,} documents to train on, "
        f"{int(setup.shards.eval.document_starts[-1]):,} held out"
    )


def _phase(setup: Setup, number: int, micro_batch: int) -> dict[str, Any]:
    leg, feed, config = setup.feed.phases[number], setup.feed, setup.config
    plan = next(leg.loader(feed.shards, feed.seed).steps(Position()))
    each = rows_per_pass(len(feed.ranks.own_range(plan.rows)), micro_batch)
    [micro] = feed.micro_batches(plan, range(each), each)
    steps = leg.end_step - (feed.phases[number - 1].end_step if number else 0)
    tokens = leg.shape.rows * leg.shape.row_tokens
    epochs = steps * tokens / int(setup.shards.train.document_starts[-1])
    filler = 1 - micro.tokens / len(micro.batch.input_ids)
    taken = estimate_memory(config.model, config.objectives, micro, config.training.activation_checkpointing)
    console.info(_told(number, leg, steps, each, epochs, filler, micro, taken))
    console.info(f"             {_example(micro, setup.shards.tokenizer)}")
    sizes = {"steps": steps, "tokens": tokens, "rows": leg.shape.rows}
    return {**sizes, "epochs": epochs, "filler": filler, "memory": taken.total}


def _told(
    number: int,
    leg: ResolvedPhase,
    steps: int,
    each: int,
    epochs: float,
    filler: float,
    micro: MicroBatch,
    n: MemoryEstimate,
) -> str:
    predicted = ", ".join(f"{int(count)} {name}" for name, count in micro.counts.items())
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in vars(n).items())
    return (
        f"phase {number + 1}      {steps:,} steps of {leg.shape.rows} × {leg.shape.row_tokens:,} tokens, "
        f"{epochs:.3g} times the text; a forward pass: {each} × {leg.shape.row_tokens:,} tokens in "
        f"{int((micro.batch.example != FILLER).sum())} sequences of at most {leg.layout.max_length}, "
        f"{100 * filler:.2f} % filler, to predict: {predicted}\n"
        f"             memory, in fp32: {parts}; in all {_bytes(n.total)} and some work space"
    )


def _example(micro: MicroBatch, tokenizer: Tokenizer) -> str:
    """The first sequence as the model reads it, cut to a line."""
    ids = micro.batch.input_ids[: int(micro.batch.ragged.cu_seqlens[1])]
    text = " ".join(tokenizer.words[i] for i in ids).replace(" ##", "")
    return text if len(text) <= 160 else f"{text[:159]}…"


def _room(job: TrainingJob, out: Path) -> dict[str, int]:
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free, memory = shutil.disk_usage(there).free, runtime.memory()[0]
    checkpoint = 3 * 4 * job.model.size
    kept = job.keep_checkpoints + 1
    console.info(
        f"room         {_bytes(memory)} of memory free; a checkpoint takes {_bytes(checkpoint)}, {kept} are kept and one is "
        f"being written, {_bytes(free)} of disk free"
    )
    if checkpoint * (kept + 1) > free:
        console.warn(f"{there} has no room for {kept + 1} checkpoints: lower --training.keep-checkpoints")
    return {"memory_free": memory, "checkpoint": checkpoint, "disk_free": free}


def _steps(setup: Setup, job: TrainingJob, counters: Counters) -> dict[str, Any]:
    """The next steps, as they would be."""
    job.model.train()
    losses, speeds = [], []
    started = time.monotonic()
    stream = job.stream(counters.step, Position(counters.epoch, counters.epoch_step))
    steps = train_steps(job.model, stream, job.optimizer, job.schedule, job.settings, counters.step, job.ranks)
    for progress in islice(steps, STEPS):
        losses.append(loss_metrics(progress.losses, job.settings.loss_weights)["loss"])
        now = time.monotonic()
        speeds.append(progress.tokens / (now - started))
        started = now
    speed = median(speeds) if speeds else math.nan
    tokens = _tokens(setup)
    told = ", ".join(f"{loss:.3f}" for loss in losses)
    console.info(
        f"{len(losses)} steps      losses {told}; {speed:,.0f} tokens/s: all steps would take {_time(tokens / speed)}, "
        "evaluations and checkpoints not counted; nothing was written"
    )
    return {"losses": losses, "tokens_per_second": speed, "seconds": tokens / speed}


def _tokens(setup: Setup) -> int:
    """That all steps read together."""
    starts = [0, *(leg.end_step for leg in setup.feed.phases)]
    pairs = zip(starts, setup.feed.phases, strict=False)
    return sum((leg.end_step - start) * leg.shape.rows * leg.shape.row_tokens for start, leg in pairs)


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"
