"""Bad text, flags and configurations: each gives one clear line, the right exit code, and no partial output."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bertie.tokenizers.tokenizer import Tokenizer

Refuse = Callable[..., str]
SMALL = (
    "--model.hidden-size 16 --model.num-attention-heads 2 --model.intermediate-size 32 --layout.max-length 32 "
    "--training.batch-size 4 --training.row-tokens 128 --training.steps 2 --training.max-eval-tokens 200 --threads 1"
)
TWO_DOCUMENTS = b"One document. It has two sentences.\n\nAnother document.\n"


def pretrain(shards: Path | str, out: Path, *flags: str, config: str = "tiny") -> list[str]:
    return ["pretrain", config, "--data", str(shards), "--out", str(out), *SMALL.split(), *flags]


@pytest.fixture(scope="module")
def tokenizer_folder(small_shards: Path) -> Path:
    return small_shards / "tokenizer"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


TEXTS: list[tuple[str, bytes, int, str]] = [
    ("binary.txt", bytes(range(256)) * 9, 1, "binary.txt:1: not text in a known encoding"),
    ("zeros.txt", bytes(1000), 1, "zeros.txt:1: not text in a known encoding: name the encoding with --encoding"),
    ("latin.txt", b"Stra\xc3\x9fe\n" * 30 + b"caf\xe9\n", 1, "latin.txt:31: not UTF-8 (byte 0xe9)"),
    ("utf16.txt", "some text".encode("utf-16")[:-1], 1, "utf16.txt:1: not valid utf-16: the file is damaged"),
    ("nul.txt", b"one, two, three, four, five\nsix\0\n", 1, "nul.txt:2: a NUL byte"),
    ("text.md", b"text", 2, "cannot tell the format from the name: use one of .txt"),
    ("not.jsonl", b'{"text": "a"}\n{"text": \n', 1, "not.jsonl:2: not valid JSON"),
    ("deep.jsonl", b"[" * 100_000, 1, "deep.jsonl:1: not valid JSON"),
    ("field.jsonl", b'{"text": "a"}\n{"txet": "b"}\n', 1, "field.jsonl:2: no field 'text' (it has 'txet')"),
    ("number.jsonl", b'{"text": 3}\n', 1, "number.jsonl:1: field 'text' is not a string: 3"),
    ("list.jsonl", b"[1]\n", 1, 'list.jsonl:1: expected a JSON object, as in {"text": …}, found list'),
    ("half.jsonl", b'{"text": "\\ud800"}\n', 1, "half.jsonl:1: field 'text' has half a surrogate pair"),
    ("cut.txt.gz", gzip.compress(b"text " * 1000)[:30], 1, "truncated, or not really .gz"),
    ("not.txt.xz", b"plain text", 1, "truncated, or not really .xz"),
]


@pytest.mark.parametrize(("name", "content", "code", "words"), TEXTS, ids=[case[0] for case in TEXTS])
def test_files_that_are_not_text(
    refuse: Refuse, tokenizer_folder: Path, tmp_path: Path, out: Path, name: str, content: bytes, code: int, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refuse(["tokenizer", "train", str(path), "--out", str(out), "--strict"], code, words)
    refuse(["prepare", str(path), "--tokenizer", str(tokenizer_folder), "--out", str(out), "--strict"], code, words)


@pytest.mark.parametrize("content", [b"", b" \n\n\t\n \r\n", b"\x01\x02\n\n\x03"], ids=["empty", "blanks", "controls"])
def test_files_without_text(refuse: Refuse, tokenizer_folder: Path, tmp_path: Path, out: Path, content: bytes) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    refuse(["tokenizer", "train", str(path), "--out", str(out)], 1, "the text is empty")
    refuse(["prepare", str(path), "--tokenizer", str(tokenizer_folder), "--out", str(out)], 1, "no text to prepare")


def test_paths_that_hold_no_text(refuse: Refuse, tokenizer_folder: Path, tmp_path: Path, out: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".hidden.txt").write_bytes(TWO_DOCUMENTS)
    (tmp_path / "link.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    for path, words in (
        (tmp_path / "nosuch.txt", "no such file"),
        (tmp_path / "link.txt", "no such file"),
        (tmp_path / "pipe.txt", "is not a file"),
        (tmp_path / "folder", "no text in this folder"),
    ):
        refuse(["tokenizer", "train", str(path), "--out", str(out)], 2, words, str(path))
        refuse(["prepare", str(path), "--tokenizer", str(tokenizer_folder), "--out", str(out)], 2, words)
    refuse(
        ["prepare", "b" * 300 + ".txt", "--tokenizer", str(tokenizer_folder), "--out", str(out)],
        1,
        "File name too long",
    )


def test_missing_paths(refuse: Refuse, tokenizer_folder: Path, out: Path) -> None:
    refuse(["tokenizer", "train", "--out", str(out)], 2, "there is no text to read: name files")
    refuse(["prepare", "--tokenizer", str(tokenizer_folder), "--out", str(out)], 2, "there is no text to read")
    refuse(["demo", "--out", str(out), "--corpus"], 2, "--corpus names no text")


def test_circular_links(refuse: Refuse, small_shards: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    (tmp_path / "text.txt").write_bytes(TWO_DOCUMENTS)
    text = ["prepare", str(tmp_path / "text.txt"), "--tokenizer", str(tokenizer_folder)]
    for command in (text, pretrain(small_shards, loop)[:4]):
        refuse([*command, "--out", str(loop / "out")], 1, "Symlink loop")


def test_demo_refuses_a_foreign_folder(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    for name in ("file", "folder"):
        refuse(["demo", "--out", str(tmp_path / name)], 2, "already exists: choose another place for the demo")


def test_impossible_vocabularies(refuse: Refuse, tmp_path: Path, out: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(TWO_DOCUMENTS)
    train = ["tokenizer", "train", str(text), "--out", str(out)]
    refuse([*train, "--vocab-size", "30"], 2, "--vocab-size 30 is too small for the characters")
    for flag in ("--vocab-size", "--alphabet-limit", "--min-frequency"):
        for value in ("0", "-3", "9" * 30):
            refuse([*train, flag, value], 2, f"{flag} {value}: give a number from 1 to")
    refuse([*train, "--documents", "page"], 2, "--documents: expected 'blank-line', 'file', found 'page'")


def test_corpora_that_cannot_be_split(refuse: Refuse, tokenizer_folder: Path, tmp_path: Path, out: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_text("A single document. It has two sentences.\n")
    prepare = ["prepare", str(text), "--tokenizer", str(tokenizer_folder), "--out", str(out)]
    refuse(prepare, 1, "the evaluation set has 0 of 1 documents, but needs at least 2", "give more documents")
    for share in ("0", "1", "2", "-0.5", "nan", "inf"):
        refuse([*prepare, "--eval-share", share], 2, f"--eval-share {share}: give a share of the documents")
    refuse([*prepare, "--eval-share", "few"], 2, "--eval-share", "'few'")
    for folder, what in ((tmp_path / "nosuch", "does not exist"), (text, "is a file")):
        refuse([*prepare[:3], str(folder), *prepare[4:]], 2, f"{folder} {what}: give the folder of a tokenizer")


def test_unwritable_paths(refuse: Refuse, tokenizer_folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "texts" / "text.txt"
    text.parent.mkdir()
    text.write_bytes(TWO_DOCUMENTS)
    for command in (
        ["tokenizer", "train", str(text.parent)],
        ["prepare", str(text.parent), "--tokenizer", str(tokenizer_folder)],
    ):
        refuse([*command, "--out", str(text)], 2, f"{text} already exists")
        refuse([*command, "--out", str(text.parent)], 2, f"{text.parent} already exists")
        refuse([*command, "--out", str(text.parent / "out")], 2, "which is read for text: give an --out elsewhere")
        refuse([*command, "--out", "x" * 300], 1, "File name too long")
        refuse([*command, "--out", "caf\udce9"], 2, r"the argument 'caf\udce9' is not UTF-8")
    assert text.read_bytes() == TWO_DOCUMENTS


def test_the_current_folder(
    refuse: Refuse, small_shards: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_bytes(TWO_DOCUMENTS)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    refuse(["prepare", "../text.txt", "--tokenizer", str(tokenizer_folder), "--out", "."], 2, "'.' has no name")
    refuse(pretrain(small_shards, Path()), 2, "'.' has no name")


FLAGS: list[tuple[str, str, str]] = [
    ("--training.steps", "0", "training.steps is 0: give at least 1"),
    ("--training.steps", "1e3", "--training.steps: expected an integer, found '1e3'"),
    ("--training.steps", "1" * 5000, "--training.steps"),
    ("--training.learning-rate", "nan", "training.learning_rate is nan: give a number, at least 0"),
    ("--training.learning-rate", "fast", "--training.learning-rate: expected a number, found 'fast'"),
    ("--training.max_grad_norm", "0", "training.max_grad_norm is 0.0: give more than 0"),
    ("--training.precision", "fp8", "'fp8'"),
    ("--training.stesp", "3", "--training.stesp"),
    ("--threads", "100000", "--threads 100000"),
    ("--model.num-hidden-layers", "100000000", "model.num_hidden_layers is 100000000: give at least 1, at most 1,000"),
    ("--training.steps", "9" * 30, "give at least 1, at most 2,147,483,647"),
    ("--model.hidden-size", "33", "model.hidden_size 33 is not a multiple of 2 heads"),
    ("--model.vocab-size", "7", "model.vocab_size is 7, but the shards have 500 entries"),
    ("--model.type-vocab-size", "1", 'model.type_vocab_size is 1, and layout.kind is "pairs"'),
    ("--model.max-position-embeddings", "16", "layout.max_length 32 is more than model.max_position_embeddings 16"),
    ("--layout.max-length", "600", "layout.max_length 600 is more than model.max_position_embeddings 512"),
    ("--optimizer.betas", "0.9", "optimizer.betas is [0.9]: give two numbers"),
    ("--objectives.0.mlm-probability", "0", "objectives.mlm.mlm_probability is 0.0: give more than 0, at most 1"),
    ("--objectives.0.mask-replace-prob", "0.95", "objectives.mlm: mask_replace_prob and random_replace_prob"),
]


@pytest.mark.parametrize(("flag", "value", "words"), FLAGS, ids=[f"{flag} {value[:9]}" for flag, value, _ in FLAGS])
def test_flags_of_pretraining(refuse: Refuse, small_shards: Path, out: Path, flag: str, value: str, words: str) -> None:
    refuse(pretrain(small_shards, out, flag, value), 2, words)


def test_steps_larger_than_the_corpus(refuse: Refuse, small_shards: Path, out: Path) -> None:
    said = refuse(pretrain(small_shards, out, "--training.batch-size", "100000"), 1, "lower --training.batch-size")
    assert "rows of 128 tokens, and a step takes 25000" in said


def test_held_out_text_without_pairs(refuse: Refuse, small_tokenizer: Tokenizer, tmp_path: Path, out: Path) -> None:
    from bertie.corpus.prepare import prepare

    (tmp_path / "words.txt").write_text("\n\n".join(chr(97 + i % 26) for i in range(60)))
    prepare([tmp_path / "words.txt"], small_tokenizer, tmp_path / "shards", eval_share=0.5)
    refuse(pretrain(tmp_path / "shards", out), 1, "the held-out documents have only one token each")


TOMLS: list[tuple[str, str]] = [
    ("", "top level: model is missing"),
    ("steps", "is not TOML"),
    ("[" * 100_000, "is not TOML"),
    ("extends = 'tiny.toml'\n[training]\nstesp = 3", "training.stesp is not known; did you mean 'steps'?"),
    ("extends = 'tiny.toml'\nseed = '0'", "seed: expected an integer, found '0'"),
    ("extends = 'tiny.toml'\nmodel = 3", "model: expected a table with a kind, found 3"),
    ("extends = 'tiny.toml'\nobjectives = []", "objectives is []"),
    ("extends = 'tiny.toml'\n[[objectives]]\nkind = 'mlm'\n[[objectives]]\nkind = 'mlm'", "each of a different kind"),
    (
        "extends = 'tiny.toml'\n[[objectives]]\nkind = 'mml'",
        "objectives.0.kind: 'mml' is not known; did you mean 'mlm'",
    ),
    ("extends = 'tiny.toml'\n[schedule]\nkind = 'steps'", "schedule.kind: 'steps' is not known; choose from linear"),
    ("extends = 'tiny.toml'\n[optimizer]\nkind = 'adamw'\nbetas = [0.9, 'x']", "optimizer.betas.1: expected a number"),
    ("extends = 'tiny.toml'\n[training]\nlearning_rate = 1" + "0" * 400, "training.learning_rate: expected a number"),
    ("extends = 'nosuch.toml'", "extends 'nosuch.toml', but there is no file"),
    ("extends = 'tiny.toml'\n[[phases]]\nshare = 0.5", "phases: the shares sum to 0.5: they must sum to 1"),
    ("extends = 'tiny.toml'\n[[phases]]\nshare = 1.0\nmax_length = 600", "phases: max_length 600 is more than"),
    ("extends = 'huge'", "extends 'huge', but there is no file"),
    ("extends = 3", "extends 3: give a file or a name in quotes, or an array of them"),
    ("extends = 'bad.toml'", "extends 'bad.toml', which extends this file in turn"),
]


@pytest.mark.parametrize(("text", "words"), TOMLS, ids=[words[:40] for _, words in TOMLS])
def test_configurations(refuse: Refuse, small_shards: Path, tmp_path: Path, out: Path, text: str, words: str) -> None:
    from bertie.base.config import SHIPPED

    shutil.copytree(SHIPPED / "pretrain", tmp_path, dirs_exist_ok=True)
    (tmp_path / "bad.toml").write_text(text)
    refuse(pretrain(small_shards, out, config=str(tmp_path / "bad.toml")), 2, words)


def test_configurations_that_are_not_files(refuse: Refuse, small_shards: Path, tmp_path: Path, out: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    for name in ("nosuch", ""):
        refuse(pretrain(small_shards, out, config=name), 2, f"no recipe {name!r}: give a .toml file or one of")
    for name in ("folder.toml", "nosuch.toml", "loop.toml"):
        refuse(pretrain(small_shards, out, config=str(tmp_path / name)), 2, f"no such file: {tmp_path / name}")
    refuse(pretrain(small_shards, out, config=str(tmp_path / "bytes.toml")), 2, "cannot read", "bytes.toml")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink], ids=["cut", "altered", "missing"])
@pytest.mark.parametrize("name", ["train/00000.tokens.npy", "eval/00000.sentences.npy", "tokenizer/tokenizer.json"])
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
    none = {**good, "splits": {name: {**counts, "shards": -1} for name, counts in good["splits"].items()}}
    for content in ([], 3, {**good, "format": 2}, {**good, "files": []}, {**good, "splits": []}, other, none):
        manifest.write_text(json.dumps(content))
        refuse(pretrain(shards, out), 1, str(shards))
    cut(manifest)
    refuse(pretrain(shards, out), 1, f"{manifest} is damaged")
    manifest.unlink()
    for folder in (shards, tmp_path / "nosuch", manifest):
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
