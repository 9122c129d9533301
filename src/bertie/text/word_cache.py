"""Tokenizing by remembering words: running text repeats them, and BERT's rules never look beyond a blank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from bertie.errors import UserError
from bertie.text.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 20  # tokenized at a time
BATCH_TEXTS = 1000  # new words tokenized as one text: each text costs some 10 microseconds
MAX_CACHED_WORDS = 500_000  # some 80 MB


@dataclass
class WordCache:
    """Gives what the tokenizer gives, in less than half its time where texts have words in common."""

    tokenizer: Tokenizer
    beyond_blanks: bool = field(init=False)  # entries of others' vocabularies that are found across words
    number: dict[str, int] = field(default_factory=dict)
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))  # of all known words, end to end
    offsets: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int32))  # of them, characters of their word
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))  # [words + 1]

    def __post_init__(self) -> None:
        self.beyond_blanks = any(
            token.lstrip or token.rstrip or len(token.content.split()) > 1 for token in self.tokenizer.added
        )

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """What `tokenizer.encode` gives, end to end: ids int32 [n], and how many each text has, int64 [texts]."""
        if self.beyond_blanks:
            encoded = self.tokenizer.encode(texts)
            return np.concatenate([self.ids[:0], *encoded]), np.array([len(ids) for ids in encoded], np.int64)
        split, _, lengths, tokens = self._find(texts)
        return self.ids[tokens], _of_texts(split, lengths)

    def encode_offsets(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same with where in its text each token lies, int32 [n, 2], between them. Errors: UserError for what is no text."""
        if self.beyond_blanks or not all(isinstance(text, str) for text in texts):
            found = self.tokenizer.encodings(texts)
            ids = np.array([i for encoding in found for i in encoding.ids], np.int32)
            offsets = np.array([pair for encoding in found for pair in encoding.offsets], np.int32).reshape(-1, 2)
            return ids, offsets, np.array([len(encoding) for encoding in found], np.int64)
        split, words, lengths, tokens = self._find(texts)
        sizes = np.fromiter(map(len, words), np.int64, len(words)) + 1  # with the blank behind it
        begins = np.cumsum(sizes) - sizes
        counts = np.fromiter(map(len, split), np.int64, len(split))
        begins -= np.repeat(begins[np.cumsum(counts) - counts], counts)
        offsets = self.offsets[tokens] + np.repeat(begins, lengths).astype(np.int32)[:, None]
        return self.ids[tokens], offsets, _of_texts(split, lengths)

    def _find(self, texts: list[str]) -> tuple[list[list[str]], list[str], np.ndarray, np.ndarray]:
        """Words of each text, and of all; of each word its tokens, int64 [words]; where all these lie in memory, int64 [n]."""
        if len(self.number) > MAX_CACHED_WORDS:
            self.number, self.ids, self.offsets, self.starts = {}, self.ids[:0], self.offsets[:0], self.starts[:1]
        split = [text.split(" ") for text in texts]
        words = list(chain.from_iterable(split))
        try:
            self._learn(list(set(words).difference(self.number)))
        except UserError:
            self.tokenizer.encode(texts)  # which names the text, not the word
            raise
        known = np.fromiter(map(self.number.__getitem__, words), np.int64, len(words))
        starts = self.starts[known]
        lengths = self.starts[known + 1] - starts
        ends = np.cumsum(lengths)
        # Token t of the text is the one after token t - 1, but where a word begins.
        steps = np.ones(int(ends[-1]) if len(ends) else 0, np.int64)
        held = np.flatnonzero(lengths)
        begins = (ends - lengths)[held]
        steps[begins] = starts[held] - np.concatenate([[0], (starts + lengths - 1)[held[:-1]]])
        return split, words, lengths, np.cumsum(steps)

    def _learn(self, new: list[str]) -> None:
        """Which word a token is of, its offset says."""
        parts = [new[start : start + BATCH_TEXTS] for start in range(0, len(new), BATCH_TEXTS)]
        ids, offsets, counts = [self.ids], [self.offsets], [np.zeros(0, np.int64)]
        for part, found in zip(parts, self.tokenizer.encodings([" ".join(part) for part in parts]), strict=True):
            places = np.array(found.offsets, np.int32).reshape(-1, 2)
            begins = np.cumsum([0, *(len(word) + 1 for word in part)], dtype=np.int32)
            word = np.searchsorted(begins, places[:, 0], side="right") - 1
            ids.append(np.array(found.ids, np.int32))
            offsets.append(places - begins[word, None])
            counts.append(np.bincount(word, minlength=len(part)))
        self.number.update(zip(new, range(len(self.number), len(self.number) + len(new)), strict=True))
        self.ids, self.offsets = np.concatenate(ids), np.concatenate(offsets)
        self.starts = np.concatenate([self.starts, self.starts[-1] + np.cumsum(np.concatenate(counts))])


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Some BATCH_CHARACTERS at a time."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _of_texts(split: list[list[str]], lengths: np.ndarray) -> np.ndarray:
    """Tokens of each text, int64 [texts], from those of its words."""
    ends = np.cumsum(np.fromiter(map(len, split), np.int64, len(split)))
    return np.diff(np.concatenate([[0], np.cumsum(lengths)])[np.concatenate([[0], ends])])
