"""The texts of the lab `nesting`: what tells the answer, and what does not."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bertie import config, console
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


def gifts(text: str) -> dict[str, str]:
    """Who gives to whom."""
    return dict(line.split(" ") for line in text.splitlines())


def test_the_text_answers_the_question(dev: list[Any]) -> None:
    for each in dev:
        hops, person = each.question.split(" after ")
        given = gifts(each.story.text)
        has_it = person
        for _ in range(int(hops)):
            has_it = given[has_it]
        assert each.answer == has_it
        start = each.story.start(each.answer)
        assert f"{each.story.text}\n"[start - 1 :].startswith(f" {each.answer}\n")


def test_everybody_gives_once_and_gets_once_in_one_circle(dev: list[Any]) -> None:
    for each in dev:
        given = gifts(each.story.text)
        assert len(given) == 8
        assert set(given) == set(given.values())
        steps, person = 0, each.person
        while person != each.person or not steps:
            person, steps = given[person], steps + 1
        assert steps == 8 >= 2 * each.hops  # the way back is not shorter
    assert Counter(each.hops for each in dev) == dict.fromkeys((1, 2, 3, 4), 2400)


def test_the_lines_are_not_in_the_order_of_the_circle(nesting: ModuleType, dev: list[Any]) -> None:
    """Each line has the answer equally often, in particular the last one, and each distance from the asked giver."""
    for hops in (1, 2, 3, 4):
        asked = [each for each in dev if each.hops == hops]
        places = Counter(nesting.place(each) for each in asked)
        assert all(abs(places[place] - 300) < 4.5 * np.sqrt(300) for place in range(8)), (hops, places)
        if hops > 1:
            own = [
                each.story.text.splitlines().index(f"{each.person} {each.story.after(each.person, 1)}")
                for each in asked
            ]
            steps = Counter((nesting.place(each) - start) % 8 for each, start in zip(asked, own, strict=True))
            assert steps[0] == 0
            assert all(abs(steps[step] - 2400 / 7) < 4.5 * np.sqrt(2400 / 7) for step in range(1, 8)), (hops, steps)


def test_the_circles_of_the_dev_set_are_new_ones_of_known_names(train: list[Any], dev: list[Any]) -> None:
    assert {name for each in dev for name in each.story.circle} == {
        name for each in train for name in each.story.circle
    }
    assert not {each.story.text for each in train} & {each.story.text for each in dev}
    pairs = [{pair for each in side for pair in gifts(each.story.text).items()} for side in (train, dev)]
    assert pairs[0] == pairs[1]  # only whole circles are new: no gift tells of what it is part


def test_few_hops_come_first(nesting: ModuleType, train: list[Any]) -> None:
    ends = np.cumsum([round(share * 12_000) for share in nesting.STAGES]).tolist()
    assert ends[-1] == len(train)
    for most, (start, end) in enumerate(zip([0, *ends], ends, strict=False), 1):
        hops = Counter(each.hops for each in train[start:end])
        assert set(hops) == set(range(1, most + 1))
        if most > 1:
            assert abs(hops[most] - (end - start) / 2) < 4.5 * np.sqrt((end - start) / 4)


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


def test_guesses_find_what_a_careless_text_gives_away(nesting: ModuleType) -> None:
    """If things go round by the alphabet, the words of the question and a place tell the answer."""
    rng = np.random.default_rng(0)
    stories = [nesting.Story(tuple(sorted(nesting.draw_story(rng, False).circle))) for _ in range(300)]
    alike = [nesting.Asked(story, story.circle[3], 2) for story in stories]
    found = nesting.guesses(alike[:200], alike[200:])
    assert np.mean(found["bag of words"]) > 0.95
    assert np.mean(found["best place"]) == 1.0
    assert np.mean(found["chance"]) == pytest.approx(1 / 8)


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
