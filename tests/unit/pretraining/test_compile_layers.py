from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.batches.sentence_pairs import SentencePairs
from bertie.corpus.shards import open_shards
from bertie.model import transformer
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM, NextSentence, ReplacedToken
from bertie.pretraining.compile_layers import compile_if_possible
from bertie.pretraining.feed import Feed
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.phases import Phase, resolve_phases
from bertie.training.distributed import SINGLE_PROCESS, Ranks
from bertie.training.length import StepCount

OBJECTIVES = (MaskedLM(), NextSentence())


@pytest.fixture
def feed(small_shards: Path) -> Feed:
    """A feed of two phases, with at most two rows per forward pass."""
    phases = (Phase(share=0.5), Phase(share=0.5, max_length=48))
    return Feed(
        resolve_phases(phases, SentencePairs(max_length=32), 16, 256, 10),
        open_shards(small_shards),
        OBJECTIVES,
        0,
        2,
        0,
        SINGLE_PROCESS,
        StepCount(10),
    )


def compiled_as(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> None:
    """Replace torch.compile, which is slow and not under test."""
    monkeypatch.setattr(transformer.torch, "compile", lambda _, **__: call)


def test_one_pass_of_each_phase_is_run(
    feed: Feed, tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[int] = []

    def call(layer: torch.nn.Module, x_TD: torch.Tensor, *others: Any) -> torch.Tensor:
        tokens.append(len(x_TD))
        return layer(x_TD, *others)

    compiled_as(monkeypatch, call)
    model = new_model(replace(tiny_config, vocab_size=500), OBJECTIVES, 0)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    assert compile_if_possible(model, feed, "fp32")
    assert [phase.shape.rows for phase in feed.phases] == [2, 3]  # three rows: passes of one row, not two
    assert tokens == [512, 512, 256, 256]  # in each of two layers
    assert model.encoder.call is call
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


def test_a_rank_that_cannot_compile_is_named(
    feed: Feed, tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would hold up the others in silence, because ranks other than 0 print nothing."""
    monkeypatch.setattr(Ranks, "gather", lambda _, own: [own, "Failed to find C compiler."])
    compiled_as(monkeypatch, lambda layer, *others: layer(*others))
    assert compile_if_possible(new_model(replace(tiny_config, vocab_size=500), OBJECTIVES, 0), feed, "fp32")
    assert "rank 1: cannot compile the layers, training continues without" in capsys.readouterr().err


def test_out_of_memory_during_compilation_is_raised(
    feed: Feed, tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    compiled_as(monkeypatch, fails)
    with pytest.raises(torch.OutOfMemoryError):
        compile_if_possible(new_model(replace(tiny_config, vocab_size=500), OBJECTIVES, 0), feed, "fp32")


@pytest.mark.parametrize("works", [True, False])
def test_the_generator_is_compiled_with_the_encoder(
    feed: Feed, tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    widths: list[int] = []

    def call(layer: torch.nn.Module, x_TD: torch.Tensor, *others: Any) -> torch.Tensor:
        widths.append(x_TD.shape[1])
        if not works and len(widths) == 4:
            raise RuntimeError("Failed to find C compiler.")
        return layer(x_TD, *others)

    compiled_as(monkeypatch, call)
    objectives = (MaskedLM(), ReplacedToken(generator_size=0.5))
    model = new_model(replace(tiny_config, vocab_size=500), objectives, 0)
    assert compile_if_possible(model, replace(feed, objectives=objectives), "fp32") is works
    assert widths == ([16, 16, 32, 32] * 2 if works else [16, 16, 32, 32])  # two layers each, in each of two phases
    assert {part.call for part in model.transformers} == {call if works else transformer.call_layer}


def test_a_pass_that_fails_leaves_no_gradients(
    feed: Feed, tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            raise RuntimeError("no such kernel")

    def call(layer: torch.nn.Module, x_TD: torch.Tensor, *others: Any) -> torch.Tensor:
        return layer(Failing.apply(x_TD), *others)

    compiled_as(monkeypatch, call)
    model = new_model(replace(tiny_config, vocab_size=500), OBJECTIVES, 0)
    assert not compile_if_possible(model, feed, "fp32")
    assert all(parameter.grad is None for parameter in model.parameters())
