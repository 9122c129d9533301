"""Attention between words: that between their pieces, merged (Clark et al. 2019, section 4.1).

S  sequences of a group    L  tokens of the longest one    W  words of the longest one    N  heads
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bertie.base.contracts import Sequence
from bertie.inspect.attention import Group
from bertie.tasks.word_alignment import tokenize_words
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class EncodedWords:
    """Texts of words as sequences of tokens."""

    sequences: list[Sequence]
    """[CLS] text [SEP] of every text that fits. `example` is the number of the text; row i of `offsets` is the number of the
    word of token i and the number of the token in it. Special tokens have (-1, -1)."""
    too_long: int
    """Number of texts left out, because they have more tokens than the model reads."""
    without_tokens: int
    """Number of words that have no token, because the tokenizer drops punctuation."""


def encode_words(tokenizer: Tokenizer, texts: Many[Many[str]], max_length: int) -> EncodedWords:
    """Encode texts that are split into words. A text with more than `max_length` tokens is left out and counted."""
    sequences: list[Sequence] = []
    without_tokens = 0
    for number, (words, pieces) in enumerate(zip(texts, tokenize_words(tokenizer, texts), strict=True)):
        sequence = truncation.add_special_tokens(tokenizer, [pieces])
        if len(sequence) > max_length:
            continue
        assert pieces.offsets is not None
        offsets = np.pad(pieces.offsets, (tokenizer.templates.lengths_around, (0, 0)), constant_values=-1)
        sequences.append(replace(sequence, example=number, offsets=offsets))
        without_tokens += len(words) - len(np.unique(pieces.offsets[:, 0]))
    return EncodedWords(sequences, len(texts) - len(sequences), without_tokens)


def words_of(sequence: Sequence) -> np.ndarray:
    """Return the word of each token, int [n], from the offsets that `encode_words` sets; -1 for special tokens."""
    assert sequence.offsets is not None
    return sequence.offsets[:, 0]


@dataclass(frozen=True, eq=False)
class WordGrid:
    """Which tokens of a group belong to which words. Merges attention between tokens to attention between words."""

    belongs: Float[Tensor, "S W L"]
    """1 where a token belongs to a word."""
    mean: Float[Tensor, "S W L"]
    """The same, divided by the number of tokens of the word."""

    @classmethod
    def of(cls, group: Group, words: int = 0) -> WordGrid:
        """Build the grid of a group from the offsets that `encode_words` sets. `words`: W; 0: those that have a token."""
        words = words or 1 + max(int(words_of(sequence).max()) for sequence in group.sequences)
        word_SL = torch.full(group.valid.shape, -1)
        for s, sequence in enumerate(group.sequences):
            word_SL[s, : len(sequence)] = torch.as_tensor(words_of(sequence).astype(np.int64))
        belongs = (word_SL[:, None, :] == torch.arange(words)[:, None]).float().to(group.valid.device)
        return cls(belongs, belongs / belongs.sum(-1, keepdim=True).clamp(min=1))

    @property
    def valid(self) -> Bool[Tensor, "S W"]:
        """False for words without a token and past the end of a text."""
        return self.belongs.any(-1)

    def merge(self, probabilities: Float[Tensor, "S N L L"]) -> Float[Tensor, "S N W W"]:
        """Return the attention between words: to a word the sum over its pieces, from a word the mean over its pieces."""
        return self.mean[:, None] @ probabilities @ self.belongs.transpose(1, 2)[:, None]
