"""The scale of the numbers that a head learns. A head learns them standardized: with mean 0 and standard deviation 1.

task.json of a run has the scale, and its weights give standardized numbers. A converted model has the scale in its output layer,
so other libraries give the user's numbers.

C  outputs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class NumberScale:
    """Mean and standard deviation of the training examples' numbers, one for each output. Empty: outputs are the numbers."""

    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    @classmethod
    def of(cls, numbers_NC: np.ndarray) -> Self:
        """Return the scale of numbers."""
        return cls(tuple(numbers_NC.mean(0).tolist()), tuple(numbers_NC.std(0).tolist()))

    def standardized(self, numbers_C: tuple[float, ...]) -> np.ndarray:
        """Return what the head learns for numbers: float32 [C]."""
        numbers = np.array(numbers_C)
        return ((numbers - self.mean) / self.deviation if self.mean else numbers).astype(np.float32)

    def restored(self, outputs: np.ndarray) -> np.ndarray:
        """Return the numbers for outputs of the head: [..., C]."""
        return outputs * np.array(self.deviation) + self.mean if self.mean else outputs

    def in_layer(self, weight_CD: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights, float32, of an output layer that gives the numbers, from one for standardized numbers."""
        mean_C, deviation_C = (torch.from_numpy(np.array(numbers)) for numbers in (self.mean, self.deviation))
        return (weight_CD * deviation_C[:, None]).float(), (bias_C * deviation_C + mean_C).float()
