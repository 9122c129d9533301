"""Output biases to begin with, of tasks whose labels are rare.

Where each of many labels is rare, the first steps of training push all logits down. A bias that does so is learned slowly, so
the encoder does it, for all texts alike, and may stay there: it tells texts apart no more. With the bias that gives each label
its frequency, nothing is left to push (Lin et al. 2017, section 4.1).
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from bertie.base.contracts import Sequence


@runtime_checkable
class KnowsFrequencies(Protocol):
    """A task whose head begins with the frequencies of the labels."""

    def initial_bias(self, sequences: list[Sequence]) -> np.ndarray:
        """Return the biases of the output layer with the lowest loss on training sequences: float32 [C]."""
        ...


def start_with_frequencies(task: object, head: Any, sequences: list[Sequence]) -> None:
    """Set the output biases of a new head in place, if it has any and the task asks for it. sequences: those to train on."""
    if isinstance(task, KnowsFrequencies) and head.out.bias is not None:
        with torch.no_grad():
            head.out.bias.copy_(torch.from_numpy(task.initial_bias(sequences)))
