"""`bertie pretrain --dry-run`: text, phases, memory and speed of a pre-training, without writing anything."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from bertie.base import config as configuration
from bertie.base import console, runtime
from bertie.base.contracts import FILLER, MicroBatch
from bertie.checkpoints.find import list_checkpoints
from bertie.checkpoints.training_state import Counters, load_state
from bertie.corpus.remote_shards import ShardCache
from bertie.pretraining.pretrain import Setup, set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.repetition import warn_of_repetition
from bertie.tokenizers.special_tokens import printable
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.distributed import process_group
from bertie.training.job import TrainingJob
from bertie.training.loop import train_steps
from bertie.training.records import loss_metrics
from bertie.training.run_folder import run_status

STEPS = 3


def dry_run(
    config: PretrainConfig | str | dict[str, Any],
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    threads: int = 0,
    cache: ShardCache = ShardCache(),
) -> dict[str, Any]:
    """Report what `pretrain` with the same arguments would do, and run its first steps without saving them.

    The report is printed to stderr: text, phases, an example sequence, memory, disk space and speed. For a run that has
    begun, the steps are those after its newest checkpoint.

    Args:
        config: As for `pretrain`.
        data: Token shards.
        out: The run folder that `pretrain` would create or resume.
        threads: As for `pretrain`.
        cache: As for `pretrain`.

    Returns:
        {"status": "new", "begun" or "finished" (then without further keys), "parameters": number of weights,
        "phases": [{"steps", "epochs" (both without a budget only), "tokens": per step, "rows": per step, "filler": 0..1,
        "memory": bytes}],
        "memory_free": bytes, "checkpoint": bytes, "disk_free": bytes, "losses": of the steps, "tokens_per_second",
        "seconds": for all steps of the run}. On ranks other than 0: {}.

    Raises:
        UsageError: As `pretrain`.
        UserError: As `pretrain`.
    """
    with process_group() as ranks:
        setup = set_up(config, data, Path(out), threads, ranks, cache=cache)
        status = ranks.broadcast(run_status(setup.out, configuration.plain(setup.config)) if ranks.first else "")
        if status == "finished":
            console.info(f"{out} is finished: nothing to do")
            return {"status": status} if ranks.first else {}
        job, rows = setup.job(None)
        counters = _restore(setup, job)
        console.result(setup.description(job))
        _report_text(setup)
        phases = [_report_phase(setup, number, rows) for number in range(len(setup.feed.phases))]
        result = {"status": status, "parameters": job.model.size, "phases": phases, **_report_space(job, Path(out))}
        result |= _try_steps(setup, job, counters)
        return result if ranks.first else {}


def _restore(setup: Setup, job: TrainingJob) -> Counters:
    """Load the newest checkpoint, if there is one, into the job's model and optimizer. Return its counters."""
    counters = Counters()
    if setup.ranks.first and (checkpoints := list_checkpoints(setup.out)):
        counters = load_state(checkpoints[-1], job.model, job.optimizer)
        console.info(f"{setup.out} would resume after {job.settings.length.position(counters.step, counters.seconds)}")
    counters = Counters(**setup.ranks.broadcast(asdict(counters)))
    setup.ranks.broadcast_state(job.model, job.optimizer)
    return counters


def _report_text(setup: Setup) -> None:
    tokenizer, text = setup.shards.tokenizer, setup.shards.train
    console.result(
        f"vocabulary   {tokenizer.size:,} entries, {'lower case' if tokenizer.lowercase else 'cased'}\n"
        f"text         {int(text.document_starts[-1]):,} training tokens in {len(text.document_starts) - 1:,} "
        f"documents, {int(setup.shards.eval.document_starts[-1]):,} held-out tokens"
    )


