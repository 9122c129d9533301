from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie import seeding
from bertie.batches import layouts
from bertie.batches.layouts import IS_NEXT, IS_RANDOM, UNLABELLED, PairSpan, SentencePairs, SentencePairsEpoch
from bertie.errors import UsageError, UserError
from bertie.text.shards import Corpus, Shards, open_shards
from bertie.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def shards(small_shards: Path) -> Shards:
    return open_shards(small_shards)


@pytest.fixture(scope="module")
def wiki(wiki_shards: Path) -> Shards:
    return open_shards(wiki_shards)


def corpus_of(documents: list[list[int]], word_starts: bool | np.ndarray = True) -> Corpus:
    """A corpus whose documents have sentences of these lengths; token i is number 5 + i modulo 400."""
    sentences = [length for document in documents for length in document]
    total = sum(sentences)
    words = np.full(total, word_starts) if isinstance(word_starts, bool) else word_starts
    return Corpus(
        document_starts=np.cumsum([0, *map(sum, documents)]),
        sentence_starts=np.cumsum([0, *sentences]),
        unigram_entropy=0.0,
        shard_starts=np.array([0, total]),
        tokens=((np.arange(total) % 400 + 5).astype(np.uint16),),
        word_starts=(words,),
    )


def spans_of(epoch: SentencePairsEpoch) -> list[PairSpan]:
    return [span for window in range(epoch.windows) for span in epoch.window(window)]


def document(corpus: Corpus, token: int) -> int:
    return int(np.searchsorted(corpus.document_starts, token, side="right"))


def times_read(corpus: Corpus, spans: list[PairSpan]) -> np.ndarray:
    """int64 [tokens]: how often each token of the corpus is in an A or a B."""
    changes = np.zeros(int(corpus.document_starts[-1]) + 1, np.int64)
    for span in spans:
        for start, stop in (span.a, span.b):
            changes[start] += 1
            changes[stop] -= 1
    return np.cumsum(changes)[:-1]


