"""The head of knowledge distillation: compare a student's predictions and hidden states with its teacher's.

P predictions, D hidden size
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.base.contracts import Hidden, Loss, Targets
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.losses.soft_targets import Logits, divergence
from bertie.model.transformer import TransformerEncoder


class MaskedModel(NamedTuple):
    """An encoder with its masked-LM head."""

    encoder: TransformerEncoder
    head: MaskedLMHead

    def logits(self, x_PD: Tensor) -> Logits:
        """Return the logits of hidden states, with the vocabulary of the masked-LM bias."""
        return Logits(self.head.transformed(x_PD), self.head.matrix, self.head.bias)


class DistillationHead(nn.Module):
    """DistilBERT's losses (Sanh et al. 2019, section 2): soft targets, and the cosine of the last hidden states.

    It has no weights. The teacher is not part of the model: it is neither trained nor saved, and it runs without dropout.
    `connect` must be called before the first forward pass.
    """

    auxiliary = True
    """It is no head of the model that is saved."""

    def __init__(self, temperature: float, soft_weight: float, cosine_weight: float):
        super().__init__()
        self.temperature = temperature
        self.soft_weight = soft_weight
        self.cosine_weight = cosine_weight
        self.products = 0
        """Multiplications of a prediction of the student."""
        self.student: MaskedModel | None = None  # a tuple is not a submodule: the model owns and saves these parts
        self.teacher: MaskedModel | None = None

    def connect(self, student: MaskedModel, teacher: MaskedModel) -> None:
        """Set the student, whose head this is, and its teacher, which no longer gets gradients."""
        for part in teacher:
            part.requires_grad_(False).eval()
        self.student, self.teacher, self.products = student, teacher, student.head.products

    @torch.no_grad()
    def copy_teacher(self) -> None:
        """Copy the teacher's embeddings, masked-LM head and some of its layers to the student, as DistilBERT's release does.

        The student may have fewer positions, fewer layers and no segments. All other sizes must be equal.
        """
        assert self.student is not None
        assert self.teacher is not None
        chosen = spaced(*(len(set(part.encoder.layers)) for part in (self.teacher, self.student)))
        for ours, theirs in zip(self.student, self.teacher, strict=True):
            source = theirs.state_dict()
            for name, tensor in ours.state_dict().items():
                their_name = re.sub(r"(?<=^layers\.)\d+", lambda number: str(chosen[int(number[0])]), name)
                tensor.copy_(source[their_name][: len(tensor)])

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        """Return the sum of both losses. targets.label is not used. Hits: both predict the same token."""
        assert self.student is not None
        assert self.teacher is not None
        assert hidden.batch is not None
        with torch.no_grad():
            their_x_PD = self.teacher.encoder(hidden.batch, hidden.rows).last[targets.index]
            theirs = self.teacher.logits(their_x_PD)
        x_PD = hidden.last[targets.index]
        ours = self.student.logits(x_PD)
        size = len(ours.bias)  # the teacher's vocabulary may be padded
        theirs = Logits(theirs.x, theirs.matrix[:size], theirs.bias[:size])
        total, hits = divergence(ours, theirs, targets.weight, self.temperature)
        total = self.soft_weight * self.temperature**2 * total  # × τ²: the gradients do not shrink with the temperature
        if self.cosine_weight:
            distance_P = 1 - F.cosine_similarity(x_PD.float(), their_x_PD.float(), dim=1)
            total = total + self.cosine_weight * (distance_P * targets.weight).sum()
        return Loss(total, targets.weight.sum(), hits)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DistillationHead:
        """Move the teacher, too, when torch moves or converts the modules of a model."""
        for part in self.teacher or ():
            part._apply(fn)
        return super()._apply(fn, recurse)


def spaced(layers: int, count: int) -> list[int]:
    """Return the numbers of `count` of the layers, evenly spaced from the first to the last: 6 of 12 are 0, 2, 4, 7, 9, 11."""
    gaps = max(1, count - 1)
    return [(2 * i * (layers - 1) + gaps) // (2 * gaps) for i in range(count)]
