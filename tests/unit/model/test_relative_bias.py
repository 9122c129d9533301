from __future__ import annotations

import torch

from bertie.base.contracts import Ragged
from bertie.model.attention.attention import IMPLEMENTATIONS, eager, varlen
from bertie.model.attention.relative_bias import RelativeBias, bucket_of
from bertie.model.attention.window import AttentionInput, Pattern


def test_buckets_are_single_distances_then_grow_with_the_logarithm() -> None:
    behind = torch.tensor([0, 1, 7, 8, 11, 12, 127, 128, 1000])
    assert bucket_of(-behind, 32).tolist() == [0, 1, 7, 8, 8, 9, 15, 15, 15]
    assert bucket_of(behind[1:], 32).tolist() == [17, 23, 24, 24, 25, 31, 31, 31]
    assert bucket_of(-behind[:4], 8).tolist() == [0, 1, 2, 2]


def test_implementations_agree_with_eager_on_learned_biases_and_their_gradients() -> None:
    torch.manual_seed(0)
    lengths, heads = [9, 40, 1, 21, 20, 150], 3
    relative = RelativeBias(32, heads).double()
    ragged = Ragged(torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]), 150)
    q, k, v = (x.requires_grad_() for x in torch.randn(3, sum(lengths), heads, 4, dtype=torch.float64).unbind())
    weight, failures = torch.randn(sum(lengths), heads, 4, dtype=torch.float64), []
    for pattern in (Pattern(relative=relative), Pattern(causal=True, alibi=True, relative=relative)):
        inputs = (q, k, v, relative.table.weight)

        def computed(attend) -> list[torch.Tensor]:
            out = attend(AttentionInput(q, k, v, ragged, ragged, 0.0, pattern))  # noqa: B023
            return [out.detach(), *torch.autograd.grad((out * weight).sum(), inputs)]  # noqa: B023

        expected = computed(eager)
        assert expected[-1].abs().sum(1).gt(0).sum() == (16 if pattern.causal else 31)  # every bucket occurs
        for attend in IMPLEMENTATIONS.values():
            if attend is not varlen and not all(map(torch.allclose, computed(attend), expected)):
                failures.append((attend.__name__, pattern.causal))
    assert not failures
