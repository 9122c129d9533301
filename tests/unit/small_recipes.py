"""Recipes for small models: what most tests train alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from bertie.batches.layouts import Layout
from bertie.batches.sentence_pairs import SentencePairs
from bertie.checkpoints.training_state import Counters
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.model.encoder import EncoderConfig
from bertie.objectives import AnyObjective, MaskedLM, NextSentence
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.tasks import Classify
from bertie.training import trainer
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

BERT = (MaskedLM(), NextSentence())
PAIRS = SentencePairs(max_length=32)
FAST: dict[str, Any] = {"batch_size": 16, "learning_rate": 1e-2, "row_tokens": 512, "precision": "fp32"}


def pretraining(
    size: EncoderConfig,
    layout: Layout = PAIRS,
    objectives: tuple[AnyObjective, ...] = BERT,
    warmup: float = 0.01,
    **training: Any,
) -> PretrainConfig:
    """Pre-train with settings of `PretrainTraining`. The shards give the size of the vocabulary."""
    settings = PretrainTraining(**FAST | training)
    return PretrainConfig(
        replace(size, vocab_size=0), layout, objectives, AdamW(), LinearDecay(warmup=warmup), settings
    )


def fine_tuning(epochs: int, learning_rate: float = 3e-3, **settings: Any) -> FinetuneConfig:
    """Learn classes of short texts."""
    training = FinetuneTraining(epochs=epochs, batch_size=8, learning_rate=learning_rate, precision="fp32")
    return FinetuneConfig(Classify(), AdamW(), LinearDecay(warmup=0.1), training, **{"max_length": 24} | settings)


@contextmanager
def interrupted(when: Callable[[Counters], object]) -> Iterator[None]:
    """Interrupt the training in the block as soon as a state is saved of which `when` is true."""
    save = trainer.save_state

    def stopping(*args: Any) -> None:
        save(*args)
        if when(args[5]):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "save_state", stopping)
        with pytest.raises(KeyboardInterrupt):
            yield
