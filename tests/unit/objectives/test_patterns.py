"""Initial weights with which heads of the first layers attend to neighbors and to equal words."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.small_recipes import pretraining

import bertie
from bertie.base.contracts import Sequence
from bertie.batches.contiguous import DocSentences
from bertie.checkpoints.read import read_checkpoint
from bertie.corpus.shards import open_shards
from bertie.inspect.attention import Group, read_attention
from bertie.model.config import TransformerConfig
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.initial_attention import PATTERNS, Focus
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.objectives import MaskedLM
from bertie.objectives.initialization import set_pattern_weights
from bertie.pretraining import pretrain
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.memory import one_pass
from bertie.training.muon import Muon
from bertie.training.optimizers import AdamW, BertAdam, Lamb, Optimizer
from bertie.training.run_folder import RunFolder

WITH_PATTERNS = MaskedLM(initialization="patterns")
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


def initialized(size: TransformerConfig, shards: Path, objective: MaskedLM = WITH_PATTERNS) -> Model:
    model = new_model(size, (objective,), seed=0)
    objective.initialize(model, open_shards(shards))
    return model.eval()


def with_random_words(size: TransformerConfig, tokenizer: Tokenizer) -> Model:
    """A model in which no two words are similar. Heads of 64 dimensions tell words apart."""
    model = new_model(replace(size, hidden_size=256), (WITH_PATTERNS,), seed=0)
    encoder, head = model.encoder, model.heads["mlm"]
    assert isinstance(encoder, TransformerEncoder)
    assert isinstance(head, MaskedLMHead)
    set_pattern_weights(encoder, head, tokenizer)
    return model.eval()


def sequence(ids: Any) -> Sequence:
    return Sequence(np.asarray(ids, np.int32), np.zeros(len(ids), np.int32), np.ones(len(ids), bool))


def probabilities(model: Model, sequences: list[Sequence]) -> list[torch.Tensor]:
    """Attention of sequences of one length, by layer: [sequences, N, n, n]."""
    found: dict[int, torch.Tensor] = {}

    def see(_: Group, layer: int, probabilities: torch.Tensor) -> None:
        found[layer] = probabilities

    with torch.no_grad():
        read_attention(model, sequences, see)
    return [found[layer] for layer in sorted(found)]


def attention(model: Model) -> list[torch.Tensor]:
    """Mean probability over the queries in the middle of random sequences, by layer: [N, distances from -20 to 20]."""
    rng = np.random.default_rng(0)
    layers = probabilities(model, [sequence(rng.permutation(np.arange(10, 500))[:60]) for _ in range(20)])
    return [torch.stack([layer[:, :, i, i - 20 : i + 21].mean(0) for i in range(20, 40)]).mean(0) for layer in layers]


SIZES = pytest.mark.parametrize(
    "size",
    [
        MODERN,
        replace(MODERN, norm_position="pre", use_bias=True, local_attention=0, hidden_act="gelu"),
        replace(MODERN, norm_position="post", use_bias=True, local_attention=0, hidden_act="gelu"),
    ],
    ids=["modern", "pre", "post"],
)


@SIZES
def test_heads_attend_to_neighbors(size: TransformerConfig, small_shards: Path) -> None:
    *first, third = attention(initialized(size, small_shards))
    for layer, patterns in zip(first, PATTERNS, strict=True):
        for head, focus in enumerate(patterns):
            if isinstance(focus, Focus):
                assert int(layer[head].argmax()) - 20 == focus.distance
                assert layer[head, 20 + focus.distance] > (0.25 if focus.score > 5 else 0.06)
    assert third.max() < 0.06  # about uniform


@SIZES
def test_heads_attend_to_equal_words(size: TransformerConfig, small_tokenizer: Tokenizer) -> None:
    """In two sentences, of which the second has some words of the first in another order."""
    model = with_random_words(size, small_tokenizer)
    rng = np.random.default_rng(0)
    words = rng.permutation(np.arange(20, 500))[:25]
    first, second = words[:15], np.concatenate([rng.permutation(words[5:10]), words[15:]])
    ids = [small_tokenizer.cls_id, *first, small_tokenizer.sep_id, *second, small_tokenizer.sep_id]
    found = probabilities(model, [sequence(ids)])[0][0]
    marks = [0, 16, len(ids) - 1]
    equal = {
        place: 17 + int(np.flatnonzero(second == word)[0]) for place, word in enumerate(first, 1) if word in second
    }
    assert len(equal) == 5
    for head in (0, 3):
        right = [found[head, place, [equal[place]] if place in equal else marks].sum() for place in range(1, 16)]
        assert min(right) > 0.2
        assert sum(right) / len(right) > 0.6
        assert found[head].diagonal()[1:16].mean() < 0.01


def test_special_tokens_are_no_equal_words(small_tokenizer: Tokenizer) -> None:
    ids = np.random.default_rng(0).permutation(np.arange(20, 500))[:60]
    ids[[10, 30, 50]] = small_tokenizer.mask_id
    found = probabilities(with_random_words(MODERN, small_tokenizer), [sequence(ids)])[0][0]
    assert found[[0, 3], 10][:, [30, 50]].max() < 0.1


def test_other_numbers_of_heads_have_the_same_patterns_in_turn(small_shards: Path) -> None:
    few = attention(initialized(replace(MODERN, num_attention_heads=2), small_shards))
    assert [int(layer[head].argmax()) - 20 for layer, head in ((few[0], 1), (few[1], 0), (few[1], 1))] == [-1, 1, -1]
    many = attention(initialized(replace(MODERN, hidden_size=192, num_attention_heads=6), small_shards))[1]
    assert [int(head.argmax()) - 20 for head in many] == [1, -1, 3, -3, 1, -1]


def test_heads_of_few_dimensions_only_attend_to_distances(small_shards: Path) -> None:
    """Heads of 4 dimensions have no pair left in which they could compare words."""
    model = initialized(replace(MODERN, hidden_size=32, num_attention_heads=8), small_shards)
    assert all(weight.isfinite().all() for weight in model.state_dict().values())


def test_heads_add_orthogonal_parts_of_what_they_read(small_shards: Path) -> None:
    layer: Any = initialized(MODERN, small_shards).encoder.layers[0]  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    values, out = layer.attention.qkv.weight[256:], layer.attention.out.weight
    torch.testing.assert_close(out @ values, torch.eye(128), atol=1e-5, rtol=0)


def test_a_short_run_learns_more(small_shards: Path, tmp_path: Path) -> None:
    """The order of words in the synthetic text is random, except that an ending follows its word."""
    training = {"steps": 24, "batch_size": 16, "learning_rate": 3e-3, "row_tokens": 512, "eval_every": 0}
    losses = {}
    for name in ("cooccurrence", "patterns"):
        objective = MaskedLM(initialization=name)  # pyright: ignore[reportArgumentType]
        recipe = pretraining(MODERN, DocSentences(max_length=32), (objective,), checkpoint_every=0, **training)
        losses[name] = bertie.pretrain(recipe, small_shards, tmp_path / name, threads=1)["eval"]["mlm_loss"]
    assert losses["patterns"] < losses["cooccurrence"] - 0.05


def test_wide_models_begin_with_no_higher_loss(small_shards: Path, tmp_path: Path) -> None:
    """Of the same initial embeddings, logits grow with the width: here to a loss of 15 nats instead of 6."""
    losses = {}
    for width in (256, 480):
        recipe = recipe_of(1)
        size = replace(recipe.model, hidden_size=width, num_attention_heads=width // 32)
        recipe = replace(recipe, model=size, training=replace(recipe.training, learning_rate=0.0))
        losses[width] = bertie.pretrain(recipe, small_shards, tmp_path / str(width), threads=1)["eval"]["mlm_loss"]
    assert losses[480] < losses[256] + 1.5  # what is left depends on the processor


def recipe_of(steps: int, optimizer: Optimizer = AdamW(), objective: MaskedLM = WITH_PATTERNS) -> PretrainConfig:
    training = {"batch_size": 8, "learning_rate": 3e-3, "row_tokens": 128, "eval_every": 0, "max_eval_tokens": 1024}
    recipe = pretraining(MODERN, DocSentences(max_length=32), (objective,), steps=steps, checkpoint_every=2, **training)
    return replace(recipe, optimizer=optimizer)


def first_layer(weights: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of the heads of the first layer: [N, H, D] each."""
    return tuple(part.view(4, 32, 128) for part in weights["encoder.layers.0.attention.qkv.weight"].chunk(3))


