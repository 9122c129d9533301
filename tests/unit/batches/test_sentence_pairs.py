from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.batches.test_contiguous import corpus_of

from bertie.base.contracts import FILLER
from bertie.base.errors import UserError
from bertie.batches.loader import Loader, Position, StepShape
from bertie.batches.sentence_pairs import (
    IS_RANDOM,
    IS_SWAPPED,
    UNLABELED,
    PairSpan,
    SentencePairs,
)
from bertie.batches.spans import LayoutEpoch
from bertie.corpus import bpe, word_counts
from bertie.corpus.shards import Shards, open_shards
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import ByteLevel, Tokenizer


@pytest.fixture(scope="module")
def shards(small_shards: Path) -> Shards:
    return open_shards(small_shards)


@pytest.fixture(scope="module")
def wiki(wiki_shards: Path) -> Shards:
    return open_shards(wiki_shards)


def spans_of(epoch: LayoutEpoch) -> list[PairSpan]:
    return [span for window in range(epoch.windows) for span in epoch.window(window)]


def length(span: PairSpan) -> int:
    """The length of the sequence of a pair, with its special tokens."""
    return span.a[1] - span.a[0] + span.b[1] - span.b[0] + 3


def document(corpus: Corpus, token: int) -> int:
    return int(np.searchsorted(corpus.document_starts, token, side="right"))


def read_counts(corpus: Corpus, spans: list[PairSpan]) -> np.ndarray:
    """int64 [tokens]: how often each token of the corpus occurs in an A or a B."""
    changes = np.zeros(int(corpus.document_starts[-1]) + 1, np.int64)
    for span in spans:
        for start, stop in (span.a, span.b):
            changes[start] += 1
            changes[stop] -= 1
    return np.cumsum(changes)[:-1]


def check(corpus: Corpus, spans: list[PairSpan], max_length: int) -> None:
    """Check the properties that every epoch of every corpus has."""
    sentences = set(corpus.sentence_starts.tolist())
    for span in spans:
        assert length(span) <= max_length
        for start, stop in (span.a, span.b):
            assert start < stop
            assert document(corpus, start) == document(corpus, stop - 1)
        same = document(corpus, span.a[0]) == document(corpus, span.b[0])
        assert same == (span.pair_label != IS_RANDOM)
        if span.pair_label != IS_RANDOM:
            assert span.a[1] == span.b[0]
        # Otherwise, a B that begins in mid-sentence after an A that ends with a sentence would reveal the label.
        assert (span.a[1] in sentences) == (span.b[0] in sentences)
    assert read_counts(corpus, spans).max(initial=0) <= 1


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), min_size=2, max_size=12),
    max_length=st.integers(5, 40),
    short_seq_prob=st.sampled_from([0.0, 0.1, 1.0]),
    words=st.integers(0, 3),
    seed=st.integers(0, 5),
)
def test_every_corpus_gives_valid_pairs(
    documents: list[list[int]],
    max_length: int,
    short_seq_prob: float,
    words: int,
    seed: int,
    small_tokenizer: Tokenizer,
) -> None:
    total = sum(map(sum, documents))
    starts = np.random.default_rng(words).random(total) < words / 3  # no word starts, some, all
    corpus = corpus_of(documents, starts)
    spans = spans_of(SentencePairs("pairs", max_length, short_seq_prob).epoch(corpus, small_tokenizer, seed, 0))
    check(corpus, spans, max_length)
    random = sum(span.pair_label == IS_RANDOM for span in spans)
    assert random % 2 == 0  # both chunks of a couple exchange their Bs, or neither does


def test_nearly_every_token_of_real_text_is_read(wiki: Shards) -> None:
    spans = spans_of(SentencePairs().epoch(wiki.train, wiki.tokenizer, 0, 0))
    check(wiki.train, spans, 128)
    assert read_counts(wiki.train, spans).mean() > 0.99
    kinds = np.array([span.pair_label for span in spans])
    assert np.mean(kinds == UNLABELED) < 0.001
    # The two chunks of a couple share one coin flip, so the standard error is that of half as many pairs.
    assert np.mean(kinds == IS_RANDOM) == pytest.approx(0.5, abs=3 * 0.5 / np.sqrt(len(kinds) / 2))


