"""Inference: run a model over sequences and return one result per sequence, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from bertie.base import console
from bertie.base.contracts import Batch, Sequence
from bertie.base.errors import NonFiniteError, UserError
from bertie.batches.collate import collate
from bertie.model.config import PooledToken
from bertie.model.model import Model
from bertie.tasks.encoding import count_truncated
from bertie.tasks.task import Task
from bertie.tokenizers.tokenizer import Tokenizer

Result = TypeVar("Result")
Share = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Computes a function of each block, in order: `map`, or what shares the blocks out over several processes."""
SEQUENCES_AT_ONCE = 1024  # examples that `predictions` reads, computes and yields together


def infer(
    model: Model,
    sequences: list[Sequence],
    compute: Callable[[Batch, list[Sequence]], list[Result]],
    batch_tokens: int = 8192,
) -> list[Result]:
    """Run `compute` on packed batches of sequences of similar length.

    Puts the model into eval mode and computes without gradients.

    Args:
        model: The model; its device receives the batches.
        sequences: The sequences, in any order.
        compute: Maps a batch and its sequences to one result per sequence, in the order of the batch.
        batch_tokens: Most tokens of a batch. A single longer sequence makes a batch of its own.

    Returns:
        The results in the order of `sequences`.
    """
    results: dict[int, Result] = {}
    model.eval()
    with torch.inference_mode():
        for group in _groups(sequences, batch_tokens):
            longest = len(sequences[group[0]])  # a tighter bound than the model's: attention's grid grows with it
            members = [sequences[i] for i in group]
            batch = collate(members, longest).tensors(model.device)
            results.update(zip(group, compute(batch, members), strict=True))
    return [results[i] for i in range(len(sequences))]


def require_finite(states: Tensor) -> None:
    """Raise a NonFiniteError if hidden states are not finite, which would make NaN of all that is computed from them."""
    if not states.isfinite().all():
        raise NonFiniteError("the hidden states are NaN or infinity: the model is damaged, or its training diverged")


def outputs(model: Model, task: Task, sequences: list[Sequence]) -> list[np.ndarray]:
    """Return the outputs of the task head for each sequence: float32 [positions that the head reads, C]."""
    head = model.heads[task.kind]

    def compute(batch: Batch, group: list[Sequence]) -> list[np.ndarray]:
        index, sizes = head_index(task, group, model.encoder.config.pooled_token)
        rows = torch.as_tensor(index, device=model.device)
        cached = gather_hidden_states(group)
        states = model.encoder_states(batch, rows) if cached is None else torch.as_tensor(cached, device=model.device)
        logits = head.logits(model.head_inputs(states, batch, rows).last)  # pyright: ignore[reportCallIssue]
        return np.split(logits.float().cpu().numpy(), np.cumsum(sizes)[:-1])

    if task.unit == "batch":  # pairs share texts, each of which is computed once
        distinct = {sequence.input_ids.tobytes(): sequence for sequence in sequences}
        found = dict(zip(distinct, infer(model, [*distinct.values()], compute), strict=True))
        return [found[sequence.input_ids.tobytes()] for sequence in sequences]
    return infer(model, sequences, compute)


def gather_hidden_states(sequences: list[Sequence]) -> np.ndarray | None:
    """Return the cached hidden states of a frozen encoder, concatenated; None if the sequences have none."""
    cached = [sequence.hidden_states for sequence in sequences if sequence.hidden_states is not None]
    return np.concatenate(cached) if cached else None


def predictions(
    model: Model,
    task: Task,
    tokenizer: Tokenizer,
    max_length: int,
    examples: Iterable[Any],
    share: Share = map,
) -> Iterator[Any]:
    """Yield one prediction per example, in order, lazily and in constant memory.

    Warns at the end if examples were truncated.

    Args:
        model: The fine-tuned model.
        task: The fitted task.
        tokenizer: The model's tokenizer.
        max_length: Most tokens of a sequence.
        examples: What the task's reader yields. A `UserError` among them is yielded in its place.
        share: What computes the blocks of examples.

    Raises:
        UserError: As `Task.encode`. If reading the examples raises one, it is raised again after the predictions for
            the examples before it.
        UsageError: As `Task.encode`.
    """
    failure: list[UserError] = []
    remaining, count, truncated = _until_failure(examples, failure), 0, 0
    blocks = iter(lambda: list(islice(remaining, SEQUENCES_AT_ONCE)), [])

    def compute(block: list[Any]) -> tuple[list[Any], int, int]:
        """Return the predictions, and the numbers of readable and of truncated examples."""
        readable = [example for example in block if not isinstance(example, UserError)]
        sequences = task.encode(readable, tokenizer, max_length) if readable else []
        decoded = iter(task.decode(outputs(model, task, sequences), sequences, readable) if readable else [])
        block_predictions = [example if isinstance(example, UserError) else next(decoded) for example in block]
        return block_predictions, len(readable), count_truncated(sequences)

    for block_predictions, readable, cut in share(compute, blocks):
        yield from block_predictions
        count, truncated = count + readable, truncated + cut
    if truncated:
        console.warn(f"truncated {truncated:,} of {count:,} examples to {max_length} tokens")
    if failure:
        raise failure[0]


def _until_failure(examples: Iterable[Any], failure: list[UserError]) -> Iterator[Any]:
    """Yield the examples. If reading them raises a UserError, append it to `failure` and stop."""
    try:
        yield from examples
    except UserError as error:
        failure.append(error)


def head_index(task: Task, sequences: list[Sequence], pooled: PooledToken) -> tuple[np.ndarray, list[int]]:
    """Return the rows of a batch that the task head reads, int64 [P], and their number in each sequence."""
    starts = np.cumsum([0, *(len(sequence) for sequence in sequences)])
    read = [task.head_positions(sequence, pooled) for sequence in sequences]
    index = np.concatenate([positions + start for positions, start in zip(read, starts, strict=False)])
    return index.astype(np.int64), [len(positions) for positions in read]


def _groups(sequences: list[Sequence], batch_tokens: int) -> list[list[int]]:
    """Return the indices of the sequences of each batch, longest sequences first."""
    groups: list[list[int]] = []
    size = 0
    for i in sorted(range(len(sequences)), key=lambda i: -len(sequences[i])):
        if not groups or size + len(sequences[i]) > batch_tokens:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += len(sequences[i])
    return groups
