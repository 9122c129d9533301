"""Segments of a sequence, and the memory that they have of the tokens before them (Dai et al. 2019, section 3.2).

A sequence is read in segments of `segment_length` tokens. A token sees tokens of its own segment, and in every layer also
the states of the `memory_length` tokens before the segment. No gradient flows into these states. So they are the states
that the same pass computes for the segments before, and all segments of a sequence can be computed together, layer by layer:
no state is carried from one step of training to the next.

    T  packed tokens    S  sequences    G  segments    K  keys of all segments, the memory of each before its own tokens
    R  rows: stored tokens and tokens of the pass       D  hidden size    C  channels of a key and a value: 2 × D
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bertie.base.contracts import Ragged
from bertie.base.errors import UsageError

PART_TOKENS = 4096
"""Tokens whose attention is computed at once where no gradient is needed: a document may be a single sequence."""


def reads_documents(config: Any) -> bool:
    """Return whether an encoder reads a text of any length as one sequence, because it reads it in segments.

    config: The configuration of an encoder. Those that can read in segments have `segment_length` and `memory_length`.
    """
    return getattr(config, "segment_length", 0) > 0


def require_first_segment(config: Any, max_length: int) -> None:
    """Raise UsageError if heads would read the first token of a text, which sees the first segment only.

    Args:
        config: The configuration of an encoder.
        max_length: Most tokens of a text.
    """
    if reads_documents(config) and config.pooled_token == "first" and max_length > config.segment_length:
        raise UsageError(
            f"max_length is {max_length}, but the model reads segments of {config.segment_length} tokens, and the head's token "
            'sees only the first segment: lower max_length to that, or set task.pooling to "max"'
        )


def require_segments(config: Any, layout: Any, longest: int) -> None:
    """Raise UsageError if the sequences of a recipe do not suit the segments of its model.

    Args:
        config: The configuration of the encoder.
        layout: The layout, which must keep documents apart: a segment may remember its own document only.
        longest: Most tokens of a sequence.
    """
    if not reads_documents(config):
        return
    for key in ("segment_length", "memory_length"):
        if (value := getattr(config, key)) > longest:
            raise UsageError(f"model.{key} is {value}, longer than layout.max_length {longest}: lower model.{key}")
    if layout.kind != "doc_sentences":
        raise UsageError(
            f'layout.kind is "{layout.kind}", but model.segment_length {config.segment_length} needs consecutive text of one '
            'document: set layout.kind to "doc_sentences"'
        )


@dataclass(frozen=True, eq=False)
class Segments:
    """The segments of some tokens of a batch, and where each finds its keys."""

    tokens: slice
    """These tokens, in T."""
    read: slice
    """Tokens in T whose states a layer reads: the same, and the memory before them."""
    queries: Ragged
    """Boundaries of the segments among `tokens`."""
    keys: Ragged
    """Boundaries of their keys in K."""
    position: Int[Tensor, " tokens"]
    """Position of each token among the keys of its segment."""
    source: Int[Tensor, " K"]
    """Row of each key: the rows of stored tokens come first, then the rows of `read`."""
    before: Bool[Tensor, " K"] | None = None
    """Whether the key is memory: no gradient flows into its state. None: no segment has a memory."""
    stored: int = 0
    """Number of rows of stored tokens."""

    def gather(
        self, kv_RC: Float[Tensor, "R C"], h_TD: Float[Tensor, "t D"], project: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "K C"]:
        """Return the keys and values that the segments see.

        Args:
            kv_RC: Those of all rows.
            h_TD: The states from which they were computed, if no tokens are stored.
            project: Computes keys and values from states.
        """
        if self.before is None:
            return kv_RC
        if not torch.is_grad_enabled():
            return kv_RC.index_select(0, self.source)
        # The weights learn from the memory, too: only the states are constants.
        both_RC = torch.cat([kv_RC, project(h_TD.detach())])
        return both_RC.index_select(0, self.source + self.before * len(kv_RC))


def whole_sequences(ragged: Ragged, position_ids: Int[Tensor, " T"]) -> Segments:
    """Return the sequences of a batch as segments, one each."""
    tokens = slice(0, len(position_ids))
    return Segments(tokens, tokens, ragged, ragged, position_ids, torch.arange(tokens.stop, device=position_ids.device))


def segments_of(
    ragged: Ragged,
    tokens: int,
    segment_length: int,
    memory_length: int,
    begin: Many[int] = (),
    stored: Many[int] = (),
) -> Segments:
    """Divide the sequences of a batch into segments.

    Args:
        ragged: Boundaries of the sequences, of at least one token each.
        tokens: Number of tokens, T.
        segment_length: Most tokens of a segment.
        memory_length: Most tokens of its memory.
        begin: Tokens of each sequence that earlier passes have read. Empty: 0.
        stored: How many of them are stored, the last ones. Empty: 0.
    """
    lengths, starts = ragged.lengths, ragged.cu_seqlens[:-1]
    begin_S, stored_S = (lengths.new_tensor(size) if size else torch.zeros_like(lengths) for size in (begin, stored))
    # A meta tensor has no values, and so no number of segments: their bound makes an upper bound of the memory.
    bounds = [tokens // segment_length + len(lengths)] if lengths.is_meta else [None]
    bounds += [tokens + memory_length * bounds[0]] if bounds[0] else [None]
    first_S = begin_S // segment_length
    owner_G, place_G = _numbered((begin_S + lengths - 1) // segment_length - first_S + 1, bounds[0])
    edge_G = (first_S[owner_G] + place_G) * segment_length  # positions count in the sequence, from its first token
    start_G = torch.maximum(edge_G, begin_S[owner_G])
    stop_G = torch.minimum(edge_G + segment_length, (begin_S + lengths)[owner_G])
    reach_G = torch.maximum(edge_G - memory_length, (begin_S - stored_S)[owner_G])
    segment_K, place_K = _numbered(stop_G - reach_G, bounds[1])
    position_K, owner_K = reach_G[segment_K] + place_K, owner_G[segment_K]
    since_K = position_K - begin_S[owner_K]  # negative: a stored token
    ends_S = stored_S.cumsum(0)
    segment_T, place_T = _numbered(stop_G - start_G, tokens)
    every, longest = slice(0, tokens), min(segment_length, ragged.max_seqlen)
    return Segments(
        tokens=every,
        read=every,
        queries=Ragged(_cumulative(stop_G - start_G), longest),
        keys=Ragged(
            _cumulative(stop_G - reach_G), min(segment_length + memory_length, ragged.max_seqlen + sum(stored))
        ),
        position=(start_G - reach_G)[segment_T] + place_T,
        source=since_K + torch.where(since_K < 0, ends_S[owner_K], starts[owner_K] + sum(stored)),
        before=position_K < edge_G[segment_K],
        stored=sum(stored),
    )


def parts_of(segments: Segments) -> Iterator[Segments]:
    """Yield the segments in parts of about `PART_TOKENS` tokens; with gradients, or stored tokens, all at once."""
    if torch.is_grad_enabled() or segments.before is None or segments.stored or segments.tokens.stop <= PART_TOKENS:
        yield segments
        return
    queries, keys = segments.queries.cu_seqlens.tolist(), segments.keys.cu_seqlens.tolist()
    first = 0
    while first < len(queries) - 1:
        last = first + 1
        while last < len(queries) - 1 and queries[last + 1] - queries[first] <= PART_TOKENS:
            last += 1
        tokens, known = slice(queries[first], queries[last]), slice(keys[first], keys[last])
        read = slice(int(segments.source[known].min()), tokens.stop)
        yield Segments(
            tokens=tokens,
            read=read,
            queries=_between(segments.queries, first, last),
            keys=_between(segments.keys, first, last),
            position=segments.position[tokens],
            source=segments.source[known] - read.start,
            before=segments.before[known],
        )
        first = last


def keys_seen(cu_seqlens: np.ndarray, rows: np.ndarray, segment_length: int, memory_length: int) -> np.ndarray:
    """Return the number of keys that each row attends to: its segment and its memory.

    Args:
        cu_seqlens: int [S + 1]: boundaries of the sequences.
        rows: int [Q]: tokens of the batch, ascending.
        segment_length: 0: a sequence is a single segment.
        memory_length: Most tokens of a memory.
    """
    owner = np.searchsorted(cu_seqlens, rows, side="right") - 1
    lengths = np.diff(cu_seqlens)[owner]
    if not segment_length:
        return lengths.astype(np.float64)
    edge = (rows - cu_seqlens[owner]) // segment_length * segment_length
    return (np.minimum(segment_length, lengths - edge) + np.minimum(memory_length, edge)).astype(np.float64)


def _numbered(counts: Int[Tensor, " n"], total: int | None) -> tuple[Tensor, Tensor]:
    """Return the number of the group of each item, and its number in the group. total: items, if they are known."""
    groups = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=total)
    return groups, torch.arange(len(groups), device=counts.device) - (counts.cumsum(0) - counts)[groups]


def _cumulative(lengths: Int[Tensor, " G"]) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _between(ragged: Ragged, first: int, last: int) -> Ragged:
    part = ragged.cu_seqlens[first : last + 1]
    return Ragged(part - part[0], ragged.max_seqlen)
