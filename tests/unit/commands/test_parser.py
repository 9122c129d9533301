"""Help texts and error messages of the parser."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from bertie.base import config
from bertie.base.errors import UsageError
from bertie.cli import main
from bertie.commands import VERBS
from bertie.commands.parser import parse
from bertie.pretraining.recipe import PretrainConfig


def help_text(verb: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert shutil.get_terminal_size().columns == columns
    assert main([*verb.split(), "--help"]) == 0
    return capsys.readouterr().out


def test_help_joins_the_lines_of_a_docstring(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The docstring of --corpus has two lines in the source: each line of the help but the last is full."""
    text = help_text("demo", 80, capsys, monkeypatch)
    lines = [line.strip() for line in text.split("  --corpus PATH…")[1].split("  --scale")[0].splitlines()]
    lines = [line for line in lines if line]
    assert " ".join(lines).endswith("In .txt files, a blank line ends a document.")
    for line, following in pairwise(lines):
        assert len(f"{line} {following.split()[0]}") > 50


def test_help_shows_defaults_only_where_a_value_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(help_text("embed", 120, capsys, monkeypatch).split())
    assert "(default: float32)" in text
    assert not re.search(r"\(default: (None|False|True|'')?\)", text)
    assert "--word-pooling {first,mean}" in text
    assert "--input PATH" in text
    assert "RUN [TEXTS…]" in text


@pytest.mark.parametrize("verb", VERBS)
def test_no_line_of_the_help_is_wider_than_the_terminal(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = help_text(verb, 80, capsys, monkeypatch).splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 80


def test_help_of_glue_lists_no_flag_that_glue_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_text("glue", 120, capsys, monkeypatch)
    assert "--task.truncation" in text
    for flag, value in (("--metric", "f1"), ("--task.label", "y"), ("--task.labels", "y")):
        assert f"{flag} " not in text
        assert main(["glue", str(tmp_path), "--model", "m", "--out", str(tmp_path / "out"), flag, value]) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pretrain mini", "bertie pretrain needs --data STR…, --out PATH (see bertie pretrain --help)"),
        ("fill-mask", "bertie fill-mask needs RUN, TEXT (see bertie fill-mask --help)"),
        ("demo --scale big", "--scale: expected a number, found 'big' (see bertie demo --help)"),
        (
            "finetune classify --epochs 1",
            "unknown argument --epochs: did you mean '--training.epochs' or '--grid.epochs'? (see bertie finetune --help)",
        ),
        ("demo --sclae 2", "unknown argument --sclae: did you mean '--scale'? (see bertie demo --help)"),
        (
            "pretrain mini --data x --out y --optimizer.kind lamb",
            "--optimizer.kind: expected 'adamw', found 'lamb': set a kind in a TOML file that extends this recipe "
            "(see bertie pretrain --help)",
        ),
        (
            "tokenizer train a.txt --out b --executor x",
            "--executor: expected 'local', 'ray', found 'x' (see bertie tokenizer train --help)",
        ),
        ("predict", "bertie predict needs RUN as its first argument"),
        ("runs", "incomplete command 'runs': use bertie runs compare"),
        ("predcit x", "unknown command 'predcit': did you mean 'predict'? (see bertie --help)"),
        ("tokeniser", "unknown command 'tokeniser': did you mean 'tokenizer train'? (see bertie --help)"),
        ("tokenizer trian", "unknown command 'tokenizer trian': did you mean 'tokenizer train'? (see bertie --help)"),
        ("glue --task SST2", "unknown argument --task: did you mean '--tasks'? (see bertie glue --help)"),
        ("convert a b --engine onx", "unknown argument --engine (see bertie convert --help)"),
        (
            "convert a b --to onx",
            "--to: expected 'torch', 'openvino', 'onnx', 'hf', 'sentence-transformers', 'transformers.js', 'tf', found 'onx': "
            "did you mean "
            "'onnx'? (see bertie convert --help)",
        ),
        ("demo --scale", "--scale FLOAT needs a value (see bertie demo --help)"),
        ("demo --json=1", "--json takes no value, found '1' (see bertie demo --help)"),
        ("demo now", "unexpected 'now' (see bertie demo --help)"),
        ("demo -x", "unknown argument -x (see bertie demo --help)"),
    ],
)
def test_errors_are_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"bertie: {message}\n"


