from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertie.checkpoints.state import load_state, newest_state, save_state
from bertie.errors import UserError
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.text.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW, BertAdam, Optimizer
from bertie.training.pretrain import new_model


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
    save_state(tmp_path, 3, model, optimizer, small_tokenizer, (), {"step": 3}, keep=2)
    found = newest_state(tmp_path)
    assert found is not None
    other, its_optimizer = stepped(tiny_config, kind, 0)
    assert load_state(found, other, its_optimizer) == {"step": 3}
    for one in (model, other):
        move(one, optimizer if one is model else its_optimizer, 2)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_only_the_newest_are_kept(tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer) -> None:
    model, optimizer = stepped(tiny_config, AdamW(), 1)
    assert newest_state(tmp_path) is None
    for step in (9, 10, 200):
        save_state(tmp_path, step, model, optimizer, small_tokenizer, (), {"step": step}, keep=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000010", "step-00000200"]
    newest = newest_state(tmp_path)
    assert newest is not None
    assert newest.name == "step-00000200"


def test_a_state_of_another_model_is_refused(
    tmp_path: Path, tiny_config: BertConfig, small_tokenizer: Tokenizer
) -> None:
    model, optimizer = stepped(tiny_config, AdamW(), 1)
    save_state(tmp_path, 1, model, optimizer, small_tokenizer, (), {}, keep=1)
    found = newest_state(tmp_path)
    assert found is not None
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
    save_state(tmp_path, 1, model, optimizer, small_tokenizer, (), {"step": 1}, keep=1)
    found = newest_state(tmp_path)
    assert found is not None
    path = found / "training_state" / name
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match=name):
        load_state(found, model, optimizer)
