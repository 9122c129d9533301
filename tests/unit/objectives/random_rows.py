"""Rows of random tokens with the labels of objectives, and a short recipe, for several objectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tests.unit.small_recipes import pretraining

from bertie.base.contracts import Batch, MicroBatch, Sequence
from bertie.batches.collate import collate, filler, join
from bertie.batches.contiguous import FullSentences
from bertie.model.config import TransformerConfig
from bertie.objectives.label_row import label_row
from bertie.pretraining.recipe import PretrainConfig
from bertie.tokenizers.tokenizer import Tokenizer


def row(tokenizer: Tokenizer, seed: int) -> Batch:
    """Four pairs of 40 tokens, and as much filler as one."""
    rng = np.random.default_rng(seed)
    sequences = []
    for _ in range(4):
        ids = rng.integers(100, 500, 40).astype(np.int32)
        ids[[0, 20, 39]] = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id]
        sequences.append(Sequence(ids, (np.arange(40) > 20).astype(np.int32), np.ones(40, bool)))
    return collate([*sequences, *filler(40, tokenizer.pad_id, 64)], 64)


def labeled(tokenizer: Tokenizer, objectives: tuple[Any, ...], *seeds: int) -> MicroBatch:
    return join([label_row(row(tokenizer, seed), objectives, tokenizer, seed) for seed in seeds])


def short_recipe(size: TransformerConfig, *objectives: Any) -> PretrainConfig:
    """Train with dropout for 8 steps, of which step 5 is saved, too."""
    training = {"steps": 8, "batch_size": 32, "learning_rate": 3e-3, "eval_every": 3, "checkpoint_every": 5}
    size = replace(size, hidden_dropout_prob=0.1)
    return pretraining(size, FullSentences(max_length=32), objectives, max_eval_tokens=2048, **training)
