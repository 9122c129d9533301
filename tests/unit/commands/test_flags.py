"""The arguments as data are the arguments of the parser."""

from __future__ import annotations

import re

import pytest

from bertie.cli import main
from bertie.commands import VERBS
from bertie.commands.flags import REQUIRED, Argument, variants
from bertie.tasks import Classify


def help_text(argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")  # wide enough for two columns
    with pytest.raises(SystemExit):
        main([*argv, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_variants_list_every_flag_of_the_parser(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for word, arguments in variants(verb).items():
        for name in ("evaluate", "predict"):  # their flags depend on the task of the run
            task = next((a.group() for a in arguments if a.key.startswith("task.")), Classify())
            monkeypatch.setattr(f"bertie.commands.{name}.read_task", lambda _, task=task: task)
        text = help_text([*verb.split(), *([word] if word else [])], capsys, monkeypatch)
        parsed = set(re.findall(r"^│ (--\S+)", text, re.MULTILINE))
        found = {argument.name for argument in arguments if not argument.positional}
        assert {name for name in parsed if not name.endswith(".kind")} == found, (verb, word)


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
