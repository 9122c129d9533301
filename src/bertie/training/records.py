"""The records of metrics.jsonl: one line for each training step and each evaluation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bertie.base import runtime
from bertie.base.console import percent
from bertie.base.contracts import Loss, MicroBatch
from bertie.batches.loader import Step
from bertie.checkpoints.training_state import Counters
from bertie.model.flops import model_flops
from bertie.training.job import TrainingJob
from bertie.training.loop import StepResult

SOURCE = "@"  # between the name of a loss and the part of the text that it belongs to


def loss_metrics(losses: dict[str, Loss], weights: dict[str, float]) -> dict[str, float]:
    """Compute mean losses and accuracies from sums.

    Args:
        losses: The summed loss of each head.
        weights: The factor of each head in the total loss.

    Returns:
        {"loss": weighted sum over heads, "mlm_loss": mean per prediction (nats), "mlm_accuracy": 0..1, …}. A head that
        cannot count correct predictions has no accuracy. Losses of a part of the text, "mlm@NAME", are not in the sum.
    """
    values: dict[str, float] = {"loss": 0.0}
    for name, loss in losses.items():
        head, mark, source = name.partition(SOURCE)
        count = float(loss.count) or 1.0  # may be below 1: in a small step, the windows of one text weigh less than 1
        values["loss"] += 0.0 if mark else weights[head] * float(loss.total) / count
        values[f"{head}_loss{mark}{source}"] = float(loss.total) / count
        if not math.isnan(loss.hits):
            values[f"{head}_accuracy{mark}{source}"] = float(loss.hits) / count
    return values


def train_record(job: TrainingJob, result: StepResult, progress: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Build the record of one training step.

    Args:
        job: The job that the step belongs to.
        result: The result of the step.
        progress: `run_progress` after the step.
        seconds: Duration of the step, without evaluation and checkpoints.
    """
    measures = {"lr": result.learning_rate, "grad_norm": float(result.grad_norm)}
    values = loss_metrics(result.losses, job.settings.loss_weights)
    seconds = max(seconds, 1e-9)
    flops = sum(model_flops(job.model, part) for micro in result.work.micro_batches for part in micro.parts)
    peak_rate = runtime.matrix_rate(job.settings.precision, job.model.device)
    speed = {"tokens_per_second": result.tokens / seconds, "utilization": flops / seconds / peak_rate}
    skipped = {"skipped": True} if result.skipped else {}
    sources = {"source_tokens": result.work.source_tokens} if result.work.source_tokens else {}
    waits = {"longest_wait": max(result.waits), "awaited_rank": int(np.argmin(result.waits))} if result.waits else {}
    return {"split": "train", **progress, **values, **measures, **speed, **waits, **sources, **skipped}


def run_progress(counters: Counters) -> dict[str, Any]:
    """Return step, epoch, tokens and seconds of a run after its last step.

    The counters hold the epoch of the next step. The record holds the epoch of the last one.
    """
    values = {name: getattr(counters, name) for name in ("step", "epoch", "tokens", "seconds")}
    return values | {"epoch": counters.epoch - counters.epoch_ended}


def progress_detail(record: dict[str, Any]) -> str:
    """Summarize a training record for the progress bar."""
    accuracy = [f"accuracy {percent(value)}" for name, value in record.items() if name.endswith("_accuracy")][:1]
    share = record["utilization"]
    utilization = f" ({percent(share)} utilization)" if share >= 0.01 else ""  # near 0 if only a head is trained
    speed = f"{record['tokens_per_second']:,.0f} tokens/s{utilization}"
    return "  ".join([f"loss {record['loss']:.3f}", *accuracy, speed, f"{runtime.peak_memory() / 1e9:.1f} GB"])


def batch_arrays(work: Step) -> dict[str, Any]:
    """Flatten the micro-batches of a step into named arrays: "0.input_ids", "0.cu_seqlens", "0.mlm.label", …"""
    arrays: dict[str, Any] = {}
    for index, micro in enumerate(work.micro_batches):
        arrays |= _arrays(f"{work.number(index)}", micro.parts)
    return arrays


def _arrays(prefix: str, parts: list[MicroBatch]) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for index, micro in enumerate(parts):
        number = prefix if len(parts) == 1 else f"{prefix}.{index}"
        arrays |= {f"{number}.{name}": array for name, array in micro.batch.arrays.items()}
        arrays |= {f"{number}.cu_seqlens": micro.batch.ragged.cu_seqlens, f"{number}.rows": micro.rows}
        for head, targets in micro.targets.items():
            arrays |= {f"{number}.{head}.{name}": value for name, value in vars(targets).items()}
    return arrays
