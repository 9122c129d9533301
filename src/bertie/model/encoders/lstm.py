"""ELMo's language model: separate stacks of forward and backward LSTMs (Peters et al. 2018).

T  packed tokens    Q  query rows    S  sequences    L  length of the longest one
D  hidden size      E  size of one direction: D / 2
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.config import AboveZero, Count, DropoutRate, EvenSize, Range, Size, check_ranges
from bertie.base.contracts import Batch, Hidden, Loss, Targets
from bertie.base.errors import UsageError
from bertie.model.bilstm import grid_of
from bertie.model.config import EncoderFacts, PooledToken
from bertie.model.dropout import drop
from bertie.model.encoders.characters import CharacterCNN, Characters, Subwords, TokenInput
from bertie.model.losses.chunked_loss import chunked_vocabulary_loss
from bertie.model.matrices import Matrices, gate_weights


@dataclass(frozen=True)
class LstmConfig(EncoderFacts):
    """Sizes and settings of a two-directional LSTM language model. ELMo has 2 layers of 2 × 512 with 4096 cells each."""

    causal: ClassVar = False  # only half of the hidden state sees no later token
    pooled_token: ClassVar[PooledToken] = "last"  # where the forward LSTM has read all others
    kind: Literal["lstm"] = field(default="lstm", kw_only=True)
    num_hidden_layers: Annotated[int, Range(1, 100)]
    """Number of LSTM layers of each direction."""
    hidden_size: EvenSize
    """Size of the hidden states: both directions, each with half of it. It must be even."""
    cell_size: Size
    """Size of the memory cells of each direction. If it is larger than half of hidden_size, a matrix projects it to that."""
    vocab_size: Count = 0
    """Number of entries of the vocabulary. 0: the size of the tokenizer's vocabulary."""
    max_position_embeddings: Size = 512
    """Maximum sequence length, in tokens."""
    hidden_dropout_prob: DropoutRate = 0.1
    """Dropout probability of the input of each layer."""
    initializer_range: AboveZero = 0.02
    """Standard deviation of the initial embeddings, and of the initial matrices of a character CNN."""
    input: TokenInput = Subwords()
    """The source of the vectors of tokens: an embedding of each subword, or a CNN over its characters."""

    def __post_init__(self) -> None:
        check_ranges("model", self)
        if self.cell_size < self.hidden_size // 2:
            raise UsageError(f"model.cell_size is {self.cell_size}: give at least half of model.hidden_size")

    def products(self, batch: Batch, rows: np.ndarray) -> float:  # noqa: ARG002
        """Return the multiplications of a forward pass: gates and projections, without padding, and a CNN once for each
        distinct token. batch: NumPy arrays."""
        size, cells = self.hidden_size // 2, self.cell_size
        projection = cells * size if cells > size else 0
        products = len(batch.input_ids) * self.num_hidden_layers * 2 * (8 * cells * size + projection)
        if isinstance(self.input, Characters):
            products += len(np.unique(batch.input_ids)) * self.input.products(size)
        return float(products)


class LstmEmbeddings(nn.Module):
    """Vectors of size E of the tokens, which both directions share."""

    word: nn.Embedding
    """The embeddings of the entries, [V, E]. A model with characters has none."""
    characters: CharacterCNN | None
    """Computes the vectors from characters, or None."""

    def __init__(self, config: LstmConfig):
        super().__init__()
        size, source, self.characters = config.hidden_size // 2, config.input, None
        if isinstance(source, Characters):
            self.characters = CharacterCNN(source, config.vocab_size, size)
        else:
            self.word = nn.Embedding(config.vocab_size, size)

    def forward(self, batch: Batch) -> Float[Tensor, "T E"]:
        return self.word(batch.input_ids) if self.characters is None else self.characters(batch.input_ids)


class LstmLayer(nn.Module):
    """A forward and a backward LSTM, each with a projection to size E and a residual connection."""

    def __init__(self, config: LstmConfig):
        super().__init__()
        size, cells = config.hidden_size // 2, config.cell_size
        self.ahead = nn.LSTM(size, cells, proj_size=0 if cells == size else size)
        self.back = nn.LSTM(size, cells, proj_size=0 if cells == size else size)
        self.dropout = config.hidden_dropout_prob

    def forward(
        self, ahead_LSE: Float[Tensor, "L S E"], back_LSE: Float[Tensor, "L S E"], residual: bool
    ) -> tuple[Float[Tensor, "L S E"], Float[Tensor, "L S E"]]:
        outputs = []
        for lstm, x_LSE in ((self.ahead, ahead_LSE), (self.back, back_LSE)):
            with warnings.catch_warnings():  # torch says that oneDNN has no projections, so it uses its own LSTM
                warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
                y_LSE, _ = lstm(drop(x_LSE, self.dropout, self.training))
            outputs.append(y_LSE + x_LSE if residual else y_LSE)
        return outputs[0], outputs[1]

    def matrices(self) -> Matrices:
        """Return the matrices of the layer: see `HasMatrices`."""
        return gate_weights(self.ahead) | gate_weights(self.back)


class LstmEncoder(nn.Module):
    """Two stacks of LSTMs over the same embeddings: one reads from the left, the other from the right.

    The stacks never see each other's states. So half of a hidden state depends only on the token and those before it, and the
    other half on the token and those after it.
    """

    def __init__(self, config: LstmConfig):
        super().__init__()
        self.config = config
        self.embeddings = LstmEmbeddings(config)
        self.layers = nn.ModuleList(LstmLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch.

        Args:
            batch: Packed sequences.
            rows: Sorted positions in T to return. None: all positions.
            all_layers: If true, also return the embeddings (twice, side by side) and the output of every layer.

        Returns:
            Hidden states; `last` is [T, D], or [Q, D] with `rows`.
        """
        x_TE = self.embeddings(batch)
        grid = grid_of(batch.ragged, len(x_TE))
        ahead, back = x_TE[grid.ahead], x_TE[grid.back]
        outputs = [torch.cat([x_TE, x_TE], 1)]
        for number, layer in enumerate(self.layers):
            ahead, back = layer(ahead, back, residual=number > 0)
            if all_layers or number + 1 == len(self.layers):
                outputs.append(torch.cat([ahead[grid.column, grid.row], back[grid.mirrored, grid.row]], 1))
        last = outputs[-1] if rows is None else outputs[-1][rows]
        return Hidden(last, tuple(outputs) if all_layers else None)


class BidirectionalLMHead(nn.Module):
    """ELMo's head: logits of the next token from one half of the hidden state, and of the previous one from the other.

    Both directions have the same output matrix: the matrix of the word embeddings, or a separate one, as in ELMo.
    """

    def __init__(self, word: nn.Embedding, tied: bool = True):
        super().__init__()
        self.word = (word,)  # in a tuple, so that it is not a submodule: the encoder owns and saves it
        self.output = None if tied else word
        self.products = 2 * word.weight.numel()

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P 2 V"]:
        return F.linear(x_PD.unflatten(1, (2, -1)), self.word[0].weight)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        """Return the sum of both directions. targets.label and targets.weight: [P, 2]."""
        losses = []
        for direction, x_PE in enumerate(hidden.last[targets.index].chunk(2, 1)):
            part = Targets(targets.index, targets.label[:, direction], targets.weight[:, direction])
            losses.append(chunked_vocabulary_loss(x_PE, self.word[0].weight, part))
        ahead, back = losses
        return Loss(ahead.total + back.total, ahead.count + back.count, ahead.hits + back.hits)
