"""Help texts and error messages of the parser."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from bertie.cli import main
from bertie.commands import VERBS


def help_text(verb: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert shutil.get_terminal_size().columns == columns
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    return capsys.readouterr().out


def test_help_joins_the_lines_of_a_docstring(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The docstring of --corpus has two lines in the source: each line of the help but the last is full."""
    text = help_text("demo", 80, capsys, monkeypatch)
    lines = [line.strip("│ ") for line in text.split("│ --corpus PATH…")[1].split("│ --scale")[0].splitlines()]
    lines = [line for line in lines if line]
    assert " ".join(lines).endswith("Each class needs at least 4 documents and 50 sentences.")
    for line, following in pairwise(lines):
        assert len(f"{line} {following.split()[0]}") > 60


def test_help_shows_defaults_only_where_a_value_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(help_text("embed", 120, capsys, monkeypatch).split())
    assert "(default: float32)" in text
    assert not re.search(r"\(default: (None|False|True|'')?\)", text)
    assert "--pooling {mean,cls,max}" in text
    assert "--input PATH" in text
    assert "RUN TEXTS…" in text


@pytest.mark.parametrize("verb", VERBS)
def test_no_line_of_the_help_is_wider_than_the_terminal(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = [line for line in help_text(verb, 80, capsys, monkeypatch).splitlines() if line.startswith("│")]
    assert boxes
    assert max(map(len, boxes)) <= 80


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
        ("pretrain mini", "bertie pretrain lacks --data PATH, --out PATH (see bertie pretrain --help)"),
        ("fill-mask", "bertie fill-mask lacks RUN, TEXT (see bertie fill-mask --help)"),
        ("demo --scale big", "--scale: expected a number, found 'big' (see bertie demo --help)"),
        ("demo --sclae 2", "unknown argument --sclae 2; did you mean --scale? (see bertie demo --help)"),
        (
            "pretrain mini --data x --out y --optimizer.kind lamb",
            "--optimizer.kind: expected 'adamw', found 'lamb' (set a kind in a TOML file that extends this recipe; "
            "see bertie pretrain --help)",
        ),
        (
            "tokenizer train a.txt --out b --executor x",
            "--executor: expected 'local', 'ray', found 'x' (see bertie tokenizer train --help)",
        ),
        ("predict", "bertie predict lacks RUN, the first argument"),
        ("runs", "incomplete command 'runs': use bertie runs compare"),
    ],
)
def test_errors_are_one_line(
    line: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "82")  # tyro's message of a wrong --executor then breaks before its last period
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"bertie: {message}\n"
