"""Training pairs that a text gives by itself: headings, held-out sentences and salient words, with their passages.

A passage without some of its sentences is the positive of all its queries, so that no query contains its positive, and none of
these is a negative of another (inverse cloze, Lee et al. 2019).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import console, seeding, storage
from bertie.base.config import Count, Positive
from bertie.base.errors import UsageError
from bertie.corpus.readers import ReaderOptions
from bertie.retrieval.baselines import Words
from bertie.retrieval.passages import WHOLE_FILES, TextPassage, long_sentences, read_passages
from bertie.tokenizers.tokenizer import Tokenizer

SALIENT = 12  # words of a passage among which terms are drawn


@dataclass(frozen=True)
class PairOptions:
    """Which pairs to make of a passage, besides its heading."""

    tokens: Positive = 128
    """Most tokens of a passage, heading included."""
    spans: Count = 2
    """Sentences to hold out as queries, at most a third of the passage's."""
    terms: Count = 2
    """Queries of its salient words: those with the highest tf-idf."""
    sentence_language: str = "en"
    """ISO 639 code of the language, for the ends of sentences."""
    stemmer: str = "english"
    """Language of the stop words, which are never salient; none: no stop words."""


def own_pairs(
    texts: str | Path | Iterable[str | Path],
    tokenizer: Tokenizer,
    out: str | Path,
    options: PairOptions = PairOptions(),
    *,
    reader: ReaderOptions = WHOLE_FILES,
) -> dict[str, Any]:
    """Write pairs to train `embed` on, from nothing but text: a line of JSON with "query", "positive" and "kind" for each pair.

    The kinds are heading, span (a held-out sentence) and terms. The same arguments give the same bytes.

    Args:
        texts: Files and folders, as `prepare` reads them, or folders as BEIR's.
        tokenizer: The tokenizer of the model to train.
        out: The file to write, X.jsonl.
        options: Which pairs to make.
        reader: How to read the texts.

    Returns:
        {"out", "passages": their number, "pairs": by their kind}.

    Raises:
        UsageError: `out` exists, or has another ending.
        UserError: The texts cannot be read, or have no passage.
    """
    out = Path(out)
    if out.suffix != ".jsonl" or out.exists():
        raise UsageError(f"{out}: give a new file X.jsonl")
    found = read_passages(texts, reader, tokenizer, options.tokens, options.sentence_language)
    words = Words("none").of([passage.text for passage in found])
    stop = Words(options.stemmer).stop_words()
    counts = Counter(word for of in words for word in set(of))
    pairs = list[dict[str, str]]()
    for number, (passage, of) in enumerate(zip(found, words, strict=True)):
        rng = seeding.generator(0, seeding.EXAMPLES, number)
        salient = [word for word in of if word not in stop and not word.isdigit()]
        weights = {word: n * log(len(found) / counts[word]) for word, n in Counter(salient).items()}
        for kind, query, positive in _pairs(passage, weights, options, rng):
            pairs.append({"query": query, "positive": positive, "kind": kind})
    storage.write_json_lines(out, pairs)
    kinds = Counter(pair["kind"] for pair in pairs)
    shown = ", ".join(f"{count:,} of {kind}" for kind, count in kinds.items())
    console.info(f"{out}: {len(pairs):,} pairs from {len(found):,} passages: {shown}")
    return {"out": str(out), "passages": len(found), "pairs": dict(kinds)}


def _pairs(
    passage: TextPassage, weights: dict[str, float], options: PairOptions, rng: np.random.Generator
) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the query and the positive of each pair. weights: of the passage's words, for queries of terms."""
    sentences = passage.sentences
    held = set(rng.permutation(long_sentences(sentences))[: min(options.spans, len(sentences) // 3)].tolist())
    rest = " ".join(sentence for i, sentence in enumerate(sentences) if i not in held)
    if not rest:
        return
    if passage.heading:
        yield "heading", passage.heading, rest
    yield from (("span", sentences[i], rest) for i in sorted(held))
    best = sorted(weights, key=lambda word: (-weights[word], word))[:SALIENT]
    for _ in range(options.terms if len(best) > 1 else 0):
        yield "terms", " ".join(rng.permutation(best)[: rng.integers(2, min(len(best), 8) + 1)]), rest
