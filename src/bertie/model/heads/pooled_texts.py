"""The interface of text poolings, and the poolings with at most the weights of a head: token, mean, late, both orders, vectors.

A pooling makes one vector of a text, or of a pair of texts, for the head of a task. It is a module with

- `facts`: what other files ask it (`PoolingFacts`);
- `width`: size of its vectors, R;
- `reduce(x_TW, texts)`: what is left of the states of all tokens at the query rows, [Q, …];
- `vectors(reduced)`: the vectors, [Q, R], from what `reduce` returns. Selections and mixes of layers come before it;
- `connect(heads)`, which tells it and the heads of a model of each other.

T  packed tokens    S  sequences    Q  query rows    W  size of the states    R  size of the result
X  texts: S, or 2 S of pairs of which two parts are read separately, where pair i has the texts 2 i and 2 i + 1
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Batch, Ragged
from bertie.model.heads.heads import PooledHead
from bertie.model.pooling import Pooling, pool
from bertie.tokenizers.truncation import Separate


@dataclass(frozen=True)
class PoolingFacts:
    """Facts about a pooling that other files use."""

    separate: Separate = ""
    """Parts of a pair that the encoder reads separately: none, its texts, or its two orders."""
    reads_all: bool = False
    """Whether something trained reads the states of all tokens, so that a frozen encoder's states are cached for all."""
    for_one_text: str = ""
    """The pooling that takes its place for single texts. Empty: it is for them, too."""
    bilstm: Literal["none", "possible", "needed"] = "possible"
    """Whether a BiLSTM stands between the encoder and it (`lstm_hidden_size`)."""
    bilstm_layers: int = 2
    """Layers of this BiLSTM. Two: Devlin et al. 2018, sections 5.1 and 5.3."""
    one_token: bool = False
    """Whether it takes the state of a single token of what is read, such as the last one."""
    in_transformers: bool = False
    """Whether it needs a class of transformers that pools in the same way."""

    def fits(self, pairs: bool, lstm_hidden_size: int) -> bool:
        """Return whether it is for these examples and this BiLSTM, whose size is 0 if there is none."""
        return (pairs or not self.for_one_text) and self.bilstm != ("none" if lstm_hidden_size else "needed")


@dataclass(frozen=True, eq=False)
class PooledRows:
    """Where the texts of query rows are."""

    rows: Int[Tensor, " Q"]
    """The query rows."""
    sequences: Ragged
    """Boundaries of the sequences."""
    read: Ragged
    """Boundaries of the texts as the encoder reads them: the sequences, or the texts or orders of pairs."""
    text_vector: Pooling = "mean"
    """How the encoder makes the vector of a text from the states of its tokens."""

    @property
    def sequence(self) -> Int[Tensor, " Q"]:
        """Sequence of each query row."""
        return torch.searchsorted(self.sequences.cu_seqlens, self.rows, right=True) - 1

    def mean(self, x_TW: Float[Tensor, "T W"]) -> Float[Tensor, "Q W"]:
        """Return the mean state of the tokens of each row's sequence, [CLS] and [SEP] included."""
        return pool("mean", x_TW, self.sequences.owners(len(x_TW)), len(self.sequences.lengths))[self.sequence]


class TextPool(Protocol):
    """A pooling, as the top of this file says. The defaults are for one whose `reduce` returns the vectors, without the heads."""

    facts: ClassVar[PoolingFacts]
    width: int

    def __init__(self, width: int, pairs: bool): ...

    def reduce(self: Any, x_TW: Float[Tensor, "T W"], texts: PooledRows) -> Tensor:
        """Return the vector of each row's text or pair: calling the pooling gives that of each sequence."""
        return self(x_TW, texts.read)[texts.sequence]

    def vectors(self, reduced: Tensor) -> Float[Tensor, "Q R"]:
        return reduced

    def connect(self, heads: Iterable[nn.Module]) -> None: ...


class TokenText(nn.Module, TextPool):
    """The state of one token."""

    facts: ClassVar[PoolingFacts] = PoolingFacts(one_token=True)

    def __init__(self, width: int, pairs: bool):  # noqa: ARG002
        super().__init__()
        self.width = width

    def reduce(self, x_TW: Float[Tensor, "T W"], texts: PooledRows) -> Float[Tensor, "Q W"]:
        return x_TW[texts.rows]


class MeanText(nn.Module, TextPool):
    """The mean of the states of all tokens."""

    facts: ClassVar[PoolingFacts] = PoolingFacts(in_transformers=True)

    def __init__(self, width: int, pairs: bool):  # noqa: ARG002
        super().__init__()
        self.width = width

    def reduce(self, x_TW: Float[Tensor, "T W"], texts: PooledRows) -> Float[Tensor, "Q W"]:
        return texts.mean(x_TW)


