"""Vocabulary training: characters are joined to pieces of words, the best pair first, until the vocabulary is full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bertie import console
from bertie.errors import UsageError, UserError
from bertie.text.merges import CRITERIA, PAIR, Criterion, Words
from bertie.text.tokenizer import CONTINUATION, SPECIAL_TOKENS


def train(
    counts: Mapping[str, int],
    *,
    vocab_size: int,
    criterion: Criterion = "frequency",
    alphabet_limit: int = 1000,
    min_frequency: int = 2,
    reserved: Sequence[str] = (),
    exact: bool = True,
) -> list[str]:
    """The word list in id order: special tokens, `reserved`, alphabet, its "##" forms, merges. Same counts, same list.

    counts: word → how often it occurs (`words.count`). alphabet_limit: keep this many characters, the most frequent;
    words with others, which the tokenizer makes [UNK], are left out. min_frequency: pieces seen less often together are
    not joined. exact: a text that cannot fill vocab_size is an error.
    Errors: UsageError where vocab_size cannot hold the alphabet, UserError where the text is empty or cannot fill it.
    """
    flags = {"--vocab-size": vocab_size, "--alphabet-limit": alphabet_limit, "--min-frequency": min_frequency}
    for flag, value in flags.items():
        if not 1 <= value < PAIR:
            raise UsageError(f"{flag} {value}: give a number from 1 to {PAIR - 1:,}")
    alphabet = _alphabet(counts, alphabet_limit)
    if not alphabet:
        raise UserError("the text is empty: a vocabulary needs some")
    fixed = [*SPECIAL_TOKENS, *reserved]
    pieces = [*fixed, *alphabet, *(CONTINUATION + character for character in alphabet)]
    if vocab_size < len(pieces):
        raise UsageError(
            f"--vocab-size {vocab_size} is too small: the {len(alphabet)} characters of this text, their ## forms "
            f"and {len(fixed)} special tokens take {len(pieces)}: give at least that, or lower --alphabet-limit"
        )
    _merge(pieces, _words(counts, alphabet, len(fixed), vocab_size), vocab_size, criterion, min_frequency)
    if exact and len(pieces) < vocab_size:
        lower = f", or lower --min-frequency (now {min_frequency})" if min_frequency > 1 else ""
        raise UserError(
            f"the text fills a vocabulary of only {len(pieces)} entries: "
            f"ask for --vocab-size {len(pieces)} or give more text{lower}"
        )
    return pieces


def _alphabet(counts: Mapping[str, int], limit: int) -> list[str]:
    """The most frequent characters, sorted; of equally frequent ones, those of lower code points."""
    words, times, lengths = _listed(counts)
    weights = np.repeat(times, lengths).astype(np.float64)
    frequency = np.bincount(_codes(words), weights=weights)
    ranked = np.lexsort((np.arange(len(frequency)), -frequency))[: int((frequency > 0).sum())]
    return [chr(code) for code in np.sort(ranked[:limit])]


def _words(counts: Mapping[str, int], alphabet: list[str], first: int, vocab_size: int) -> Words:
    """The words that the alphabet can spell, as single characters; the first character's piece is number `first`."""
    known = set(alphabet)
    counts = {word: count for word, count in counts.items() if known.issuperset(word)}
    words, times, lengths = _listed(counts)
    number = np.zeros(0x110000, np.int32)
    number[[ord(character) for character in alphabet]] = np.arange(first, first + len(alphabet))
    piece = number[_codes(words)]
    begins = np.cumsum(lengths) - lengths
    continuing = np.ones(len(piece), bool)
    continuing[begins] = False
    piece[continuing] += len(alphabet)
    return Words(piece, lengths, times, vocab_size)


def _listed(counts: Mapping[str, int]) -> tuple[Iterable[str], np.ndarray, np.ndarray]:
    """Words, how often each occurs, how many characters each has; int64 [words]."""
    times = np.fromiter(counts.values(), np.int64, len(counts))
    return counts, times, np.fromiter(map(len, counts), np.int64, len(counts))


def _codes(words: Iterable[str]) -> np.ndarray:
    """Code points of all characters, uint32."""
    return np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)


def _merge(pieces: list[str], words: Words, vocab_size: int, criterion: Criterion, min_frequency: int) -> None:
    """Add merges to the pieces until there are vocab_size, or no pair is left."""
    number = {piece: index for index, piece in enumerate(pieces)}
    queue = CRITERIA[criterion](words, min_frequency)
    with console.progress("join pieces", vocab_size, "entries", done=len(pieces)) as bar:
        while len(pieces) < vocab_size and (pair := queue.pop()) is not None:
            joined = pieces[pair // PAIR] + pieces[pair % PAIR].removeprefix(CONTINUATION)
            if joined not in number:  # it may have been made of other parts before
                number[joined] = len(pieces)
                pieces.append(joined)
                bar.advance()
            queue.update(words.merge(pair, number[joined]), pair)
