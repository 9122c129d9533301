"""The head for vectors of texts.

P  tokens that are pooled    S  texts    D  width of a vector
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bertie.base.contracts import Hidden, Loss, PairTargets, Targets
from bertie.model.losses.compared import LOSSES, LossName
from bertie.model.pooling import Pooling, pool


@dataclass(frozen=True)
class VectorLoss:
    """How the loss compares the vectors of texts."""

    loss: LossName = "infonce"
    scale: float = 20.0
    """Factor on the cosines, 1 / temperature; with `learned`, the first one."""
    learned: bool = False
    widths: tuple[int, ...] = ()
    """Also compare the first numbers of the vectors, as many as these (Matryoshka: Kusupati et al. 2022)."""


class PoolingHead(nn.Module):
    """Head for text vectors: pools the hidden states of a text's tokens. It has no weights, unless the scale is learned."""

    gather: Callable[[Tensor, tuple[int, ...]], Tensor] = staticmethod(lambda vectors_SD, _: vectors_SD)
    """Returns the vectors of the texts of all ranks, from those of this one and the number of texts of each."""

    def __init__(self, pooling: Pooling, how: VectorLoss = VectorLoss(), prompts: tuple[str, str] = ("", "")):
        super().__init__()
        self.pooling: Pooling = pooling
        self.how = how
        self.prompts = prompts
        self.log_scale = nn.Parameter(torch.tensor(math.log(how.scale))) if how.learned else None

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """Return the hidden states unchanged. The task pools them when it decodes."""
        return x_PD

    def vectors(self, hidden: Hidden, targets: Targets | PairTargets, texts: int) -> Float[Tensor, "S D"]:
        """Return the normalized vectors of texts. targets: `index` and `label` say which tokens are pooled."""
        with torch.autocast(hidden.last.device.type, enabled=False):
            exact = torch.promote_types(hidden.last.dtype, torch.float32)
            return F.normalize(pool(self.pooling, hidden.last.to(exact)[targets.index], targets.label, texts))

    def compare(self, vectors_SD: Float[Tensor, "S D"], targets: PairTargets) -> Loss:
        """Return the loss from the vectors of all texts of this rank: the mean over the widths."""
        with torch.autocast(vectors_SD.device.type, enabled=False):
            vectors_SD = self.gather(vectors_SD, targets.sizes)
            scale = self.how.scale if self.log_scale is None else self.log_scale.exp()
            whole, *shorter = [
                LOSSES[self.how.loss](each, targets, scale)
                for each in [vectors_SD, *(F.normalize(vectors_SD[:, :width]) for width in self.how.widths)]
            ]
            total = sum((loss.total for loss in shorter), whole.total) / (1 + len(shorter))
            return Loss(total, whole.count, whole.hits)

    def forward(self, hidden: Hidden, targets: PairTargets) -> Loss:
        return self.compare(self.vectors(hidden, targets, targets.texts), targets)
