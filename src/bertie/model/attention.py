"""Scaled dot-product attention inside each packed sequence: one function an implementation, all of one signature.

    T  packed tokens: keys and values    Q  packed queries: T, or fewer where only some rows are needed
    S  sequences    L  the longest of them    N  heads    H  head size

The queries of sequence s see the keys of sequence s and nothing else: with `causal` those at their own place and before
it, with `window` those at most so many places away. Then, and only then, every token has to be a query.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bertie.contracts import Ragged
from bertie.model.attention_groups import grouped
from bertie.model.attention_half import grouped_half
from bertie.model.attention_loop import looped, visible
from bertie.model.dropout import drop

FEW = 8192  # attention weights of a sequence, for each thread, below which it is better not computed alone (LOG.md)
HALVES = (torch.bfloat16, torch.float16)


class Attention(Protocol):
    def __call__(
        self,
        q_QNH: Float[Tensor, "Q N H"],
        k_TNH: Float[Tensor, "T N H"],
        v_TNH: Float[Tensor, "T N H"],
        q: Ragged,
        k: Ragged,
        *,
        dropout: float,
        causal: bool = False,
        window: int | None = None,
    ) -> Float[Tensor, "Q N H"]: ...


def dense(
    q_QNH: Float[Tensor, "Q N H"],
    k_TNH: Float[Tensor, "T N H"],
    v_TNH: Float[Tensor, "T N H"],
    q: Ragged,
    k: Ragged,
    *,
    dropout: float,
    causal: bool = False,
    window: int | None = None,
) -> Float[Tensor, "Q N H"]:
    """All sequences at once on a padded grid, by torch's kernel for such grids, which takes dropout."""
    queries, keys = _padding(q, len(q_QNH)), _padding(k, len(k_TNH))
    seen, longest = keys.valid[:, None, None, :], keys.valid.shape[1]
    if (near := visible(longest, longest, causal, window, q_QNH.device)) is not None:
        seen = (seen & near) | ~queries.valid[:, None, :, None]  # no row may see nothing, not even a padded one
    grids = (_pad(q_QNH, queries), _pad(k_TNH, keys), _pad(v_TNH, keys))
    return _unpad(F.scaled_dot_product_attention(*grids, attn_mask=seen, dropout_p=dropout), queries)


def varlen(
    q_QNH: Float[Tensor, "Q N H"],
    k_TNH: Float[Tensor, "T N H"],
    v_TNH: Float[Tensor, "T N H"],
    q: Ragged,
    k: Ragged,
    *,
    dropout: float,
    causal: bool = False,
    window: int | None = None,
) -> Float[Tensor, "Q N H"]:
    """FlashAttention on the packed rows as they are: on a GPU, in half precision, without dropout."""
    # not above: it loads torch's compiler, a third of a command's start
    from torch.nn.attention.varlen import varlen_attn

    if dropout:
        raise ValueError("varlen has no dropout")
    reach = -1 if window is None else window
    cu_seqlens = (q.cu_seqlens.int(), k.cu_seqlens.int())
    longest, sides = (q.max_seqlen, k.max_seqlen), (reach, 0 if causal else reach)
    return varlen_attn(q_QNH, k_TNH, v_TNH, *cu_seqlens, *longest, window_size=sides)  # pyright: ignore[reportReturnType]


def eager(
    q_QNH: Float[Tensor, "Q N H"],
    k_TNH: Float[Tensor, "T N H"],
    v_TNH: Float[Tensor, "T N H"],
    q: Ragged,
    k: Ragged,
    *,
    dropout: float,
    causal: bool = False,
    window: int | None = None,
) -> Float[Tensor, "Q N H"]:
    """One sequence after the other, as the formula reads: the reference that the others are tested against."""
    outputs = []
    for s in range(len(k.lengths)):
        rows, columns = slice(q.cu_seqlens[s], q.cu_seqlens[s + 1]), slice(k.cu_seqlens[s], k.cu_seqlens[s + 1])
        scores = torch.einsum("qnh,tnh->nqt", q_QNH[rows], k_TNH[columns]) / math.sqrt(q_QNH.shape[-1])
        if (near := visible(scores.shape[1], scores.shape[2], causal, window, scores.device)) is not None:
            scores = scores.masked_fill(~near, -torch.inf)
        outputs.append(torch.einsum("nqt,tnh->qnh", drop(_softmax(scores), dropout), v_TNH[columns]))
    return torch.cat(outputs)


