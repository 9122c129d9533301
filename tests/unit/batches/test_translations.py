from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.base.contracts import FILLER
from bertie.base.errors import UserError
from bertie.batches import spans as layout_spans
from bertie.batches.loader import Loader, Position, StepShape
from bertie.batches.spans import LayoutEpoch
from bertie.batches.translations import Translations
from bertie.corpus.shards import Shards, open_shards
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import Tokenizer

Texts = tuple[tuple[int, int], ...]
Documents = list[dict[int, list[int]]]
"""For each document, the lengths of the sentences by language."""


@pytest.fixture(scope="module")
def shards(translated_shards: Path) -> Shards:
    return open_shards(translated_shards)


@pytest.fixture(scope="module")
def roberta_tokenizer(small_texts: list[str]) -> Tokenizer:
    from bertie.corpus import bpe, word_counts
    from bertie.tokenizers.tokenizer import ByteLevel

    return Tokenizer.build_bpe(*bpe.train(word_counts.count_words(small_texts, ByteLevel()).counts, vocab_size=410))


def corpus_of(documents: Documents, word_starts: np.ndarray | None = None) -> Corpus:
    """A corpus of these documents. Token i has the id 5 + i modulo 400."""
    sentences = [length for document in documents for text in document.values() for length in text]
    languages = [language for document in documents for language, text in document.items() for _ in text]
    total = sum(sentences)
    return Corpus(
        document_starts=np.cumsum([0, *(sum(map(sum, document.values())) for document in documents)]),
        sentence_starts=np.cumsum([0, *sentences]),
        shard_starts=np.array([0, total]),
        tokens=((np.arange(total) % 400 + 5).astype(np.uint16),),
        word_starts=(np.ones(total, bool) if word_starts is None else word_starts,),
        languages=np.array(languages, np.uint16),
    )


def spans_of(epoch: LayoutEpoch) -> list[Texts]:
    return [span for window in range(epoch.windows) for span in epoch.window(window)]


def texts_of(epoch: LayoutEpoch) -> list[Texts]:
    """The texts of every sequence, in the order of the corpus, whichever text is first."""
    return sorted(tuple(sorted(span)) for span in spans_of(epoch))


def document_of(corpus: Corpus, token: int) -> int:
    return int(np.searchsorted(corpus.document_starts, token, side="right"))


def check(corpus: Corpus, epoch: LayoutEpoch, max_length: int) -> None:
    """Check the properties that every epoch of every corpus has."""
    spans = spans_of(epoch)
    parts = sorted(text for span in spans for text in span)
    total = int(corpus.document_starts[-1])
    assert [parts[0][0], *(stop for _, stop in parts)] == [*(start for start, _ in parts), total]  # every token, once
    assert corpus.languages is not None
    for span in spans:
        for start, stop in span:
            assert start < stop
            assert document_of(corpus, start) == document_of(corpus, stop - 1)
            sentences = np.searchsorted(corpus.sentence_starts, [start, stop - 1], side="right") - 1
            assert len(set(corpus.languages[sentences[0] : sentences[1] + 1].tolist())) == 1
        if len(span) == 2:
            first, second = (start for start, _ in span)
            assert document_of(corpus, first) == document_of(corpus, second)
            assert corpus.language(first) != corpus.language(second)
        sequence = epoch.sequence(span)
        arrays = (sequence.input_ids, sequence.token_type_ids, sequence.position_ids, sequence.language_ids)
        assert len(sequence) == len(sequence.word_starts) <= max_length
        assert sequence.word_starts.dtype == bool
        assert all(array is not None and len(array) == len(sequence) and array.dtype == np.int32 for array in arrays)
    for window in range(epoch.windows):
        assert epoch.lengths(window).tolist() == [len(epoch.sequence(span)) for span in epoch.window(window)]