def test_lengths_are_upper_bounds_and_nearly_exact(wiki: Shards) -> None:
    epoch = SentencePairs().epoch(wiki.train, wiki.tokenizer, 0, 0)
    before = epoch.lengths(0)
    after = np.array([length(span) for span in epoch.window(0)])
    assert len(before) == len(after)
    assert (after <= before).all()
    assert (before - after).mean() < 1  # trimming removes less than a token on average


@pytest.mark.parametrize("max_length", [128, 512])
def test_filler_is_rare_on_real_text(wiki: Shards, max_length: int) -> None:
    loader = Loader(wiki.train, wiki.tokenizer, SentencePairs(max_length=max_length), StepShape(8, 4096), seed=0)
    steps = takewhile(lambda step: step.position.epoch == 0, loader.steps(Position()))
    batches = [batch for step in steps for batch in step.all_rows]
    filler_tokens = sum(int(batch.ragged.lengths[batch.example == FILLER].sum()) for batch in batches)
    assert len(batches) > 200
    assert 0 < filler_tokens / (4096 * len(batches)) <= 0.005


def test_excess_chunks_of_one_document_are_unlabeled(small_tokenizer: Tokenizer) -> None:
    # One document has 30 chunks of 20 tokens, the two others have one each.
    corpus = corpus_of([[10] * 60, [10, 10], [10, 10]])
    spans = spans_of(SentencePairs(max_length=23, short_seq_prob=0.0).epoch(corpus, small_tokenizer, 0, 0))
    check(corpus, spans, 23)
    kinds = [span.pair_label for span in spans]
    assert len(kinds) == 32
    assert kinds.count(UNLABELED) == 28
    labeled = [span for span in spans if span.pair_label != UNLABELED]
    assert {document(corpus, span.a[0]) for span in labeled} == {1, 2, 3}


def test_a_single_document_is_refused(small_tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="at least two documents"):
        SentencePairs().epoch(corpus_of([[10, 10, 10]]), small_tokenizer, 0, 0)


def test_chunks_are_split_at_sentences(small_tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[5, 6, 4, 7] * 20, [6, 5, 3, 9] * 20])
    inside = set(corpus.sentence_starts.tolist())
    spans = spans_of(SentencePairs(max_length=43, short_seq_prob=0.0).epoch(corpus, small_tokenizer, 0, 0))
    assert {start for span in spans for start in (span.a[0], span.b[0])} <= inside
    assert {span.a[1] for span in spans} <= inside
    lengths = {span.a[1] - span.a[0] for span in spans}
    assert len(lengths) > 5  # the sentence is random


def test_a_long_sentence_is_split_at_a_word(small_tokenizer: Tokenizer) -> None:
    starts = np.arange(1200) % 3 == 0  # words of three subwords
    corpus = corpus_of([[600], [600]], starts)
    spans = spans_of(SentencePairs(max_length=36, short_seq_prob=0.0).epoch(corpus, small_tokenizer, 0, 0))
    check(corpus, spans, 36)
    assert all(starts[token] for span in spans for token in (span.a[0], span.b[0]))
    assert read_counts(corpus, spans).mean() > 0.9


def test_a_sequence_has_special_tokens_and_segments(shards: Shards) -> None:
    tokenizer, corpus = shards.tokenizer, shards.train
    epoch = SentencePairs(max_length=64).epoch(corpus, tokenizer, 0, 0)
    for span in epoch.window(0)[:50]:
        sequence = epoch.sequence(span)
        a, b = (corpus.slice(*part)[0].tolist() for part in (span.a, span.b))
        cls, sep = tokenizer.cls_id, tokenizer.sep_id
        assert sequence.input_ids.tolist() == [cls, *a, sep, *b, sep]
        assert sequence.token_type_ids.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert sequence.word_starts.tolist() == tokenizer.word_starts_table[sequence.input_ids].tolist()
        assert sequence.pair_label == span.pair_label
        assert len(sequence) == length(span)
        assert {sequence.input_ids.dtype, sequence.token_type_ids.dtype} == {np.dtype(np.int32)}


def swapped_epoch(shards: Shards, seed: int, epoch: int, max_length: int = 48) -> LayoutEpoch:
    return SentencePairs(max_length=max_length, negatives="swapped").epoch(shards.train, shards.tokenizer, seed, epoch)


