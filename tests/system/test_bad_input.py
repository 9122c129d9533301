"""Bad text, flags and recipes: each gives one clear line, the right exit code, and no partial output.

One case of each mechanism goes through the command here. tests/unit has the other cases.
"""

from __future__ import annotations

import gzip
import json
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


def pretrain(shards: Path | str, out: Path, *flags: str, config: str = "tiny") -> list[str]:
    return ["pretrain", config, "--data", str(shards), "--out", str(out), *SMALL.split(), *flags]


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
    ("text.md", b"text", 2, "cannot tell the format from the name"),
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
    ("nonsense", 2, "unknown command 'nonsense'"),
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
    ("pretrain --data {shards} --out {out}", 2, "needs CONFIG"),
    ("pretrain tiny --out {out}", 2, "needs --data"),
    ("pretrain nosuch --data {shards} --out {out}", 2, "no recipe 'nosuch'"),
    ("pretrain {texts}/nosuch.toml --data {shards} --out {out}", 2, "no such file: "),
    (f"{PRETRAIN} --nosuch 3", 2, "--nosuch"),
    (f"{PRETRAIN} --training.stesp 3", 2, "--training.stesp"),
    (f"{PRETRAIN} --training.steps 1e3", 2, "--training.steps: expected an integer"),
    (f"{PRETRAIN} --training.steps {'1' * 5000}", 2, "--training.steps"),
    (f"{PRETRAIN} --training.learning-rate fast", 2, "--training.learning-rate: expected a number"),
    (f"{PRETRAIN} --training.precision fp8", 2, "'fp8'"),
    (f"{PRETRAIN} --layout.kind pears", 2, "'pears'"),
    (f"{PRETRAIN} --model.hidden-act mish", 2, "'mish'"),
    (f"{PRETRAIN} --threads -1", 2, "--threads -1"),
    (f"{PRETRAIN} --threads 100000", 2, "--threads 100000"),
    (f"{PRETRAIN} --optimizer.betas 0.9", 2, "optimizer.betas is [0.9]"),
    (f"{PRETRAIN} --model.hidden-size 33", 2, "model.hidden_size 33 is not a multiple"),
    (f"{PRETRAIN} --model.vocab-size 7", 2, "model.vocab_size is 7, but the shards have 500"),
    (f"{PRETRAIN} --model.type-vocab-size 1", 2, 'type_vocab_size is 1, but layout.kind is "pairs"'),
    (f"{PRETRAIN} --layout.max-length 600", 2, "layout.max_length 600 is more than model.max_position_embeddings"),
    (f"{PRETRAIN} --objectives.0.mask-replace-prob 0.95", 2, "add up to"),
    (f"{PRETRAIN} --training.batch-size 100000", 1, "lower --training.batch-size"),
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


TOMLS: list[tuple[bytes, str]] = [
    (b"", "top level: model is missing"),
    (b"[" * 100_000, "is not TOML"),
    (b"seed = " + b"1" * 5000, "is not TOML"),
    (b"\xff\xfe", "bad.toml"),
    (b"extends = 'tiny.toml'\n[training]\nstesp = 3", "training.stesp is not known; did you mean 'steps'?"),
    (b"extends = 'tiny.toml'\n[training]\nlearning_rate = 1" + b"0" * 400, "training.learning_rate: expected a number"),
    (b"extends = 'tiny.toml'\nobjectives = []", "objectives is []"),
    (b"extends = 'tiny.toml'\n[[phases]]\nshare = 1.0\nmax_length = 600", "phases: max_length 600 is more than"),
    (b"extends = '.'", "extends '.', but there is no file"),
]


@pytest.mark.parametrize(("text", "words"), TOMLS, ids=[words[:40] for _, words in TOMLS])
def test_recipes(refuse: Refuse, small_shards: Path, tmp_path: Path, out: Path, text: bytes, words: str) -> None:
    from bertie.base.config import SHIPPED

    shutil.copytree(SHIPPED / "pretrain", tmp_path, dirs_exist_ok=True)
    (tmp_path / "bad.toml").write_bytes(text)
    refuse(pretrain(small_shards, out, config=str(tmp_path / "bad.toml")), 2, words)


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


def test_damaged_manifests_of_shards(refuse: Refuse, small_shards: Path, tmp_path: Path, out: Path) -> None:
    shards = shutil.copytree(small_shards, tmp_path / "shards")
    manifest = shards / "manifest.json"
    good = json.loads(manifest.read_text())
    other = {**good, "tokenizer": {**good["tokenizer"], "fingerprint": "0"}}
    for content in ([], {**good, "format": 2}, {**good, "files": []}, {**good, "splits": []}, other):
        manifest.write_text(json.dumps(content))
        refuse(pretrain(shards, out), 1, str(shards))
    cut(manifest)
    refuse(pretrain(shards, out), 1, f"{manifest} is damaged")
    manifest.unlink()
    for folder in (shards, tmp_path / "nosuch"):
        refuse(pretrain(folder, out), 2, f"{folder} holds no token shards")


def test_shards_with_another_tokenizer(refuse: Refuse, small_shards: Path, tmp_path: Path, out: Path) -> None:
    """The tokenizer and its checksums are swapped: only the fingerprint differs."""
    from bertie.base.storage import sha256
    from bertie.tokenizers.tokenizer import Tokenizer

    shards = shutil.copytree(small_shards, tmp_path / "shards")
    words = Tokenizer.load(shards / "tokenizer").vocabulary
    Tokenizer.build([*words[:-2], words[-1], words[-2]]).save(shards / "tokenizer")
    manifest = json.loads((shards / "manifest.json").read_text())
    for name in manifest["files"]:
        manifest["files"][name] = {"bytes": (shards / name).stat().st_size, "sha256": sha256(shards / name)}
    del manifest["sha256"]
    (shards / "manifest.json").write_text(json.dumps(manifest))
    refuse(pretrain(shards, out), 1, f"{shards / 'tokenizer'} is not the tokenizer of these shards")
