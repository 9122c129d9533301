"""Bad text, flags and recipes: each gives one clear line, the right exit code, and no partial output.

One case of each mechanism goes through the command here. tests/unit has the other cases.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import cut, flip
from tests.system.conftest import SMALL, names_setting

if TYPE_CHECKING:
    from bertie.tokenizers.tokenizer import Tokenizer

Refuse = Callable[..., str]
TWO_DOCUMENTS = b"One document. It has two sentences.\n\nAnother document.\n"


def pretrain(shards: Path | str, out: Path, *flags: str) -> list[str]:
    return ["pretrain", "tiny", "--data", str(shards), "--out", str(out), *SMALL.split(), *flags]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a file of two documents, a loop of links, and a pipe. An empty folder is beside it."""
    folder = tmp_path / "texts"
    (tmp_path / "empty").mkdir()
    (folder / "none").mkdir(parents=True)
    (folder / "two.txt").write_bytes(TWO_DOCUMENTS)
    (folder / "none" / ".hidden.txt").write_bytes(TWO_DOCUMENTS)
    (folder / "none" / "loop").symlink_to("loop")
    os.mkfifo(folder / "none" / "pipe.txt")
    return folder


TEXTS: list[tuple[str, bytes, int, str]] = [
    ("binary.txt", bytes(range(256)) * 9, 1, "binary.txt:1: not text"),
    ("nul.txt", b"one, two, three, four, five\nsix\0\n", 1, "nul.txt:2: a NUL byte"),
    ("text.doc", b"text", 2, "cannot tell the format from the name"),
    ("deep.jsonl", b"[" * 100_000, 1, "deep.jsonl:1: not valid JSON"),
    ("cut.txt.gz", gzip.compress(b"text " * 1000)[:30], 1, "truncated, or not really .gz"),
    ("blank.txt", b" \n\n\t\n \r\n", 1, "text"),
    ("controls.txt", b"\x01\x02\n\n\x03", 1, "text"),
]


