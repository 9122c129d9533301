from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from tests.unit.small_recipes import fine_tuning, interrupted
from transformers import AutoModel

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.read import read_checkpoint
from bertie.finetuning import finetune as finetuning
from bertie.finetuning import frozen
from bertie.finetuning.finetune import Finetuned
from bertie.finetuning.recipe import FinetuneConfig, GridSearch
from bertie.model.heads.layer_selection import LayerSelection
from bertie.model.transformer import TransformerEncoder
from bertie.tasks import Embed, Tag
from bertie.training import trainer
from bertie.training.optimizers import AdamW, BertAdam

CONFIG = fine_tuning(1, 1e-2, frozen=True)
TRAINING = CONFIG.training
PLAIN = replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
LAYERS = [layers for layers in get_args(LayerSelection) if not layers.endswith("last_4")]  # the small model has two


def finetune(config: FinetuneConfig, rows: Any, start: Path, out: Path | None = None) -> Finetuned:
    return bertie.finetune(config, rows[:40], start, out, dev=rows[40:], threads=1)


def words(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The tag of a word is the half of the alphabet that its first letter is in."""
    split = [row["text"].split() for row in rows]
    return [{"words": each, "tags": ["LOW" if word[0].lower() < "n" else "HIGH" for word in each]} for each in split]


def encoder_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if name.startswith("encoder.")}


@pytest.mark.parametrize(("layers", "lstm_hidden_size"), [*((layers, 0) for layers in LAYERS), ("scalar_mix", 5)])
def test_cached_hidden_states_give_the_same_losses(
    rows: list[dict[str, str]],
    start: Path,
    layers: LayerSelection,
    lstm_hidden_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(PLAIN, layers=layers, lstm_hidden_size=lstm_hidden_size, training=replace(TRAINING, epochs=2))
    cached = finetune(config, rows, start)
    monkeypatch.setattr(finetuning, "cache_hidden_states", lambda data, *_: data)
    uncached = finetune(config, rows, start)
    np.testing.assert_allclose(cached.losses, uncached.losses, rtol=1e-5)
    assert cached.scores == pytest.approx(uncached.scores, abs=1e-6)


def _linears(module: torch.nn.Module) -> list[torch.nn.Linear]:
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


@pytest.mark.parametrize("optimizer", [AdamW(), BertAdam()])
def test_frozen_changes_the_head_and_not_the_encoder(
    rows: list[dict[str, str]], start: Path, optimizer: AdamW | BertAdam
) -> None:
    found = finetune(replace(CONFIG, optimizer=optimizer), rows, start)
    before = read_checkpoint(start).weights
    after = encoder_of(found.model)
    assert after.keys() == {name for name in before if name.startswith("encoder.")}
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    assert all(float(head.bias.detach().abs().min()) > 0 for head in _linears(found.model.heads))  # they start at 0


@pytest.mark.parametrize(
    ("layers", "lstm_hidden_size", "is_frozen"),
    [
        *(pytest.param(each, 0, True, marks=pytest.mark.slow) for each in LAYERS if each != "scalar_mix"),
        *(("scalar_mix", 0, True), ("last", 4, True), ("last", 0, False), ("scalar_mix", 4, False)),
    ],
)
def test_run_is_read_back_unchanged(
    rows: list[dict[str, str]],
    start: Path,
    tmp_path: Path,
    layers: LayerSelection,
    lstm_hidden_size: int,
    is_frozen: bool,
) -> None:
    config = replace(CONFIG, layers=layers, lstm_hidden_size=lstm_hidden_size, frozen=is_frozen)
    found = finetune(config, rows, start, tmp_path / "run")
    loaded = bertie.load(tmp_path / "run")
    assert loaded.evaluate(rows[40:])["scores"] == found.scores
    same = zip(loaded.model.state_dict().values(), found.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b.cpu()) for a, b in same)
    assert finetune(config, rows, start, tmp_path / "run").scores == found.scores
    architecture = json.loads((tmp_path / "run" / "config.json").read_text())["architectures"]
    standard = layers == "last" and not lstm_hidden_size
    assert architecture == ["BertForSequenceClassification" if standard else "BertModel"]
    theirs = AutoModel.from_pretrained(tmp_path / "run", add_pooling_layer=False)
    words = theirs.get_input_embeddings().weight
    assert torch.equal(words, found.model.encoder.embeddings.word.weight)
    starting = finetune(
        replace(config, layers="last", lstm_hidden_size=0), rows, tmp_path / "run"
    )  # other layers than the checkpoint's
    assert set(starting.scores) == set(found.scores)


def test_bilstm_over_frozen_layers_learns_tags(rows: list[dict[str, str]], start: Path) -> None:
    training = replace(TRAINING, epochs=30, learning_rate=3e-2)
    config = replace(CONFIG, task=Tag(), layers="scalar_mix", lstm_hidden_size=16, training=training)
    found = finetune(config, words(rows), start)
    assert found.losses[-1] < 0.05
    reading = found.model.reading
    assert reading is not None
    assert reading.scalar_mix is not None
    assert float(reading.scalar_mix.weight.detach().abs().max()) > 0  # learned: they start at 0


def test_grid_runs_the_frozen_encoder_once(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = TransformerEncoder.forward

    def counted(self: TransformerEncoder, batch: Any, *rest: Any, **named: Any) -> Any:
        calls.append(len(batch.ragged.lengths))
        return original(self, batch, *rest, **named)

    monkeypatch.setattr(TransformerEncoder, "forward", counted)
    grid = GridSearch(learning_rate=(1e-3, 1e-2), epochs=(1, 2))
    found = finetune(replace(CONFIG, grid=grid, restarts=2), rows, start, tmp_path / "run")
    assert found.sweep is not None
    assert len(found.sweep.results) == 8
    assert sum(calls) == len(rows)


def test_frozen_grid_builds_the_encoder_once_and_writes_no_checkpoints(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for early stopping, which needs them."""
    built: list[TransformerEncoder] = []
    written: list[int] = []
    original, save = TransformerEncoder.__init__, trainer.save_state

    def build(self: TransformerEncoder, *given: Any) -> None:
        original(self, *given)
        if not self.embeddings.word.weight.is_meta:  # reading a checkpoint builds one without memory, for the shapes
            built.append(self)

    monkeypatch.setattr(TransformerEncoder, "__init__", build)
    monkeypatch.setattr(trainer, "save_state", lambda *args: (written.append(1), save(*args))[1])
    found = finetune(replace(CONFIG, restarts=4), rows, start, tmp_path / "run")
    assert found.sweep is not None
    assert len(found.sweep.results) == 4
    assert len(built) == 1
    assert not written
    alone = finetune(replace(CONFIG, seed=CONFIG.seed + 2), rows, start)
    assert alone.scores == pytest.approx(found.sweep.results[2].scores)
    patient = replace(TRAINING, patience=1, eval_every=3)
    finetune(replace(CONFIG, restarts=2, training=patient), rows, start, tmp_path / "patient")
    assert written  # early stopping returns to one of them


def test_best_run_of_a_killed_grid_is_trained_again(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, restarts=3)
    whole = finetune(config, rows, start, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "write_evaluation", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            finetune(config, rows, start, tmp_path / "cut")
    found = finetune(config, rows, start, tmp_path / "cut")
    assert found.scores == whole.scores
    same = zip(found.model.state_dict().values(), whole.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def test_interrupted_run_resumes_to_the_same_weights(rows: list[dict[str, str]], start: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, layers="scalar_mix", lstm_hidden_size=4, training=replace(TRAINING, checkpoint_every=2))
    whole = finetune(config, rows, start, tmp_path / "whole")
    with interrupted(lambda counters: counters.step == 4):
        finetune(config, rows, start, tmp_path / "cut")
    found = finetune(config, rows, start, tmp_path / "cut")
    assert found.losses == whole.losses[4:]
    same = zip(found.model.state_dict().values(), whole.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def test_impossible_frozen_configurations_are_refused(
    rows: list[dict[str, str]], start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="frozen does not work with from_scratch"):
        replace(CONFIG, from_scratch=True)
    with pytest.raises(UsageError, match="embed only pools the last layer"):
        replace(CONFIG, task=Embed())
    with pytest.raises(UsageError, match="layers sum_last_4 needs 4 layers, but the model has 2"):
        finetune(replace(CONFIG, layers="sum_last_4"), rows, start)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(frozen.os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"has no space for .* of hidden states"):
        finetune(CONFIG, rows, start)
