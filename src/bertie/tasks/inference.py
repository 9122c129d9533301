"""The one inference loop: sequences in, one result a sequence out, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch

from bertie import console
from bertie.batches.collate import collate
from bertie.contracts import Batch, Sequence
from bertie.errors import UserError
from bertie.model.bert import BertModel
from bertie.tasks.encoding import count_truncated
from bertie.tasks.task import Task
from bertie.text.tokenizer import Tokenizer

Result = TypeVar("Result")
SEQUENCES_AT_ONCE = 1024  # examples that are read, computed and handed on together


def infer(
    model: BertModel,
    sequences: list[Sequence],
    compute: Callable[[Batch, list[Sequence]], list[Result]],
    batch_tokens: int = 8192,
) -> list[Result]:
    """Run `compute` on packed batches of sequences of similar length, of at most `batch_tokens` tokens where one allows it.

    compute: from a batch on the model's device, and its sequences, to one result a sequence, in the batch's order. The
    model is put into eval mode; nothing is recorded for gradients.
    """
    results: dict[int, Result] = {}
    model.eval()
    with torch.inference_mode():
        for group in _groups(sequences, batch_tokens):
            longest = len(sequences[group[0]])  # a closer bound than the model's: attention's grid grows with it
            together = [sequences[i] for i in group]
            batch = collate(together, longest).tensors(model.device)
            results.update(zip(group, compute(batch, together), strict=True))
    return [results[i] for i in range(len(sequences))]


def outputs(model: BertModel, task: Task, sequences: list[Sequence]) -> list[np.ndarray]:
    """float32 [tokens, C] a sequence: what the task's head says of the tokens that it reads."""
    head = model.heads[task.kind]

    def compute(batch: Batch, group: list[Sequence]) -> list[np.ndarray]:
        index, sizes = head_index(task, group)
        rows = torch.as_tensor(index, device=model.device)
        known = gather_hidden_states(group)
        states = model.encoder_states(batch, rows) if known is None else torch.as_tensor(known, device=model.device)
        logits = head.logits(model.head_inputs(states, batch.ragged, rows).last)  # pyright: ignore[reportCallIssue]
        return np.split(logits.float().cpu().numpy(), np.cumsum(sizes)[:-1])

    return infer(model, sequences, compute)


def gather_hidden_states(sequences: list[Sequence]) -> np.ndarray | None:
    """What a frozen encoder says of them, end to end; None where it is not known yet."""
    known = [sequence.hidden_states for sequence in sequences if sequence.hidden_states is not None]
    return np.concatenate(known) if known else None


def predictions(
    model: BertModel, task: Task, tokenizer: Tokenizer, max_length: int, examples: Iterable[Any]
) -> Iterator[Any]:
    """What the task's `decode` gives of examples of its reader's, in order, lazily, at constant memory; an error among them
    is handed on in its place. Says in the end how many were cut. Errors: UserError, UsageError, as in `encode`; where the
    examples end in one, after what is said of those before."""
    broken: list[UserError] = []
    rest, count, cut = _until_broken(examples, broken), 0, 0
    while part := list(islice(rest, SEQUENCES_AT_ONCE)):
        readable = [each for each in part if not isinstance(each, UserError)]
        sequences = task.encode(readable, tokenizer, max_length) if readable else []
        decoded = task.decode(outputs(model, task, sequences), sequences, readable) if readable else []
        found = iter(decoded)
        yield from (each if isinstance(each, UserError) else next(found) for each in part)
        count, cut = count + len(readable), cut + count_truncated(sequences)
    if cut:
        console.warn(f"{cut:,} of {count:,} examples are cut to fit into {max_length} tokens")
    if broken:
        raise broken[0]


def _until_broken(examples: Iterable[Any], broken: list[UserError]) -> Iterator[Any]:
    """The examples, to the error that ends them, which is put down."""
    try:
        yield from examples
    except UserError as error:
        broken.append(error)


def head_index(task: Task, sequences: list[Sequence]) -> tuple[np.ndarray, list[int]]:
    """Where in their batch the tokens lie that the task reads, int64 [P], and how many those are of each sequence."""
    starts = np.cumsum([0, *(len(sequence) for sequence in sequences)])
    read = [task.head_positions(sequence) for sequence in sequences]
    index = np.concatenate([positions + start for positions, start in zip(read, starts, strict=False)])
    return index.astype(np.int64), [len(positions) for positions in read]


def _groups(sequences: list[Sequence], batch_tokens: int) -> list[list[int]]:
    """Indices of the sequences of each batch, the longest first."""
    groups: list[list[int]] = []
    size = 0
    for i in sorted(range(len(sequences)), key=lambda i: -len(sequences[i])):
        if not groups or size + len(sequences[i]) > batch_tokens:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += len(sequences[i])
    return groups
