"""`bertie.load` follows one walk through a folder, and reads each of its small files once."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertTokenizerFast

import bertie
from bertie.base import storage
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.folder import write_manifest
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding

SOURCE = str(Path(bertie.__file__).parent) + os.sep
ELSEWHERE = ("base/", "model/", "objectives/")
"""What the walk calls without leaving it: the construction of the model, and the tools of all rooms."""
_opened: Counter[str] = Counter()


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        _opened[str(Path(os.fsdecode(arguments[0])).absolute())] += 1


@pytest.fixture(scope="module", autouse=True)
def audit() -> None:
    sys.addaudithook(_note)  # it cannot be removed, and only counts


def own(pretrained: Path, folder: Path) -> Path:
    shutil.copytree(pretrained, folder)
    write_manifest(folder)
    return folder


def plain(pretrained: Path, folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(pretrained / name, folder)
    BertTokenizerFast(vocab_file=str(pretrained / "vocab.txt")).save_pretrained(folder)
    return folder


def tuned(pretrained: Path, folder: Path) -> Path:
    shutil.copytree(pretrained, folder)
    stored = load_file(folder / "model.safetensors")
    head = {"classifier.weight": torch.ones(2, 32), "classifier.bias": torch.ones(2)}
    weights = {name: tensor for name, tensor in stored.items() if not name.startswith("cls.")} | head
    save_file(weights, folder / "model.safetensors")
    config = storage.read_json(folder / "config.json") | {"architectures": ["BertForSequenceClassification"]}
    storage.write_json(folder / "config.json", config)
    storage.write_json(folder / "task.json", {"kind": "classify", "labels": ["a", "b"], "max_length": 20})
    write_manifest(folder)
    return folder


def vectors(pretrained: Path, folder: Path) -> Path:
    plain(pretrained, folder)
    config = read_checkpoint(pretrained).config
    sentence_transformers_format.write(folder, config, SentenceEmbedding(stated=True), 20)
    return folder


def converted(pretrained: Path, folder: Path) -> Path:
    bertie.convert(pretrained, folder, "torch")
    return folder


@pytest.mark.parametrize("make", [own, plain, tuned, vectors, converted])
def test_each_small_file_is_read_once(pretrained: Path, tmp_path: Path, make: Callable[[Path, Path], Path]) -> None:
    folder = make(pretrained, tmp_path / "model")
    _opened.clear()
    bertie.load(folder, threads=1)
    opened = {path.relative_to(folder).as_posix(): _opened[str(path)] for path in folder.rglob("*") if path.is_file()}
    assert {name: count for name, count in opened.items() if count > 1 and not name.endswith(".safetensors")} == {}
    assert opened["config.json"] == opened["tokenizer_config.json"] == 1


@pytest.fixture
def visited() -> Iterator[set[str]]:
    """The files of src/bertie in which a function was called. Generators and comprehensions count, too."""
    files: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(SOURCE) and frame.f_code.co_name != "<module>":
            files.add(path.removeprefix(SOURCE))

    sys.setprofile(note)
    yield files
    sys.setprofile(None)


@pytest.mark.parametrize("make", [own, plain, tuned])
def test_a_reader_follows_few_files(
    pretrained: Path, tmp_path: Path, make: Callable[[Path, Path], Path], visited: set[str]
) -> None:
    folder = make(pretrained, tmp_path / "model")
    bertie.load(folder, threads=1)  # what is imported at the first call
    visited.clear()
    bertie.load(folder, threads=1)
    walk = sorted(name for name in visited if not name.startswith(ELSEWHERE))
    assert len(walk) <= 15, walk
