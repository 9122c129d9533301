"""Words and their pieces: which token is of which word, and in which window of a long text a word is read.

Here the `offsets` of pieces and sequences are not characters: they are of each token its word, and which piece of that it is.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence as Many

import numpy as np

from bertie.contracts import Sequence
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import TokenizedText


def tokenize_words(tokenizer: Tokenizer, texts: Many[Many[str]]) -> list[TokenizedText]:
    """Of texts that are cut into words already; a word that is nothing to the tokenizer (a control character) is [UNK]."""
    found = []
    for given, encoding in zip(texts, tokenizer.encode_words(texts), strict=True):
        words = np.array(encoding.word_ids, np.int32)
        ids = np.array(encoding.ids, np.int32)
        if missing := sorted(set(range(len(given))) - set(words.tolist())):
            at = np.searchsorted(words, missing)
            words = np.insert(words, at, missing)
            ids = np.insert(ids, at, tokenizer.unk_id)
        found.append(_numbered(ids, words))
    return found


def split_and_tokenize(tokenizer: Tokenizer, texts: list[str]) -> list[tuple[TokenizedText, np.ndarray]]:
    """Of texts as they are: their words are those that BERT's rules see between blanks and punctuation.

    With each text's pieces where its words lie: int32 [words, 2], characters. Errors: UserError for what is no text.
    """
    found = []
    for text, encoding in zip(texts, tokenizer.encodings(texts), strict=True):
        ids, offsets = np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2)
        _, starts, words = np.unique(np.array(encoding.word_ids, np.int32), return_index=True, return_inverse=True)
        lasts = np.append(starts[1:], len(ids))[: len(starts)] - 1
        ends = [_with_marks(text, end) for end in offsets[lasts, 1].tolist()]
        places = np.stack([offsets[starts, 0], np.array(ends, np.int32)], 1)
        found.append((_numbered(ids, words), places))
    return found


def _with_marks(text: str, end: int) -> int:
    """Where a word ends with the accents that follow its last letter as characters of their own: BERT may drop those."""
    while end < len(text) and unicodedata.combining(text[end]):
        end += 1
    return end


def _numbered(ids: np.ndarray, words: np.ndarray) -> TokenizedText:
    starts = np.searchsorted(words, words)
    return TokenizedText(ids, np.stack([words, np.arange(len(words)) - starts], 1).astype(np.int32))


def first_pieces(window: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the first pieces of words, and which words those are."""
    assert window.offsets is not None
    inside = window.offsets[1:-1]  # between [CLS] and [SEP]
    positions = np.flatnonzero(inside[:, 1] == 0)
    return positions + 1, inside[positions, 0]


def best_windows(windows: list[Sequence], words: int) -> np.ndarray:
    """For each word the window in which its first piece is farthest from both ends; the first one of equals. -1: in none."""
    best, farthest = np.full(words, -1), np.full(words, -1)
    for part, window in enumerate(windows):
        positions, numbers = first_pieces(window)
        away = np.minimum(positions, len(window) - 1 - positions)
        better = away > farthest[numbers]
        best[numbers[better]], farthest[numbers[better]] = part, away[better]
    return best