@pytest.mark.parametrize("optimizer", [AdamW(), Muon(), BertAdam(), Lamb()], ids=lambda optimizer: optimizer.kind)
def test_training_changes_all_but_queries_and_keys_of_heads_for_equal_words(
    optimizer: Optimizer, small_shards: Path, tmp_path: Path
) -> None:
    """Neither gradients nor weight decay change them."""
    bertie.pretrain(recipe_of(6, optimizer), small_shards, tmp_path / "run", threads=1)
    folders = [tmp_path / "run" / "checkpoints" / f"step-{step:08}" for step in (4, 6)]
    before, after = (first_layer(read_checkpoint(folder).weights) for folder in folders)
    for part in range(3):
        same = [torch.equal(before[part][head], after[part][head]) for head in range(4)]
        assert same == ([True, False, False, True] if part < 2 else [False] * 4)
    tokenizer = open_shards(small_shards).tokenizer
    words = [read_checkpoint(folder).weights["encoder.embeddings.word.weight"] for folder in folders]
    moved = (words[0] != words[1]).any(1)
    assert not moved[[tokenizer.cls_id, tokenizer.sep_id]].any()
    assert moved[tokenizer.mask_id]
    assert moved.float().mean() > 0.5
    assert torch.equal(words[0][:, 0], words[1][:, 0])


