"""A model whose token vectors come from characters: through training, files, fine-tuning and a longer vocabulary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.small_recipes import pretraining

import bertie
from bertie.batches.contiguous import DocSentences
from bertie.checkpoints.read import read_checkpoint
from bertie.corpus.prepare import prepare
from bertie.finetuning.finetune import Finetuned
from bertie.model.encoders.characters import CharacterCNN, Characters
from bertie.model.encoders.lstm import LstmConfig, LstmEncoder
from bertie.model.model import Model
from bertie.objectives import BidirectionalLM
from bertie.pretraining.dry_run import dry_run
from bertie.pretraining.initial_weights import load_initial_weights, new_model, read_initial_checkpoint
from bertie.tokenizers.spelling import spelling_table
from bertie.tokenizers.tokenizer import Tokenizer

INPUT = Characters(filters=(4, 4, 8), character_size=4, max_characters=12)
MODEL = LstmConfig(2, 16, 12, max_position_embeddings=64, initializer_range=0.3, input=INPUT)
LAYOUT, TRAINING = DocSentences(max_length=32), {"batch_size": 8, "row_tokens": 256, "checkpoint_every": 1}
CONFIG = pretraining(MODEL, LAYOUT, (BidirectionalLM(),), 0.1, steps=8, **TRAINING)


@pytest.fixture(scope="module")
def run(small_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("characters") / "run"
    bertie.pretrain(CONFIG, small_shards, folder, threads=1)
    return folder


def cnn(model: Model) -> CharacterCNN:
    assert isinstance(model.encoder, LstmEncoder)
    assert model.encoder.embeddings.characters is not None
    return model.encoder.embeddings.characters


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["split"] == "train"]


def test_the_spelling_is_derived_from_the_tokenizer_and_not_saved(run: Path, small_tokenizer: Tokenizer) -> None:
    assert read_checkpoint(run).config == replace(MODEL, vocab_size=500)
    loaded = bertie.load(run)
    assert not any("table" in name for name in loaded.model.state_dict())
    assert np.array_equal(cnn(loaded.model).table.cpu().numpy(), spelling_table(small_tokenizer, 12))
    assert loaded.embed(["a text", "another"]).shape == (2, 16)


def test_a_dry_run_takes_the_first_steps(small_shards: Path, run: Path, tmp_path: Path) -> None:
    found = dry_run(CONFIG, small_shards, tmp_path / "new", threads=1)
    assert found["losses"] == pytest.approx(losses(run)[:3], rel=1e-6)
    assert found["phases"][0]["memory"] > 4 * 4 * found["parameters"]


def test_added_entries_are_spelled(
    run: Path, small_tokenizer: Tokenizer, small_texts: list[str], tmp_path: Path
) -> None:
    """Their input vectors come from their characters, their rows of the output matrix from their old pieces."""
    extended = Tokenizer.build([*small_tokenizer.vocabulary, "thean"])
    start, old = read_initial_checkpoint(run, extended), read_checkpoint(run)
    model = new_model(start.config, CONFIG.objectives, 1)
    assert load_initial_weights(start, model) == f"continuing from {run}"
    assert np.array_equal(cnn(model).table.numpy(), spelling_table(extended, 12))
    output, pieces = old.weights["heads.bilm.output.weight"], old.tokenizer.split_entry("thean")
    torch.testing.assert_close(model.state_dict()["heads.bilm.output.weight"][500], output[pieces].mean(0))
    (tmp_path / "text.txt").write_text("\n\n".join(small_texts[:150]))
    prepare([tmp_path / "text.txt"], extended, tmp_path / "shards", eval_share=0.1)
    longer = replace(CONFIG, init_from=str(run), init_optimizer="keep")
    bertie.pretrain(longer, tmp_path / "shards", tmp_path / "run", threads=1)
    assert read_checkpoint(tmp_path / "run").config.vocab_size == 501


def finetune(run: Path, rows: list[dict[str, str]], out: Path | None = None, **changes: Any) -> Finetuned:
    training = {"epochs": 40, "batch_size": 8, "learning_rate": 2e-2, "precision": "fp32"}
    config = {"extends": "classify", "training": training, "max_length": 16, **changes}
    return bertie.finetune(config, rows, run, out, dev=rows, threads=1)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return [{"text": ["a b c", "d e f"][i % 2], "label": str(i % 2)} for i in range(16)]


def test_a_frozen_encoder_with_a_scalar_mix_learns(run: Path, rows: list[dict[str, str]], tmp_path: Path) -> None:
    """ELMo's use: γ Σ softmax(w)ⱼ stateⱼ, where state 0 is the vectors of the tokens, twice (Peters et al. 2018, 3.2)."""
    tuned = finetune(run, rows, tmp_path / "tuned", frozen=True, layers="scalar_mix", lstm_hidden_size=8)
    assert tuned.scores["accuracy"] == 1.0
    mix = tuned.model.reading
    assert mix is not None
    assert mix.scalar_mix is not None
    assert mix.scalar_mix.weight.shape == (3,)
    assert float(mix.scalar_mix.gamma.detach()) != 1.0
    assert float(mix.scalar_mix.weight.detach().std()) > 0
    before = read_checkpoint(run).weights
    for name, tensor in tuned.model.state_dict().items():
        assert not name.startswith("encoder.") or torch.equal(tensor, before[name])
    again = bertie.load(tmp_path / "tuned")
    found = [prediction.probabilities for prediction in again.predict(["a b c", "d e f"])]
    expected = [prediction.probabilities for prediction in tuned.predict(["a b c", "d e f"])]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize("from_scratch", [True, False])
def test_an_encoder_is_fine_tuned(run: Path, rows: list[dict[str, str]], from_scratch: bool) -> None:
    assert finetune(run, rows, from_scratch=from_scratch).losses[-1] < 0.3
