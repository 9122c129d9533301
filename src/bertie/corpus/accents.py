"""Whether a vocabulary keeps accents: measured on the words of its text."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bertie.base import console
from bertie.base.console import percent
from bertie.corpus.word_counts import WordCounts, normalize_words
from bertie.tokenizers.tokenizer import NormalizerOptions

KEEP_FROM = 0.01  # English has up to 0.3 %, languages that are written with accents 1.4 % or more (dev/decisions/003)


@dataclass(frozen=True)
class Accents:
    """Accents in a text: what BERT's uncased normalization strips, the nonspacing marks of Unicode.

    They include the marks of other scripts, such as the vowel signs of Hindi. A word counts as often as it occurs.
    """

    share: float  # share of words that have an accent
    merged: float  # share of words that would become equal to a more frequent word without accents


def measure_accents(counts: Mapping[str, int]) -> Accents:
    """Measure the accents of words.

    Args:
        counts: word -> occurrences, counted with the accents.
    """
    accented, spellings = 0, dict[str, list[int]]()
    for word, count in counts.items():
        if word.isascii():
            continue
        decomposed = unicodedata.normalize("NFD", word)
        plain = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
        if plain != decomposed:
            accented += count
            spellings.setdefault(plain, [counts.get(plain, 0)]).append(count)
    total = max(sum(counts.values()), 1)
    return Accents(accented / total, sum(sum(same) - max(same) for same in spellings.values()) / total)


def counting_rules(normalization: NormalizerOptions) -> NormalizerOptions:
    """Return how to count words: with their accents, if `normalization` strips them by default only."""
    return replace(normalization, strip_accents=False) if _is_undecided(normalization) else normalization


def decide_accents(
    table: WordCounts, normalization: NormalizerOptions
) -> tuple[WordCounts, NormalizerOptions, dict[str, Any]]:
    """Decide by the words of a text whether an uncased vocabulary keeps accents, and say so on stderr.

    Args:
        table: The words, counted by `counting_rules`.
        normalization: How to normalize text. If it decides about accents, nothing changes.

    Returns:
        The words and the normalization of the vocabulary, and {"accents": the measurement as a dict}, or {}.
    """
    if not _is_undecided(normalization):
        return table, normalization, {}
    accents = measure_accents(table.counts)
    measured = {"accents": asdict(accents)}
    if accents.share >= KEEP_FROM:
        console.info(
            f"{percent(accents.share)} of the words have accents, so the vocabulary keeps them; without, "
            f"{percent(accents.merged)} of the words would become equal to another word (to strip them: --keep-accents strip)"
        )
        return table, replace(normalization, strip_accents=False), measured
    if accents.share:
        console.info(
            f"stripped accents, as BERT does: {percent(accents.share)} of the words have some (keep them: --keep-accents keep)"
        )
    return replace(table, counts=normalize_words(table.counts, normalization)), normalization, measured


def _is_undecided(normalization: NormalizerOptions) -> bool:
    return normalization.lowercase and normalization.strip_accents is None
