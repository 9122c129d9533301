from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.batches.layouts import Pairs
from bertie.model import transformer
from bertie.model.config import BertConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.text.shards import open_shards
from bertie.training.compiling import try_compiling
from bertie.training.distributed import ALONE
from bertie.training.feed import Feed
from bertie.training.initial import new_model
from bertie.training.phases import Phase, legs

OBJECTIVES = (MaskedLM(), NextSentence())


@pytest.fixture
def feed(small_shards: Path) -> Feed:
    """Two phases; a forward pass takes at most two rows."""
    phases = (Phase(share=0.5), Phase(share=0.5, max_length=48))
    return Feed(legs(phases, Pairs(max_length=32), 16, 256, 10), open_shards(small_shards), OBJECTIVES, 0, 2, 0, ALONE)


def compiled_as(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> None:
    """torch.compile is slow, and not what is tested here."""
    monkeypatch.setattr(transformer.torch, "compile", lambda _, **__: call)


def test_a_pass_of_each_phase_is_tried(feed: Feed, tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[int] = []

    def call(layer: torch.nn.Module, x_TD: torch.Tensor, *others: Any) -> torch.Tensor:
        tokens.append(len(x_TD))
        return layer(x_TD, *others)

    compiled_as(monkeypatch, call)
    model = new_model(replace(tiny_config, vocab_size=500), OBJECTIVES, 0)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    assert try_compiling(model, feed, "fp32")
    assert [leg.rows.count for leg in feed.way] == [2, 3]  # of which two are no equal parts: one at a time
    assert tokens == [512, 512, 256, 256]  # in each of two layers
    assert model.encoder.call is call
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


def test_what_cannot_be_compiled_is_trained_as_it_is(
    feed: Feed, tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> torch.Tensor:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    compiled_as(monkeypatch, fails)
    model = new_model(replace(tiny_config, vocab_size=500), OBJECTIVES, 0)
    assert not try_compiling(model, feed, "fp32")
    assert "cannot be compiled here, and are trained as they are: Failed to find C compiler." in capsys.readouterr().err
    assert model.encoder.call is transformer._call


def test_running_out_of_memory_is_not_the_compilers_fault(
    feed: Feed, tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    compiled_as(monkeypatch, fails)
    with pytest.raises(torch.OutOfMemoryError):
        try_compiling(new_model(replace(tiny_config, vocab_size=500), OBJECTIVES, 0), feed, "fp32")