def _report_phase(setup: Setup, number: int, micro_batch: int) -> dict[str, Any]:
    """Report one phase: its size, what it predicts, its memory, and its first sequence."""
    phase, feed = setup.feed.phases[number], setup.feed
    plan = feed.first_step(phase)
    rows = max(replace(feed, micro_batch=micro_batch).pass_sizes(plan))
    micro = feed.first_rows(plan, rows)
    epochs = setup.epochs(phase.steps * phase.tokens)
    filler = 1 - micro.tokens / len(micro.batch.input_ids)
    memory = setup.memory_estimate(micro)
    length = f"{feed.length.describe(phase.steps)} of {phase.shape.rows} × {phase.shape.row_tokens:,} tokens"
    length += "" if setup.config.budget else f", {epochs:.3g} epochs"
    predictions = ", ".join(f"{int(count)} {name}" for name, count in micro.counts.items())
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in vars(memory).items())
    console.result(
        f"phase {number + 1}      {length}; a forward pass: {rows} × {phase.shape.row_tokens:,} tokens in "
        f"{int((micro.batch.example != FILLER).sum())} sequences of at most {phase.layout.max_length}, "
        f"{console.percent(filler)} filler, predictions: {predictions}\n"
        f"             memory in fp32: {parts}; total {_bytes(memory.total)}, plus temporary buffers\n"
        f"             {_example(micro, setup.shards.tokenizer)}"
    )
    sizes = {"tokens": phase.tokens, "rows": phase.shape.rows, "filler": filler, "memory": memory.total}
    return sizes if setup.config.budget else {"steps": phase.steps, "epochs": epochs, **sizes}


def _example(micro: MicroBatch, tokenizer: Tokenizer) -> str:
    """Return the first sequence as the model reads it, truncated to one line."""
    ids = micro.batch.input_ids[: int(micro.batch.ragged.cu_seqlens[1])]
    text = printable(tokenizer.decode(ids.tolist()))
    return text if len(text) <= 160 else f"{text[:159]}…"


def _report_space(job: TrainingJob, out: Path) -> dict[str, int]:
    existing = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free, memory = shutil.disk_usage(existing).free, runtime.memory()[0]
    checkpoint = 3 * 4 * job.model.size
    kept = job.keep_checkpoints + 1
    console.result(
        f"space        {_bytes(memory)} of free memory; {_bytes(free)} of free disk space for {kept + 1} checkpoints of "
        f"{_bytes(checkpoint)}"
    )
    if checkpoint * (kept + 1) > free:
        console.warn(f"{existing} has no space for {kept + 1} checkpoints: lower --training.keep-checkpoints")
    return {"memory_free": memory, "checkpoint": checkpoint, "disk_free": free}


def _try_steps(setup: Setup, job: TrainingJob, counters: Counters) -> dict[str, Any]:
    """Run the next steps as `pretrain` would."""
    job.model.train()
    job.settings.length.start(counters.seconds, counters.progress, counters.measured)
    losses, speeds = [], []
    started = time.monotonic()
    stream = job.stream(counters.step, counters.position)
    steps = train_steps(job.model, stream, job.optimizer, job.schedule, job.settings, counters.step, job.ranks)
    for result in islice(steps, STEPS):
        losses.append(loss_metrics(result.losses, job.settings.loss_weights)["loss"])
        now = time.monotonic()
        speeds.append(result.tokens / (now - started))
        started = now
    speed = median(speeds) if speeds else math.nan
    shown = ", ".join(f"{loss:.3f}" for loss in losses)
    seconds = setup.config.budget_seconds or setup.total_tokens / speed
    epochs, run = setup.epochs(seconds * speed), "the budget" if setup.config.budget else "all steps of the run"
    console.result(
        f"{len(losses)} steps      losses {shown}; {speed:,.0f} tokens/s: {run} of {console.duration(seconds)} would be "
        f"{seconds * speed:,.0f} tokens, {epochs:.3g} epochs, without evaluations and checkpoints; nothing was written"
    )
    warn_of_repetition(epochs)
    return {"losses": losses, "tokens_per_second": speed, "seconds": seconds}


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
