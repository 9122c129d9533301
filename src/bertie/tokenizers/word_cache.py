"""Faster tokenization of running text: cache the tokens of each distinct word.

Text repeats its words, and the rules of tokenizers never look across a space between words. In this file, a word is the
text between two spaces; for byte-level BPE, it includes the space before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from bertie.base.errors import UserError
from bertie.tokenizers.bpe_backend import split_at_spaces
from bertie.tokenizers.tokenizer import Tokenizer

BATCH_TEXTS = 1000  # new words to tokenize as one text: every text costs about 10 microseconds
MAX_CACHED_WORDS = 500_000  # about 80 MB


@dataclass
class WordCache:
    """A tokenizer with a cache. Gives the same results in less than half the time on texts that share words.

    Attributes:
        tokenizer: The tokenizer.
        matches_across_spaces: Whether the tokenizer has added tokens that match across spaces, puts a space before texts,
            or is neither WordPiece nor byte-level BPE. Then the cache is not used.
        gap: Characters between two words of a text: 1, or 0 if words include the space.
        rows: cached word -> its number.
        ids: int32 [n], token ids of all cached words, end to end.
        offsets: int32 [n, 2], start and end of these tokens in characters of their word.
        starts: int64 [words + 1], first token of each cached word, and n.
    """

    tokenizer: Tokenizer
    matches_across_spaces: bool = field(init=False)
    gap: int = field(init=False)
    rows: dict[str, int] = field(default_factory=dict)
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    offsets: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int32))
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))

    def __post_init__(self) -> None:
        self.matches_across_spaces = not self.tokenizer.normalization.splits_at_spaces or any(
            token.lstrip or token.rstrip or len(token.content.split()) > 1 for token in self.tokenizer.added_tokens
        )
        self.gap = 1 if self.tokenizer.algorithm == "wordpiece" else 0

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize texts.

        Returns:
            The ids of all texts, end to end, int32 [n], and the number of tokens of each text, int64 [texts].
        """
        if self.matches_across_spaces:
            encoded = self.tokenizer.encode(texts)
            return np.concatenate([self.ids[:0], *encoded]), np.array([len(ids) for ids in encoded], np.int64)
        split, _, lengths, tokens = self._look_up(texts)
        return self.ids[tokens], _tokens_per_text(split, lengths)

    def encode_offsets(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokenize texts, with offsets.

        Returns:
            The ids of all texts, end to end, int32 [n]; the start and end of each token in characters of its text,
            int32 [n, 2]; the number of tokens of each text, int64 [texts].

        Raises:
            UserError: A text is not a valid string.
        """
        if self.matches_across_spaces or not all(isinstance(text, str) for text in texts):
            encodings = self.tokenizer.encode_with_offsets(texts)
            ids = np.array([i for encoding in encodings for i in encoding.ids], np.int32)
            offsets = np.array([pair for encoding in encodings for pair in encoding.offsets], np.int32).reshape(-1, 2)
            return ids, offsets, np.array([len(encoding) for encoding in encodings], np.int64)
        split, words, lengths, tokens = self._look_up(texts)
        sizes = np.fromiter(map(len, words), np.int64, len(words)) + self.gap
        begins = np.cumsum(sizes) - sizes
        word_counts = np.fromiter(map(len, split), np.int64, len(split))
        begins -= np.repeat(begins[np.cumsum(word_counts) - word_counts], word_counts)  # relative to the text
        offsets = self.offsets[tokens] + np.repeat(begins, lengths).astype(np.int32)[:, None]
        return self.ids[tokens], offsets, _tokens_per_text(split, lengths)

    def _look_up(self, texts: list[str]) -> tuple[list[list[str]], list[str], np.ndarray, np.ndarray]:
        """Find the tokens of all words in the cache, after adding the words that it lacks.

        Returns:
            The words of each text; the words of all texts; the tokens of each word, int64 [words]; the index in `ids`
            of every token of the texts, int64 [n].
        """
        if len(self.rows) > MAX_CACHED_WORDS:
            self.rows, self.ids, self.offsets, self.starts = {}, self.ids[:0], self.offsets[:0], self.starts[:1]
        try:
            split = [text.split(" ") if self.gap else split_at_spaces(text) for text in texts]
        except TypeError:  # not a text
            self.tokenizer.encode(texts)
            raise
        words = list(chain.from_iterable(split))
        try:
            self._add(list(set(words).difference(self.rows)))
        except UserError:
            self.tokenizer.encode(texts)  # raises the error that names the text instead of the word
            raise
        rows = np.fromiter(map(self.rows.__getitem__, words), np.int64, len(words))
        starts = self.starts[rows]
        lengths = self.starts[rows + 1] - starts
        ends = np.cumsum(lengths)
        # The index of a token is that of the token before, plus 1, except at the start of a word.
        steps = np.ones(int(ends[-1]) if len(ends) else 0, np.int64)
        nonempty = np.flatnonzero(lengths)
        begins = (ends - lengths)[nonempty]
        steps[begins] = starts[nonempty] - np.concatenate([[0], (starts + lengths - 1)[nonempty[:-1]]])
        return split, words, lengths, np.cumsum(steps)

    def _add(self, words: list[str]) -> None:
        """Tokenize new words, many joined to one text, and add them to the cache. Offsets tell the words apart."""
        if not self.gap:
            self._add_with_spaces(words)
            return
        batched = [words[start : start + BATCH_TEXTS] for start in range(0, len(words), BATCH_TEXTS)]
        ids, offsets, counts = [], [], []
        encodings = self.tokenizer.encode_with_offsets([" ".join(batch) for batch in batched])
        for batch, encoding in zip(batched, encodings, strict=True):
            spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            begins = np.cumsum([0, *(len(word) + 1 for word in batch)], dtype=np.int32)
            word = np.searchsorted(begins, spans[:, 0], side="right") - 1
            ids.append(np.array(encoding.ids, np.int32))
            offsets.append(spans - begins[word, None])
            counts.append(np.bincount(word, minlength=len(batch)))
        self._append(words, ids, offsets, counts)

    def _add_with_spaces(self, words: list[str]) -> None:
        """Tokenize new words one by one: byte-level BPE would join them differently in a text."""
        encodings = self.tokenizer.encode_with_offsets(words)
        ids = [np.array(encoding.ids, np.int32) for encoding in encodings]
        offsets = [np.array(encoding.offsets, np.int32).reshape(-1, 2) for encoding in encodings]
        self._append(words, ids, offsets, [np.array(list(map(len, ids)), np.int64)])

    def _append(
        self, words: list[str], ids: list[np.ndarray], offsets: list[np.ndarray], counts: list[np.ndarray]
    ) -> None:
        self.rows.update(zip(words, range(len(self.rows), len(self.rows) + len(words)), strict=True))
        self.ids, self.offsets = np.concatenate([self.ids, *ids]), np.concatenate([self.offsets, *offsets])
        counts = [np.zeros(0, np.int64), *counts]
        self.starts = np.concatenate([self.starts, self.starts[-1] + np.cumsum(np.concatenate(counts))])


def _tokens_per_text(split: list[list[str]], lengths: np.ndarray) -> np.ndarray:
    """Sum the tokens of each word, int64 [words], over the words of each text: int64 [texts]."""
    ends = np.cumsum(np.fromiter(map(len, split), np.int64, len(split)))
    return np.diff(np.concatenate([[0], np.cumsum(lengths)])[np.concatenate([[0], ends])])