def automatic(
    q_QNH: Float[Tensor, "Q N H"],
    k_TNH: Float[Tensor, "T N H"],
    v_TNH: Float[Tensor, "T N H"],
    q: Ragged,
    k: Ragged,
    *,
    dropout: float,
    causal: bool = False,
    window: int | None = None,
) -> Float[Tensor, "Q N H"]:
    """The fastest here. CPU: `grouped_half` in half precision, `grouped` for short sequences, else `looped`. GPU: `varlen`
    where it can, else `dense`."""
    look = {"dropout": dropout, "causal": causal, "window": window}
    if q_QNH.device.type == "cpu":
        length = len(k_TNH) / (len(k.cu_seqlens) - 1)
        short = k_TNH.shape[1] * length**2 < FEW * torch.get_num_threads()
        if q_QNH.dtype in HALVES:
            return grouped_half(q_QNH, k_TNH, v_TNH, q, k, **look)
        return (grouped if short else looped)(q_QNH, k_TNH, v_TNH, q, k, **look)
    fits = q_QNH.is_cuda and not dropout and q_QNH.dtype in HALVES and q_QNH.shape[-1] % 8 == 0
    return (varlen if fits else dense)(q_QNH, k_TNH, v_TNH, q, k, **look)


Kind = Literal["automatic", "grouped", "looped", "varlen", "dense", "eager"]
IMPLEMENTATIONS: dict[Kind, Attention] = {
    "automatic": automatic,
    "grouped": grouped,
    "looped": looped,
    "varlen": varlen,
    "dense": dense,
    "eager": eager,
}


def _softmax(scores: Tensor) -> Tensor:
    """In fp32 at least, whatever the products were in."""
    exact = torch.float32 if scores.dtype in HALVES else scores.dtype
    return scores.softmax(-1, dtype=exact).to(scores.dtype)


class Padding(NamedTuple):
    """Where packed rows stand in a padded [S, L] grid. The only padding there is; it ends with the attention."""

    rows: Int[Tensor, "S L"]  # for every cell the packed row it shows; after a sequence's end, some row: not valid
    valid: Bool[Tensor, "S L"]
    cells: Int[Tensor, " T"]  # for every packed row its cell in the flattened grid


@lru_cache(maxsize=4)  # every layer of a forward pass asks for the same one or two
def _padding(ragged: Ragged, count: int) -> Padding:
    lengths, starts = ragged.lengths, ragged.cu_seqlens[:-1]
    on_cpu = lengths.device.type == "cpu"  # on a GPU, looking at the lengths would stop the queue
    longest = max(int(lengths.max()), 1) if on_cpu else ragged.max_seqlen
    columns = torch.arange(longest, device=lengths.device)
    first_cell = torch.arange(len(starts), device=lengths.device) * longest
    shift = torch.repeat_interleave(first_cell - starts, lengths, output_size=count)
    return Padding(
        rows=(starts[:, None] + columns).clamp(max=count - 1),
        valid=columns < lengths[:, None],
        cells=torch.arange(count, device=lengths.device) + shift,
    )


def _pad(x_TNH: Tensor, padding: Padding) -> Float[Tensor, "S N L H"]:
    return _Gather.apply(x_TNH, padding, True).transpose(1, 2)


def _unpad(x_SNLH: Tensor, padding: Padding) -> Float[Tensor, "T N H"]:
    return _Gather.apply(x_SNLH.transpose(1, 2), padding, False)


class _Gather(torch.autograd.Function):
    """Packed → padded and back. Each is the other's gradient, so neither needs the slow scatter-add of indexing."""

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
