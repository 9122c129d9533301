"""The passes of XLNet's and Transformer-XL's layers through a batch: which tokens are computed together, and what they see.

T  packed tokens    Q  query rows    W  distances
D  hidden size      R  stored tokens and tokens of the pass    C  channels of a key and a value: 2 × D
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Ragged
from bertie.model.attention.relative_attention import Keys, Stream, reach_of
from bertie.model.attention.segment_memory import Segments
from bertie.model.positions import relative_embeddings


@dataclass(eq=False)
class Stored:
    """Keys and values that a layer has computed for the first tokens of some texts, while these grow."""

    kv: Float[Tensor, "R C"]
    """Those of all texts, one after the other."""

    def extended(self, kv_TC: Float[Tensor, "T C"]) -> Float[Tensor, "R C"]:
        """Store more of them, and return all."""
        self.kv = torch.cat([self.kv, kv_TC])
        return self.kv


class View(NamedTuple):
    """The rows that a layer computes, and what they see."""

    streams: tuple[Stream, ...]
    """The rows of each stream."""
    keys: Keys
    """The keys of all segments."""
    distances: Float[Tensor, "W D"]
    """Embeddings of the distances, as in `Terms.distance`."""
    segments: Segments
    """Where the keys come from."""


class Part(NamedTuple):
    """Tokens of a batch that a layer computes together, and the rows among them that the last layer computes."""

    segments: Segments
    """The tokens, and what they see."""
    rows: slice
    """The rows, in Q."""
    content: Stream
    """The tokens."""
    selected: Stream
    """The rows. A query stream does not see its own tokens."""
    keys: Keys
    """The keys."""


def part_of(
    segments: Segments, types_T: Int[Tensor, " T"], rank_T: Int[Tensor, " T"], rows: Tensor | None, query_stream: bool
) -> Part:
    """Return a part of a batch. A token sees the memory, and the tokens of its segment whose rank is at most its own.

    A row of a query stream sees tokens of lower rank. With rank 0, it is not predicted: it sees the tokens of rank 0, because
    every query needs a key.

    Args:
        segments: The segments of the part.
        types_T: Segment ids of all tokens.
        rank_T: Ranks of all tokens.
        rows: int64 [Q]: sorted rows that the last layer computes. None: all tokens.
        query_stream: Whether the rows are a query stream.
    """
    tokens = segments.tokens
    types, rank = types_T[tokens], rank_T[tokens]
    content = Stream(segments.queries, segments.position, types, rank)
    new = segments.source - segments.stored
    known, old = new.clamp(min=0) + segments.read.start, new < 0
    remembered = old if segments.before is None else old | segments.before
    keys = Keys(segments.keys, types_T[known].masked_fill(old, 0), rank_T[known].masked_fill(remembered, 0))
    if rows is None:
        return Part(segments, tokens, content, content, keys)
    first, last = 0, len(rows)
    if tokens.stop - tokens.start < len(rank_T):
        first, last = torch.searchsorted(rows, rows.new_tensor([tokens.start, tokens.stop])).tolist()
    at = rows[first:last] - tokens.start
    ragged = Ragged(torch.searchsorted(at, segments.queries.cu_seqlens), segments.queries.max_seqlen)
    limit = (rank[at] - 1).clamp(min=0) if query_stream else rank[at]
    return Part(segments, slice(first, last), content, Stream(ragged, segments.position[at], types[at], limit), keys)


def run_layers(
    layers: nn.ModuleList,
    h_TD: Float[Tensor, "T D"],
    g_QD: Float[Tensor, "Q D"] | None,
    rows: Int[Tensor, " Q"] | None,
    parts: list[Part],
    stored: list[Stored] | None = None,
) -> tuple[list[Tensor], Float[Tensor, "Q D"]]:
    """Run all layers: all but the last one compute the tokens, and the rows of a query stream; the last one only the rows.

    Args:
        layers: Layers of the class `XlnetLayer`.
        h_TD: The content stream: the embeddings.
        g_QD: The query stream, if there is one.
        rows: Rows of the last layer. None: all tokens.
        parts: The parts of the batch.
        stored: Keys and values of earlier passes, for each layer.

    Returns:
        The embeddings and the output of every layer but the last one, each [T, D], and the output of the last layer.
    """
    distances = [_distances(part.segments.keys, h_TD) for part in parts]
    stores = stored or [None] * len(layers)
    outputs = [h_TD]
    for layer, store in zip(layers[:-1], stores, strict=False):
        results = list[tuple[Tensor, ...]]()
        for part, distance_WD in zip(parts, distances, strict=True):
            x_MD, streams = _rows(h_TD, part.segments.tokens), (part.content,)
            sizes = [len(x_MD)]
            if g_QD is not None:
                own_QD = g_QD[part.rows]
                x_MD, streams, sizes = torch.cat([x_MD, own_QD]), (*streams, part.selected), [*sizes, len(own_QD)]
            view = View(streams, part.keys, distance_WD, part.segments)
            results.append(layer(x_MD, _rows(h_TD, part.segments.read), view, store).split(sizes))
        h_TD, *others = (column[0] if len(column) == 1 else torch.cat(column) for column in zip(*results, strict=True))
        g_QD = others[0] if others else None
        outputs.append(h_TD)
    x_QD = g_QD if g_QD is not None else h_TD if rows is None else h_TD[rows]
    last = [
        layers[-1](
            _rows(x_QD, part.rows),
            _rows(h_TD, part.segments.read),
            View((part.selected,), part.keys, distance_WD, part.segments),
            stores[-1],
        )
        for part, distance_WD in zip(parts, distances, strict=True)
    ]
    return outputs, last[0] if len(last) == 1 else torch.cat(last)


def _rows(x: Tensor, rows: slice) -> Tensor:
    """Return some rows, and the same tensor if they are all: layers compare both with `is`."""
    return x if (rows.start, rows.stop) == (0, len(x)) else x[rows]


def _distances(keys: Ragged, like: Tensor) -> Float[Tensor, "W D"]:
    reach = reach_of(keys)
    distances = torch.arange(reach, -reach, -1, device=like.device)
    return relative_embeddings(distances, like.shape[1]).to(like.dtype)