texts = st.lists(st.integers(1, 40), min_size=1, max_size=5)
corpora = st.lists(st.dictionaries(st.integers(0, 3), texts, min_size=1, max_size=4), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(
    documents=corpora,
    max_length=st.integers(6, 60),
    translation_prob=st.sampled_from([0.0, 0.5, 1.0]),
    words=st.integers(0, 3),
    seed=st.integers(0, 5),
    two_separators=st.booleans(),
)
def test_every_corpus_is_read_once_and_no_documents_are_mixed(
    documents: Documents,
    max_length: int,
    translation_prob: float,
    words: int,
    seed: int,
    two_separators: bool,
    small_tokenizer: Tokenizer,
    roberta_tokenizer: Tokenizer,
) -> None:
    total = sum(sum(map(sum, document.values())) for document in documents)
    starts = np.random.default_rng(words).random(total) < words / 3  # no word starts, some, all
    corpus = corpus_of(documents, starts)
    layout = Translations(max_length=max_length, translation_prob=translation_prob)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_spans, "WINDOW", 5)
        epoch = layout.epoch(corpus, roberta_tokenizer if two_separators else small_tokenizer, seed, 0)
        check(corpus, epoch, max_length)
        counts = {len(span) for span in spans_of(epoch)}
    if translation_prob == 0 or all(len(document) == 1 for document in documents):
        assert counts == {1}
    elif translation_prob == 1 and any(len(document) > 1 for document in documents):
        assert 2 in counts


@settings(max_examples=60, deadline=None)
@given(first=st.integers(1, 300), second=st.integers(1, 300), max_length=st.integers(6, 40))
def test_a_long_translation_keeps_both_sides(
    first: int, second: int, max_length: int, small_tokenizer: Tokenizer
) -> None:
    """Every sequence has both texts, unless one text has fewer tokens than there are sequences."""
    epoch = Translations(max_length=max_length, translation_prob=1.0).epoch(
        corpus_of([{0: [first], 1: [second]}]), small_tokenizer, 0, 0
    )
    spans = spans_of(epoch)
    if len(spans) <= min(first, second):
        assert all(len(span) == 2 for span in spans)
    for span in spans:
        if len(span) == 2 and len(epoch.sequence(span)) == max_length:
            sizes = sorted(stop - start for start, stop in span)
            expected = (max_length - 3) * min(first, second) / (first + second)
            assert sizes[0] == pytest.approx(expected, abs=2)


def test_a_text_and_its_translation_make_a_sequence(small_tokenizer: Tokenizer) -> None:
    corpus = corpus_of([{0: [3], 1: [2, 2]}], np.array([True, False, True, True, True, False, True]))
    epoch = Translations(max_length=16, translation_prob=1.0).epoch(corpus, small_tokenizer, 0, 0)
    [span] = spans_of(epoch)
    ids, cls, sep = corpus.tokens[0].tolist(), small_tokenizer.cls_id, small_tokenizer.sep_id
    a, b = ([0, 3], [3, 7]) if span[0][0] == 0 else ([3, 7], [0, 3])
    sequence = epoch.sequence(span)
    assert sequence.position_ids is not None
    assert sequence.language_ids is not None
    n, m = a[1] - a[0], b[1] - b[0]
    assert sequence.input_ids.tolist() == [cls, *ids[a[0] : a[1]], sep, *ids[b[0] : b[1]], sep]
    assert sequence.token_type_ids.tolist() == [0] * (n + 2) + [1] * (m + 1)
    assert sequence.position_ids.tolist() == [*range(n + 2), *range(1, m + 2)]  # the first words have position 1
    languages = (0, 1) if a[0] == 0 else (1, 0)
    assert sequence.language_ids.tolist() == [languages[0]] * (n + 2) + [languages[1]] * (m + 1)
    words = corpus.word_starts[0].tolist()
    assert sequence.word_starts.tolist() == [True, *words[a[0] : a[1]], True, *words[b[0] : b[1]], True]
    assert sequence.pair_label == -1
    arrays = (sequence.input_ids, sequence.token_type_ids, sequence.position_ids, sequence.language_ids)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


