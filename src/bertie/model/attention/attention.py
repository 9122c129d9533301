"""Scaled dot-product attention within each packed sequence. One function per implementation, all with the same signature.

    T  packed tokens: keys and values    Q  packed queries: T, or fewer if only some rows are needed
    S  sequences    L  length of the longest one    N  heads    H  head size

The queries of a sequence attend to the keys of the same sequence only. A `Pattern` excludes some of them, such as keys at
later positions.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bertie.base.contracts import Ragged
from bertie.model.attention.flash_attention import use_flash_attention_3
from bertie.model.attention.groups import HALVES, grouped
from bertie.model.attention.loop import looped
from bertie.model.attention.window import Attention, AttentionInput, Pattern
from bertie.model.dropout import drop

# Attention weights of a sequence, per thread, below which groups are faster (dev/log/2026-11-23.md).
MIN_WEIGHTS_PER_THREAD = 8192


def dense(x: AttentionInput) -> Float[Tensor, "Q N H"]:
    """Compute all sequences at once in a padded grid, with torch's kernel for padded batches, which supports dropout."""
    queries, keys = padding_of(x.queries, len(x.q)), padding_of(x.keys, len(x.k))
    seen, longest = keys.valid[:, None, None, :], keys.valid.shape[1]
    if (near := x.pattern.visible(longest, longest, x.q.device)) is not None:
        seen = (seen & near) | ~queries.valid[:, None, :, None]  # every row needs a visible key, also a padded one
    if (bias := x.pattern.bias(x.q.shape[1], longest, longest, x.q)) is not None:
        seen = torch.where(seen, bias, -math.inf)
    grids = (pad(x.q, queries), pad(x.k, keys), pad(x.v, keys))
    return unpad(F.scaled_dot_product_attention(*grids, attn_mask=seen, dropout_p=x.dropout), queries)


def varlen(x: AttentionInput) -> Float[Tensor, "Q N H"]:
    """Compute FlashAttention directly on the packed rows: on a GPU, in half precision, without dropout."""
    # Imported here because it loads torch's compiler, which takes a third of a command's startup time.
    from torch.nn.attention.varlen import varlen_attn

    if not torch.compiler.is_compiling():  # compile_layers.py asks for it before
        use_flash_attention_3()
    cu_seqlens = (x.queries.cu_seqlens.int(), x.keys.cu_seqlens.int())
    longest, sides = (x.queries.max_seqlen, x.keys.max_seqlen), x.pattern.sides
    return varlen_attn(x.q, x.k, x.v, *cu_seqlens, *longest, window_size=sides)  # pyright: ignore[reportReturnType]


def eager(x: AttentionInput) -> Float[Tensor, "Q N H"]:
    """Compute one sequence after the other by the formula. This is the reference for the tests of the others."""
    outputs = []
    for s in range(len(x.keys.lengths)):
        rows, columns = (slice(*ragged.cu_seqlens[s : s + 2]) for ragged in (x.queries, x.keys))
        scores = torch.einsum("qnh,tnh->nqt", x.q[rows], x.k[columns]) / math.sqrt(x.q.shape[-1])
        if (bias := x.pattern.bias(len(scores), scores.shape[1], scores.shape[2], scores)) is not None:
            scores = scores + bias
        if (near := x.pattern.visible(scores.shape[1], scores.shape[2], scores.device)) is not None:
            scores = scores.masked_fill(~near, -torch.inf)
        outputs.append(torch.einsum("nqt,tnh->qnh", drop(_softmax(scores), x.dropout), x.v[columns]))
    return torch.cat(outputs)


def automatic(x: AttentionInput) -> Float[Tensor, "Q N H"]:
    """Choose the fastest implementation for the device.

    On a CPU, this is `grouped` in half precision and for short sequences, otherwise `looped`. On a GPU, it is `varlen` if it
    supports the inputs, otherwise `dense`.
    """
    if x.q.device.type == "cpu":
        length = len(x.k) / (len(x.keys.cu_seqlens) - 1)
        is_short = x.k.shape[1] * length**2 < MIN_WEIGHTS_PER_THREAD * torch.get_num_threads()
        return (grouped if x.q.dtype in HALVES or is_short else looped)(x)
    fits = x.q.is_cuda and x.q.dtype in HALVES and fits_varlen(x.q.shape[-1], x.dropout, x.pattern)
    return (varlen if fits else dense)(x)


def fits_varlen(head_size: int, dropout: float, pattern: Pattern) -> bool:
    """Whether `varlen` supports such attention in half precision on a GPU."""
    return not dropout and not pattern.alibi and pattern.relative is None and head_size % 8 == 0 and head_size <= 256


AttentionKind = Literal["automatic", "grouped", "looped", "varlen", "dense", "eager"]
IMPLEMENTATIONS: dict[AttentionKind, Attention] = {
    "automatic": automatic,
    "grouped": grouped,
    "looped": looped,
    "varlen": varlen,
    "dense": dense,
    "eager": eager,
}


def _softmax(scores: Tensor) -> Tensor:
    """Return the softmax, computed in fp32 at least."""
    exact = torch.float32 if scores.dtype in HALVES else scores.dtype
    return scores.softmax(-1, dtype=exact).to(scores.dtype)


class Padding(NamedTuple):
    """Mapping between packed rows and a padded [S, L] grid. Padding exists only inside attention."""

    rows: Int[Tensor, "S L"]
    """Packed row of each cell. Past the end of a sequence, it is an arbitrary row, which `valid` excludes."""
    valid: Bool[Tensor, "S L"]
    """False past the end of a sequence."""
    cells: Int[Tensor, " T"]
    """Cell of each packed row in the flattened grid."""


@lru_cache(maxsize=4)  # all layers of a forward pass need the same one or two
def padding_of(ragged: Ragged, count: int) -> Padding:
    lengths, starts = ragged.lengths, ragged.cu_seqlens[:-1]
    columns = torch.arange(ragged.longest, device=lengths.device)
    first_cell = torch.arange(len(starts), device=lengths.device) * len(columns)
    shift = torch.repeat_interleave(first_cell - starts, lengths, output_size=count)
    return Padding(
        rows=(starts[:, None] + columns).clamp(max=count - 1),
        valid=columns < lengths[:, None],
        cells=torch.arange(count, device=lengths.device) + shift,
    )


def pad(x_TNH: Tensor, padding: Padding) -> Float[Tensor, "S N L H"]:
    return _Gather.apply(x_TNH, padding, True).transpose(1, 2)


def unpad(x_SNLH: Tensor, padding: Padding) -> Float[Tensor, "T N H"]:
    return _Gather.apply(x_SNLH.transpose(1, 2), padding, False)


class _Gather(torch.autograd.Function):
    """Packed → padded, and back. Each is the gradient of the other, which avoids the slow scatter-add of indexing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, padding: Padding, pad: bool) -> Tensor:
        ctx.padding, ctx.pad = padding, pad
        return _to_grid(x, padding) if pad else _from_grid(x, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        move = _from_grid if ctx.pad else _to_grid
        return move(gradients[0], ctx.padding), None, None


def _to_grid(x: Tensor, padding: Padding) -> Tensor:
    grid = x.index_select(0, padding.rows.flatten()).unflatten(0, padding.rows.shape)
    return grid.masked_fill_(~padding.valid[:, :, None, None], 0)


def _from_grid(grid: Tensor, padding: Padding) -> Tensor:
    return grid.flatten(0, 1).index_select(0, padding.cells)
