"""Sequences → Batch: laid end to end, nothing padded."""

from __future__ import annotations

import numpy as np

from bertie.contracts import FILLER, Batch, Ragged, Sequence


def collate(sequences: list[Sequence], max_seqlen: int) -> Batch:
    """Lay sequences end to end. max_seqlen: upper bound on their lengths, the same for every batch of a run."""
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
    cu_seqlens = np.zeros(len(sequences) + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    return Batch(
        input_ids=np.concatenate([sequence.input_ids for sequence in sequences]),
        token_type_ids=np.concatenate([sequence.token_type_ids for sequence in sequences]),
        position_ids=np.arange(cu_seqlens[-1], dtype=np.int32) - np.repeat(cu_seqlens[:-1], lengths),
        word_starts=np.concatenate([sequence.word_starts for sequence in sequences]),
        kind=np.array([sequence.kind for sequence in sequences], dtype=np.int32),
        example=np.array([sequence.example for sequence in sequences], dtype=np.int32),
        ragged=Ragged(cu_seqlens, max_seqlen),
    )


def filler(tokens: int, pad_id: int, max_seqlen: int) -> list[Sequence]:
    """Sequences of [PAD] that fill a row up: they attend to themselves only, and nothing is predicted in them."""
    sizes = [min(max_seqlen, tokens - start) for start in range(0, tokens, max_seqlen)]
    return [
        Sequence(np.full(n, pad_id, np.int32), np.zeros(n, np.int32), np.ones(n, bool), example=FILLER) for n in sizes
    ]
