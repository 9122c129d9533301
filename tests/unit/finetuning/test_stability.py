"""Options for small data sets: early stopping, layer-wise learning rate decay, reinitialized top layers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.small_recipes import fine_tuning, interrupted

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.read import load_weights, read_checkpoint
from bertie.finetuning.data import load_task_data
from bertie.finetuning.finetune import Finetuned
from bertie.finetuning.recipe import FinetuneConfig
from bertie.finetuning.single_run import build_model, initialized_model
from bertie.tasks.tag import Tag
from bertie.training.optimizers import AdamW, BertAdam, Lamb
from bertie.training.run_folder import read_metrics

CONFIG = fine_tuning(4)
TRAINING = CONFIG.training
EARLY_STOPPING = replace(TRAINING, epochs=40, learning_rate=2e-2, eval_every=3, patience=2)


def finetune(config: FinetuneConfig, rows: Any, start: Path, out: Path | None = None) -> Finetuned:
    return bertie.finetune(config, rows[:40], start, out, dev=rows[40:], threads=1)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_early_stopping_keeps_the_weights_of_the_lowest_loss(
    rows: list[dict[str, str]], start: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, training=EARLY_STOPPING)
    found = finetune(config, rows, start, tmp_path / "run")
    losses = {record["step"]: record["loss"] for record in read_metrics(tmp_path / "run", "eval")}
    best = min(losses, key=lambda step: losses[step])
    assert max(losses) == best + 2 * 3 < 40 * 5
    checkpoint = read_checkpoint(tmp_path / "run" / "checkpoints" / f"step-{best:08d}")
    saved = build_model(config, found.task, checkpoint.config)
    load_weights(saved, checkpoint)
    assert torch.equal(flat(saved), flat(found.model))
    assert torch.equal(flat(bertie.load(tmp_path / "run").model), flat(found.model))
    in_memory = finetune(config, rows, start)
    assert in_memory.losses == found.losses
    assert torch.equal(flat(in_memory.model), flat(found.model))


def test_patience_counts_epochs_unless_evaluations_are_more_frequent(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(CONFIG, training=replace(EARLY_STOPPING, eval_every=0, patience=2))
    finetune(config, rows, start, tmp_path / "run")
    losses = {record["step"]: record["loss"] for record in read_metrics(tmp_path / "run", "eval")}
    best, last = min(losses, key=lambda step: losses[step]), max(losses)
    assert list(losses) == list(range(5, last + 1, 5))  # an epoch has 5 steps
    assert last == best + 2 * 5 < 40 * 5
    assert (
        f"stopped early, in epoch {last // 5}, after step {last}: no held-out loss below {losses[best]:.4f} in 2 evaluations; "
        f"loading the weights of step {best}, the best evaluation"
    ) in capsys.readouterr().err


@pytest.mark.parametrize("step", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_interrupted_run_stops_early_at_the_same_step(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, step: int
) -> None:
    config = replace(CONFIG, training=replace(EARLY_STOPPING, checkpoint_every=4))
    whole = finetune(config, rows, start, tmp_path / "whole")
    with interrupted(lambda counters: counters.step == step):
        finetune(config, rows, start, tmp_path / "cut")
    assert torch.equal(flat(finetune(config, rows, start, tmp_path / "cut").model), flat(whole.model))
    ends = [read_metrics(tmp_path / name, "eval")[-1]["step"] for name in ("whole", "cut")]
    assert ends[0] == ends[1]


def test_initial_head_outputs_have_the_spread_of_bert_base(rows: list[dict[str, str]], start: Path) -> None:
    checkpoint = read_checkpoint(start)
    data = load_task_data(CONFIG, rows[:40], rows[40:], checkpoint)
    model = build_model(CONFIG, data.task, checkpoint.config)
    weights = torch.cat([parameter.flatten() for parameter in model.heads.parameters() if parameter.ndim > 1])
    deviation = 0.02 * math.sqrt(768 / checkpoint.config.hidden_size)
    assert weights.std().item() == pytest.approx(deviation, rel=0.1)
    assert weights.abs().max() > 2.5 * deviation


@pytest.mark.parametrize("optimizer", [AdamW(), BertAdam(), Lamb()])
def test_layer_decay_lowers_the_learning_rate_with_depth(
    rows: list[dict[str, str]], start: Path, optimizer: AdamW | BertAdam | Lamb
) -> None:
    checkpoint = read_checkpoint(start)
    data = load_task_data(CONFIG, rows[:40], rows[40:], checkpoint)
    model = build_model(CONFIG, data.task, checkpoint.config)
    groups = optimizer.build(model, 0.5).param_groups
    shares = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    found = {name: shares[id(parameter)] for name, parameter in model.named_parameters()}
    assert len(found) == len(shares)
    for name, share in found.items():
        depth = 0 if name.startswith("heads.") else {"1": 1, "0": 2}.get(name.split(".")[2], 3)
        assert share == 0.5**depth, name
    decays = {group["weight_decay"] for group in groups if group["params"][0].ndim == 1}
    assert decays == {0.0}
    assert len(optimizer.build(model).param_groups) == 2


def test_step_size_of_a_layer_follows_layer_decay(rows: list[dict[str, str]], start: Path) -> None:
    """The first step of AdamW moves every weight by its learning rate, whatever its gradient is."""
    config = replace(CONFIG, optimizer=AdamW(weight_decay=0.0, eps=1e-20))
    config = replace(config, training=replace(TRAINING, steps=1, layer_decay=0.5))
    checkpoint = read_checkpoint(start)
    data = load_task_data(config, rows[:40], rows[40:], checkpoint)
    before, _ = initialized_model(config, data.task, checkpoint)
    after = finetune(config, rows, start).model
    pairs = zip(after.named_parameters(), before.parameters(), strict=True)
    moved = {name: float((p - q).detach().abs().max()) for (name, p), q in pairs}
    head = moved["heads.classify.out.weight"]
    assert head > 0
    assert moved["encoder.layers.1.up.weight"] == pytest.approx(head / 2, rel=1e-3)
    assert moved["encoder.layers.0.up.weight"] == pytest.approx(head / 4, rel=1e-3)
    assert moved["encoder.embeddings.word.weight"] == pytest.approx(head / 8, rel=1e-3)


def test_reinit_layers_initializes_the_top_layers_and_the_pooler(rows: list[dict[str, str]], start: Path) -> None:
    checkpoint = read_checkpoint(start)
    config = replace(CONFIG, training=replace(TRAINING, reinit_layers=1))
    data = load_task_data(config, rows[:40], rows[40:], checkpoint)
    usual, _ = initialized_model(CONFIG, data.task, checkpoint)
    fresh, description = initialized_model(config, data.task, checkpoint)
    assert "the top 1 layer, the pooler" in description
    assert not torch.equal(fresh.heads["classify"].pooler.weight, usual.heads["classify"].pooler.weight)
    assert torch.equal(flat(usual.encoder.layers[0]), flat(fresh.encoder.layers[0]))
    assert torch.equal(flat(usual.encoder.embeddings), flat(fresh.encoder.embeddings))
    weights = fresh.encoder.layers[1].up.weight
    assert weights.abs().max() <= 2 * checkpoint.config.initializer_range
    assert weights.std() > 0.5 * checkpoint.config.initializer_range
    assert torch.equal(fresh.encoder.layers[1].norm.weight, torch.ones(checkpoint.config.hidden_size))
    assert torch.equal(usual.heads["classify"].out.weight, fresh.heads["classify"].out.weight)
    again, _ = initialized_model(config, data.task, checkpoint)
    other, _ = initialized_model(replace(config, seed=1), data.task, checkpoint)
    assert torch.equal(flat(again), flat(fresh))
    assert not torch.equal(flat(other.encoder.layers[1]), flat(fresh.encoder.layers[1]))
    shifted = {name: tensor + 1 for name, tensor in checkpoint.weights.items() if "norm" in name}
    tuned = replace(checkpoint, weights=checkpoint.weights | shifted)
    norm = initialized_model(config, data.task, tuned)[0].encoder.layers[1].norm
    assert torch.equal(norm.weight, torch.ones_like(norm.weight))
    assert torch.equal(norm.bias, torch.zeros_like(norm.bias))
    with pytest.raises(UsageError, match="reinit_layers is 3, but the model has 2 layers"):
        finetune(replace(CONFIG, training=replace(TRAINING, reinit_layers=3)), rows, start)


def test_patience_needs_a_loss_to_watch(start: Path) -> None:
    """Tags that are not in the training examples have no target, and the only known tag is truncated."""
    training = replace(TRAINING, eval_every=1, patience=2)
    dev = [{"tokens": ["ka"] * 40, "tags": ["B-Y"] * 39 + ["B-X"]}]
    train = [{"tokens": ["ka", "du"], "tags": ["B-X", "O"]}]
    with pytest.raises(UserError, match="so there is no dev loss to watch"):
        bertie.finetune(
            replace(CONFIG, task=Tag(truncation="head"), training=training), train, start, dev=dev, threads=1
        )
