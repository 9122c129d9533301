"""Which layers are read where the encoder is used for its vectors: the choices of Devlin et al. (2018), table 7, and a mix.

    T  tokens
    D  hidden size
    E  width of what comes out: D, or 4 D of "concat_last_4"

`states` is everywhere `Hidden.layers`: the embeddings' output, then that of every layer, lowest first.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bertie.errors import UsageError
from bertie.model.config import BertConfig

Fixed = Literal["embeddings", "second_to_last", "last", "sum_last_4", "concat_last_4", "sum_all"]
"""Without weights. sum_all is the sum of all layers without the embeddings: of 12 of 12 layers, as the table's row says."""
Layers = Literal[Fixed, "scalar_mix"]
"""mix: `LayerMix`, whose weights are learned."""

_LEAST = {"second_to_last": 2, "sum_last_4": 4, "concat_last_4": 4}


def require_layers(layers: Layers, count: int) -> None:
    """Errors: UsageError where a model of `count` layers has too few for it."""
    if count < (least := _LEAST.get(layers, 1)):
        raise UsageError(
            f"layers {layers} takes {least} layers, and the model has {count}: choose another, such as last"
        )


def selected_width(layers: Layers, config: BertConfig) -> int:
    """E. Errors: UsageError where the model has too few layers for it."""
    require_layers(layers, config.num_hidden_layers)
    return config.hidden_size * (4 if layers == "concat_last_4" else 1)


def select_layers(layers: Fixed, states: tuple[Float[Tensor, "T D"], ...]) -> Float[Tensor, "T E"]:
    """ "concat_last_4" has the last layer last. Errors: UsageError where there are too few layers for it."""
    require_layers(layers, len(states) - 1)
    if layers == "concat_last_4":
        return torch.cat(states[-4:], 1)
    if layers in ("sum_last_4", "sum_all"):
        return torch.stack(states[-4:] if layers == "sum_last_4" else states[1:]).sum(0)
    return states[{"embeddings": 0, "second_to_last": -2, "last": -1}[layers]]


class ScalarMix(nn.Module):
    """γ Σ softmax(w)ⱼ stateⱼ over the embeddings and all layers (Peters et al. 2018, equation 1): at first their mean."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, states: tuple[Float[Tensor, "T D"], ...]) -> Float[Tensor, "T D"]:
        return self.gamma * torch.einsum("l,ltd->td", self.weight.softmax(0), torch.stack(states))