@pytest.mark.parametrize("there", [True, False])
def test_a_run_that_continues_holds_the_heads_that_are_there(there: bool, small_shards: Path, tmp_path: Path) -> None:
    start = WITH_PATTERNS if there else MaskedLM(initialization="random")
    bertie.pretrain(recipe_of(2, objective=start), small_shards, tmp_path / "start", threads=1)
    recipe = replace(recipe_of(4), init_from=str(tmp_path / "start"))
    bertie.pretrain(recipe, small_shards, tmp_path / "run", threads=1)
    before, after = (first_layer(read_checkpoint(tmp_path / name).weights) for name in ("start", "run"))
    same = [torch.equal(before[0][head], after[0][head]) for head in range(4)]
    assert same == [there, False, False, there]


@pytest.mark.parametrize("passes", [False, True])
def test_a_run_that_resumes_holds_them_too(
    passes: bool, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with passes before the saved weights are loaded, as on a GPU, where they find the micro-batch that fits."""

    def rows_that_fit(model: Model, _: Any, samples: Any, precision: Any, ranks: Any) -> int:  # noqa: ARG001
        one_pass(model, next(iter(samples))(1), precision)
        return 1

    if passes:
        monkeypatch.setattr(pretrain, "rows_that_fit", rows_that_fit)
        monkeypatch.setattr(RunFolder, "decide_once", lambda _, name, decide: decide())  # noqa: ARG005
    bertie.pretrain(recipe_of(6), small_shards, tmp_path / "whole", threads=1)
    whole, half = tmp_path / "whole", tmp_path / "half"
    shutil.copytree(whole, half, ignore=shutil.ignore_patterns("manifest.json", "config.json"))
    shutil.copytree(whole / "checkpoints", half / "checkpoints", dirs_exist_ok=True)
    shutil.rmtree(half / "checkpoints" / "step-00000006")
    bertie.pretrain(recipe_of(6), small_shards, half, threads=1)
    expected = read_checkpoint(whole).weights
    for name, weight in read_checkpoint(half).weights.items():
        assert torch.equal(weight, expected[name])
