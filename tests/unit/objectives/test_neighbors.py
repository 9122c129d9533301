"""Initial weights with which the first layers attend to neighbors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.batches.contiguous import DocSentences
from bertie.contracts import Sequence
from bertie.errors import UsageError
from bertie.inspect.attention import Group, read_attention
from bertie.model.config import TransformerConfig
from bertie.model.model import Model
from bertie.model.neighbor_attention import CONSTANT, FOCUSES
from bertie.objectives import MaskedLM, Objective, ReplacedToken
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.text.shards import open_shards
from bertie.training.optimizers import AdamW
from bertie.training.schedules import Linear

NEIGHBORS = MaskedLM(initialization="neighbors")
MODERN = TransformerConfig(
    num_hidden_layers=3,
    hidden_size=128,
    num_attention_heads=4,
    intermediate_size=96,
    vocab_size=500,
    max_position_embeddings=64,
    type_vocab_size=0,
    position_embedding="rotary",
    local_attention=32,
    norm_position="modern",
    use_bias=False,
    hidden_act="geglu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    layer_norm_eps=1e-5,
)


def initialized(size: TransformerConfig, shards: Path, objective: MaskedLM = NEIGHBORS) -> Model:
    model = new_model(size, (objective,), seed=0)
    objective.initialize(model, open_shards(shards).train)
    return model.eval()


def attention(model: Model) -> list[torch.Tensor]:
    """Mean probability over the queries in the middle of random sequences, by layer: [N, distances from -20 to 20]."""
    rng = np.random.default_rng(0)
    sequences = [
        Sequence(rng.integers(10, 500, 60).astype(np.int32), np.zeros(60, np.int32), np.ones(60, bool))
        for _ in range(20)
    ]
    found: dict[int, torch.Tensor] = {}

    def see(_: Group, layer: int, probabilities: torch.Tensor) -> None:
        rows = [probabilities[:, :, i, i - 20 : i + 21].mean(0) for i in range(20, 40)]
        found[layer] = torch.stack(rows).mean(0)

    with torch.no_grad():
        read_attention(model, sequences, see)
    return [found[layer] for layer in sorted(found)]


@pytest.mark.parametrize(
    "size",
    [
        MODERN,
        replace(MODERN, norm_position="pre", use_bias=True, local_attention=0, hidden_act="gelu"),
        replace(MODERN, norm_position="post", use_bias=True, local_attention=0, hidden_act="gelu"),
    ],
    ids=["modern", "pre", "post"],
)
def test_first_layers_attend_to_neighbors(size: TransformerConfig, small_shards: Path) -> None:
    first, second, third = attention(initialized(size, small_shards))
    for layer in (first, second):
        for head, focus in enumerate(FOCUSES):
            assert int(layer[head].argmax()) - 20 == focus.distance
            assert layer[head, 20 + focus.distance] > (0.25 if focus.score > 5 else 0.06)
    assert third.max() < 0.06  # about uniform


def test_other_numbers_of_heads_have_the_same_focuses_in_turn(small_shards: Path) -> None:
    first = attention(initialized(replace(MODERN, num_attention_heads=2), small_shards))[0]
    assert [int(head.argmax()) - 20 for head in first] == [-1, 1]
    many = attention(initialized(replace(MODERN, hidden_size=192, num_attention_heads=6), small_shards))[0]
    assert [int(head.argmax()) - 20 for head in many] == [-1, 1, -3, 3, -1, 1]


def test_the_constant_dimension_does_not_change_predictions(small_shards: Path) -> None:
    """It adds the same number to the logits of all entries."""
    model = initialized(MODERN, small_shards)
    words, x = model.encoder.embeddings.word.weight.detach(), torch.randn(5, 128)
    assert words[:, CONSTANT].unique().numel() == 1
    without = words.clone()
    without[:, CONSTANT] = 0
    torch.testing.assert_close((x @ words.T).log_softmax(-1), (x @ without.T).log_softmax(-1), atol=1e-5, rtol=0)


def test_heads_add_orthogonal_parts_of_what_they_read(small_shards: Path) -> None:
    layer: Any = initialized(MODERN, small_shards).encoder.layers[0]  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    values, out = layer.attention.qkv.weight[256:], layer.attention.out.weight
    torch.testing.assert_close(out @ values, torch.eye(128), atol=1e-5, rtol=0)


def test_a_short_run_learns_more(small_shards: Path, tmp_path: Path) -> None:
    """The order of words in the synthetic text is random, except that an ending follows its word."""
    training = PretrainTraining(60, 32, 3e-3, row_tokens=1024, precision="fp32", eval_every=0, checkpoint_every=0)
    losses = {}
    for name in ("cooccurrence", "neighbors"):
        objective = MaskedLM(initialization=name)  # pyright: ignore[reportArgumentType]
        size = replace(MODERN, vocab_size=0)
        recipe = PretrainConfig(size, DocSentences(max_length=32), (objective,), AdamW(), Linear(0.1), training)
        losses[name] = bertie.pretrain(recipe, small_shards, tmp_path / name, threads=1)["eval"]["mlm_loss"]
    assert losses["neighbors"] < losses["cooccurrence"] - 0.05


@pytest.mark.parametrize(
    ("changes", "objectives", "message"),
    [
        ({"position_embedding": "learned"}, (NEIGHBORS,), "position_embedding"),
        ({"embedding_size": 64}, (NEIGHBORS,), "embedding_size"),
        ({"mlm_transform": False}, (NEIGHBORS,), "mlm_transform"),
        ({}, (NEIGHBORS, ReplacedToken()), "generator"),
    ],
)
def test_other_models_are_refused(changes: dict[str, Any], objectives: tuple[Objective, ...], message: str) -> None:
    layout = DocSentences(max_length=32)
    NEIGHBORS.check(MODERN, layout, (NEIGHBORS,))
    with pytest.raises(UsageError, match=rf'objectives\.mlm\.initialization is "neighbors".*{message}'):
        NEIGHBORS.check(replace(MODERN, **changes), layout, objectives)
