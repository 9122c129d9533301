"""Pack sequences end to end into a `Batch`, without padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bertie.base.contracts import FILLER, Batch, MicroBatch, Ragged, Sequence


def collate(sequences: list[Sequence], max_seqlen: int) -> Batch:
    """Pack sequences end to end.

    Args:
        sequences: The sequences, in order.
        max_seqlen: Upper bound of their lengths in tokens, the same for every batch of a run.
    """
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
    cu_seqlens = np.zeros(len(sequences) + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    return Batch(
        input_ids=np.concatenate([sequence.input_ids for sequence in sequences]),
        token_type_ids=np.concatenate([sequence.token_type_ids for sequence in sequences]),
        position_ids=_position_ids(sequences, cu_seqlens),
        word_starts=np.concatenate([sequence.word_starts for sequence in sequences]),
        pair_label=np.array([sequence.pair_label for sequence in sequences], dtype=np.int32),
        example=np.array([sequence.example for sequence in sequences], dtype=np.int32),
        ragged=Ragged(cu_seqlens, max_seqlen),
        language_ids=_language_ids(sequences),
    )


def _position_ids(sequences: list[Sequence], cu_seqlens: np.ndarray) -> np.ndarray:
    """Return the positions of all tokens, int32 [T]."""
    positions = np.arange(cu_seqlens[-1], dtype=np.int32) - np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
    for sequence, start in zip(sequences, cu_seqlens, strict=False):
        if sequence.position_ids is not None:
            positions[start : start + len(sequence)] = sequence.position_ids
    return positions


def _language_ids(sequences: list[Sequence]) -> np.ndarray | None:
    """Return the languages of all tokens, int32 [T], 0 for filler; None if no sequence has languages."""
    if all(sequence.language_ids is None for sequence in sequences):
        return None
    return np.concatenate([np.zeros(len(s), np.int32) if s.language_ids is None else s.language_ids for s in sequences])


def filler(tokens: int, pad_id: int, max_seqlen: int) -> list[Sequence]:
    """Return filler sequences of [PAD] with `tokens` tokens in total, each of at most `max_seqlen`.

    Filler completes a row of packed tokens. It attends only to itself, and no head predicts anything there.
    """
    sizes = [min(max_seqlen, tokens - start) for start in range(0, tokens, max_seqlen)]
    return [
        Sequence(np.full(n, pad_id, np.int32), np.zeros(n, np.int32), np.ones(n, bool), example=FILLER) for n in sizes
    ]


def join(rows: list[tuple[Batch, dict[str, Any]]]) -> MicroBatch:
    """Concatenate rows with their targets into one micro-batch.

    The targets of a head are of any type whose fields are arrays that can be concatenated. `index` counts in the row's own
    tokens and is shifted. Other fields are not.
    """
    if len(rows) == 1:
        return MicroBatch.of(*rows[0])
    batches = [batch for batch, _ in rows]
    starts = np.cumsum([0, *(len(batch.input_ids) for batch in batches)], dtype=np.int32)
    cu_seqlens = [batch.ragged.cu_seqlens[1:] + start for batch, start in zip(batches, starts, strict=False)]
    directions = [each.ragged.causal for each in batches if each.ragged.causal is not None]
    causal = np.concatenate(directions) if directions else None
    ragged = Ragged(np.concatenate([starts[:1], *cu_seqlens]), batches[0].ragged.max_seqlen, causal)
    arrays: dict[str, Any] = {n: np.concatenate([getattr(b, n) for b in batches]) for n in batches[0].arrays}
    batch = Batch(**arrays, ragged=ragged)
    shifted = [
        {name: replace(target, index=target.index + start) for name, target in targets.items()}
        for (_, targets), start in zip(rows, starts, strict=False)
    ]
    joined = {
        head: replace(first, **{n: np.concatenate([getattr(t[head], n) for t in shifted]) for n in vars(first)})
        for head, first in shifted[0].items()
    }
    return MicroBatch.of(batch, joined)
