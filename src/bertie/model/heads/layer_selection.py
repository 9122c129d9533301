"""Selection of layers for feature-based use of the encoder: the options of Devlin et al. (2018), table 7, and a scalar mix.

    T  packed tokens
    D  hidden size
    E  size of the result: D, or 4 D for "concat_last_4"

`states` is always `Hidden.layers`: the output of the embeddings, then of every layer, lowest first.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bertie.base.errors import UsageError
from bertie.model.encoder import EncoderConfig

Fixed = Literal["embeddings", "second_to_last", "last", "sum_last_4", "concat_last_4", "sum_all"]
"""Selections without weights. "sum_all" sums all layers without the embeddings (the table's "sum all 12 layers")."""
LayerSelection = Literal[Fixed, "scalar_mix"]
"""All selections. "scalar_mix" is `ScalarMix`, whose weights are trained."""

_MIN_LAYERS = {"sum_all": 1, "second_to_last": 2, "sum_last_4": 4, "concat_last_4": 4}


def require_layers(layers: LayerSelection, count: int) -> None:
    """Raise a UsageError if a model with `count` layers has too few for this selection."""
    if count < (needed := _MIN_LAYERS.get(layers, 0)):
        raise UsageError(f"layers {layers} needs {needed} layers, but the model has {count}: choose another value")


def selected_width(layers: LayerSelection, config: EncoderConfig) -> int:
    """Return E, the size of the selection's result. Raises UsageError if the model has too few layers."""
    require_layers(layers, config.num_hidden_layers)
    return config.hidden_size * (4 if layers == "concat_last_4" else 1)


def select_layers(layers: Fixed, states: tuple[Float[Tensor, "T D"], ...]) -> Float[Tensor, "T E"]:
    """Compute a selection from the states of all layers. "concat_last_4" has the last layer at the end.

    Raises:
        UsageError: The model has too few layers.
    """
    require_layers(layers, len(states) - 1)
    if layers == "concat_last_4":
        return torch.cat(states[-4:], 1)
    if layers in ("sum_last_4", "sum_all"):
        return torch.stack(states[-4:] if layers == "sum_last_4" else states[1:]).sum(0)
    return states[{"embeddings": 0, "second_to_last": -2, "last": -1}[layers]]


class ScalarMix(nn.Module):
    """Trained scalar mix of the embeddings and all layers, γ Σ softmax(w)ⱼ stateⱼ (Peters et al. 2018, equation 1).

    Initially it is their mean.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, states: tuple[Float[Tensor, "T D"], ...]) -> Float[Tensor, "T D"]:
        return self.gamma * torch.einsum("l,ltd->td", self.weight.softmax(0), torch.stack(states))
