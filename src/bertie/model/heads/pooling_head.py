"""The head for vectors of texts, and its losses.

B  pairs    C  candidates    P  tokens that are pooled    S  texts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bertie.base.contracts import Hidden, Loss, PairTargets, Targets
from bertie.model.losses.losses import cross_entropy, squared_error
from bertie.model.pooling import Pooling, pool


class PoolingHead(nn.Module):
    """Head for text vectors: pools the hidden states of a text's tokens. It has no weights.

    Training uses the cosines of text pairs. If the pairs have gold scores, the loss is the squared error of the cosine.
    Otherwise the loss is the cross-entropy of each first text's own second text against the other candidates (InfoNCE: van den
    Oord et al. 2018; for sentences, Henderson et al. 2017), with the cosines multiplied by `scale`.
    """

    gather: Callable[[Tensor, tuple[int, ...]], Tensor] = staticmethod(lambda vectors_SD, _: vectors_SD)
    """Returns the vectors of the texts of all ranks, from those of this one and the number of texts of each."""

    def __init__(self, pooling: Pooling, scale: float):
        super().__init__()
        self.pooling: Pooling = pooling
        self.scale = scale

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """Return the hidden states unchanged. The task pools them when it decodes."""
        return x_PD

    def vectors(self, hidden: Hidden, targets: Targets | PairTargets, texts: int) -> Float[Tensor, "S D"]:
        """Return the normalized vectors of texts. targets: `index` and `label` say which tokens are pooled."""
        with torch.autocast(hidden.last.device.type, enabled=False):
            exact = torch.promote_types(hidden.last.dtype, torch.float32)
            return F.normalize(pool(self.pooling, hidden.last.to(exact)[targets.index], targets.label, texts))

    def compare(self, vectors_SD: Float[Tensor, "S D"], targets: PairTargets) -> Loss:
        """Return the loss from the vectors of all texts of this rank."""
        with torch.autocast(vectors_SD.device.type, enabled=False):
            vectors_SD = self.gather(vectors_SD, targets.sizes)
            first_BD, second_CD = vectors_SD[targets.first], vectors_SD[targets.second]
            plain = Targets(targets.index, targets.own, targets.weight)
            if targets.scored:
                cosine_B1 = (first_BD * second_CD[targets.own]).sum(1, keepdim=True)
                return squared_error(cosine_B1, replace(plain, label=targets.score))
            logits_BC = (self.scale * first_BD @ second_CD.T).masked_fill(targets.masked, -torch.inf)
            return cross_entropy(logits_BC, plain)

    def forward(self, hidden: Hidden, targets: PairTargets) -> Loss:
        return self.compare(self.vectors(hidden, targets, targets.texts), targets)
