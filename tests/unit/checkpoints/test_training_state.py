from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertie import storage
from bertie.checkpoints import training_state
from bertie.checkpoints.folder import write_manifest
from bertie.checkpoints.training_state import (
    Counters,
    has_checkpoint,
    load_optimizer,
    load_state,
    restore_newest,
    save_state,
)
from bertie.errors import UserError
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.initial_weights import new_model
from bertie.text.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW, BertAdam, Lamb, Optimizer


def stepped(config: BertConfig, kind: Optimizer, steps: int) -> tuple[BertModel, torch.optim.Optimizer]:
    """A model after some steps on made-up gradients."""
    model = new_model(config, (MaskedLM(), NextSentence()), 0)
    optimizer = kind.build(model)
    move(model, optimizer, steps)
    return model, optimizer


def move(model: BertModel, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(steps)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        optimizer.step()


@pytest.mark.parametrize("kind", [AdamW(), BertAdam()], ids=lambda kind: kind.kind)
def test_goes_on_exactly(tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer, kind: Optimizer) -> None:
    model, optimizer = stepped(tiny_config, kind, 3)
    counters = Counters(step=3, epoch=1, tokens=17)
    save_state(tmp_path, model, optimizer, small_tokenizer, (), counters, keep=2)
    other, its_optimizer = stepped(tiny_config, kind, 0)
    assert restore_newest(tmp_path, other, its_optimizer) == counters
    for one in (model, other):
        move(one, optimizer if one is model else its_optimizer, 2)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_only_the_newest_are_kept(tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer) -> None:
    model, optimizer = stepped(tiny_config, AdamW(), 1)
    assert not has_checkpoint(tmp_path)
    assert restore_newest(tmp_path, model, optimizer) is None
    for step in (9, 10, 200):
        save_state(tmp_path, model, optimizer, small_tokenizer, (), Counters(step), keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000010", "step-00000200"]
    assert has_checkpoint(tmp_path)
    assert restore_newest(tmp_path, model, optimizer) == Counters(200)


def test_no_room_is_said_before_anything_is_written(
    tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = stepped(tiny_config, AdamW(), 1)
    save_state(tmp_path, model, optimizer, small_tokenizer, (), Counters(1), keep=1)
    size = 3 * 4 * model.size + 4 * len(list(model.parameters()))
    monkeypatch.setattr(training_state.shutil, "disk_usage", lambda _: SimpleNamespace(free=size))
    save_state(tmp_path, model, optimizer, small_tokenizer, (), Counters(2), keep=1)
    monkeypatch.setattr(training_state.shutil, "disk_usage", lambda _: SimpleNamespace(free=size - 1))
    with pytest.raises(UserError, match=r"step-00000003: it takes 0\.5 MB .* the checkpoint before"):
        save_state(tmp_path, model, optimizer, small_tokenizer, (), Counters(3), keep=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def test_a_state_of_another_model_is_refused(
    tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer
) -> None:
    model, optimizer = stepped(tiny_config, AdamW(), 1)
    save_state(tmp_path, model, optimizer, small_tokenizer, (), Counters(1), keep=1)
    found = tmp_path / "checkpoints" / "step-00000001"
    for config in (replace(tiny_config, intermediate_size=128), replace(tiny_config, num_hidden_layers=1)):
        with pytest.raises(UserError, match="step-00000001"):
            load_state(found, *stepped(config, AdamW(), 0))
    alone = new_model(tiny_config, (MaskedLM(),), 0)
    with pytest.raises(UserError, match="is of another model"):
        load_state(found, alone, AdamW().build(alone))


@pytest.mark.parametrize("name", ["optimizer.safetensors", "counters.json"])
def test_a_damaged_state_is_named(
    tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer, name: str
) -> None:
    model, optimizer = stepped(tiny_config, AdamW(), 1)
    save_state(tmp_path, model, optimizer, small_tokenizer, (), Counters(1), keep=1)
    path = tmp_path / "checkpoints" / "step-00000001" / "training_state" / name
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match=name):
        restore_newest(tmp_path, model, optimizer)
    assert path.exists()


def test_damaged_ones_give_way_to_the_newest_whole_one(
    tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = stepped(tiny_config, AdamW(), 1)
    for step in (1, 2, 3):
        save_state(tmp_path, model, optimizer, small_tokenizer, (), Counters(step), keep=3)
        move(model, optimizer, 1)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "step-00000002" / "model.safetensors").unlink()
    (checkpoints / "step-00000003" / "training_state" / "counters.json").write_text("{}")
    (checkpoints / "damaged-step-00000003").mkdir()  # of an earlier time
    whole, its_optimizer = stepped(tiny_config, AdamW(), 1)
    assert restore_newest(tmp_path, model, optimizer) == Counters(1)
    for a, b in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)
    told = capsys.readouterr().err
    assert "step-00000002/model.safetensors" in told
    assert "step-00000003/training_state/counters.json" in told
    assert "going on from step-00000001" in told
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "damaged-step-00000002",
        "damaged-step-00000003",
        "step-00000001",
    ]
    for one, its in ((model, optimizer), (whole, its_optimizer)):
        move(one, its, 2)
    for a, b in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)


def test_counters_of_another_step_are_damage(
    tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer
) -> None:
    model, optimizer = stepped(tiny_config, AdamW(), 1)
    save_state(tmp_path, model, optimizer, small_tokenizer, (), Counters(1), keep=1)
    path = tmp_path / "checkpoints" / "step-00000001" / "training_state" / "counters.json"
    for change in ({"step": 2}, {"epoch": -1}, {"seconds": float("nan")}, {"epoch_step": "1"}):
        storage.write_json(path, asdict(Counters(1)) | change)
        write_manifest(path.parents[1])
        with pytest.raises(UserError, match=r"counters\.json is damaged"):
            restore_newest(tmp_path, model, optimizer)


@pytest.mark.parametrize("kind", [AdamW(), BertAdam(), Lamb()], ids=lambda kind: kind.kind)
def test_an_optimizers_state_that_does_not_fit(
    tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer, kind: Optimizer
) -> None:
    """Whoever changed it, and its checksum: the fused optimizer would read past its end."""
    model, optimizer = stepped(tiny_config, kind, 1)
    save_state(tmp_path, model, optimizer, small_tokenizer, (), Counters(1), keep=1)
    folder = tmp_path / "checkpoints" / "step-00000001"
    path = folder / "training_state" / "optimizer.safetensors"
    whole, key = load_file(path), "exp_avg|encoder.embeddings.word.weight"
    load_optimizer(folder, model, optimizer)
    cut = {name: tensor[:1] if tensor.ndim else tensor for name, tensor in whole.items()}
    damages = [
        ({}, "knows nothing of the encoder"),
        ({"odd": torch.zeros(1)}, "knows nothing of the encoder"),
        (cut, "of shape"),
        ({**whole, key: torch.zeros(())}, r"exp_avg of encoder\.embeddings\.word\.weight"),
        ({**whole, key: whole[key].half()}, "float16"),
        ({**whole, key: torch.cat([whole[key]] * 2)}, r"shape \(1000, 32\)"),
        ({**whole, key.replace("exp_avg", "step"): torch.zeros(4)}, "step of"),
        ({name: tensor for name, tensor in whole.items() if name != key}, "exp_avg of"),
    ]
    for tensors, message in damages:
        save_file(tensors, path)
        write_manifest(folder)
        with pytest.raises(UserError, match=rf"optimizer\.safetensors is damaged: .*{message}"):
            load_optimizer(folder, model, optimizer)
