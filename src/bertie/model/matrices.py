"""The matrices of a layer: what an optimizer for matrices trains."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

Matrices = dict[Tensor, int]
"""Weights, with the number of matrices that each stacks along its first dimension, such as the gates of a GRU."""


@runtime_checkable
class HasMatrices(Protocol):
    """A layer of an encoder. A new kind of layer has this method, too."""

    def matrices(self) -> Matrices:
        """Return the weights of the layer that map vectors to vectors. Biases and norms are none."""
        ...


def linear_weights(layer: nn.Module) -> Matrices:
    """Return the weights of all linear modules of a layer, each as one matrix."""
    return {module.weight: 1 for module in layer.modules() if isinstance(module, nn.Linear)}


def gate_weights(rnn: nn.RNNBase) -> Matrices:
    """Return the weights of an RNN, whose gates are stacked: 3 in a GRU, 4 in an LSTM, whose projection is a single one."""
    named = {name: weight for name, weight in rnn.named_parameters() if weight.ndim == 2}
    gates = {name: len(weight) // rnn.hidden_size for name, weight in named.items()}
    return {weight: 1 if name.startswith("weight_hr") else gates[name] for name, weight in named.items()}
