"""The arguments of the verbs, derived from dataclasses."""

from __future__ import annotations

import re

import pytest

from bertie.base import config
from bertie.base.config import REQUIRED
from bertie.commands import VERBS
from bertie.commands.flags import Argument, tables, variants
from bertie.commands.parser import help_text
from bertie.tasks import AnyTask


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_lists_every_flag(verb: str) -> None:
    """With a first word those of its recipe or task, and without one those of all."""
    every = variants(verb)
    text = help_text(verb, "")
    for word, arguments in every.items():
        flags = {argument.name for argument in arguments if not argument.positional}
        listed = {name.replace("no-", "") for name in listed_flags(text)}  # a switch may be on in one recipe only
        assert {name.replace("no-", "") for name in flags} <= listed, (verb, word)
        if word and verb not in ("evaluate", "predict"):  # these take a run instead
            assert listed_flags(help_text(verb, word)) == [a.name for a in sort_tables(arguments)], (verb, word)


def listed_flags(text: str) -> list[str]:
    return re.findall(r"^  (--\S+)", text, re.MULTILINE)


def sort_tables(arguments: list[Argument]) -> list[Argument]:
    """The flags without a table first, then table by table."""
    members = [member for _, found in tables({"": arguments}).values() for member in found]
    return [a for a in arguments if "." not in a.key and not a.positional] + members


@pytest.mark.parametrize("kind", ["classify", "regress", "choose", "span", "tag", "embed"])
def test_the_help_of_a_run_lists_the_flags_of_its_task(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = config.build(AnyTask, {"kind": kind}, "task")
    monkeypatch.setattr("bertie.commands.evaluate.read_task", lambda _: task)
    for verb in ("evaluate", "predict"):
        wanted = [argument.name for argument in sort_tables(variants(verb)[kind])]
        assert listed_flags(help_text(verb, "runs/some")) == wanted
        assert f"--task.… of kind `{kind}`:" in help_text(verb, "")


def arguments_of(verb: str, word: str = "") -> dict[str, Argument]:
    return {argument.name: argument for argument in variants(verb)[word]}


def test_defaults_come_from_the_recipe() -> None:
    assert arguments_of("pretrain", "mini")["--model.hidden-size"].default == 256
    assert arguments_of("pretrain", "base")["--model.hidden-size"].default == 768
    assert arguments_of("pretrain", "mini")["--data"].default is REQUIRED


def test_an_argument_has_help_choices_and_a_key() -> None:
    found = arguments_of("pretrain", "mini-paper")
    assert found["--training.steps"].help
    assert found["--training.precision"].choices == ("auto", "fp32", "bf16")
    assert found["--phases.1.share"].key == "phases.1.share"
    assert found["config"].positional
    assert not found["--training.steps"].positional


def test_a_switch_that_is_on_by_default_has_a_negated_flag() -> None:
    found = arguments_of("pretrain", "mini")
    assert found["--training.no-compile"].switch
    assert "--training.compile" not in found
    assert found["--dry-run"].switch
    assert not found["--data"].switch
