from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.batches.layouts import SentencePairs
from bertie.model import transformer
from bertie.model.config import BertConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.compile_layers import compile_if_possible
from bertie.pretraining.feed import Feed
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.phases import Phase, resolve_phases
from bertie.text.shards import open_shards
from bertie.training.distributed import SINGLE_PROCESS

OBJECTIVES = (MaskedLM(), NextSentence())


@pytest.fixture
def feed(small_shards: Path) -> Feed:
    """Two phases; a forward pass takes at most two rows."""
    phases = (Phase(share=0.5), Phase(share=0.5, max_length=48))
    return Feed(
        resolve_phases(phases, SentencePairs(max_length=32), 16, 256, 10),
        open_shards(small_shards),
        OBJECTIVES,
        0,
        2,
        0,
        SINGLE_PROCESS,
    )


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
    assert compile_if_possible(model, feed, "fp32")
    assert [leg.shape.rows for leg in feed.phases] == [2, 3]  # of which two are no equal parts: one at a time
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
    assert not compile_if_possible(model, feed, "fp32")
    assert "cannot be compiled here, and are trained as they are: Failed to find C compiler." in capsys.readouterr().err
    assert model.encoder.call is transformer._call


def test_running_out_of_memory_is_not_the_compilers_fault(
    feed: Feed, tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    compiled_as(monkeypatch, fails)
    with pytest.raises(torch.OutOfMemoryError):
        compile_if_possible(new_model(replace(tiny_config, vocab_size=500), OBJECTIVES, 0), feed, "fp32")
