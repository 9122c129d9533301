"""The arguments as data are those that the parser knows."""

from __future__ import annotations

import re

import pytest

from bertie.cli import main
from bertie.commands import VERBS
from bertie.commands.flags import REQUIRED, Argument, variants
from bertie.tasks import Classify


def shown(argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")  # a wide terminal gets two columns
    with pytest.raises(SystemExit):
        main([*argv, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_of_the_parser_is_found(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for word, arguments in variants(verb).items():
        for name in ("evaluate", "predict"):  # their flags are those of the run's task
            task = next((a.group() for a in arguments if a.key.startswith("task.")), Classify())
            monkeypatch.setattr(f"bertie.commands.{name}.read_task", lambda _, task=task: task)
        text = shown([*verb.split(), *([word] if word else [])], capsys, monkeypatch)
        parsed = set(re.findall(r"^│ (--\S+)", text, re.MULTILINE))
        found = {argument.name for argument in arguments if not argument.positional}
        assert {name for name in parsed if not name.endswith(".kind")} == found, (verb, word)


def of(verb: str, word: str = "") -> dict[str, Argument]:
    return {argument.name: argument for argument in variants(verb)[word]}


def test_defaults_are_those_of_the_recipe() -> None:
    assert of("pretrain", "mini")["--model.hidden-size"].default == 256
    assert of("pretrain", "base")["--model.hidden-size"].default == 768
    assert of("pretrain", "mini")["--data"].default is REQUIRED


def test_an_argument_has_its_help_its_choices_and_its_key() -> None:
    found = of("pretrain", "mini-paper")
    assert found["--training.steps"].help
    assert found["--training.precision"].choices == ("auto", "fp32", "bf16")
    assert found["--phases.1.share"].key == "phases.1.share"
    assert found["config"].positional
    assert not found["--training.steps"].positional


def test_a_switch_that_is_on_is_offered_as_off() -> None:
    found = of("pretrain", "mini")
    assert found["--training.no-compile"].switch
    assert "--training.compile" not in found
    assert found["--dry-run"].switch
    assert not found["--data"].switch
