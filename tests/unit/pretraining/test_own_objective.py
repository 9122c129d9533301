"""Objectives outside of bertie, through pre-training, resuming and everything that loads the result."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from examples.own_objective import TokenSubstitution
from tests.unit.small_recipes import interrupted, pretraining

import bertie
from bertie.batches.contiguous import FullSentences
from bertie.checkpoints.read import read_checkpoint
from bertie.cli import main
from bertie.model.config import TransformerConfig
from bertie.objectives import AnyObjective, MaskedLM
from bertie.pretraining.recipe import PretrainConfig


@dataclass(frozen=True)
class Guess(MaskedLM):
    """Masked language modeling under another name, with the same head."""

    kind: Literal["guess"] = "guess"  # type: ignore[assignment]


def recipe(size: TransformerConfig, *objectives: AnyObjective, **training: Any) -> PretrainConfig:
    return pretraining(size, FullSentences(max_length=32), objectives, **{"steps": 6, "checkpoint_every": 2} | training)


@pytest.fixture(scope="module")
def run(tiny_config: TransformerConfig, small_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted and resumed."""
    folder, config = tmp_path_factory.mktemp("own"), recipe(tiny_config, TokenSubstitution(probability=0.3))
    with interrupted(lambda counters: counters.step == 2):
        bertie.pretrain(config, small_shards, folder / "run", threads=1)
    bertie.pretrain(config, small_shards, folder / "run", threads=1)
    bertie.pretrain(config, small_shards, folder / "at once", threads=1)
    weights = [read_checkpoint(folder / name).weights for name in ("run", "at once")]
    assert all(torch.equal(weights[1].pop(name), tensor) for name, tensor in weights[0].items())
    assert not weights[1]
    return folder / "run"


def test_its_head_is_loaded_with_its_code_only_if_that_is_allowed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [table] = json.loads((run / "config.json").read_text())["own_objectives"]
    assert table == {"kind": "examples.own_objective:TokenSubstitution", "weight": 1.0, "probability": 0.3}
    assert bertie.load(run, threads=1).model.kinds == {"rts"}  # the module is imported
    monkeypatch.delitem(sys.modules, "examples.own_objective")
    without = bertie.load(run, threads=1)
    warning = (
        f"{run}: without the head rts, whose objective is {table['kind']}, code that is not part of bertie: if you"
    )
    assert warning in capsys.readouterr().err
    assert without.model.kinds == set()
    assert without.embed(["a"]).shape == (1, 32)
    assert "examples.own_objective" not in sys.modules
    assert bertie.load(run, threads=1, allow_code=True).model.kinds == {"rts"}
    monkeypatch.delitem(sys.modules, "examples.own_objective")
    assert main(["convert", str(run), str(run.parent / "hf"), "--to", "hf"]) == 1
    assert "holds a head (rts)" in capsys.readouterr().err


def test_training_goes_on_from_its_head(
    run: Path, tiny_config: TransformerConfig, small_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So it does with a head that has the weights of a class of transformers, whatever the objectives are called."""

    def go_on(start: Path, out: str, *objectives: AnyObjective) -> str:
        config = recipe(tiny_config, *objectives, steps=1)
        bertie.pretrain(replace(config, init_from=str(start)), small_shards, tmp_path / out, threads=1)
        return next(line for line in capsys.readouterr().err.splitlines() if line.startswith("continuing from"))

    assert go_on(run, "same", TokenSubstitution()) == f"continuing from {run}"
    assert "dropped: rts head; randomly initialized: guess head" in go_on(run, "guess", Guess())
    assert bertie.load(tmp_path / "guess", threads=1).fill_mask("the [MASK]")
    assert go_on(tmp_path / "guess", "mlm", MaskedLM()) == f"continuing from {tmp_path / 'guess'}"
    assert go_on(tmp_path / "mlm", "again", Guess()) == f"continuing from {tmp_path / 'mlm'}"
    both = go_on(tmp_path / "mlm", "both", MaskedLM(), Guess())
    assert both.endswith("randomly initialized: guess head")
    assert bertie.load(tmp_path / "both", threads=1).model.kinds == {"mlm", "guess"}


def test_a_recipe_names_it(small_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.toml").write_text(
        'extends = "tiny"\nlayout = {kind = "full_sentences", max_length = 32}\n'
        '[[objectives]]\nkind = "examples.own_objective:TokenSubstitution"\n'
    )
    command = ["pretrain", str(tmp_path / "own.toml"), "--data", str(small_shards), "--out", str(tmp_path / "run")]
    assert main([*command, "--objectives.0.probability", "2"]) == 2
    assert "objectives.rts.probability is 2.0: give more than 0, at most 1" in capsys.readouterr().err
