from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.base import storage
from bertie.base.errors import UsageError, UserError
from bertie.corpus import shard_format, shard_writer
from bertie.corpus.shards import open_shards, unigram_loss
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

# Shards of documents of sentences of token ids: two shards of the training set, one of the evaluation set.
TRAIN = [[[[5, 6, 7], [8]], [[9, 10]]], [[[11], [5, 8]]]]
EVAL = [[[[6]], [[9, 8]]]]


def write(folder: Path) -> Path:
    folder.mkdir()
    tokenizer = Tokenizer.build([*SPECIAL_TOKENS, "a", "##b", "c", "##d", "e", "##f", "##g"])
    tokenizer.save(folder / "tokenizer")
    splits = {}
    for name, parts in (("train", TRAIN), ("eval", EVAL)):
        for number, documents in enumerate(parts):
            sentences = [sentence for document in documents for sentence in document]
            ids = np.concatenate(sentences).astype(np.int32)
            tokenized = shard_writer.TokenizedDocuments(
                ids, np.array(list(map(len, sentences))), np.array(list(map(len, documents)))
            )
            shard_writer.write_shard(folder / name, number, tokenized, tokenizer)
        splits[name] = {"shards": len(parts)}
    shard_writer.write_manifest(folder, tokenizer, splits, {})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "shards")


def test_starts_count_through_all_shards(folder: Path) -> None:
    opened = open_shards(folder)
    assert opened.train.document_starts.tolist() == [0, 4, 6, 9]
    assert opened.train.sentence_starts.tolist() == [0, 3, 4, 6, 7, 9]
    assert opened.eval.document_starts.tolist() == [0, 1, 3]
    assert opened.train.document_starts.dtype == opened.train.sentence_starts.dtype == np.int64
    assert opened.train.shard_starts.tolist() == [0, 6, 9]


def test_slices_read_from_any_shard(folder: Path) -> None:
    train = open_shards(folder).train
    flat = [token for part in TRAIN for document in part for sentence in document for token in sentence]
    starts = train.document_starts.tolist()
    for first, last in pairwise(starts):
        for start in range(first, last):
            for stop in range(start + 1, last + 1):
                ids, word_starts = train.slice(start, stop)
                assert ids.tolist() == flat[start:stop]
                assert word_starts.tolist() == [token in (5, 7, 9) for token in flat[start:stop]]


def test_arrays_on_disk(folder: Path) -> None:
    assert np.load(folder / "train" / "00001.tokens.npy").tolist() == [11, 5, 8]
    assert np.load(folder / "train" / "00001.tokens.npy").dtype == np.uint16
    assert np.load(folder / "train" / "00000.sentences.npy").tolist() == [0, 3, 4, 6]
    assert np.load(folder / "train" / "00000.documents.npy").tolist() == [0, 4, 6]


def test_token_dtype_depends_on_the_vocabulary_size() -> None:
    assert shard_format.token_dtype(65536) == np.uint16
    assert shard_format.token_dtype(65537) == np.uint32


def test_the_unigram_model_knows_the_training_text_only(folder: Path) -> None:
    train, held_out = np.array([9, 3, 0, 3]), np.array([5, 1, 2, 0])  # the first is a special token
    assert unigram_loss(train, held_out, np.array([0])) == pytest.approx((math.log(9 / 4) + 2 * math.log(9)) / 3)
    assert unigram_loss(train, np.array([5, 0, 0, 0]), np.array([0])) == 0  # nothing to predict
    counts = Counter(token for part in TRAIN for document in part for sentence in document for token in sentence)
    total = counts.total() + 7  # the vocabulary has 7 entries besides the special tokens
    assert open_shards(folder).unigram_loss == pytest.approx(
        np.mean([math.log(total / (counts[token] + 1)) for token in (6, 9, 8)])
    )


def test_folder_without_shards_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match=r"holds no token shards .*`bertie prepare`"):
            open_shards(folder)


@pytest.mark.parametrize("name", ["train/00001.tokens.npy", "eval/00000.documents.npy", "tokenizer/vocab.txt"])
def test_missing_truncated_and_altered_files_are_named(folder: Path, name: str) -> None:
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=rf"{name} was altered .*prepare again"):
        open_shards(folder)
    path.write_bytes(content[:-1])
    with pytest.raises(UserError, match=rf"{name} has \d+ bytes instead of {len(content)}: .*prepare again"):
        open_shards(folder)
    path.unlink()
    with pytest.raises(UserError, match=rf"{name} is missing: prepare again"):
        open_shards(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 1, "files": 3}'])
def test_damaged_manifest_is_named(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json"):
        open_shards(folder)


TOKENS, OTHER = "train/00000.tokens.npy", {"fingerprint": "0" * 64}


def change_manifest(folder: Path, signed: bool, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Change the manifest in place. signed: whether its checksum stays, and does not match any more."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    if not signed:
        del manifest["sha256"]
    storage.write_json(folder / "manifest.json", manifest)
    return manifest


@pytest.mark.parametrize(
    ("signed", "change", "message"),
    [
        (True, lambda m: m.update(format=99), r"manifest\.json: format 99, but .* reads 1: prepare again"),
        (True, lambda m: m["tokenizer"].update(OTHER), r"manifest\.json was altered"),
        (False, lambda m: m["tokenizer"].update(OTHER), "is not the tokenizer of these shards"),
        (False, lambda m: m["files"].pop(TOKENS), rf"does not list {TOKENS}: prepare again"),
    ],
)
def test_changed_manifests_are_an_error(
    folder: Path, signed: bool, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    manifest = change_manifest(folder, signed, change)
    with pytest.raises(UserError, match=message):
        open_shards(folder)
    assert shard_format.unlisted_files(folder, manifest) == [TOKENS] * (TOKENS in message)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokens", lambda a: a + 12),  # ids beyond the vocabulary
        ("tokens", lambda a: a.astype(np.float64)),
        ("tokens", lambda a: a[:0]),
        ("tokens", lambda a: a.reshape(1, -1)),
        ("word_starts", lambda a: a[:-1]),
        ("sentences", lambda a: a[::-1]),
        ("sentences", lambda a: a * 1000),
        ("sentences", lambda a: a * 0),
        ("sentences", lambda a: a[[0, -1]]),  # a document that starts inside a sentence
        ("documents", lambda a: -a),
        ("documents", lambda a: a[:1]),
        ("documents", lambda a: a.astype(str)),
    ],
)
def test_invalid_arrays_are_an_error(folder: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """The checksums are right: another program may have written arrays and manifest."""
    path = folder / "train" / f"00000.{name}.npy"
    np.save(path, change(np.load(path)))
    change_manifest(folder, False, lambda manifest: manifest["files"].update(storage.checksums(folder, [path])))
    with pytest.raises(UserError, match=r"manifest\.json is damaged .*: prepare again"):
        open_shards(folder)
