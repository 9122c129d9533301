from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import UsageError, UserError
from bertie.text import prepare as module
from bertie.text import wordpiece
from bertie.text.prepare import WordMemory, prepare
from bertie.text.sentences import sentences
from bertie.text.shards import Corpus, open_shards
from bertie.text.tokenizer import Tokenizer

TEXTS = [f"Cat {i} sat on the mat. It was {i * i} years old!\nThen it went home." for i in range(300)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.build(wordpiece.train(lambda: TEXTS, vocab_size=110), lowercase=True)


def corpus(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def documents(split: Corpus) -> list[list[list[int]]]:
    """What a split holds, read back: documents of sentences of ids."""
    cuts = split.sentence_starts.tolist()
    found: list[list[list[int]]] = [[] for _ in split.document_starts[:-1]]
    for start, stop in pairwise(cuts):
        document = int(np.searchsorted(split.document_starts, start, side="right")) - 1
        found[document].append(split.slice(start, stop)[0].tolist())
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("shard_bytes", [1_000, 64_000_000])
def test_what_is_read_back_is_the_text(tmp_path: Path, tokenizer: Tokenizer, shard_bytes: int) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    manifest = prepare([path], tokenizer, tmp_path / "out", eval_share=0.2, shard_bytes=shard_bytes)
    opened = open_shards(tmp_path / "out")
    assert opened.manifest == manifest
    assert opened.tokenizer.fingerprint == tokenizer.fingerprint
    expected = [[ids.tolist() for ids in tokenizer.encode(sentences(text))] for text in TEXTS]
    held_out = [int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) / 2**64 < 0.2 for text in TEXTS]
    assert documents(opened.train) == [ids for ids, held in zip(expected, held_out, strict=True) if not held]
    assert documents(opened.eval) == [ids for ids, held in zip(expected, held_out, strict=True) if held]
    many = manifest["splits"]["train"]["shards"]
    assert many == len(opened.train.tokens)
    assert many > 10 if shard_bytes == 1_000 else many == 1


def test_counts_entropy_and_word_starts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    manifest = prepare([path], tokenizer, tmp_path / "out", eval_share=0.2)
    opened = open_shards(tmp_path / "out")
    for split, counts in ((opened.train, manifest["splits"]["train"]), (opened.eval, manifest["splits"]["eval"])):
        pieces = [piece for document in documents(split) for sentence in document for piece in sentence]
        assert counts["tokens"] == len(pieces) == split.sentence_starts[-1] == split.document_starts[-1]
        assert counts["documents"] == len(split.document_starts) - 1
        assert counts["sentences"] == len(split.sentence_starts) - 1 == 3 * counts["documents"]
        assert np.isin(split.document_starts, split.sentence_starts).all()
        share = np.array(list(Counter(pieces).values())) / len(pieces)
        assert split.unigram_entropy == pytest.approx(-(share * np.log(share)).sum())
        ids, word_starts = split.slice(0, int(split.document_starts[1]))
        assert (ids.dtype, word_starts.dtype) == (np.int32, np.bool_)
        assert word_starts.tolist() == [not piece.startswith("##") for piece in tokenizer.tokens(ids)]
    assert manifest["splits"]["train"]["documents"] + manifest["splits"]["eval"]["documents"] == len(TEXTS)
    assert opened.train.tokens[0].dtype == np.uint16


def test_same_input_same_bytes_whatever_the_packing(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    for source, out in (("a.jsonl", "first"), ("a.jsonl", "second"), ("b.jsonl.gz", "third")):
        prepare([tmp_path / source], tokenizer, tmp_path / out, eval_share=0.2, shard_bytes=5_000)
    first = contents(tmp_path / "first")
    assert first == contents(tmp_path / "second") == contents(tmp_path / "third")
    assert {"manifest.json", "tokenizer/vocab.txt", "train/00001.tokens.npy", "eval/00000.documents.npy"} <= set(first)


def test_equal_documents_lie_on_one_side(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS * 2)
    prepare([path], tokenizer, tmp_path / "out", eval_share=0.3)
    opened = open_shards(tmp_path / "out")
    train, held_out = ({json.dumps(document) for document in documents(split)} for split in (opened.train, opened.eval))
    assert len(train) + len(held_out) == len(TEXTS)
    assert not train & held_out


def test_documents_without_tokens_are_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", [*TEXTS, "\u200b", "\u200d\n\u200d", "."])
    manifest = prepare([path], tokenizer, tmp_path / "out", eval_share=0.2)
    assert manifest["skipped"] == 2
    assert sum(side["documents"] for side in manifest["splits"].values()) == len(TEXTS) + 1


@pytest.mark.parametrize(
    ("texts", "eval_share", "message"),
    [
        ([], 0.2, "no text to prepare: the files hold no documents"),
        (["\u200b", "\u200d"], 0.2, "no text to prepare: all 2 documents are without tokens"),
        (TEXTS, 1e-9, r"0 of 300 documents on the eval side, .* at least 2: raise --eval-share \(now 1e-09\)"),
        (TEXTS, 1 - 1e-9, r"0 of 300 documents on the train side, .* at least 2: lower --eval-share"),
    ],
)
def test_too_little_text(
    tmp_path: Path, tokenizer: Tokenizer, texts: list[str], eval_share: float, message: str
) -> None:
    path = corpus(tmp_path / "a.jsonl", texts)
    with pytest.raises(UserError, match=message):
        prepare([path], tokenizer, tmp_path / "out", eval_share=eval_share)
    assert [found.name for found in tmp_path.iterdir()] == ["a.jsonl"]


def test_bad_input_leaves_nothing_behind(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    path.write_bytes(path.read_bytes() + b"\xff\n")
    with pytest.raises(UserError, match=r"a\.jsonl:301: byte 0xff"):
        prepare([path], tokenizer, tmp_path / "out")
    assert [found.name for found in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("eval_share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_is_between_none_and_all(tmp_path: Path, tokenizer: Tokenizer, eval_share: float) -> None:
    with pytest.raises(UsageError, match="--eval-share"):
        prepare([corpus(tmp_path / "a.jsonl", TEXTS)], tokenizer, tmp_path / "out", eval_share=eval_share)


def test_an_existing_folder_is_left_alone(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(UsageError, match="already exists"):
        prepare([path], tokenizer, tmp_path / "out")
    assert [found.name for found in (tmp_path / "out").iterdir()] == ["mine"]


ODD = st.text(
    st.one_of(
        st.sampled_from("aB é\u0301\u00a0\u2028\u200b\x1c\x85\t\r,.[]#中ß한"), st.characters(exclude_categories=["Cs"])
    )
)


@settings(deadline=None)
@given(st.lists(ODD, max_size=6), st.booleans())
def test_remembered_words_give_the_same_ids(texts: list[str], lowercase: bool) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abé,.[]#中ßB", "##a", "##b", "##é", "##\u0301", "##B"]
    tokenizer = Tokenizer.build(words, lowercase)
    memory = WordMemory(tokenizer)
    for _ in range(2):
        assert [ids.tolist() for ids in memory.encode(texts)] == [ids.tolist() for ids in tokenizer.encode(texts)]


def test_memory_is_bounded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_WORDS", 10)
    memory = WordMemory(tokenizer)
    expected = [ids.tolist() for ids in tokenizer.encode(TEXTS)]
    found = [memory.encode([text])[0].tolist() for text in TEXTS]
    assert found == expected
    assert len(memory.known) < 30