class LateText(nn.Module, TextPool):
    """The mean of what the head's dense layer and its activation make of the states of all tokens."""

    facts: ClassVar[PoolingFacts] = PoolingFacts(reads_all=True, in_transformers=True)

    def __init__(self, width: int, pairs: bool):  # noqa: ARG002
        super().__init__()
        self.width = width
        self.head: tuple[PooledHead, ...] = ()
        """The head, in a tuple, so that it is not a submodule: the model owns and saves it."""

    def connect(self, heads: Iterable[nn.Module]) -> None:
        """Take the dense layer of the head of texts, which then gets what it returned."""
        self.head = tuple(head for head in heads if isinstance(head, PooledHead))
        for head in self.head:
            head.late = True

    def reduce(self, x_TW: Float[Tensor, "T W"], texts: PooledRows) -> Float[Tensor, "Q W"]:
        for head in self.head:
            x_TW = head.pooled(x_TW)
        return texts.mean(x_TW)


class BothOrders(nn.Module, TextPool):
    """The sum of the states of one token of a pair, and of the pair in the other order: swapping the texts changes nothing.

    As in GPT for similarity, whose pairs have no order (Radford et al. 2018, section 3.3).
    """

    # Language modeling beside the task reads all states.
    facts: ClassVar[PoolingFacts] = PoolingFacts(
        separate="orders", reads_all=True, for_one_text="token", one_token=True
    )

    def __init__(self, width: int, pairs: bool):
        """Create the pooling. width: size of the states, W. pairs: whether sequences are pairs of texts, as they must be."""
        super().__init__()
        assert pairs, "a single text has one order"
        self.width = width

    def reduce(self, x_TW: Float[Tensor, "T W"], texts: PooledRows) -> Float[Tensor, "Q W"]:
        """Add the states of both orders: of the first tokens for a row that is the first of its sequence, else the last ones."""
        number_Q = texts.sequence
        starts, ends = texts.read.cu_seqlens[:-1], texts.read.cu_seqlens[1:] - 1
        is_first_Q = texts.rows == texts.sequences.cu_seqlens[number_Q]
        # Filler, whose rows no head of a task uses, has no second order: its first row is past the end of all tokens.
        first_Q, second_Q = (
            torch.where(is_first_Q, starts[order], ends[order]).clamp(max=len(x_TW) - 1)
            for order in (2 * number_Q, 2 * number_Q + 1)
        )
        return x_TW[first_Q] + x_TW[second_Q]


class TextVectors(nn.Module, TextPool):
    """The vector of a text, u, or for a pair [|u − v|; u ∗ v], without any weights. The head is only an output layer.

    So Skip-thoughts were measured (Kiros et al. 2015, section 3.2).

    What the vector of a text is, the encoder says, as in `bertie embed`: for a GRU the last state, for others the mean of the
    states of all tokens.
    """

    facts: ClassVar[PoolingFacts] = PoolingFacts(separate="texts", bilstm="none")

    def __init__(self, width: int, pairs: bool):
        """Set the sizes.

        Args:
            width: Size of the states, W.
            pairs: Whether sequences are pairs of texts.
        """
        super().__init__()
        self.parts = 2 if pairs else 1
        self.width = self.parts * width

    def connect(self, heads: Iterable[nn.Module]) -> None:
        """Leave out the dense layer of the head of texts."""
        for head in heads:
            if isinstance(head, PooledHead):
                head.leave_only_output()

    def reduce(self, x_TW: Float[Tensor, "T W"], texts: PooledRows) -> Float[Tensor, "Q R"]:
        """Return the numbers of u, or of both texts in turn: u₁, v₁, u₂, v₂ … So layers can be mixed or concatenated."""
        lengths_X = texts.read.lengths
        full_X = lengths_X > 0  # filler has no second text
        owner_T = (full_X.cumsum(0) - 1)[texts.read.owners(len(x_TW))]
        x_XW = x_TW.new_zeros(len(lengths_X), x_TW.shape[1])
        x_XW[full_X] = pool(texts.text_vector, x_TW, owner_T, int(full_X.sum()))
        return x_XW.unflatten(0, (-1, self.parts)).mT.flatten(1)[texts.sequence]

    def vectors(self, reduced: Float[Tensor, "Q R"]) -> Float[Tensor, "Q R"]:
        """Return u, or [|u − v|; u ∗ v]."""
        if self.parts == 1:
            return reduced
        u_QW, v_QW = reduced.unflatten(1, (-1, 2)).unbind(2)
        return torch.cat([(u_QW - v_QW).abs(), u_QW * v_QW], 1)


def separate_texts(batch: Batch) -> Batch:
    """Return a batch in which each text (or order) of a pair is a sequence of its own, with its own positions and in segment 0.

    Filler becomes a text and an empty one.
    """
    starts, ends = batch.ragged.cu_seqlens[:-1], batch.ragged.cu_seqlens[1:]
    segments = F.pad(batch.token_type_ids.cumsum(0), (1, 0))
    second = ends - (segments[ends] - segments[starts])
    cu_seqlens = torch.cat([torch.stack([starts, second], 1).flatten(), ends[-1:]])
    texts, tokens = Ragged(cu_seqlens, batch.ragged.max_seqlen), len(batch.input_ids)
    positions = torch.arange(tokens, device=cu_seqlens.device) - cu_seqlens[texts.owners(tokens)]
    return replace(batch, token_type_ids=torch.zeros_like(batch.token_type_ids), position_ids=positions, ragged=texts)
