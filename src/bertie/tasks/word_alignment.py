"""Align words with subwords, and assign each word of a long text to one window.

In this file, `offsets` of tokenized texts and sequences are not characters. They are int32 [n, 2]: the index of the
word that a token belongs to, and the number of the token within that word, from 1. Special tokens have (0, 0), wherever
the tokenizer puts them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence as Many

import numpy as np
from tokenizers import Encoding

from bertie.base.contracts import Sequence
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import TokenizedText


def tokenize_words(tokenizer: Tokenizer, texts: Many[Many[str]]) -> list[TokenizedText]:
    """Tokenize texts that are split into words already.

    A word that the tokenizer removes entirely, such as a control character, becomes [UNK], so that every word has a
    token. With a tokenizer that drops punctuation, such a word has no token: the model must not see where it was.

    Raises:
        UserError: The tokenizer has no words, or a word is not a text.
    """
    tokenizer.require_words("a vector or a tag of a word")
    dropped = tokenizer.normalization.drop_punctuation
    tokenized = []
    for text, encoding in zip(texts, tokenizer.encode_words(texts), strict=True):
        words = np.array(encoding.word_ids, np.int32)
        ids = np.array(encoding.ids, np.int32)
        missing = sorted(set(range(len(text))) - set(words.tolist()))
        if missing and not dropped:
            at = np.searchsorted(words, missing)
            words = np.insert(words, at, missing)
            ids = np.insert(ids, at, tokenizer.unk_id)
        tokenized.append(_with_word_offsets(ids, words))
    return tokenized


def piece_places(tokenizer: Tokenizer, texts: Many[Many[str]]) -> list[list[list[tuple[int, int]]]]:
    """Return the characters of each token of `tokenize_words` within its word, by text, word and token."""
    result = []
    for text, encoding in zip(texts, tokenizer.encode_words(texts), strict=True):
        places: list[list[tuple[int, int]]] = [[] for _ in text]
        for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
            assert word is not None
            # Where a word follows a space, that is a character of it.
            shift = int(tokenizer.backend.word_mark == "Ġ" and not text[word].startswith(" "))
            places[word].append((max(start - shift, 0), max(end - shift, 0)))
        for word, pieces in zip(text, places, strict=True):  # together they are the word, with what has no token
            pieces[-1:] = [(pieces[-1][0] if len(pieces) > 1 else 0, len(word))]
        result.append(places)
    return result


def split_and_tokenize(tokenizer: Tokenizer, texts: list[str]) -> list[tuple[TokenizedText, np.ndarray]]:
    """Tokenize raw texts. Their words follow BERT's pre-tokenization: split at whitespace and punctuation.

    With byte-level BPE they follow GPT-2's pattern, with others `word_numbers`. Tokens of white space alone,
    such as the line break, are left out.

    Returns:
        For each text its tokens, and int32 [words, 2], the characters where each word starts and ends.

    Raises:
        UserError: The tokenizer has no words, or a value is not a text.
    """
    tokenizer.require_words("a vector or a tag of a word")
    tokenized = []
    for text, encoding in zip(texts, tokenizer.encode_with_offsets(texts), strict=True):
        ids, offsets = np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2)
        word_ids = word_numbers(tokenizer, encoding)
        if tokenizer.algorithm != "wordpiece" or tokenizer.line_break_id is not None:
            text_of_word = dict.fromkeys(word_ids.tolist(), "")
            for word, (start, end) in zip(word_ids.tolist(), encoding.offsets, strict=True):
                text_of_word[word] += text[start:end]
            kept = np.array([bool(text_of_word[word].strip()) for word in word_ids.tolist()], bool)
            ids, offsets, word_ids = ids[kept], offsets[kept], word_ids[kept]
        _, starts, words = np.unique(word_ids, return_index=True, return_inverse=True)
        lasts = np.append(starts[1:], len(ids))[: len(starts)] - 1
        ends = [with_combining_marks(text, end) for end in offsets[lasts, 1].tolist()]
        firsts = [
            end - len(text[first:end].lstrip()) for first, end in zip(offsets[starts, 0].tolist(), ends, strict=True)
        ]
        places = np.stack([np.array(firsts, np.int32), np.array(ends, np.int32)], 1)
        tokenized.append((_with_word_offsets(ids, words), places))
    return tokenized


def word_numbers(tokenizer: Tokenizer, encoding: Encoding) -> np.ndarray:
    """Return the word of each token, int32 [n], ascending.

    A word begins where the tokenizer splits the text. Some tokenizers of the library split little or nothing: there, it also
    begins at an entry that starts one (`Tokenizer.word_starts_table`).

    Raises:
        UserError: The tokenizer has no words.
    """
    tokenizer.require_words("a vector, a tag or a likelihood of a word")
    words, ids = np.array(encoding.word_ids, np.int32), np.array(encoding.ids, np.int64)
    if tokenizer.backend.splits_words:
        return words
    begins = tokenizer.word_starts_table[ids] & ~np.isin(ids, tokenizer.special_ids)
    return np.cumsum(begins | (np.diff(words, prepend=-1) != 0), dtype=np.int32) - 1


def with_combining_marks(text: str, end: int) -> int:
    """Return the end of a word or answer with the combining accents after its last letter, which no token may cover."""
    while end < len(text) and unicodedata.combining(text[end]):
        end += 1
    return end


def _with_word_offsets(ids: np.ndarray, words: np.ndarray) -> TokenizedText:
    starts = np.searchsorted(words, words)
    return TokenizedText(ids, np.stack([words, np.arange(1, len(words) + 1) - starts], 1).astype(np.int32))


def first_pieces(window: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the first subword of each word in the window, and the indices of these words."""
    assert window.offsets is not None
    positions = np.flatnonzero(window.offsets[:, 1] == 1)
    return positions, window.offsets[positions, 0]


def best_windows(windows: list[Sequence], words: int) -> np.ndarray:
    """Return the best window for each word, int [words]: where its first subword is farthest from the nearer end.

    In a tie the first window counts. −1 marks a word that is in no window.
    """
    return most_context(windows, [first_pieces(window) for window in windows], words)


def most_context(windows: list[Sequence], items: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """Return the window where each of `count` items is farthest from the nearer end: int [count], −1 for none.

    Args:
        windows: The windows.
        items: For each window the positions of its items, and their numbers.
        count: How many items there are.
    """
    best, farthest = np.full(count, -1), np.full(count, -1)
    for part, (window, (positions, numbers)) in enumerate(zip(windows, items, strict=True)):
        distance = np.minimum(positions, len(window) - 1 - positions)
        better = distance > farthest[numbers]
        best[numbers[better]], farthest[numbers[better]] = part, distance[better]
    return best
