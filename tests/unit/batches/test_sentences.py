from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.batches.test_contiguous import corpus_of

from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.batches.sentences import Sentences
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import Tokenizer


def sequences_of(layout: Sentences, corpus: Corpus, tokenizer: Tokenizer, seed: int = 0) -> list[Sequence]:
    epoch = layout.epoch(corpus, tokenizer, seed, 0)
    spans = [span for window in range(epoch.windows) for span in epoch.window(window)]
    made = [epoch.sequence(span) for span in spans]
    bounds = [int(bound) for window in range(epoch.windows) for bound in epoch.lengths(window)]
    assert all(len(sequence) <= bound for sequence, bound in zip(made, bounds, strict=True))
    return made


def texts_of(sequence: Sequence, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the tokens of each sentence of a run, and check its special tokens."""
    texts: list[list[int]] = []
    for token in sequence.input_ids.tolist():
        if token == tokenizer.cls_id:
            texts.append([])
        texts[-1].append(token)
    assert all(text[-1] == tokenizer.sep_id and tokenizer.sep_id not in text[:-1] for text in texts)
    return [text[1:-1] for text in texts]


def test_runs_share_their_edges(small_tokenizer: Tokenizer) -> None:
    """Of sentences of 2 tokens, 4 with special tokens, three fit into 12 tokens."""
    found = sequences_of(Sentences(max_length=12), corpus_of([[2] * 5, [2], [2, 2]]), small_tokenizer)
    runs = sorted(texts_of(sequence, small_tokenizer) for sequence in found)
    assert runs == [[[5, 6], [7, 8], [9, 10]], [[9, 10], [11, 12], [13, 14]], [[17, 18], [19, 20]]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=8), min_size=1, max_size=6), st.integers(6, 24))
def test_every_two_neighbors_are_in_one_run_once(
    small_tokenizer: Tokenizer, documents: list[list[int]], max_length: int
) -> None:
    corpus = corpus_of(documents)
    if max(map(len, documents)) < 2:
        documents, corpus = [*documents, [1, 1]], corpus_of([*documents, [1, 1]])
    most, wanted, at = max_length // 2 - 2, [], 5
    for document in documents:
        sentences = []
        for size in document:
            sentences.append(list(range(at, at + min(size, most))))
            at += size
        wanted += list(itertools.pairwise(sentences))
    pairs = []
    for sequence in sequences_of(Sentences(max_length=max_length), corpus, small_tokenizer):
        assert len(sequence) <= max_length
        assert not sequence.token_type_ids.any()
        texts = texts_of(sequence, small_tokenizer)
        assert len(texts) >= 2
        pairs += list(itertools.pairwise(texts))
    assert sorted(pairs) == sorted(wanted)


def test_a_long_sentence_ends_at_a_word(small_tokenizer: Tokenizer) -> None:
    """Of 7 tokens in words of 3, 3 and 1, four would fit into half of 12, so one word remains."""
    starts = np.array([True, False, False, True, False, False, True, True])
    [sequence] = sequences_of(Sentences(max_length=12), corpus_of([[7, 1]], starts), small_tokenizer)
    assert texts_of(sequence, small_tokenizer) == [[5, 6, 7], [12]]
    assert sequence.word_starts.tolist() == [True, True, False, False, True, True, True, True]


def test_single_sentences_are_refused(small_tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r'layout\.kind "sentences" .*--eval-share'):
        Sentences().epoch(corpus_of([[3], [4], [5]]), small_tokenizer, 0, 0)
