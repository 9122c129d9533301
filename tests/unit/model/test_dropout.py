"""BERT applies dropout after the embeddings, to the attention weights, and to each block's output before the residual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.base.contracts import Batch, Sequence
from bertie.batches.collate import collate
from bertie.model import dropout
from bertie.model.config import TransformerConfig
from bertie.model.dropout import drop, drop_add
from bertie.model.encoder import Encoder, build_encoder
from bertie.model.heads.heads import PooledHead
from bertie.model.initialization import initialize_weights
from bertie.objectives import MaskedLM, NextSentence

HIDDEN, ATTENTION = 0.2, 0.3


@pytest.fixture
def config(tiny_config: TransformerConfig) -> TransformerConfig:
    return replace(tiny_config, hidden_dropout_prob=HIDDEN, attention_probs_dropout_prob=ATTENTION)


@pytest.fixture
def encoder(config: TransformerConfig) -> Encoder:
    torch.manual_seed(0)
    encoder = build_encoder(
        config, "eager"
    )  # its attention calls `drop`; test_attention.py tests the other implementations
    initialize_weights(encoder, 0.1)
    return encoder


@pytest.fixture
def batch() -> Batch:
    """A single sequence, so that the attention of each layer calls dropout once."""
    rng = np.random.default_rng(0)
    sequences = [Sequence(rng.integers(0, 500, n), np.zeros(n, np.int32), np.ones(n, bool)) for n in (13,)]
    return collate(sequences, 64).tensors()


class Calls(list[tuple[float, tuple[int, ...]]]):
    """Calls of dropout that drop something: the rate and the shape of the input, in order."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    recorded, original = Calls(), dropout._Drop.apply

    def apply(x: Tensor, residual: Tensor | None, rate: float) -> Tensor:
        recorded.append((rate, tuple(x.shape)))
        return original(x, residual, rate)

    monkeypatch.setattr(dropout, "_Drop", SimpleNamespace(apply=apply))
    return recorded


def test_the_encoder_applies_dropout_in_training(encoder: Encoder, batch: Batch, calls: Calls) -> None:
    encoder.train()(batch)
    hidden = (HIDDEN, (13, 32))
    assert calls == [hidden, *2 * [(ATTENTION, (4, 13, 13)), hidden, hidden]]


def test_the_last_layer_applies_dropout_only_to_the_query_rows(encoder: Encoder, batch: Batch, calls: Calls) -> None:
    encoder.train()(batch, torch.tensor([0, 5, 6]))
    few = (HIDDEN, (3, 32))
    assert calls[4:] == [(ATTENTION, (4, 3, 13)), few, few]


def test_evaluation_applies_no_dropout(encoder: Encoder, batch: Batch, calls: Calls) -> None:
    first, second = encoder.eval()(batch).last, encoder(batch).last
    assert calls == []
    assert torch.equal(first, second)


def test_only_task_heads_apply_dropout(config: TransformerConfig, encoder: Encoder, calls: Calls) -> None:
    """The heads of pre-training have no dropout. A task head applies it to the pooled vector."""
    x = torch.ones(6, 32)
    MaskedLM().head(encoder).train().logits(x)
    NextSentence().head(encoder).train().logits(x)
    assert calls == []
    PooledHead(config.hidden_size, 3, HIDDEN).train().logits(x)
    assert calls == [(HIDDEN, (6, 32))]


def test_dropout_is_applied_to_the_right_tensors(
    encoder: Encoder, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one call of dropout drops everything, the layer's output has a known formula."""
    layer, ragged = encoder.layers[0].train(), batch.ragged
    x = encoder.eval().embeddings(batch)
    encoder.train()
    count = 0

    def drop_at(call: int) -> None:
        """Make the next call number `call` (from 0) drop everything, and all other calls nothing."""
        nonlocal count
        count = -1

        def apply(x: Tensor, residual: Tensor | None, _: float) -> Tensor:
            nonlocal count
            count += 1
            return x * (count != call) + (0 if residual is None else residual)

        monkeypatch.setattr(dropout, "_Drop", SimpleNamespace(apply=apply))

    def after_attention(x: Tensor) -> Tensor:
        y = layer.attention_norm(x)
        return layer.norm(y + layer.down(F.gelu(layer.up(y))))

    drop_at(0)
    assert not encoder.embeddings(batch).any()
    drop_at(0)  # the attention weights: only the output bias remains
    torch.testing.assert_close(layer(x, ragged), after_attention(x + layer.attention.out.bias))
    drop_at(1)  # the output of the attention block
    torch.testing.assert_close(layer(x, ragged), after_attention(x))
    drop_at(2)  # the output of the feed-forward block
    attention = layer.attention.eval()
    q, k, v = attention.qkv(x).unflatten(-1, (3, attention.heads, -1)).unbind(1)
    mixed = layer.attention_norm(x + attention.out(attention.mix(ragged, q, k, v, None)))
    layer.train()
    drop_at(2)
    torch.testing.assert_close(layer(x, ragged), layer.norm(mixed))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.02, 0.9, 1e-6])
def test_every_lane_has_the_wanted_rate(rate: float) -> None:
    """Four elements share a draw. The tolerance is four standard deviations plus 1e-5 for rounding."""
    torch.manual_seed(0)
    x = torch.ones(4_000_000)
    dropped = drop(x, rate) == 0
    for lane in range(4):
        share = dropped[lane::4].float().mean().item()
        assert abs(share - rate) < 4 * (rate * (1 - rate) / 1e6) ** 0.5 + 1e-5
    assert drop(x, rate).mean().item() == pytest.approx(1, abs=4 * (rate / (1 - rate) / 4e6) ** 0.5 + 1e-6)


def test_elements_are_dropped_independently_of_each_other() -> None:
    torch.manual_seed(0)
    first, second = (drop(torch.ones(1_000_000), 0.5) == 0 for _ in range(2))
    for a, b in ((first, second), (first[:-1], first[1:]), (first[:-4], first[4:])):
        assert (a & b).float().mean().item() == pytest.approx(0.25, abs=0.002)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("added", [False, True])
def test_gradients_flow_only_through_the_remaining_elements(dtype: torch.dtype, added: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 33, dtype=dtype).t().requires_grad_()  # not contiguous, with an odd number of elements
    residual = torch.randn(33, 7, dtype=dtype, requires_grad=True)
    out = drop_add(x, residual, 0.25) if added else drop(x, 0.25)
    assert out.dtype == dtype
    out.backward(torch.ones(33, 7, dtype=dtype))
    assert x.grad is not None
    scale = torch.tensor(4 / 3, dtype=dtype)
    assert torch.equal(x.grad.unique(), torch.stack([torch.zeros_like(scale), scale]))
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(out, residual * added + x * x.grad, **close)
    assert (residual.grad is not None) == added
    assert residual.grad is None or torch.equal(residual.grad, torch.ones_like(residual))


def test_rates_of_0_and_1_and_evaluation() -> None:
    x = torch.randn(5, 6)
    assert drop(x, 0.0) is x
    assert drop(x, 0.5, training=False) is x
    assert not drop(x, 1.0).any()
    assert torch.equal(drop_add(x, x, 1.0), x)
    assert torch.equal(drop_add(x, x, 0.5, training=False), 2 * x)