@pytest.mark.parametrize(("name", "content", "code", "words"), TEXTS, ids=[case[0] for case in TEXTS])
def test_files_that_are_not_text(
    refuse: Refuse, small_shards: Path, tmp_path: Path, out: Path, name: str, content: bytes, code: int, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for command in (["tokenizer", "train"], ["prepare", "--tokenizer", str(small_shards / "tokenizer")]):
        refuse([*command, str(path), "--out", str(out), "--strict"], code, words)


TRAIN = "tokenizer train {texts} --out {out}"
PREPARE = "prepare {texts} --tokenizer {shards}/tokenizer --out {out}"
PRETRAIN = f"pretrain tiny --data {{shards}} --out {{out}} {SMALL}"
COMMANDS: list[tuple[str, int, str]] = [
    ("tokenizer train --out {out}", 2, "no text to read"),
    ("prepare --tokenizer {shards}/tokenizer --out {out}", 2, "no text to read"),
    ("demo --out {out} --corpus", 2, "--corpus"),
    ("demo --out {texts}", 2, "choose another place for the demo"),
    ("demo --out {texts}/two.txt", 2, "choose another place for the demo"),
    (f"{TRAIN} {{texts}}/nosuch.txt", 2, "no such file"),
    (f"{TRAIN} {{texts}}/none/pipe.txt", 2, "is not a file"),
    (f"{TRAIN} {{texts}}/none", 2, "no text in this folder"),
    (f"{PREPARE} {'b' * 300}.txt", 1, "File name too long"),
    (f"{TRAIN} --vocab-size 10", 2, "--vocab-size 10 is too small"),
    (f"{TRAIN} --vocab-size 0", 2, "--vocab-size 0: give a number from 1 to"),
    (f"{TRAIN} --alphabet-limit -3", 2, "--alphabet-limit -3: give a number from 1 to"),
    (f"{TRAIN} --min-frequency {'9' * 30}", 2, ": give a number from 1 to"),
    (f"{TRAIN} --documents page", 2, "--documents: expected 'blank-line', 'line', 'file'"),
    (PREPARE, 1, "the evaluation set has 0 of 2 documents"),
    (f"{PREPARE} --eval-share 1", 2, "--eval-share 1: give a share"),
    (f"{PREPARE} --eval-share nan", 2, "--eval-share nan: give a share"),
    (f"{PREPARE} --eval-share few", 2, "--eval-share"),
    (f"{PREPARE} --tokenizer {{texts}}/nosuch", 2, "nosuch does not exist"),
    (f"{PREPARE} --tokenizer {{texts}}/two.txt", 2, "two.txt is a file"),
    (f"{PREPARE} --out {{texts}}", 2, "already exists"),
    (f"{TRAIN} --out {{texts}}/two.txt", 2, "already exists"),
    (f"{PREPARE} --out {{texts}}/out", 2, "give an --out elsewhere"),
    (f"{PREPARE} --out {'x' * 300}", 1, "File name too long"),
    (f"{PREPARE} --out caf\udce9", 2, "is not UTF-8"),
    (f"{PREPARE} --out .", 2, "'.' has no name"),
    (f"{PREPARE} --out {{texts}}/none/loop/out", 1, "Symlink loop"),
    (f"{PRETRAIN} --out {{texts}}/none/loop/out", 1, "Symlink loop"),
    (f"{PRETRAIN} --out .", 2, "'.' has no name"),
    (f"{PRETRAIN} --training.stesp 3", 2, "--training.stesp"),
    (f"{PRETRAIN} --training.steps {'1' * 5000}", 2, "--training.steps"),
    (f"{PRETRAIN} --threads -1", 2, "--threads -1"),
    (f"{PRETRAIN} --threads 100000", 2, "--threads 100000"),
    (f"{PRETRAIN} --optimizer.betas 0.9", 2, "optimizer.betas is [0.9]"),
    (f"{PRETRAIN} --model.hidden-size 33", 2, "model.hidden_size 33 is not a multiple"),
    (f"{PRETRAIN} --layout.max-length 600", 2, "layout.max_length 600 is more than model.max_position_embeddings"),
]


@pytest.mark.parametrize(("line", "code", "words"), COMMANDS, ids=[ascii(line[-30:]) for line, _, _ in COMMANDS])
def test_commands(
    refuse: Refuse,
    small_shards: Path,
    texts: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(texts.parent / "empty")
    places = {"texts": texts, "out": out, "shards": small_shards}
    refuse([word.format(**places) for word in line.split()], code, words)
    assert (texts / "two.txt").read_bytes() == TWO_DOCUMENTS


FLAGS = {
    "0": "training.steps training.batch-size training.row-tokens training.max_grad_norm training.max-eval-tokens "
    "training.keep-checkpoints model.num-hidden-layers model.num-attention-heads model.hidden-size "
    "objectives.0.mlm-probability",
    "-1": "training.learning-rate training.eval-every training.checkpoint-every seed model.intermediate-size "
    "model.vocab-size model.initializer-range optimizer.eps objectives.1.weight",
    "2": "layout.short-seq-prob layout.max-length schedule.warmup model.hidden-dropout-prob",
    "nan": "training.learning-rate schedule.warmup model.layer-norm-eps",
    "inf": "training.learning-rate",
    "9" * 30: "training.steps model.intermediate-size",
}


@pytest.mark.parametrize(("value", "flag"), [(value, flag) for value in FLAGS for flag in FLAGS[value].split()])
def test_flags_of_pretraining(refuse: Refuse, small_shards: Path, out: Path, value: str, flag: str) -> None:
    refuse(pretrain(small_shards, out, f"--{flag}", value), 2, names_setting(flag))


def test_held_out_text_without_pairs(refuse: Refuse, small_tokenizer: Tokenizer, tmp_path: Path, out: Path) -> None:
    from bertie.corpus.prepare import prepare

    (tmp_path / "words.txt").write_text("\n\n".join(chr(97 + i % 26) for i in range(60)))
    prepare([tmp_path / "words.txt"], small_tokenizer, tmp_path / "shards", eval_share=0.5)
    refuse(pretrain(tmp_path / "shards", out), 1, "the held-out documents have only one token each")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train/00000.tokens.npy", flip),
        ("eval/00000.sentences.npy", cut),
        ("tokenizer/tokenizer.json", Path.unlink),
    ],
    ids=["altered", "cut", "missing"],
)
def test_damaged_shards(
    refuse: Refuse, small_shards: Path, tmp_path: Path, out: Path, name: str, damage: Callable[[Path], None]
) -> None:
    shards = shutil.copytree(small_shards, tmp_path / "shards")
    damage(shards / name)
    refuse(pretrain(shards, out), 1, str(shards / name), "prepare again")
