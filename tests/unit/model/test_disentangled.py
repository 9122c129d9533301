from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.base.contracts import Ragged
from bertie.model.attention.disentangled import Distances, bucket_of, disentangled
from bertie.model.attention.relative_attention import reach_of, relative_dense
from bertie.model.config import TransformerConfig
from bertie.model.convolution import Convolution

LENGTHS = [9, 40, 1, 21, 20]


def test_far_distances_share_buckets() -> None:
    distance = torch.tensor([0, 1, 4, 5, 7, 31, -4, -31])
    assert bucket_of(distance, 8, 32).tolist() == [0, 1, 4, 5, 5, 7, -4, -7]


def formula(q: Tensor, k: Tensor, v: Tensor, asked: Tensor, seen: Tensor, reach: int) -> Tensor:
    """One sequence, pair by pair. asked, seen: [W, N, H]."""
    scores = torch.einsum("inh,jnh->nij", q, k)
    for i in range(len(q)):
        for j in range(len(q)):
            row = reach - (i - j)
            scores[:, i, j] += (q[i] * seen[row]).sum(1) + (k[j] * asked[row]).sum(1)
    return torch.einsum("nij,jnh->inh", (scores / math.sqrt(3 * q.shape[2])).softmax(-1), v)


def test_both_implementations_compute_the_formula_and_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    heads, size = 3, 4
    ragged = Ragged(torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()]), 40)
    reach = reach_of(ragged)
    q, k, v = (x.requires_grad_() for x in torch.randn(3, sum(LENGTHS), heads, size, dtype=torch.float64).unbind())
    asked, seen = (x.requires_grad_() for x in torch.randn(2, 2 * reach, heads * size, dtype=torch.float64).unbind())
    inputs, weight = (q, k, v, asked, seen), torch.randn(sum(LENGTHS), heads, size, dtype=torch.float64)

    def results(out: Tensor) -> list[Tensor]:
        return [out, *torch.autograd.grad((out * weight).sum(), inputs)]

    rows = [x.unflatten(1, (heads, size)) for x in (asked, seen)]
    parts = zip(*(x.split(LENGTHS) for x in (q, k, v)), strict=True)
    expected = results(torch.cat([formula(*part, *rows, reach) for part in parts]))
    for _ in range(2):
        for found, right in zip(results(disentangled(*inputs, ragged, 0.0)), expected, strict=True):
            torch.testing.assert_close(found, right)
        monkeypatch.setattr("bertie.model.attention.disentangled.relative_grouped", relative_dense)
    half = [x.bfloat16() for x in inputs]
    monkeypatch.undo()
    torch.testing.assert_close(disentangled(*half, ragged, 0.0).double(), expected[0], atol=0.1, rtol=0.1)


def test_distances_tell_the_order_and_have_an_embedding_to_each_side(tiny_config: TransformerConfig) -> None:
    config = replace(tiny_config, disentangled_distances=16, position_embedding="none")
    assert config.knows_order
    assert Distances(config).table.num_embeddings == 32


def test_the_convolution_sees_the_neighbors_in_its_sequence(tiny_config: TransformerConfig) -> None:
    torch.manual_seed(0)
    config = replace(tiny_config, disentangled_distances=16, position_embedding="none", conv_kernel_size=3)
    convolution, size = Convolution(config).eval(), config.hidden_size
    ragged = Ragged(torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()]), 40)
    x, output = torch.randn(2, sum(LENGTHS), size)
    kernel = convolution.mix.weight.unflatten(1, (3, size)).transpose(1, 2)
    mixed = [F.conv1d(part.T[None], kernel, convolution.mix.bias, padding=1)[0].T for part in x.split(LENGTHS)]
    expected = convolution.norm(output + torch.tanh(torch.cat(mixed)))
    torch.testing.assert_close(convolution(x, output, ragged, None), expected)
    rows = torch.tensor([0, 8, 9, 49, 50, 90])
    torch.testing.assert_close(convolution(x, output[rows], ragged, rows), expected[rows])
