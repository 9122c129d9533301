from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base import storage
from bertie.base.errors import MachineError, UsageError, UserError
from bertie.corpus import bpe, document_blocks, duplicates, encode, word_counts, wordpiece
from bertie.corpus import prepare as module
from bertie.corpus.document_blocks import Filters
from bertie.corpus.executors import LocalExecutor
from bertie.corpus.prepare import prepare
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.sentences import split_sentences
from bertie.corpus.shards import open_shards
from bertie.corpus.token_corpus import Corpus
from bertie.files import sources
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer
from bertie.tokenizers.word_cache import WordCache

TEXTS = [f"Cat {i} sat on the mat. It was {i * i} years old!\nThen it went home." for i in range(300)]


@pytest.fixture(autouse=True)
def _one_process_without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a test names workers. Charts, which tests/unit/base/test_report.py looks at, take longer than a small text."""
    monkeypatch.setattr("bertie.base.threads.cpu_quota", lambda: 1)
    monkeypatch.setattr("bertie.base.report._svg", lambda *_: "")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    every_letter = "The quick brown fox jumps over the lazy dog, same paragraph, number, twice."
    return Tokenizer.build(
        wordpiece.train(word_counts.count_words([*TEXTS, *[every_letter] * 30]).counts, vocab_size=160)
    )


def corpus(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def documents(split: Corpus) -> list[list[list[int]]]:
    """Read a split back: documents of sentences of ids."""
    cuts = split.sentence_starts.tolist()
    read: list[list[list[int]]] = [[] for _ in split.document_starts[:-1]]
    for start, stop in pairwise(cuts):
        document = int(np.searchsorted(split.document_starts, start, side="right")) - 1
        read[document].append(split.slice(start, stop)[0].tolist())
    return read


def texts_of(folder: Path) -> list[str]:
    """Decode all documents of shards."""
    opened = open_shards(folder)
    return [
        opened.tokenizer.decode([i for sentence in document for i in sentence])
        for split in (opened.train, opened.eval)
        for document in documents(split)
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("shard_bytes", [1_000, 64_000_000])
def test_shards_hold_the_tokens_of_the_text(tmp_path: Path, tokenizer: Tokenizer, shard_bytes: int) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    manifest = prepare([path], tokenizer, tmp_path / "out", eval_share=0.2, shard_bytes=shard_bytes)
    opened = open_shards(tmp_path / "out")
    assert opened.manifest == manifest
    assert opened.tokenizer.fingerprint == tokenizer.fingerprint
    expected = [[ids.tolist() for ids in tokenizer.encode(split_sentences(text))] for text in TEXTS]
    is_eval = [int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) / 2**64 < 0.2 for text in TEXTS]
    assert documents(opened.train) == [ids for ids, held_out in zip(expected, is_eval, strict=True) if not held_out]
    assert documents(opened.eval) == [ids for ids, held_out in zip(expected, is_eval, strict=True) if held_out]
    shard_count = manifest["splits"]["train"]["shards"]
    assert shard_count == len(opened.train.tokens)
    assert shard_count > 10 if shard_bytes == 1_000 else shard_count == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "out"]


def test_characters_of_a_script_without_blanks_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pieces = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    letters = [(piece, -1.0) for piece in ("▁", "ก", "ข", "▁a")]
    tokenizer = Tokenizer.build_unigram([*pieces, *letters, ("<mask>", 0.0)])
    texts = [f"กข{'ก' * number}★★ขก a" for number in range(1, 9)]
    manifest = prepare([corpus(tmp_path / "a.jsonl", texts)], tokenizer, tmp_path / "out", eval_share=0.4)
    assert (manifest["characters"], manifest["unknown_characters"]) == (sum(map(len, texts)) - 8, 16)
    both = [manifest["splits"][name] for name in ("train", "eval")]
    assert sum(split["words"] for split in both) == 16  # parts between blanks
    tokens = sum(split["tokens"] for split in both)
    assert tokens == sum(len(ids) for ids in tokenizer.encode(texts))
    lost = 100 * 16 / manifest["characters"]
    share = f"{100 * 8 / tokens:.1f} % of the tokens ({lost:.1f} % of the characters) are [UNK]"
    assert f"warning: the corpus: {share}" in capsys.readouterr().err
    assert str(open_shards(tmp_path / "out").unknown_share) == share
    page = (tmp_path / "out" / "report.html").read_text()
    assert share in page
    assert f"{manifest['characters'] / tokens:.2f} characters per token" in page


def test_manifest_counts_and_word_starts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    manifest = prepare([path], tokenizer, tmp_path / "out", eval_share=0.2)
    opened = open_shards(tmp_path / "out")
    for split, counts in ((opened.train, manifest["splits"]["train"]), (opened.eval, manifest["splits"]["eval"])):
        pieces = [piece for document in documents(split) for sentence in document for piece in sentence]
        assert counts["tokens"] == len(pieces) == split.sentence_starts[-1] == split.document_starts[-1]
        assert counts["documents"] == len(split.document_starts) - 1
        assert counts["sentences"] == len(split.sentence_starts) - 1 == 3 * counts["documents"]
        assert np.isin(split.document_starts, split.sentence_starts).all()
        ids, word_starts = split.slice(0, int(split.document_starts[1]))
        assert (ids.dtype, word_starts.dtype) == (np.int32, np.bool_)
        assert word_starts.tolist() == [not piece.startswith("##") for piece in tokenizer.tokens(ids)]
        assert counts["words"] == sum(not piece.startswith("##") for piece in tokenizer.tokens(pieces))
        assert counts["unknown"] == pieces.count(tokenizer.unk_id)
    assert manifest["splits"]["train"]["documents"] + manifest["splits"]["eval"]["documents"] == len(TEXTS)
    assert opened.train.tokens[0].dtype == np.uint16


def test_line_breaks_end_the_sentence_before_them(tmp_path: Path, richer: Tokenizer) -> None:
    odd = "Head\n\n***\r\n\u200b\nFirst. Second! \n Third (…)\n!"
    path = corpus(tmp_path / "a.jsonl", [*TEXTS, odd])
    prepare([path], richer, tmp_path / "out", eval_share=0.2)
    opened = open_shards(tmp_path / "out")
    found = [document for split in (opened.train, opened.eval) for document in documents(split)]
    decoded = [[richer.decode(sentence) for sentence in document] for document in found]
    assert len(found) == len(TEXTS) + 1
    # A sentence of line breaks alone is left out.
    assert [line.split(" ")[-1] for line in next(lines for lines in decoded if len(lines) == 4)] == [
        "\n", "first", "\n", "\n"
    ]  # fmt: skip
    for document in found:
        assert (document[0][-1] == richer.line_break_id) == (len(document) == 4)
        assert len(document) == 4 or [sentence.count(richer.line_break_id) for sentence in document] == [0, 1, 0]
    assert r">\n</td>" in (tmp_path / "out" / "report.html").read_text()


LINE = st.lists(st.sampled_from(["Cat 7 sat!", "It was, Mr. Mat.", "  ", "then…", "x y.  Z"]), min_size=1, max_size=3)


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
@given(st.lists(LINE.map(" ".join), max_size=6), st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"]))
def test_shards_have_the_tokens_of_texts_with_line_breaks(
    tokenizer: Tokenizer, algorithm: str, lines: list[str], line_end: str
) -> None:
    """The sentences of a document have the tokens that the tokenizer gives to its whole text, as in fine-tuning."""
    if algorithm == "wordpiece":
        breaking = Tokenizer.build([*tokenizer.vocabulary, "\n"], user_tokens=["\n"])
    else:
        breaking = Tokenizer.build_bpe([*bpe.ROBERTA_ORDER, "\n", *bpe.BYTE_CHARACTERS], [], ["\n"])
    stripped = [" ".join(line.split()) for line in line_end.join(lines).strip().split("\n")]
    text = "\n".join(stripped).strip()
    found, _ = encode.tokenize_documents([text], WordCache(breaking), "en")
    assert found.ids.tolist() == breaking.encode([text])[0].tolist()


def test_statistics_and_report(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", [*TEXTS, TEXTS[0], "x", ""])
    path.write_text(path.read_text() + "no JSON\n")
    prepare([path], tokenizer, tmp_path / "out", eval_share=0.2, filters=Filters(min_characters=5))
    written = storage.read_json(tmp_path / "out" / "statistics.json")
    assert written["documents"] == len(TEXTS) + 1
    assert written["skipped"] == {"not JSON": 1}
    assert written["filtered"] == {"under 5 characters": 1}
    assert written["duplicates"] == {"documents": {"count": 1, "bytes": len(TEXTS[0])}}
    opened = open_shards(tmp_path / "out")
    for name, split in (("train", opened.train), ("eval", opened.eval)):
        for key, starts in (("document_tokens", split.document_starts), ("sentence_tokens", split.sentence_starts)):
            lengths = np.diff(starts)
            expected = [int(((lengths >= 1 << power) & (lengths < 2 << power)).sum()) for power in range(12)]
            histogram = written["lengths"][name][key]
            assert histogram == expected[: len(histogram)]
            assert sum(histogram) == len(lengths)
    page = (tmp_path / "out" / "report.html").read_text()
    for phrase in (
        "not JSON",
        "under 5 characters",
        "documents equal to earlier ones",
        "training documents by number of tokens",
    ):
        assert phrase in page
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text()


def test_compression_does_not_change_the_shards(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    for source, out in (("a.jsonl", "first"), ("a.jsonl", "second"), ("b.jsonl.gz", "third")):
        prepare([tmp_path / source], tokenizer, tmp_path / out, eval_share=0.2, shard_bytes=5_000)
    first, second, third = (contents(tmp_path / name) for name in ("first", "second", "third"))
    assert first == second
    assert {"manifest.json", "tokenizer/vocab.txt", "train/00001.tokens.npy", "eval/00000.documents.npy"} <= set(first)
    for name in ("manifest.json", "statistics.json", "report.html"):  # they name the file
        del first[name], third[name]
    assert first == third


@pytest.fixture
def many_files(tmp_path: Path) -> Path:
    """Six files that share a document and a paragraph."""
    folder = tmp_path / "texts"
    folder.mkdir()
    paragraph = "The same paragraph, which is long enough to be looked for, stands in this place " * 2
    for number in range(6):
        texts = [f"File {number}. {text}" for text in TEXTS[number * 50 : number * 50 + 20]]
        corpus(folder / f"{number}.jsonl", [*texts, "Twice.", f"{paragraph}\n\nNumber {number}."])
    return folder


@pytest.fixture(scope="module")
def richer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer without punctuation and with line breaks."""
    return Tokenizer.build([*tokenizer.vocabulary, "\n"], NormalizerOptions(drop_punctuation=True), ["\n"])


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("documents", "paragraphs")), "keep", "richer"]
)
def test_number_of_workers_does_not_change_the_bytes(
    tmp_path: Path,
    many_files: Path,
    tokenizer: Tokenizer,
    richer: Tokenizer,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "MIN_GROUP_BYTES", 4_500)
    monkeypatch.setattr(duplicates, "PART_BYTES", 500)
    if kind == "richer":
        tokenizer, kind = richer, "paragraphs"
    choices = {"eval_share": 0.2, "shard_bytes": 2_000, "filters": Filters(duplicates=kind)}  # pyright: ignore[reportArgumentType]
    prepare([many_files], tokenizer, tmp_path / "one", executor=LocalExecutor(1), **choices)
    prepare([many_files], tokenizer, tmp_path / "two", executor=LocalExecutor(2), **choices)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    texts = texts_of(tmp_path / "one")
    counts = storage.read_json(tmp_path / "one" / "statistics.json")["duplicates"]
    assert texts.count("twice") + texts.count("twice.") == (6 if kind == "keep" else 1)
    assert sum("same paragraph" in text for text in texts) == (1 if kind == "paragraphs" else 6)
    assert sum("number" in text for text in texts) == 6
    assert (
        counts
        == {
            "keep": {},
            "documents": {"documents": {"count": 5, "bytes": 30}},
            "paragraphs": {"documents": {"count": 5, "bytes": 30}, "paragraphs": {"count": 5, "bytes": 5 * 160}},
        }[kind]
    )


