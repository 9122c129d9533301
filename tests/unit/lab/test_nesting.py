"""The texts of the lab `nesting`: what tells the answer, and what does not."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bertie.base import config, console
from bertie.lab.checks import check
from bertie.lab.config import LabConfig
from bertie.lab.parts import read_parts
from bertie.lab.plan import make_plan

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "nesting.py"


@pytest.fixture(scope="module")
def nesting() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nesting", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["nesting"] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def train(nesting: ModuleType) -> list[Any]:
    return nesting.curriculum(np.random.default_rng(0), 12_000)


@pytest.fixture(scope="module")
def dev(nesting: ModuleType) -> list[Any]:
    return nesting.draw(np.random.default_rng(1), 1200, True)


def test_guesses_without_the_circle_are_no_better_than_chance(
    nesting: ModuleType, train: list[Any], dev: list[Any]
) -> None:
    found = nesting.guesses(train, dev)
    assert set(found["chance"]) == {1 / 8}
    for name in ("bag of words", "best place"):
        for hops in (1, 2, 3, 4):
            right = [value for value, each in zip(found[name], dev, strict=True) if each.hops == hops]
            most = 1 / 7 + 4 * np.sqrt(1 / 7 / len(right))  # the asked name can be left out
            assert np.mean(right) < most, (name, hops)


def test_the_shipped_lab_reads_the_files(nesting: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "nesting"), "--train", "200", "--dev", "20"])
    nesting.main()
    lab = config.load(LabConfig, "nesting", "lab")
    plan = make_plan(lab, tmp_path)
    with console.silenced():
        check(plan)
    parts = read_parts(lab, plan, tmp_path)[nesting.ALL]
    assert parts.names == ["1 hop", "2 hops", "3 hops", "4 hops"]
    assert [name for name, _ in parts.baselines] == ["chance", "bag of words", "best place"]
    assert parts.baselines[0][1] == dict.fromkeys([nesting.ALL, *parts.names], round(1 / 8, 4))
    text = (tmp_path / "nesting" / "text.txt").read_text()
    words = {
        word
        for question in json.loads((tmp_path / "nesting/dev.json").read_text())["data"][0]["paragraphs"]
        for word in question["context"].split()
    }
    assert words <= set(text.split())  # the vocabulary knows them
