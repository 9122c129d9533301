from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.batches import contiguous
from bertie.batches import spans as layout_spans
from bertie.batches.contiguous import DocSentences, FullSentences
from bertie.batches.spans import LayoutEpoch
from bertie.corpus.shards import Shards, open_shards
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import Tokenizer

LAYOUTS = [FullSentences, DocSentences]
Kind = type[FullSentences] | type[DocSentences]
each_layout = pytest.mark.parametrize("kind", LAYOUTS)


@pytest.fixture(scope="module")
def shards(small_shards: Path) -> Shards:
    return open_shards(small_shards)


def corpus_of(documents: list[list[int]], word_starts: np.ndarray | None = None) -> Corpus:
    """A corpus whose documents have sentences of these lengths. Token i has the id 5 + i modulo 400."""
    sentences = [length for document in documents for length in document]
    total = sum(sentences)
    return Corpus(
        document_starts=np.cumsum([0, *map(sum, documents)]),
        sentence_starts=np.cumsum([0, *sentences]),
        shard_starts=np.array([0, total]),
        tokens=((np.arange(total) % 400 + 5).astype(np.uint16),),
        word_starts=(np.ones(total, bool) if word_starts is None else word_starts,),
    )


def spans_of(epoch: LayoutEpoch) -> list[list[int]]:
    return [span for window in range(epoch.windows) for span in epoch.window(window)]


def in_order(epoch: LayoutEpoch) -> list[list[int]]:
    return sorted(spans_of(epoch))


def parts_of(corpus: Corpus, span: list[int]) -> list[tuple[int, int]]:
    """The tokens of each document that a span has."""
    start, stop = span
    return list(pairwise([start, *(edge for edge in corpus.document_starts.tolist() if start < edge < stop), stop]))


def check(corpus: Corpus, epoch: LayoutEpoch, max_length: int) -> None:
    """Check the properties that every epoch of every corpus has."""
    parts = [part for span in in_order(epoch) for part in parts_of(corpus, span)]
    total = int(corpus.document_starts[-1])
    assert [parts[0][0], *(stop for _, stop in parts)] == [*(start for start, _ in parts), total]  # every token, once
    documents = [np.searchsorted(corpus.document_starts, part, side="right").tolist() for part in parts]
    for (start, stop), (first, _) in zip(parts, documents, strict=True):
        assert start < stop <= corpus.document_starts[first]
    for window in range(epoch.windows):
        lengths = [len(epoch.sequence(span)) for span in epoch.window(window)]
        assert max(lengths) <= max_length
        assert epoch.lengths(window).tolist() == lengths


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), min_size=1, max_size=12),
    max_length=st.integers(3, 40),
    short_seq_prob=st.sampled_from([0.0, 0.1, 1.0]),
    words=st.integers(0, 3),
    seed=st.integers(0, 5),
    block=st.sampled_from([1, 3, 1 << 20]),
)
@each_layout
def test_every_corpus_is_read_once(
    kind: Kind,
    documents: list[list[int]],
    max_length: int,
    short_seq_prob: float,
    words: int,
    seed: int,
    block: int,
    small_tokenizer: Tokenizer,
) -> None:
    starts = np.random.default_rng(words).random(sum(map(sum, documents))) < words / 3  # no word starts, some, all
    corpus = corpus_of(documents, starts)
    layout = kind(max_length=max_length, short_seq_prob=short_seq_prob)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contiguous, "BLOCK", block)
        patch.setattr(layout_spans, "WINDOW", 5)
        epoch = layout.epoch(corpus, small_tokenizer, seed, 0)
        check(corpus, epoch, max_length)
        if kind is DocSentences:
            assert all(len(parts_of(corpus, span)) == 1 for span in spans_of(epoch))
    if short_seq_prob == 0:  # the size of the blocks has no effect
        assert in_order(epoch) == in_order(layout.epoch(corpus, small_tokenizer, seed, 1))


@each_layout
def test_sequences_are_as_long_as_whole_sentences_allow(kind: Kind, shards: Shards) -> None:
    """Compare with sequences that are built one sentence at a time."""
    corpus, longest = shards.train, 64
    assert np.diff(corpus.sentence_starts).max() <= longest - 2
    expected: list[list[tuple[int, int]]] = [[]]
    length = 1
    for start, stop in pairwise(corpus.sentence_starts.tolist()):
        new_document = start in corpus.document_starts
        added = stop - start + (new_document or not expected[-1])
        if expected[-1] and (length + added > longest or (new_document and kind is DocSentences)):
            expected.append([])
            length, added = 1, stop - start + 1
        if new_document or not expected[-1]:
            expected[-1].append((start, stop))
        else:
            expected[-1][-1] = (expected[-1][-1][0], stop)
        length += added
    found = in_order(kind(max_length=longest).epoch(corpus, shards.tokenizer, 0, 0))
    assert [parts_of(corpus, span) for span in found] == expected


def test_full_sentences_cross_documents_with_a_separator(small_tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[3, 2], [2], [4, 5]])
    tokenizer = small_tokenizer
    cls, sep, ids = tokenizer.cls_id, tokenizer.sep_id, corpus.tokens[0].tolist()
    epoch = FullSentences(max_length=16).epoch(corpus, tokenizer, 0, 0)
    first, last = in_order(epoch)
    sequence = epoch.sequence(first)
    assert sequence.input_ids.tolist() == [cls, *ids[:5], sep, *ids[5:7], sep, *ids[7:11], sep]
    assert len(sequence) == 15  # one token too few for the next sentence
    assert sequence.token_type_ids.tolist() == [0] * 15
    assert sequence.word_starts.all()
    assert sequence.pair_label == -1
    assert {sequence.input_ids.dtype, sequence.token_type_ids.dtype} == {np.dtype(np.int32)}
    assert epoch.sequence(last).input_ids.tolist() == [cls, *ids[11:], sep]


def test_doc_sentences_end_with_their_document(small_tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[3, 2], [2], [4, 5]])
    epoch = DocSentences(max_length=11).epoch(corpus, small_tokenizer, 0, 0)
    assert in_order(epoch) == [[0, 5], [5, 7], [7, 16]]


@each_layout
def test_a_long_sentence_is_split_at_a_word(kind: Kind, small_tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[100, 4]], np.arange(104) % 3 == 0)  # words of three subwords
    found = in_order(kind(max_length=34).epoch(corpus, small_tokenizer, 0, 0))
    assert found == [[0, 30], [30, 60], [60, 90], [90, 104]]


def test_documents_of_several_shards_are_joined(shards: Shards) -> None:
    corpus, sep = shards.train, shards.tokenizer.sep_id
    edge = int(corpus.shard_starts[1])
    assert edge < corpus.shard_starts[-1]
    epochs = [FullSentences(max_length=longest).epoch(corpus, shards.tokenizer, 0, 0) for longest in range(48, 64)]
    pairs = [(epoch, span) for epoch in epochs for span in spans_of(epoch)]
    epoch, span = next((epoch, span) for epoch, span in pairs if span[0] < edge < span[1])
    expected = [i for start, stop in parts_of(corpus, span) for i in [*corpus.slice(start, stop)[0].tolist(), sep]]
    assert epoch.sequence(span).input_ids.tolist() == [shards.tokenizer.cls_id, *expected]
