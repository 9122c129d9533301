"""Soft targets: the divergence of a student's distributions over the vocabulary from a teacher's (Hinton et al. 2015).

Two distributions per token do not fit into memory for a whole batch. As in `chunked_loss`, they exist for one chunk of rows at
a time: the forward pass computes the gradients of the inputs right away, up to the factor that the backward pass brings.

P  predictions
V  vocabulary entries
E  size of the word embeddings
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.model.losses import chunked_loss
from bertie.model.losses.chunked_loss import product_dtype


class Logits(NamedTuple):
    """Logits over the vocabulary that are not computed yet: x Wᵀ + b."""

    x: Tensor
    """[P, E]."""
    matrix: Tensor
    """[V, E]."""
    bias: Tensor
    """[V]."""

    def of(self, rows: slice) -> Tensor:
        """Compute the logits of some rows, in fp32 at least."""
        product = F.linear(self.x[rows], self.matrix)
        return product.to(torch.promote_types(product.dtype, torch.float32)).add_(self.bias)


def divergence(student: Logits, teacher: Logits, weight_P: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the Kullback–Leibler divergences KL(teacher ‖ student), in nats, and of the hits.

    Args:
        student: The student's logits. They receive gradients.
        teacher: The teacher's logits.
        weight_P: Weight of each row.
        temperature: Divides the logits of both.

    Returns:
        The sum of the divergences, and the weighted number of rows at which both have the same most probable entry.
    """
    with_gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in student)
    return _Divergence.apply(*student, *teacher, weight_P, temperature, with_gradients)


class _Divergence(torch.autograd.Function):
    """The backward pass multiplies the saved gradients in place, so it can run only once."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        student, teacher = Logits(*inputs[:3]), Logits(*inputs[3:6])
        # Unlike ctx.needs_input_grad, the last one is false in evaluations.
        weight_P, temperature, with_gradients = inputs[6:]
        dtype = product_dtype(student.x)
        exact = torch.promote_types(dtype, torch.float32)
        student = Logits(student.x.to(dtype), student.matrix.to(dtype), student.bias)
        teacher = Logits(teacher.x.to(dtype), teacher.matrix.to(dtype), teacher.bias)
        total, hits = weight_P.new_zeros((), dtype=exact), weight_P.new_zeros((), dtype=exact)
        slopes = [torch.zeros_like(tensor, dtype=exact) for tensor in student] if with_gradients else []
        rows_per_chunk = max(1, chunked_loss.CHUNK_LOGITS // len(student.matrix))
        for start in range(0, len(weight_P), rows_per_chunk):
            rows = slice(start, start + rows_per_chunk)
            weight = weight_P[rows, None].to(exact)
            ours, theirs = student.of(rows), teacher.of(rows)
            best = theirs.argmax(-1, keepdim=True)
            hits += ((ours.gather(1, best) >= ours.amax(-1, keepdim=True)) * weight).sum()
            log_q = ours.div_(temperature).log_softmax(-1)
            log_p = theirs.div_(temperature).log_softmax(-1)
            p = log_p.exp()
            total += (log_p.sub_(log_q).mul_(p).sum(-1, keepdim=True) * weight).sum()
            if not with_gradients:
                continue
            slope = log_q.exp_().sub_(p).mul_(weight / temperature)
            slopes[2] += slope.sum(0)
            slope = slope.to(dtype)
            slopes[0][rows] = slope @ student.matrix
            if dtype == exact:
                slopes[1].addmm_(slope.t(), student.x[rows])
            else:
                slopes[1] += slope.t() @ student.x[rows]
        ctx.save_for_backward(*(slope.to(tensor.dtype) for slope, tensor in zip(slopes, inputs, strict=False)))
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (*(slope.mul_(gradients[0]) for slope in ctx.saved_tensors), *[None] * 6)
