"""Cross-entropy over a part of the vocabulary: the entries of the labels, the frequent ones, and random ones for all others.

The product with the vocabulary and its softmax take a fifth of a step of BERT-mini with 8,000 entries, and half of it with
30,000. An entry that no label of a pass names only pushes vectors away, and a few of these stand for all.

    P  predictions    D  hidden size    V  vocabulary entries    C  chosen entries
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from bertie.base.contracts import Loss, Targets
from bertie.model.losses.losses import vocabulary_loss


def sampled_vocabulary_loss(
    x_PD: Float[Tensor, "P D"],
    matrix_VD: Float[Tensor, "V D"],
    targets: Targets,
    bias_V: Float[Tensor, " V"],
    negatives: int,
) -> Loss:
    """Return an estimate of `vocabulary_loss`: a softmax over the entries of all labels and `negatives` or more others.

    Half of the others have the highest biases: they are the most frequent, and without them the estimate is too rough. The
    other half is drawn from the rest with torch's generator. Each counts for as many as it stands for, so that the sum of
    the exponentials is right on average (Bengio and Senecal 2003). Without gradients or negatives, on a GPU, or if that
    would be the whole vocabulary, the loss is exact. Hits count among the chosen entries.
    """
    size = len(targets.label) + negatives
    if not negatives or size >= len(matrix_VD) or x_PD.is_cuda or not torch.is_grad_enabled():
        return vocabulary_loss(x_PD, matrix_VD, targets, bias_V)
    always = torch.cat([targets.label, bias_V.detach().topk(negatives // 2).indices])
    order_C, chosen_C = torch.rand(len(matrix_VD), device=x_PD.device).index_fill_(0, always, 2.0).topk(size)
    drawn = (order_C < 1).sum()
    shift_C = torch.where(order_C < 1, ((len(matrix_VD) - size + drawn) / drawn).log(), 0.0)
    place_V = chosen_C.new_zeros(len(matrix_VD)).index_copy_(0, chosen_C, torch.arange(size, device=x_PD.device))
    near = replace(targets, label=place_V[targets.label])
    return vocabulary_loss(x_PD, matrix_VD[chosen_C], near, bias_V[chosen_C] + shift_C)