def test_special_tokens_are_those_of_the_tokenizer(small_texts: list[str]) -> None:
    counts = word_counts.count_words(small_texts, ByteLevel()).counts
    tokenizer, corpus = Tokenizer.build_bpe(*bpe.train(counts, vocab_size=410)), corpus_of([[3, 4], [5, 2]])
    epoch = SentencePairs(max_length=32).epoch(corpus, tokenizer, 0, 0)
    span = spans_of(epoch)[0]
    sequence = epoch.sequence(span)
    a, b = span.a[1] - span.a[0], span.b[1] - span.b[0]
    assert len(sequence) == a + b + 4 <= 32
    places = [0, a + 1, a + 2, a + b + 3]
    assert sequence.input_ids[places].tolist() == [tokenizer.cls_id, *[tokenizer.sep_id] * 3]
    assert not sequence.token_type_ids.any()
    assert sequence.word_starts[places].all()
    with pytest.raises(UserError, match=r"layout\.max_length 5 .* 4 special tokens"):
        SentencePairs(max_length=5).epoch(corpus, tokenizer, 0, 0)


def test_half_of_the_pairs_are_swapped(shards: Shards) -> None:
    spans = [span for epoch in range(5) for span in spans_of(swapped_epoch(shards, 0, epoch))]
    for span in spans:
        first, second = (span.b, span.a) if span.pair_label == IS_SWAPPED else (span.a, span.b)
        assert first[0] < first[1] == second[0] < second[1]
        assert document(shards.train, first[0]) == document(shards.train, second[1] - 1)
        assert length(span) <= 48
    labels = np.array([span.pair_label for span in spans])
    assert set(labels.tolist()) == {0, 1}
    assert labels.mean() == pytest.approx(0.5, abs=3 * 0.5 / np.sqrt(len(labels)))


def test_swapped_pairs_read_every_token_of_their_chunks_once(shards: Shards) -> None:
    epoch = swapped_epoch(shards, 0, 0)
    spans = spans_of(epoch)
    counts = read_counts(shards.train, spans)
    assert counts.max() == 1
    assert counts.mean() > 0.99  # a chunk of one token is no pair
    assert epoch.lengths(0).tolist() == [length(span) for span in epoch.window(0)]  # no trimming


def test_a_swapped_sequence_begins_with_the_later_text(shards: Shards) -> None:
    epoch = swapped_epoch(shards, 0, 0)
    span = next(span for span in epoch.window(0) if span.pair_label == IS_SWAPPED)
    (later, _), (earlier, _) = shards.train.slice(*span.a), shards.train.slice(*span.b)
    assert span.a[0] == span.b[1]
    cls, sep = shards.tokenizer.cls_id, shards.tokenizer.sep_id
    assert epoch.sequence(span).input_ids.tolist() == [cls, *later.tolist(), sep, *earlier.tolist(), sep]


def test_one_document_suffices_for_swapped_pairs(small_tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[10, 10, 10]])
    assert spans_of(SentencePairs(negatives="swapped").epoch(corpus, small_tokenizer, 0, 0))


def length_features(spans: list[PairSpan]) -> np.ndarray:
    """float [n, 5]: all features of a pair that do not depend on its text."""
    a = np.array([span.a[1] - span.a[0] for span in spans])
    b = np.array([span.b[1] - span.b[0] for span in spans])
    return np.column_stack([a, b, a + b, a / (a + b), a - b])


def accuracy_from_lengths(split: Shards, max_length: int, epochs: int) -> Iterator[tuple[float, int]]:
    """Predict the label from the lengths alone: train two classifiers on half of the epochs, test on the other half.

    Yields the accuracy and the number of test pairs of each classifier.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

    labeled = []
    for number in range(epochs):
        spans = spans_of(SentencePairs(max_length=max_length).epoch(split.train, split.tokenizer, 0, number))
        labeled.append([span for span in spans if span.pair_label != UNLABELED])
    halves = [[s for epoch in half for s in epoch] for half in (labeled[: epochs // 2], labeled[epochs // 2 :])]
    train_x, test_x = (length_features(half) for half in halves)
    train_y, test_y = (np.array([span.pair_label for span in half]) for half in halves)
    for classifier in (
        HistGradientBoostingClassifier(random_state=0),
        RandomForestClassifier(20, min_samples_leaf=20, random_state=0, n_jobs=1),
    ):
        yield classifier.fit(train_x, train_y).score(test_x, test_y), len(test_y)


def test_lengths_do_not_predict_the_label_on_synthetic_text(shards: Shards) -> None:
    for accuracy, pairs in accuracy_from_lengths(shards, 32, 40):
        assert pairs > 20_000
        assert accuracy < 0.52
