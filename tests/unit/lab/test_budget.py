from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from bertie.base import config
from bertie.pretraining.pretrain import set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.step_cost import flops_per_step
from bertie.training.distributed import SINGLE_PROCESS

MLM = {"kind": "mlm", "initialization": "random"}
MODEL = {
    **{"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64},
    **{"max_position_embeddings": 64, "type_vocab_size": 0},
}


def flops(shards: Path, out: Path, *objectives: dict[str, Any]) -> float:
    file = {
        "extends": "tiny",
        "model": MODEL,
        "layout": {"kind": "doc_sentences", "max_length": 64},
        "objectives": list(objectives),
    }
    recipe = config.load(PretrainConfig, file, "pretrain")
    return flops_per_step(set_up(recipe, shards, out, 1, SINGLE_PROCESS))


def test_a_budget_counts_the_generator_and_the_teacher(small_shards: Path, pretrained: Path, tmp_path: Path) -> None:
    """A generator of the size of the model costs as much as the model. A teacher costs a third: it has no backward pass.

    In ELECTRA, the last layer also runs at tokens that are not masked. A distillation predicts the masked tokens twice.
    """
    mlm = flops(small_shards, tmp_path, MLM)
    rtd = flops(small_shards, tmp_path, MLM, {"kind": "rtd", "generator_size": 1.0})
    assert rtd > 2 * mlm
    teacher = {"kind": "distil", "teacher": str(pretrained), "positions": "masked", "initialization": "random"}
    distil = flops(small_shards, tmp_path, MLM, teacher)
    tokens, entries = 32 * 64, 500
    predictions = 6 * math.ceil(0.15 * tokens) * (32 * 32 + 32 * entries)
    assert distil == pytest.approx(mlm + predictions + mlm / 3, rel=0.01)