def test_values_of_every_type_are_parsed() -> None:
    args = parse(
        "finetune", ["span", "--train=a", "--dev", "b", "--model", "m", "--out", "o", "--grid.batch-size", "8", "16"]
    )
    assert (args.config, args.train, args.model) == ("span", (Path("a"),), "m")
    assert args.recipe.grid.batch_size == (8, 16)
    words = (
        "classify --dev b --model m --out o --train a --task.text x --task.text-pair y --training.learning_rate 1e-4"
    )
    args = parse("finetune", words.split())
    assert (args.recipe.task.text, args.recipe.task.text_pair) == ("x", "y")
    assert args.recipe.training.learning_rate == 1e-4
    args = parse(
        "pretrain",
        ["mini", "--data", "d", "--out", "o", "--objectives.0.mlm-probability", "0.2", "--training.no-compile"],
    )
    assert [objective.kind for objective in args.recipe.objectives] == ["mlm", "nsp"]
    assert args.recipe.objectives[0].mlm_probability == 0.2
    assert args.recipe.training.compile is False
    assert args.recipe.layout == config.load(PretrainConfig, "mini", "pretrain").layout


def test_the_last_of_repeated_flags_counts() -> None:
    assert parse("demo", ["--scale", "2", "--scale", "3", "--corpus", "a", "--corpus", "b", "c"]).scale == 3
    assert parse("demo", ["--corpus", "a", "--corpus", "b", "c"]).corpus == [Path("b"), Path("c")]
    assert parse("demo", ["--corpus"]).corpus == []


def test_a_required_flag_takes_several_values_at_once_or_one_after_the_other() -> None:
    words = ["embed", "--model", "m", "--out", "o"]
    for train in (["--train", "a", "b"], ["--train", "a", "--train", "b"], ["--train=a", "--train=b"]):
        assert parse("finetune", [*words, *train]).train == (Path("a"), Path("b"))
    for lacking in ([], ["--train"]):
        with pytest.raises(UsageError, match="needs"):
            parse("finetune", [*words, *lacking])


def test_a_text_may_begin_with_a_dash() -> None:
    """A word is a flag if it begins with two dashes and a letter and has no space; after -- nothing is."""
    args = parse("tokenizer encode", ["folder", "--json", "-5", "- a", "--a dash--", "--", "--json", "-h"])
    assert args.text == ["-5", "- a", "--a dash--", "--json", "-h"]
    assert parse("tokenizer decode", ["folder", "1", "-1"]).ids == [1, -1]


def test_an_optional_value_can_be_none() -> None:
    assert parse("fill-mask", ["run", "[MASK]", "--beam", "3"]).beam == 3
    assert parse("fill-mask", ["run", "[MASK]", "--beam", "3", "--beam", "None"]).beam is None


@pytest.mark.parametrize("verb", ["finetune", "score"])
def test_task_names_the_first_word(verb: str) -> None:
    files = {"finetune": "--train a --dev b --model m --out o", "score": "--data a --predictions b"}[verb]
    for words in (f"span {files}", f"--task span {files}", f"{files} --task=span"):
        assert parse(verb, words.split()) == parse(verb, f"span {files}".split())


def test_an_error_is_one_json_object_last_on_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for argv, code, words in (
        (["demo", "--json", "--scale", "big"], 2, "--scale: expected a number"),
        (["predcit", "--json"], 2, "unknown command 'predcit'"),
        (["tokenizer", "train", str(tmp_path / "no.txt"), "--out", str(tmp_path / "out"), "--json"], 2, "no such file"),
    ):
        assert main(argv) == code
        out, err = capsys.readouterr()
        error = json.loads(out.splitlines()[-1])
        assert error == {"error": error["error"], "exit_code": code}
        assert words in error["error"]
        assert err.endswith(f"bertie: {error['error']}\n")
    assert main(["demo", "--scale", "big", "--corpus", "a", "--", "--json"]) == 2  # no flag there
    assert capsys.readouterr().out == ""


def test_an_interrupt_is_told_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bertie.commands.demo.demo", interrupt)
    assert main(["demo", "--json"]) == 130
    told = {"error": "interrupted; run the same command again to resume", "exit_code": 130}
    assert json.loads(capsys.readouterr().out) == told
