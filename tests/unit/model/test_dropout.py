"""Dropout stands where BERT has it: after the embeddings, on the attention weights, and on what is added to a layer's input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.batches.collate import collate
from bertie.contracts import Batch, Sequence
from bertie.model.config import BertConfig
from bertie.model.heads import PooledHead
from bertie.model.transformer import Encoder, initialise
from bertie.objectives import MaskedLM, NextSentence

HIDDEN, ATTENTION = 0.2, 0.3


@pytest.fixture
def config(tiny_config: BertConfig) -> BertConfig:
    return replace(tiny_config, hidden_dropout_prob=HIDDEN, attention_probs_dropout_prob=ATTENTION)


@pytest.fixture
def encoder(config: BertConfig) -> Encoder:
    torch.manual_seed(0)
    made = Encoder(config)
    initialise(made, 0.1)
    return made


@pytest.fixture
def batch() -> Batch:
    rng = np.random.default_rng(0)
    made = [Sequence(rng.integers(0, 500, n), np.zeros(n, np.int32), np.ones(n, bool)) for n in (5, 8)]
    return collate(made, 64).tensors()


class Calls(list[tuple[float, tuple[int, ...]]]):
    """Dropout that does something: its probability and the shape of its input, in order."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    made, original = Calls(), F.dropout

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if training and p > 0:
            made.append((p, tuple(x.shape)))
        return original(x, p, training, inplace)

    monkeypatch.setattr(F, "dropout", dropout)
    return made


def test_in_training(encoder: Encoder, batch: Batch, calls: Calls) -> None:
    encoder.train()(batch)
    hidden = (HIDDEN, (13, 32))
    assert calls == [hidden, *2 * [(ATTENTION, (2, 4, 8, 8)), hidden, hidden]]


def test_in_training_with_rows(encoder: Encoder, batch: Batch, calls: Calls) -> None:
    encoder.train()(batch, torch.tensor([0, 5, 6]))
    few = (HIDDEN, (3, 32))
    assert calls[4:] == [(ATTENTION, (2, 4, 2, 8)), few, few]


def test_none_in_evaluation(encoder: Encoder, batch: Batch, calls: Calls) -> None:
    first, second = encoder.eval()(batch).last, encoder(batch).last
    assert calls == []
    assert torch.equal(first, second)


def test_heads(config: BertConfig, encoder: Encoder, calls: Calls) -> None:
    """Pre-training's heads have none; a task's drops the pooled vector before the added layer."""
    x = torch.ones(6, 32)
    MaskedLM().head(config, encoder).train().logits(x)
    NextSentence().head(config, encoder).train().logits(x)
    assert calls == []
    PooledHead(config, 3, HIDDEN).train().logits(x)
    assert calls == [(HIDDEN, (6, 32))]


def test_what_each_place_drops(encoder: Encoder, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything dropped in one place at a time, what remains is known."""
    layer, ragged = encoder.layers[0].train(), batch.ragged
    x = encoder.eval().embeddings(batch)
    encoder.train()
    count = 0

    def drop_at(place: int) -> None:
        """Dropout gives 0 at its `place`-th call from here on, and is nothing elsewhere."""
        nonlocal count
        count = -1

        def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
            nonlocal count
            count += 1
            return x * 0 if training and p and count == place else x

        monkeypatch.setattr(F, "dropout", dropout)

    def after_attention(x: Tensor) -> Tensor:
        y = layer.attention_norm(x)
        return layer.norm(y + layer.down(F.gelu(layer.up(y))))

    drop_at(0)
    assert not encoder.embeddings(batch).any()
    drop_at(0)  # the attention weights: only the bias of the output is added
    torch.testing.assert_close(layer(x, ragged), after_attention(x + layer.attention.out.bias))
    drop_at(1)  # what attention adds
    torch.testing.assert_close(layer(x, ragged), after_attention(x))
    drop_at(2)  # what the feed-forward adds
    mixed = layer.attention_norm(x + layer.attention.eval()(x, ragged, None, ragged))
    layer.train()
    drop_at(2)
    torch.testing.assert_close(layer(x, ragged), layer.norm(mixed))
