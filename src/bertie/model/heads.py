"""From hidden rows to logits, one layer added for each use."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bertie.contracts import Hidden, Loss, PairTargets, Targets
from bertie.model.activation import activation
from bertie.model.config import Activation, BertConfig
from bertie.model.dropout import drop
from bertie.model.losses import choice, cross_entropy, squared_error, vocabulary_loss
from bertie.model.pooling import Pooling, pool

LossOf = Callable[[Tensor, Targets], Loss]
PRODUCT = 64  # numbers of a token in the product of a start and an end


class MaskedLMHead(nn.Module):
    """Dense, activation, norm, then the word embeddings' own matrix and a bias: logits over the vocabulary."""

    def __init__(self, config: BertConfig, word: nn.Embedding):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.act: Activation = config.hidden_act
        self.word = (word,)  # in a tuple: used here, owned and saved by the encoder

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P V"]:
        return F.linear(self._transformed(x_PD), self.word[0].weight, self.bias)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        x_PD = self._transformed(hidden.last[targets.index])
        return vocabulary_loss(x_PD, self.word[0].weight, self.bias, targets)

    def _transformed(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        return self.norm(activation(self.act, self.dense(x_PD)))


class PooledHead(nn.Module):
    """BERT's pooler (dense and tanh on the first token), dropout, one added layer (Devlin et al. 2018, figure 4 a and b)."""

    def __init__(self, width: int, outputs: int, dropout: float, loss: LossOf = cross_entropy):
        super().__init__()
        self.pooler = nn.Linear(width, width)
        self.out = nn.Linear(width, outputs)
        self.dropout = dropout
        self.loss = loss

    def logits(self, first_SD: Float[Tensor, "S D"]) -> Float[Tensor, "S C"]:
        return self.out(drop(torch.tanh(self.pooler(first_SD)), self.dropout, self.training))

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return self.loss(self.logits(hidden.last[targets.index]), targets)


class TokenHead(nn.Module):
    """Dropout and one added layer on every token that is asked for (Devlin et al. 2018, figure 4 c and d).

    On all rows, of which hardly one is not asked for: their number is one of few, where new ones cost (`training/tune.py`).
    """

    def __init__(self, width: int, outputs: int, dropout: float, loss: LossOf = cross_entropy):
        super().__init__()
        self.out = nn.Linear(width, outputs)
        self.dropout = dropout
        self.loss = loss

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P C"]:
        return self.out(drop(x_PD, self.dropout, self.training))

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return self.loss(self.logits(hidden.last)[targets.index], targets)


class ConditionalSpanHead(nn.Module):
    """A start and an end, where the end depends on the start: to what it is by itself comes a product of both tokens.

    logits: [P, 2 + 2 · PRODUCT]: start, end, and of each token its factor as a start and as an end.
    """

    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Linear(width, 2)
        self.pair = nn.Linear(width, 2 * PRODUCT)

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P C"]:
        return torch.cat([self.out(x_PD), self.pair(x_PD) / PRODUCT**0.25], 1)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        """In training the end is conditioned on the right start."""
        logits_PC = self.logits(hidden.last)[targets.index].float()
        bounds_P2, start_PE, end_PE = logits_PC.split([2, PRODUCT, PRODUCT], 1)
        group_PE = targets.label[:, None].expand_as(start_PE)
        right_PE = torch.zeros_like(start_PE).scatter_add(0, group_PE, start_PE * targets.weight[:, :1])
        together_P = (right_PE.gather(0, group_PE) * end_PE).sum(1)
        return choice(bounds_P2 + F.pad(together_P[:, None], (1, 0)), targets)


class PoolingHead(nn.Module):
    """A vector for a text: the mean, the first or the largest of its tokens' states. It has no weights of its own.

    Trained on pairs by their cosine: towards their scores, or, without scores, each first text with its own second text
    against all others of the batch (InfoNCE: van den Oord et al. 2018; for sentences, Henderson et al. 2017).
    """

    def __init__(self, pooling: Pooling, scale: float):
        super().__init__()
        self.pooling: Pooling = pooling
        self.scale = scale

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """The tokens as they are; whoever decodes pools them."""
        return x_PD

    def forward(self, hidden: Hidden, targets: PairTargets) -> Loss:
        texts = len(targets.first) + len(targets.second)
        with torch.autocast(hidden.last.device.type, enabled=False):
            x_PD = hidden.last.float()[targets.index]
            vectors_SD = F.normalize(pool(self.pooling, x_PD, targets.label, texts))
            first_BD, second_BD = vectors_SD[targets.first], vectors_SD[targets.second]
            if targets.scored:
                cosine_B1 = (first_BD * second_BD).sum(1, keepdim=True)
                return squared_error(cosine_B1, Targets(targets.index, targets.score, targets.weight))
            own_B = torch.arange(len(first_BD), device=first_BD.device)
            return cross_entropy(self.scale * first_BD @ second_BD.T, Targets(targets.index, own_B, targets.weight))
