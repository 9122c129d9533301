"""Attention between words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bertie.corpus import word_counts, wordpiece
from bertie.inspect.attention import Group, read_attention
from bertie.inspect.words import WordGrid, encode_words
from bertie.predict.load import load
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer


def test_attention_between_words_is_the_sum_to_and_the_mean_from_their_pieces(pretrained: Path) -> None:
    predictor = load(pretrained)
    texts = [["The", "fatun", "gat", "bobingat", "."], ["go"], ["xyzzyqqq", "go"] * 20]
    encoded = encode_words(predictor.tokenizer, texts, max_length=40)
    assert encoded.too_long == 1
    assert encoded.without_tokens == 0
    assert [sequence.example for sequence in encoded.sequences] == [0, 1]
    checked: list[int] = []

    def see(group: Group, layer: int, probabilities: torch.Tensor) -> None:
        grid = WordGrid.of(group, 5)
        merged = grid.merge(probabilities)
        for s, sequence in enumerate(group.sequences):
            words = len(texts[sequence.example])
            assert grid.valid[s].tolist() == [True] * words + [False] * (5 - words)
            assert sequence.offsets is not None
            of = sequence.offsets[:, 0]
            assert of[0] == of[-1] == -1
            for source in range(words):
                for target in range(words):
                    part = probabilities[s][:, of_word(of, source)][:, :, of_word(of, target)]
                    torch.testing.assert_close(merged[s, :, source, target], part.sum(2).mean(1))
            checked.append(layer)

    read_attention(predictor.model, encoded.sequences, see)
    assert sorted(checked) == [0, 0, 1, 1]
    assert len(encoded.sequences[0]) > 7, "the test needs a word of several pieces"


def of_word(of: np.ndarray, word: int) -> np.ndarray:
    return np.flatnonzero(of == word)


def test_dropped_words_are_counted() -> None:
    words = wordpiece.train(word_counts.count_words(["go there now and then"] * 9).counts, vocab_size=35)
    tokenizer = Tokenizer.build(words, NormalizerOptions(drop_punctuation=True))
    encoded = encode_words(tokenizer, [["go", ",", "now", "!"]], max_length=10)
    assert encoded.without_tokens == 2
    offsets = encoded.sequences[0].offsets
    assert offsets is not None
    assert set(offsets[:, 0]) == {-1, 0, 2}
