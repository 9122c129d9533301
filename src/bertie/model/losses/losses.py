"""Losses, from logits and targets. Each returns a sum and its count (`Loss`), computed in fp32 at least."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.base.contracts import Loss, Targets
from bertie.model.losses.chunked_loss import chunked_vocabulary_loss
from bertie.model.losses.vocabulary_loss_half import HalfVocabularyLoss


def cross_entropy(logits_PC: Float[Tensor, "P C"], targets: Targets) -> Loss:
    """Return the weighted sum of −log p(label), in nats, and the weighted number of correct predictions as hits."""
    loss_P, correct_P = _CrossEntropy.apply(logits_PC, targets.label)
    return Loss((loss_P * targets.weight).sum(), targets.weight.sum(), (correct_P.detach() * targets.weight).sum())


def vocabulary_loss(
    x_PD: Float[Tensor, "P D"], matrix_VD: Float[Tensor, "V D"], targets: Targets, bias_V: Float[Tensor, " V"]
) -> Loss:
    """Return `cross_entropy` of the logits x Wᵀ + b."""
    if x_PD.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        total, hits = HalfVocabularyLoss.apply(x_PD, matrix_VD, bias_V, targets.label, targets.weight)
        return Loss(total, targets.weight.sum(), hits)
    if x_PD.is_cuda:
        return chunked_vocabulary_loss(x_PD, matrix_VD, targets, bias_V)
    return cross_entropy(F.linear(x_PD, matrix_VD, bias_V), targets)


def binary_cross_entropy(logits_PC: Float[Tensor, "P C"], targets: Targets) -> Loss:
    """Return the weighted sum of −log p(label), in nats, of C decisions between two classes, from the logits of class 1.

    Args:
        logits_PC: Logits of C independent decisions over the same rows. Their losses and their hits are averaged.
        targets: label: [P, C], or [P] for one decision. A label above 0 is class 1. If labels are floats, it is also the
            factor of its loss, as `pos_weight` of torch's `BCEWithLogitsLoss`.
    """
    label_PC = targets.label.view_as(logits_PC)
    loss_PC = F.binary_cross_entropy_with_logits(logits_PC.float(), (label_PC > 0).float(), reduction="none")
    if label_PC.is_floating_point():
        loss_PC = loss_PC * torch.where(label_PC > 0, label_PC, 1.0)
    hits = (((logits_PC.detach() > 0) == (label_PC > 0)).float().mean(1) * targets.weight).sum()
    return Loss((loss_PC.mean(1) * targets.weight).sum(), targets.weight.sum(), hits)


def squared_error(predicted_PC: Float[Tensor, "P C"], targets: Targets) -> Loss:
    """Return the weighted sum of squared errors, each the mean over the outputs. It has no hits (NaN).

    targets.label: float [P, C], or [P] of one output.
    """
    error_P = (predicted_PC.float() - targets.label.view_as(predicted_PC)).square().mean(1)
    return Loss((error_P * targets.weight).sum(), targets.weight.sum(), error_P.new_tensor(math.nan))


def grouped_cross_entropy(logits_PK: Float[Tensor, "P K"], targets: Targets) -> Loss:
    """Return the weighted sum of −log p(gold row | its group), in nats, with a softmax over the rows of each group.

    Examples of groups are the tokens of a window, of which one is the start of an answer, and the choices of a question.

    Args:
        logits_PK: Logits of K independent choices over the same rows.
        targets: label: int64 [P], number of the row's group, from 0. weight: float [P] or [P, K], positive for gold rows
            and 0 for others.
    """
    exact_PK, weight_PK = logits_PK.float(), targets.weight.view(len(targets.label), -1)
    group_PK = targets.label[:, None].expand_as(exact_PK)
    # P is an upper bound of the number of groups. Counting the groups would make the host wait for a GPU.
    peak_PK = exact_PK.new_full(exact_PK.shape, -math.inf).scatter_reduce(0, group_PK, exact_PK.detach(), "amax")
    peak_PK = peak_PK.gather(0, group_PK)
    mass_PK = torch.zeros_like(exact_PK).scatter_add(0, group_PK, (exact_PK - peak_PK).exp())
    log_PK = exact_PK - peak_PK - mass_PK.gather(0, group_PK).log()
    return Loss(-(log_PK * weight_PK).sum(), weight_PK.sum(), ((exact_PK.detach() >= peak_PK) * weight_PK).sum())


class _CrossEntropy(torch.autograd.Function):
    """Softmax and −log p in as few passes over [P, C] as possible. If C is the vocabulary, these passes dominate the cost.

    The backward pass overwrites the probabilities of the forward pass, so it can run only once.
    """

    @staticmethod
    def forward(ctx: Any, logits_PC: Tensor, label_P: Int[Tensor, " P"]) -> tuple[Tensor, Tensor]:
        label_P1 = label_P[:, None]
        exact_PC = logits_PC.float() if logits_PC.dtype in (torch.bfloat16, torch.float16) else logits_PC
        peak_P1 = exact_PC.amax(-1, keepdim=True)
        own_P1 = exact_PC.gather(1, label_P1)
        p_PC = (exact_PC - peak_P1).exp_()
        total_P1 = p_PC.sum(-1, keepdim=True)
        p_PC.div_(total_P1)
        ctx.save_for_backward(p_PC, label_P1)
        ctx.dtype = logits_PC.dtype
        best_P = (own_P1 >= peak_P1)[:, 0].to(exact_PC.dtype)
        ctx.mark_non_differentiable(best_P)
        return (total_P1.log() + peak_P1 - own_P1)[:, 0], best_P

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        p_PC, label_P1 = ctx.saved_tensors
        p_PC.scatter_add_(1, label_P1, p_PC.new_full((1, 1), -1.0).expand_as(label_P1))
        return p_PC.mul_(gradients[0][:, None]).to(ctx.dtype), None
