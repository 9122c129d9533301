"""The sentence encoder of skip-thoughts: a GRU whose last state is the vector of a text (Kiros et al. 2015, section 2.1).

T  packed tokens    Q  query rows    S  sequences    L  length of the longest one    N  tokens of some of the sequences
D  hidden size      E  size of the word embeddings
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertie.base.config import AboveZero, Count, DropoutRate, Size, SizeOrZero, ranges
from bertie.base.contracts import Batch, Hidden
from bertie.base.errors import UsageError
from bertie.model.config import EncoderFacts, PooledToken
from bertie.model.dropout import drop
from bertie.model.embeddings import WordEmbeddings
from bertie.model.matrices import Matrices, gate_weights

LONGEST_MEMORY = 30.0  # tokens; about as many as a sentence has


@dataclass(frozen=True)
class GruConfig(EncoderFacts):
    """Sizes and settings of a GRU that reads from the left. uni-skip has 2400 units over embeddings of size 620."""

    text_vector = "lasttoken"
    num_hidden_layers: ClassVar = 1
    causal: ClassVar = True
    pooled_token: ClassVar[PooledToken] = "last"  # where the GRU has read all others
    kind: Literal["gru"] = field(default="gru", kw_only=True)
    hidden_size: Size
    """Size of the states, and of the vector of a text."""
    embedding_size: SizeOrZero = 0
    """Size of the word embeddings. 0: hidden_size."""
    vocab_size: Count = 0
    """Number of entries of the vocabulary. 0: the size of the tokenizer's vocabulary."""
    max_position_embeddings: Size = 512
    """Maximum sequence length, in tokens."""
    hidden_dropout_prob: DropoutRate = 0.1
    """Dropout probability of the word embeddings as the GRU reads them."""
    initializer_range: AboveZero = 0.02
    """Standard deviation of the initial embeddings."""

    __post_init__ = ranges("model")

    def products(self, batch: Batch, rows: np.ndarray) -> float:  # noqa: ARG002
        """Return the multiplications of a forward pass in the three gates. batch: NumPy arrays."""
        return float(len(batch.input_ids) * 3 * self.hidden_size * (self.embedding_width + self.hidden_size))


@dataclass(frozen=True, eq=False)
class TimeSteps:
    """The tokens of sequences in the order in which an RNN reads them: all first tokens, all second ones, and so on.

    In each time step, the longest sequence is the first, so that those that go on are the first ones of the step before.
    """

    token: Int[Tensor, " N"]
    """Packed row of each token."""
    sequence: Int[Tensor, " N"]
    """Number of its sequence, among those that are read."""
    sizes: Int[Tensor, " L"]
    """Tokens of each time step, on the CPU."""

    @classmethod
    def of(cls, starts_S: Int[Tensor, " S"], lengths_S: Int[Tensor, " S"]) -> TimeSteps:
        """Return the order for sequences of at least one token. starts_S: their first rows."""
        order_S = torch.argsort(lengths_S, descending=True, stable=True)
        place_L1 = torch.arange(int(lengths_S.max()) if len(lengths_S) else 0, device=lengths_S.device)[:, None]
        inside_LS = place_L1 < lengths_S[order_S]
        return cls(
            (starts_S[order_S] + place_L1)[inside_LS],
            order_S.expand_as(inside_LS)[inside_LS],
            inside_LS.sum(1).cpu(),
        )

    def run(self, gru: nn.GRU, x_NE: Float[Tensor, "N E"]) -> Float[Tensor, "N D"]:
        """Return the states of a GRU that reads the vectors of the tokens. They are in the order of the time steps."""
        return gru(PackedSequence(x_NE, self.sizes))[0].data if len(x_NE) else x_NE.new_zeros(0, gru.hidden_size)


class RememberingGru(nn.GRU):
    """torch's GRU with other initial weights, so that the last state begins as one that tells of the whole sentence.

    With torch's, a state forgets half of itself at each token, and the last one tells of little but the full stop and [SEP].
    Here a unit forgets 1 / (1 + m) of itself, where m is log-uniform between 1 and `LONGEST_MEMORY` tokens (after Tallec and
    Ollivier 2018). All other biases are 0: at random, they would be a large part of the state, the same for all sentences.
    The matrices that read the state are orthogonal, one per gate, as in the paper (section 3.1).
    """

    weight_hh_l0: nn.Parameter
    bias_ih_l0: nn.Parameter
    bias_hh_l0: nn.Parameter

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for gate in self.weight_hh_l0.detach().split(self.hidden_size):
            nn.init.orthogonal_(gate)
        nn.init.zeros_(self.bias_ih_l0)
        nn.init.zeros_(self.bias_hh_l0)
        update = self.bias_ih_l0.detach()[self.hidden_size : 2 * self.hidden_size]
        nn.init.uniform_(update, 0.0, math.log(LONGEST_MEMORY))

    def matrices(self) -> Matrices:
        """Return the matrices of the layer: see `HasMatrices`."""
        return gate_weights(self)


class GruEncoder(nn.Module):
    """A GRU over word embeddings. Each state has read the token and those before it in the sequence.

    It is torch's GRU, whose reset gate multiplies the product of the matrix and the last state; in the paper's formula it
    multiplies the state before. Both are in use, and libraries for GPUs have only the former.
    """

    def __init__(self, config: GruConfig):
        super().__init__()
        self.config = config
        self.embeddings = WordEmbeddings(config.vocab_size, config.embedding_width)
        self.layers = nn.ModuleList([RememberingGru(config.embedding_width, config.hidden_size)])

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch; see `TransformerEncoder.forward`.

        Raises:
            UsageError: All layers are asked for, and the embeddings have another size than the states.
        """
        if all_layers and self.config.embedding_width != self.config.hidden_size:
            raise UsageError("layers: the embeddings of this gru are not as large as its states: use layers last")
        x_TE = self.embeddings(batch)
        lengths = batch.ragged.lengths
        read = lengths > 0  # the other half of filler that stands for a pair has no tokens
        steps = TimeSteps.of(batch.ragged.cu_seqlens[:-1][read], lengths[read])
        packed_TD = steps.run(self.layers[0], drop(x_TE[steps.token], self.config.hidden_dropout_prob, self.training))  # pyright: ignore[reportArgumentType]
        place_T = torch.empty_like(steps.token)
        place_T[steps.token] = torch.arange(len(place_T), device=place_T.device)
        last_TD = packed_TD[place_T]
        return Hidden(last_TD if rows is None else last_TD[rows], (x_TE, last_TD) if all_layers else None)
