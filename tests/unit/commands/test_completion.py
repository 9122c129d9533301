"""Completion scripts, run by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from bertie.base import config
from bertie.commands import VERBS
from bertie.commands.completion import Shell, script
from bertie.commands.flags import variants
from bertie.tasks import AnyTask

# As readline calls the script: the words so far, and the index of the word at the cursor.
ASK = (
    'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
    'eval "$(complete -p bertie | sed "s/.*-F \\([^ ]*\\) .*/\\1/")" bertie "${@: -1}"; printf "%s\\n" "${COMPREPLY[@]}"'
)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in get_args(Shell):
        (folder / shell).write_text(script(shell), encoding="utf-8")
    return folder


def complete(scripts: Path, *words: str) -> set[str]:
    """Return what bash offers for the last word of `bertie words…`."""
    command = ["bash", "--norc", "-c", ASK, "bash", str(scripts / "bash"), "bertie", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_verbs(scripts: Path) -> None:
    assert complete(scripts, "") == {verb.split()[0] for verb in VERBS}
    assert complete(scripts, "pre") == {"prepare", "pretrain", "predict"}
    assert complete(scripts, "tokenizer", "") == {verb.split()[1] for verb in VERBS if verb.startswith("tokenizer ")}
    assert complete(scripts, "runs", "c") == {"compare"}


def test_bash_completes_shipped_recipes(scripts: Path) -> None:
    assert complete(scripts, "pretrain", "") == set(config.shipped("pretrain"))
    assert complete(scripts, "finetune", "c") == {"classify", "choose"}
    assert complete(scripts, "score", "--task", "") == {*config.kinds(AnyTask)}


@pytest.mark.parametrize("verb", VERBS)
def test_bash_completes_the_flags_of_every_verb(scripts: Path, verb: str) -> None:
    flags = {a.name for found in variants(verb).values() for a in found if not a.positional}
    task = {"--task"} & complete(scripts, *verb.split(), "--task")
    assert complete(scripts, *verb.split(), "word", "--") == flags | task | {"--help"}


def test_bash_completes_names_of_files(scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shards").mkdir()
    monkeypatch.chdir(tmp_path)
    assert complete(scripts, "pretrain", "mini", "--data", "s") == {"shards"}
    assert complete(scripts, "tokenizer", "encode", "s") == {"shards"}


@pytest.mark.parametrize("shell", get_args(Shell))
def test_shells_accept_the_syntax_of_their_script(scripts: Path, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip("needs the shell that the script is for")
    done = subprocess.run([shell, "-n", str(scripts / shell)], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_fish_completes_verbs_recipes_and_flags(scripts: Path) -> None:
    if not shutil.which("fish"):
        pytest.skip("needs the shell that the script is for")
    for line, wanted in (("tokenizer t", ["train"]), ("pretrain tiny-", ["tiny-paper"]), ("--v", ["--version"])):
        command = ["fish", "--no-config", "-c", f"source {scripts / 'fish'}; complete -C 'bertie {line}'"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert [found.split("\t")[0] for found in done.stdout.splitlines()] == wanted


def test_help_imports_no_parser() -> None:
    code = (
        "import sys; from bertie.cli import main; main(['--help']); sys.exit('bertie.commands.parser' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
