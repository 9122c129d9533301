from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertie.base import storage
from bertie.base.errors import UserError
from bertie.checkpoints import training_state
from bertie.checkpoints.find import list_checkpoints
from bertie.checkpoints.folder import write_manifest
from bertie.checkpoints.training_state import (
    Counters,
    copied_tensors,
    load_optimizer,
    load_state,
    restore_newest,
    save_state,
)
from bertie.model.config import TransformerConfig
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW, BertAdam, Optimizer


def trained(config: TransformerConfig, kind: Optimizer, steps: int) -> tuple[Model, torch.optim.Optimizer]:
    """A model after some steps with random gradients."""
    model = new_model(config, (MaskedLM(), NextSentence()), 0)
    optimizer = kind.build(model)
    train(model, optimizer, steps)
    return model, optimizer


def train(model: Model, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(steps)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        optimizer.step()


@pytest.mark.parametrize("kind", [AdamW(), BertAdam()], ids=lambda kind: kind.kind)
def test_resuming_reproduces_the_same_weights(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, kind: Optimizer
) -> None:
    model, optimizer = trained(tiny_config, kind, 3)
    counters = Counters(step=3, epoch=1, tokens=17)
    save_state(tmp_path, model, copied_tensors(model, optimizer), small_tokenizer, (), counters, keep=2)
    resumed, resumed_optimizer = trained(tiny_config, kind, 0)
    assert restore_newest(tmp_path, resumed, resumed_optimizer) == counters
    train(model, optimizer, 2)
    train(resumed, resumed_optimizer, 2)
    for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_only_the_newest_checkpoints_are_kept(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    model, optimizer = trained(tiny_config, AdamW(), 1)
    assert not list_checkpoints(tmp_path)
    assert restore_newest(tmp_path, model, optimizer) is None
    for step in (9, 10, 200):
        save_state(tmp_path, model, copied_tensors(model, optimizer), small_tokenizer, (), Counters(step), keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000010", "step-00000200"]
    assert list_checkpoints(tmp_path)
    assert restore_newest(tmp_path, model, optimizer) == Counters(200)


def test_a_full_disk_is_reported_before_anything_is_written(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained(tiny_config, AdamW(), 1)
    save_state(tmp_path, model, copied_tensors(model, optimizer), small_tokenizer, (), Counters(1), keep=1)
    size = 3 * 4 * model.size + 4 * len(list(model.parameters()))
    monkeypatch.setattr(training_state.shutil, "disk_usage", lambda _: SimpleNamespace(free=size))
    save_state(tmp_path, model, copied_tensors(model, optimizer), small_tokenizer, (), Counters(2), keep=1)
    monkeypatch.setattr(training_state.shutil, "disk_usage", lambda _: SimpleNamespace(free=size - 1))
    with pytest.raises(UserError, match=r"step-00000003: it takes 0\.5 MB .* the previous checkpoint"):
        save_state(tmp_path, model, copied_tensors(model, optimizer), small_tokenizer, (), Counters(3), keep=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    model, optimizer = trained(tiny_config, AdamW(), 1)
    save_state(tmp_path, model, copied_tensors(model, optimizer), small_tokenizer, (), Counters(1), keep=1)
    folder = tmp_path / "checkpoints" / "step-00000001"
    for config in (replace(tiny_config, intermediate_size=128), replace(tiny_config, num_hidden_layers=1)):
        with pytest.raises(UserError, match="step-00000001"):
            load_state(folder, *trained(config, AdamW(), 0))
    without_nsp = new_model(tiny_config, (MaskedLM(),), 0)
    with pytest.raises(UserError, match="belongs to another model"):
        load_state(folder, without_nsp, AdamW().build(without_nsp))


def test_resuming_uses_the_newest_intact_checkpoint(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = trained(tiny_config, AdamW(), 1)
    for step in (1, 2, 3):
        save_state(tmp_path, model, copied_tensors(model, optimizer), small_tokenizer, (), Counters(step), keep=3)
        train(model, optimizer, 1)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "step-00000002" / "model.safetensors").unlink()
    (checkpoints / "step-00000003" / "training_state" / "counters.json").write_text("{}")
    (checkpoints / "damaged-step-00000003").mkdir()  # left by an earlier resume
    expected, expected_optimizer = trained(tiny_config, AdamW(), 1)
    assert restore_newest(tmp_path, model, optimizer) == Counters(1)
    warnings = capsys.readouterr().err
    assert "step-00000002/model.safetensors" in warnings
    assert "step-00000003/training_state/counters.json" in warnings
    assert "resuming from step-00000001" in warnings
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "damaged-step-00000002",
        "damaged-step-00000003",
        "step-00000001",
    ]
    train(model, optimizer, 2)
    train(expected, expected_optimizer, 2)
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)


def test_impossible_counters_are_reported_as_damage(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    model, optimizer = trained(tiny_config, AdamW(), 1)
    save_state(tmp_path, model, copied_tensors(model, optimizer), small_tokenizer, (), Counters(1), keep=1)
    path = tmp_path / "checkpoints" / "step-00000001" / "training_state" / "counters.json"
    for change in ({"step": 2}, {"epoch": -1}):
        storage.write_json(path, asdict(Counters(1)) | change)
        write_manifest(path.parents[1])
        with pytest.raises(UserError, match=r"counters\.json is damaged"):
            restore_newest(tmp_path, model, optimizer)


@pytest.mark.parametrize("kind", [AdamW(), BertAdam()], ids=lambda kind: kind.kind)
def test_an_optimizer_state_that_does_not_fit_is_refused(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, kind: Optimizer
) -> None:
    """A valid checksum does not prevent this. The fused optimizer would read past the end of a short tensor."""
    model, optimizer = trained(tiny_config, kind, 1)
    save_state(tmp_path, model, copied_tensors(model, optimizer), small_tokenizer, (), Counters(1), keep=1)
    folder = tmp_path / "checkpoints" / "step-00000001"
    path = folder / "training_state" / "optimizer.safetensors"
    intact, key = load_file(path), "exp_avg|encoder.embeddings.word.weight"
    load_optimizer(folder, model, optimizer)
    short = {name: tensor[:1] if tensor.ndim else tensor for name, tensor in intact.items()}
    damages = [
        ({"odd": torch.zeros(1)}, "has no state of the encoder"),
        (short, "of shape"),
        ({**intact, key: torch.zeros(())}, r"exp_avg of encoder\.embeddings\.word\.weight"),
        ({**intact, key: intact[key].half()}, "float16"),
        ({**intact, key.replace("exp_avg", "step"): torch.zeros(4)}, "step of"),
        ({name: tensor for name, tensor in intact.items() if name != key}, "exp_avg of"),
    ]
    for tensors, message in damages:
        save_file(tensors, path)
        write_manifest(folder)
        with pytest.raises(UserError, match=rf"optimizer\.safetensors is damaged: .*{message}"):
            load_optimizer(folder, model, optimizer)