class _KilledError(BaseException):
    """Stands for a SIGKILL."""


@pytest.mark.parametrize(
    "stage", ["read_group", "find_duplicates", "encode_block", "_assemble", "write_manifest", "publish"]
)
@pytest.mark.parametrize("after", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_killed_run_resumes_with_the_same_bytes(
    tmp_path: Path, many_files: Path, tokenizer: Tokenizer, stage: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MIN_GROUP_BYTES", 4_500)
    monkeypatch.setattr(duplicates, "PART_BYTES", 500)
    choices = {"eval_share": 0.2, "shard_bytes": 2_000, "executor": LocalExecutor(1)}
    prepare([many_files], tokenizer, tmp_path / "undisturbed", **choices)
    owner = {
        "read_group": document_blocks,
        "find_duplicates": duplicates,
        "encode_block": encode,
        "_assemble": module,
    }.get(stage)
    owner = owner or {"write_manifest": module.shard_writer, "publish": storage}[stage]
    work, calls = getattr(owner, stage), []

    def killed(*arguments: object) -> object:
        calls.append(1)
        result = work(*arguments) if len(calls) <= after and stage != "publish" else None
        if len(calls) > after or stage == "publish":
            raise _KilledError
        return result

    out = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(owner, stage, killed)
        try:
            prepare([many_files], tokenizer, out, **choices)
        except _KilledError:
            shutil.copytree(tmp_path / ".killed.tmp-work", tmp_path / "left", copy_function=shutil.copy)
    assert out.exists() == (after == 2 and stage in ("_assemble", "write_manifest"))
    if not out.exists():
        before = {path.name for path in (tmp_path / "left" / "blocks").glob("*")} if stage != "read_group" else set()
        monkeypatch.setattr(
            document_blocks, "_read_group", None if before else document_blocks._read_group
        )  # the files are not read again
        prepare([many_files], tokenizer, out, **choices)
    assert contents(out) == contents(tmp_path / "undisturbed")
    assert not list(tmp_path.glob(".*"))


def test_changed_settings_or_files_do_not_resume(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    start([path], tokenizer, tmp_path / "out", 0)
    with pytest.raises(UserError, match=r"other settings or inputs, eval_share \(was 0.1, is 0.2\)"):
        prepare([path], tokenizer, tmp_path / "out", eval_share=0.2)
    corpus(path, TEXTS[:-1])
    with pytest.raises(UserError, match=r"inputs, files: .*a\.jsonl: .* remove the folder to start over"):
        prepare([path], tokenizer, tmp_path / "out", eval_share=0.1)
    shutil.rmtree(tmp_path / ".out.tmp-work")
    prepare([path], tokenizer, tmp_path / "out", eval_share=0.1)


def test_bad_records_are_counted_and_strict_leaves_nothing_behind(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.jsonl"
    good = "".join(json.dumps({"text": f"{text} Zoë."}, ensure_ascii=False) + "\n" for text in TEXTS)
    path.write_bytes(good.encode() + b'{"text": "\xff"}\n')
    with pytest.raises(UserError, match=r"a\.jsonl:301: not UTF-8 \(byte 0xff\)"):
        prepare([path], tokenizer, tmp_path / "out", reader_options=ReaderOptions(strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    assert prepare([path], tokenizer, tmp_path / "out")["skipped"] == {"not in utf-8": 1}


def test_equal_documents_are_in_one_split(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS * 2)
    prepare([path], tokenizer, tmp_path / "out", eval_share=0.3, filters=Filters(duplicates="keep"))
    opened = open_shards(tmp_path / "out")
    train, evaluation = (
        {json.dumps(document) for document in documents(split)} for split in (opened.train, opened.eval)
    )
    assert len(train) + len(evaluation) == len(TEXTS)
    assert not train & evaluation


def test_documents_without_tokens_are_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", [*TEXTS, "\u200b", "\u200d\n\u200d", "."])
    manifest = prepare(str(path), tokenizer, str(tmp_path / "out"), eval_share=0.2)  # single strings
    assert manifest["empty"] == 2
    assert sum(split["documents"] for split in manifest["splits"].values()) == len(TEXTS) + 1


@pytest.mark.parametrize(
    ("texts", "eval_share", "message"),
    [
        ([], 0.2, "no text to prepare: the files hold no documents"),
        (["\u200b", "\u200d"], 0.2, "no text to prepare: all 2 documents lack tokens"),
        (TEXTS, 1e-9, "the evaluation set has 0 of 300 documents, .*Raise --eval-share 1e-09"),
        (TEXTS, 1 - 1e-9, "the training set has 0 of 300 documents, .*Lower --eval-share"),
    ],
)
def test_too_little_text_is_an_error(
    tmp_path: Path, tokenizer: Tokenizer, texts: list[str], eval_share: float, message: str
) -> None:
    path = corpus(tmp_path / "a.jsonl", texts)
    with pytest.raises(UserError, match=message):
        prepare([path], tokenizer, tmp_path / "out", eval_share=eval_share)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_documents_are_filtered_by_length(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", [*TEXTS, "No.", "Cat " * 100])
    manifest = prepare([path], tokenizer, tmp_path / "out", filters=Filters(min_characters=5, max_characters=200))
    assert manifest["filtered"] == {"under 5 characters": 1, "over 200 characters": 1}
    with pytest.raises(UserError, match="no text to prepare: 302 documents were left out: under 1,000 characters"):
        prepare([path], tokenizer, tmp_path / "other", filters=Filters(min_characters=1000))


@pytest.mark.parametrize("eval_share", [0.0, 1.0, -0.1, float("nan")])
def test_eval_share_is_between_0_and_1(tmp_path: Path, tokenizer: Tokenizer, eval_share: float) -> None:
    with pytest.raises(UsageError, match="--eval-share"):
        prepare([corpus(tmp_path / "a.jsonl", TEXTS)], tokenizer, tmp_path / "out", eval_share=eval_share)


def start(texts: list[Path | str], tokenizer: Tokenizer, out: Path, groups: int) -> None:
    """Start to prepare, and stop as if killed once so many groups of files are read. Each file is a group."""
    read_group, done = document_blocks.read_group, []

    def interrupted(*item: Any) -> dict[str, object]:
        if len(done) == groups:
            raise KeyboardInterrupt
        done.append(item)
        return read_group(*item)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_blocks, "read_group", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(texts, tokenizer, out, eval_share=0.1, executor=LocalExecutor(1))


def test_other_order_of_files_does_not_resume(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = corpus(tmp_path / "a.jsonl", TEXTS[:100]), corpus(tmp_path / "b.jsonl", TEXTS[100:200])
    monkeypatch.setattr(sources, "MIN_GROUP_BYTES", 100)
    start([a, b], tokenizer, tmp_path / "out", 1)
    for texts in ([b, a], [a, b, b], [a]):
        with pytest.raises(UserError, match=r"other settings or inputs, files: .*/[ab]\.jsonl"):
            prepare(texts, tokenizer, tmp_path / "out", eval_share=0.1)
    assert prepare([a, b], tokenizer, tmp_path / "out", eval_share=0.1)["documents"] == 200


def test_changed_data_set_does_not_resume(tmp_path: Path, tokenizer: Tokenizer) -> None:
    a, hub = corpus(tmp_path / "a.jsonl", TEXTS[:100]), tmp_path / "data"
    hub.mkdir()
    corpus(hub / "train.jsonl", TEXTS[100:200])
    start([f"hf:{hub}", a], tokenizer, tmp_path / "out", 1)
    corpus(hub / "train.jsonl", TEXTS[200:])
    with pytest.raises(UserError, match="other settings or inputs, files: hf:"):
        prepare([f"hf:{hub}", a], tokenizer, tmp_path / "out", eval_share=0.1)


def test_partial_files_of_a_killed_run_are_not_published(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", TEXTS)
    start([path], tokenizer, tmp_path / "out", 0)
    (tmp_path / ".out.tmp-work" / "tokenizer" / ".tokenizer.json.tmp-1").write_text("half")
    prepare([path], tokenizer, tmp_path / "out", eval_share=0.1)
    prepare([path], tokenizer, tmp_path / "other", eval_share=0.1)
    listed = [
        sorted(p.relative_to(folder) for p in folder.rglob("*")) for folder in (tmp_path / "out", tmp_path / "other")
    ]
    assert listed[0] == listed[1]


def test_partly_removed_work_folder_is_discarded(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path, work = corpus(tmp_path / "a.jsonl", TEXTS), tmp_path / ".out.tmp-work"
    (work / "blocks").mkdir(parents=True)
    (work / "blocks" / "00000.json").write_text("{}")  # without a plan: removal deletes the plan first
    prepare([path], tokenizer, tmp_path / "out")
    work.mkdir()  # a run that was killed after publishing
    with pytest.raises(UsageError, match="already exists"):
        prepare([path], tokenizer, tmp_path / "out")
    assert not work.exists()


def test_surrounding_space_does_not_make_documents_differ(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = corpus(tmp_path / "a.jsonl", [*TEXTS, *(f" {text}\n\n" for text in TEXTS)])
    manifest = prepare([path], tokenizer, tmp_path / "out", eval_share=0.2)
    assert manifest["duplicates"]["documents"]["count"] == len(TEXTS)
    kept = prepare([path], tokenizer, tmp_path / "kept", eval_share=0.2, filters=Filters(duplicates="keep"))
    assert all(
        kept["splits"][name]["documents"] == 2 * manifest["splits"][name]["documents"] for name in ("train", "eval")
    )


def test_documents_equal_after_paragraph_removal_are_in_one_split(tmp_path: Path, tokenizer: Tokenizer) -> None:
    boilerplate = [f"The same paragraph {i}. " * 10 for i in range(40)]
    texts = [f"{paragraph}\n\nCat {i % 50} sat." for i, paragraph in enumerate(boilerplate * 10)]
    path = corpus(tmp_path / "a.jsonl", texts)
    prepare([path], tokenizer, tmp_path / "out", eval_share=0.4, filters=Filters(duplicates="paragraphs"))
    opened = open_shards(tmp_path / "out")
    train, evaluation = ({str(d) for d in documents(split)} for split in (opened.train, opened.eval))
    assert evaluation
    assert not train & evaluation


def test_manifest_does_not_depend_on_the_place_of_the_files(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        path = corpus(tmp_path / name / "a.jsonl", TEXTS)
        path.write_text(path.read_text() + "broken\n")
        os.utime(path, (0, 0))
        prepare([path], tokenizer, tmp_path / name / "out")
    manifests = [(tmp_path / name / "out" / "manifest.json").read_bytes() for name in ("here", "there")]
    assert manifests[0] == manifests[1]


def test_work_is_kept_unless_the_text_is_at_fault(tmp_path: Path, tokenizer: Tokenizer) -> None:
    class FailingExecutor:
        def __init__(self, error: Exception):
            self.error = error

        def run(self, *_: object) -> object:
            raise self.error
            yield

    path, work = corpus(tmp_path / "a.jsonl", TEXTS), tmp_path / ".out.tmp-work"
    for error, message in (
        (UsageError("no such executor"), "no such executor"),
        (
            MachineError("a worker was lost"),
            "a worker was lost.* the finished part is in .*: repeat the command to resume",
        ),
        (UserError("the text is wrong"), "the text is wrong"),
    ):
        start([path], tokenizer, tmp_path / "out", 0)
        with pytest.raises(type(error), match=message):
            prepare([path], tokenizer, tmp_path / "out", eval_share=0.1, executor=FailingExecutor(error))  # pyright: ignore
        assert work.is_dir() == (type(error) is not UserError)


def test_invalid_length_limits_are_an_error() -> None:
    for minimum, maximum in ((-1, 0), (0, -1), (10, 5)):
        with pytest.raises(UsageError, match="-characters"):
            Filters(minimum, maximum)