def test_roberta_has_two_separators_and_no_segments(roberta_tokenizer: Tokenizer) -> None:
    tokenizer = roberta_tokenizer
    epoch = Translations(max_length=16, translation_prob=1.0).epoch(corpus_of([{0: [3], 1: [2]}]), tokenizer, 0, 0)
    [span] = spans_of(epoch)
    n, m = (stop - start for start, stop in span)
    sequence = epoch.sequence(span)
    assert sequence.position_ids is not None
    assert sequence.language_ids is not None
    special = np.flatnonzero(np.isin(sequence.input_ids, [tokenizer.cls_id, tokenizer.sep_id])).tolist()
    assert special == [0, n + 1, n + 2, n + m + 3]
    assert sequence.position_ids.tolist() == [*range(n + 2), *range(m + 2)]
    assert np.bincount(sequence.language_ids).tolist() in ([n + 2, m + 2], [m + 2, n + 2])
    assert not sequence.token_type_ids.any()


def test_long_texts_end_at_sentences_and_long_sentences_at_words(small_tokenizer: Tokenizer) -> None:
    layout = Translations(max_length=13, translation_prob=1.0)
    corpus = corpus_of([{0: [4, 4, 4], 1: [4, 4, 4]}])
    assert texts_of(layout.epoch(corpus, small_tokenizer, 0, 0)) == [
        ((0, 4), (12, 16)),
        ((4, 8), (16, 20)),
        ((8, 12), (20, 24)),
    ]
    corpus = corpus_of([{0: [12], 1: [12]}], np.arange(24) % 3 == 0)  # words of three subwords
    assert texts_of(layout.epoch(corpus, small_tokenizer, 0, 0)) == [
        ((0, 3), (12, 15)),
        ((3, 6), (15, 18)),
        ((6, 9), (18, 21)),
        ((9, 12), (21, 24)),
    ]
    alone = Translations(max_length=13, translation_prob=0.0).epoch(corpus, small_tokenizer, 0, 0)
    assert texts_of(alone) == [((0, 9),), ((9, 12),), ((12, 21),), ((21, 24),)]


def test_three_languages_make_a_pair_and_a_single_text(small_tokenizer: Tokenizer) -> None:
    corpus, seen = corpus_of([{0: [2], 1: [2], 2: [2]}]), set()
    for number in range(40):
        spans = spans_of(Translations(translation_prob=1.0).epoch(corpus, small_tokenizer, 0, number))
        assert sorted(len(span) for span in spans) == [1, 2]
        seen |= {span for span in spans if len(span) == 2}
    assert len(seen) == 6  # every two languages, in both orders


def test_the_share_of_translations_is_the_probability(small_tokenizer: Tokenizer) -> None:
    corpus = corpus_of([{0: [2], 1: [2]}] * 2000)
    spans = spans_of(Translations(translation_prob=0.3).epoch(corpus, small_tokenizer, 0, 0))
    pairs = sum(len(span) == 2 for span in spans)
    assert pairs / 2000 == pytest.approx(0.3, abs=0.04)
    assert len(spans) == 2 * 2000 - pairs


def test_rows_hold_positions_and_languages_and_resume_at_any_position(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_spans, "WINDOW", 100)
    loader = Loader(shards.train, shards.tokenizer, Translations(max_length=48), StepShape(4, 512), seed=0)
    steps = list(islice(loader.steps(Position()), 60))
    assert steps[15].position.epoch < steps[-1].position.epoch
    for row in steps[0].all_rows:
        assert row.language_ids is not None
        assert len(row.language_ids) == len(row.position_ids) == 512
        filler = np.repeat(row.example == FILLER, row.ragged.lengths)
        assert not row.language_ids[filler].any()
        assert {0, 1} == set(row.language_ids[~filler].tolist())
    for first in (1, 15, 59):
        found = next(loader.steps(steps[first].position))
        for row, other in zip(found.all_rows, steps[first].all_rows, strict=True):
            assert {n: a.tolist() for n, a in row.arrays.items()} == {n: a.tolist() for n, a in other.arrays.items()}


def test_shards_without_languages_are_refused(small_shards: Path) -> None:
    opened = open_shards(small_shards)
    with pytest.raises(UserError, match=r'layout\.kind "translations" .*--languages'):
        Translations().epoch(opened.train, opened.tokenizer, 0, 0)
