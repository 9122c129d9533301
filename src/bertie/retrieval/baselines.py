"""Searches without a neural network: BM25 (Robertson & Zaragoza 2009) and LSA (Deerwester et al. 1990), as any search must beat.

N  documents
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertie.base.config import AboveZero, Fraction
from bertie.base.errors import UsageError, join_names
from bertie.corpus.sentences import UNSPACED
from bertie.examples.queries.collection import Collection

_WORD = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")


@dataclass(frozen=True)
class Words:
    """The words of a text for BM25 and LSA: lower-cased, without stop words, stemmed.

    Text without blanks between words, such as Chinese, gives pairs of characters.
    """

    stemmer: str = "english"

    def of(self, texts: list[str]) -> list[list[str]]:
        """Return the words of each text. Raises UsageError for an unknown language."""
        import Stemmer

        if self.stemmer not in (known := ["none", *Stemmer.algorithms()]):
            raise UsageError(f"--stemmer {self.stemmer}: the stemmers are {join_names(known)}")
        name, stop = "porter" if self.stemmer == "english" else self.stemmer, self.stop_words()
        stem = list if self.stemmer == "none" else Stemmer.Stemmer(name).stemWords
        return [stem([word for word in _pieces(text) if word not in stop]) for text in texts]

    def marks(self, text: str, query: str) -> list[tuple[int, int]]:
        """Return start and end, in characters, of the words of a text that a query has, too."""
        wanted, found = {*self.of([query])[0]}, list(_WORD.finditer(text))
        words = self.of([match[0] for match in found])
        return [match.span() for match, of in zip(found, words, strict=True) if wanted & {*of}]

    def stop_words(self) -> set[str]:
        """Return the stop words of the language."""
        from bm25s import stopwords

        name = "EN" if self.stemmer == "english" else self.stemmer.upper()
        return set(getattr(stopwords, f"STOPWORDS_{name}", ()))


def _pieces(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text.lower()):
        word = match[0]
        if re.match(f"[{UNSPACED}]", word) and len(word) > 2:
            yield from (word[i : i + 2] for i in range(len(word) - 1))
        else:
            yield word


@dataclass(frozen=True)
class Bm25:
    """BM25 with the formula of Lucene."""

    k1: AboveZero = 0.9
    """Saturation of the counts of a word."""
    b: Fraction = 0.4
    """Share of the length of a document in the norm."""
    stemmer: str = "english"
    """Language of the stemmer (Snowball's; Porter's for English) and of the stop words, also for LSA. none: neither."""

    name = "BM25"

    @property
    def words(self) -> Words:
        return Words(self.stemmer)

    @property
    def settings(self) -> str:
        return f"Lucene's formula, k1 {self.k1:g}, b {self.b:g}, words: {self.stemmer}"

    def scores(self, collection: Collection) -> Iterator[Float[np.ndarray, " N"]]:
        """Yield for each query the score of every document. Documents without a word of the query are not found."""
        index = self.index(list(collection.documents.values()))
        yield from map(index.scores, collection.queries.values())

    def index(self, texts: list[str]) -> WordIndex:
        """Return an index of the words of documents."""
        import bm25s

        words = self.words.of(texts)
        index: Any = bm25s.BM25(method="lucene", k1=self.k1, b=self.b)
        if any(words):
            index.index(words, show_progress=False)
        return WordIndex(index if any(words) else None, self.words, len(texts))


@dataclass(frozen=True, eq=False)
class WordIndex:
    """The words of documents, for BM25."""

    index: Any
    """What bm25s has computed. None: the documents have no words."""
    words: Words
    documents: int
    """Their number."""

    def save(self, folder: Path) -> None:
        """Write the files of bm25s; none if no document has words."""
        if self.index is not None:
            self.index.save(folder)

    @classmethod
    def load(cls, folder: Path, words: Words, documents: int) -> WordIndex:
        """Read what `save` wrote."""
        from bm25s import BM25

        return cls(BM25.load(folder, mmap=True) if folder.exists() else None, words, documents)

    def scores(self, query: str) -> Float[np.ndarray, " N"]:
        """Return the score of every document. -inf: it has no word of the query."""
        known = [word for word in self.words.of([query])[0] if self.index and word in self.index.vocab_dict]
        scores = self.index.get_scores(known) if known else np.zeros(self.documents)
        return np.where(scores > 0, scores, -np.inf)


@dataclass(frozen=True)
class Lsa:
    """Latent semantic analysis: the cosine of tf-idf vectors (1 + log tf, smoothed idf) after a truncated SVD."""

    dimensions: int = 256
    words: Words = Words()
    name = "LSA"

    @property
    def settings(self) -> str:
        return f"{self.dimensions} dimensions, 1 + log tf, idf, words: {self.words.stemmer}"

    def scores(self, collection: Collection) -> Iterator[Float[np.ndarray, " N"]]:
        """Yield for each query the score of every document."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction import text as of_text
        from sklearn.preprocessing import normalize

        texts = [self.words.of(list(part.values())) for part in (collection.documents, collection.queries)]
        if not any(texts[0]):
            yield from [np.full(len(texts[0]), -np.inf)] * len(texts[1])
            return
        library: Any = of_text
        weigh = library.TfidfVectorizer(analyzer=list, sublinear_tf=True)
        documents, queries = weigh.fit_transform(texts[0]), weigh.transform(texts[1])
        if min(documents.shape) > self.dimensions:
            reduce: Any = TruncatedSVD(self.dimensions, random_state=0).fit(documents)
            documents, queries = reduce.transform(documents), reduce.transform(queries)
        else:  # nothing to reduce
            documents, queries = documents.toarray(), queries.toarray()
        normalized: list[Any] = [normalize(side) for side in (documents, queries)]
        for query in normalized[1]:
            yield np.where((scores := normalized[0] @ query) != 0, scores, -np.inf)
