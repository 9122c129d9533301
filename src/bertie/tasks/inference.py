"""The one inference loop: sequences in, one result a sequence out, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
import torch

from bertie.batches.collate import collate
from bertie.contracts import Batch, Sequence
from bertie.model.bert import BertModel
from bertie.model.heads import PooledHead

Result = TypeVar("Result")


def infer(
    model: BertModel,
    sequences: list[Sequence],
    compute: Callable[[Batch], list[Result]],
    batch_tokens: int = 8192,
) -> list[Result]:
    """Run `compute` on packed batches of sequences of similar length, of at most `batch_tokens` tokens where one allows it.

    compute: from a batch on the model's device to one result a sequence, in the batch's order. The model is put into
    eval mode; nothing is recorded for gradients.
    """
    results: dict[int, Result] = {}
    model.eval()
    with torch.inference_mode():
        for group in _groups(sequences, batch_tokens):
            longest = len(sequences[group[0]])  # a closer bound than the model's: attention's grid grows with it
            batch = collate([sequences[i] for i in group], longest).tensors(model.device)
            results.update(zip(group, compute(batch), strict=True))
    return [results[i] for i in range(len(sequences))]


def pooled_logits(model: BertModel, kind: str, sequences: list[Sequence]) -> list[np.ndarray]:
    """float32 [classes] a sequence: what the pooled head of that kind says of the last layer at its first token."""
    head = cast(PooledHead, model.heads[kind])

    def compute(batch: Batch) -> list[np.ndarray]:
        first = model.encoder(batch, batch.ragged.cu_seqlens[:-1]).last
        return list(head.logits(first).float().cpu().numpy())

    return infer(model, sequences, compute)


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
