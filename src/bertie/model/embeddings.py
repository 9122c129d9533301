"""The input layer: normalized sum of word, position and segment embeddings (Devlin et al. 2018, figure 2)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from bertie.contracts import Batch
from bertie.model.config import BertConfig
from bertie.model.dropout import drop


class Embeddings(nn.Module):
    """Word, position and segment embeddings, summed, normalized, with dropout."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(self, batch: Batch) -> Float[Tensor, "T D"]:
        x_TD = self.word(batch.input_ids) + self.position(batch.position_ids) + self.segment(batch.token_type_ids)
        return drop(self.norm(x_TD), self.dropout, self.training)