def check(corpus: Corpus, spans: list[PairSpan], max_length: int) -> None:
    """What holds of every epoch of every corpus."""
    sentences = set(corpus.sentence_starts.tolist())
    for span in spans:
        assert len(span) <= max_length
        for start, stop in (span.a, span.b):
            assert start < stop
            assert document(corpus, start) == document(corpus, stop - 1)
        same = document(corpus, span.a[0]) == document(corpus, span.b[0])
        assert same == (span.kind != IS_RANDOM)
        if span.kind != IS_RANDOM:
            assert span.a[1] == span.b[0]
        # Else a B that begins in mid-sentence after an A that ends one would give the exchange away.
        assert (span.a[1] in sentences) == (span.b[0] in sentences)
    assert times_read(corpus, spans).max(initial=0) <= 1


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), min_size=2, max_size=12),
    max_length=st.integers(5, 40),
    short_seq_prob=st.sampled_from([0.0, 0.1, 1.0]),
    words=st.integers(0, 3),
    seed=st.integers(0, 5),
)
def test_every_corpus_gives_proper_pairs(
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
    random = sum(span.kind == IS_RANDOM for span in spans)
    assert random % 2 == 0  # two exchange, or none


@pytest.mark.parametrize("max_length", [24, 64, 128])
def test_small_corpus(shards: Shards, max_length: int) -> None:
    for epoch in range(3):
        spans = spans_of(SentencePairs(max_length=max_length).epoch(shards.train, shards.tokenizer, 1, epoch))
        check(shards.train, spans, max_length)
        assert times_read(shards.train, spans).mean() > 0.96


def test_nearly_every_token_of_real_text_is_read(wiki: Shards) -> None:
    spans = spans_of(SentencePairs().epoch(wiki.train, wiki.tokenizer, 0, 0))
    check(wiki.train, spans, 128)
    assert times_read(wiki.train, spans).mean() > 0.99
    kinds = np.array([span.kind for span in spans])
    assert np.mean(kinds == UNLABELLED) < 0.001
    # Couples share their coin, so the error is that of half as many.
    assert np.mean(kinds == IS_RANDOM) == pytest.approx(0.5, abs=3 * 0.5 / np.sqrt(len(kinds) / 2))


def test_labels_are_a_fair_coin(shards: Shards) -> None:
    kinds = [
        span.kind
        for epoch in range(20)
        for span in spans_of(SentencePairs(max_length=32).epoch(shards.train, shards.tokenizer, 0, epoch))
    ]
    labelled = np.array([kind for kind in kinds if kind != UNLABELLED])
    assert len(labelled) > 20_000
    assert labelled.mean() == pytest.approx(0.5, abs=3 * 0.5 / np.sqrt(len(labelled) / 2))


def test_pure_function_of_seed_epoch_and_window(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "WINDOW", 200)
    layout = SentencePairs(max_length=64)

    def windows(seed: int, epoch: int, order: list[int]) -> dict[int, list[PairSpan]]:
        made = layout.epoch(shards.train, shards.tokenizer, seed, epoch)
        assert made.windows > 3
        return {window: made.window(window) for window in order}

    first = windows(0, 0, [0, 1, 2])
    assert first == windows(0, 0, [2, 0, 1])
    for seed, epoch in ((0, 1), (1, 0)):
        other = windows(seed, epoch, [0, 1, 2])
        for window in first:
            assert first[window] != other[window]
    assert {s.a for s in first[0]}.isdisjoint({s.a for s in first[1]})


def test_every_window_draws_from_its_own_stream(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "WINDOW", 200)
    keys: list[tuple[int, ...]] = []
    original = seeding.generator

    def generator(seed: int, *stream: int) -> np.random.Generator:
        keys.append((seed, *stream))
        return original(seed, *stream)

    monkeypatch.setattr(seeding, "generator", generator)
    for seed, number in ((0, 0), (0, 1), (1, 0)):
        epoch = SentencePairs(max_length=64).epoch(shards.train, shards.tokenizer, seed, number)
        for window in range(3):
            epoch.window(window)
    assert len(keys) == len(set(keys)) == 3 * (1 + 3)


def test_lengths_are_upper_bounds_and_nearly_exact(wiki: Shards) -> None:
    epoch = SentencePairs().epoch(wiki.train, wiki.tokenizer, 0, 0)
    before = epoch.lengths(0)
    after = np.array([len(span) for span in epoch.window(0)])
    assert len(before) == len(after)
    assert (after <= before).all()
    assert (before - after).mean() < 1  # B's lose less than a token


def test_what_one_document_has_in_excess_is_unlabelled(small_tokenizer: Tokenizer) -> None:
    # Of 20-token chunks, one document has 30 and the others two.
    corpus = corpus_of([[10] * 60, [10, 10], [10, 10]])
    spans = spans_of(SentencePairs(max_length=23, short_seq_prob=0.0).epoch(corpus, small_tokenizer, 0, 0))
    check(corpus, spans, 23)
    kinds = [span.kind for span in spans]
    assert len(kinds) == 32
    assert kinds.count(UNLABELLED) == 28
    labelled = [span for span in spans if span.kind != UNLABELLED]
    assert {document(corpus, span.a[0]) for span in labelled} == {1, 2, 3}


def test_one_document_is_refused(small_tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="at least two documents"):
        SentencePairs().epoch(corpus_of([[10, 10, 10]]), small_tokenizer, 0, 0)


def test_a_length_that_holds_no_pair_is_refused() -> None:
    assert SentencePairs(max_length=5).max_length == 5
    with pytest.raises(UsageError, match=r"layout\.max_length is 4"):
        SentencePairs(max_length=4)


def test_cuts_are_at_sentences_where_a_chunk_has_some(small_tokenizer: Tokenizer) -> None:
    corpus = corpus_of([[5, 6, 4, 7] * 20, [6, 5, 3, 9] * 20])
    inside = set(corpus.sentence_starts.tolist())
    spans = spans_of(SentencePairs(max_length=43, short_seq_prob=0.0).epoch(corpus, small_tokenizer, 0, 0))
    assert {start for span in spans for start in (span.a[0], span.b[0])} <= inside
    assert {span.a[1] for span in spans} <= inside
    cut_at = {span.a[1] - span.a[0] for span in spans}
    assert len(cut_at) > 5  # any sentence, not always the same


def test_a_long_sentence_is_cut_where_words_begin(small_tokenizer: Tokenizer) -> None:
    starts = np.arange(1200) % 3 == 0  # words of three pieces
    corpus = corpus_of([[600], [600]], starts)
    spans = spans_of(SentencePairs(max_length=36, short_seq_prob=0.0).epoch(corpus, small_tokenizer, 0, 0))
    check(corpus, spans, 36)
    assert all(starts[place] for span in spans for place in (span.a[0], span.b[0]))
    assert times_read(corpus, spans).mean() > 0.9


def test_short_share(shards: Shards) -> None:
    def lengths(share: float) -> np.ndarray:
        return SentencePairs("pairs", 64, share).epoch(shards.train, shards.tokenizer, 0, 0).lengths(0)

    assert lengths(1.0).mean() < 0.75 * lengths(0.0).mean()
    assert lengths(0.0).max() <= 64


def test_sequence(shards: Shards) -> None:
    tokenizer, corpus = shards.tokenizer, shards.train
    epoch = SentencePairs(max_length=64).epoch(corpus, tokenizer, 0, 0)
    for span in epoch.window(0)[:50]:
        sequence = epoch.sequence(span)
        a, b = (corpus.slice(*part)[0].tolist() for part in (span.a, span.b))
        cls, sep = tokenizer.cls_id, tokenizer.sep_id
        assert sequence.input_ids.tolist() == [cls, *a, sep, *b, sep]
        assert sequence.token_type_ids.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert sequence.word_starts.tolist() == tokenizer.word_starts_table[sequence.input_ids].tolist()
        assert sequence.kind == span.kind
        assert len(sequence) == len(span)
        assert {sequence.input_ids.dtype, sequence.token_type_ids.dtype} == {np.dtype(np.int32)}


def lengths_and_places(spans: list[PairSpan]) -> np.ndarray:
    """float [n, 5]: everything that can be seen of a pair without reading it."""
    a = np.array([span.a[1] - span.a[0] for span in spans])
    b = np.array([span.b[1] - span.b[0] for span in spans])
    return np.column_stack([a, b, a + b, a / (a + b), a - b])


def guessed(split: Shards, max_length: int, epochs: int) -> Iterator[tuple[float, int]]:
    """How often two classifiers, trained on half of the epochs, are right on the other half; and of how many pairs."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier

    parts = []
    for number in range(epochs):
        found = spans_of(SentencePairs(max_length=max_length).epoch(split.train, split.tokenizer, 0, number))
        parts.append([span for span in found if span.kind != UNLABELLED])
    halves = [[span for part in some for span in part] for some in (parts[: epochs // 2], parts[epochs // 2 :])]
    seen, unseen = (lengths_and_places(half) for half in halves)
    label, hidden = (np.array([span.kind for span in half]) for half in halves)
    for classifier in (
        HistGradientBoostingClassifier(random_state=0),
        RandomForestClassifier(20, min_samples_leaf=20, random_state=0, n_jobs=1),
    ):
        yield classifier.fit(seen, label).score(unseen, hidden), len(hidden)


@pytest.mark.parametrize("max_length", [128, 512])
def test_lengths_say_nothing_about_the_label_on_real_text(wiki: Shards, max_length: int) -> None:
    for accuracy, pairs in guessed(wiki, max_length, 4 if max_length == 128 else 12):
        assert pairs > 20_000  # an error of 0.5 %: couples share their coin
        assert accuracy < 0.52


def test_lengths_say_nothing_about_the_label_on_made_up_text(shards: Shards) -> None:
    for accuracy, pairs in guessed(shards, 32, 40):
        assert pairs > 20_000
        assert accuracy < 0.52


def test_the_honesty_test_can_fail(wiki: Shards) -> None:
    """With BERT's own rule, random B's filled up to the limit, the same classifiers see the label in the lengths."""
    rng = np.random.default_rng(0)
    spans = [
        span for span in spans_of(SentencePairs().epoch(wiki.train, wiki.tokenizer, 0, 0)) if span.kind != UNLABELLED
    ]
    filled = []
    for span in spans:
        random = rng.random() < 0.5
        room = 125 - (span.a[1] - span.a[0])
        b = (span.b[0], span.b[0] + room) if random else span.b
        filled.append(replace(span, b=b, kind=IS_RANDOM if random else IS_NEXT))
    from sklearn.ensemble import HistGradientBoostingClassifier

    features, label = lengths_and_places(filled), np.array([span.kind for span in filled])
    half = len(label) // 2
    found = HistGradientBoostingClassifier(random_state=0).fit(features[:half], label[:half])
    assert found.score(features[half:], label[half:]) > 0.75
