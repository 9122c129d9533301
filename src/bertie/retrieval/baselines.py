"""Searches without a neural network: BM25 (Robertson & Zaragoza 2009) and LSA (Deerwester et al. 1990), as any search must beat.

N  documents
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from bertie.base.config import AboveZero, Fraction
from bertie.base.errors import UsageError, join_names
from bertie.examples.queries.collection import Collection

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese: no blanks between words."""
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")


@dataclass(frozen=True)
class Words:
    """The words of a text for BM25 and LSA: lower-cased, without stop words, stemmed.

    Text without blanks between words, such as Chinese, gives pairs of characters.
    """

    stemmer: str = "english"

    def of(self, texts: list[str]) -> list[list[str]]:
        """Return the words of each text. Raises UsageError for an unknown language."""
        import Stemmer
        from bm25s import stopwords

        if self.stemmer not in (known := ["none", *Stemmer.algorithms()]):
            raise UsageError(f"--stemmer {self.stemmer}: the stemmers are {join_names(known)}")
        english = self.stemmer == "english"
        stop = set(getattr(stopwords, f"STOPWORDS_{'EN' if english else self.stemmer.upper()}", ()))
        stem = list if self.stemmer == "none" else Stemmer.Stemmer("porter" if english else self.stemmer).stemWords
        return [stem([word for word in _pieces(text) if word not in stop]) for text in texts]


def _pieces(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text.lower()):
        word = match[0]
        if re.match(f"[{_UNSPACED}]", word) and len(word) > 2:
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

    @property
    def words(self) -> Words:
        return Words(self.stemmer)

    @property
    def name(self) -> str:
        return "BM25"

    @property
    def settings(self) -> str:
        return f"Lucene's formula, k1 {self.k1:g}, b {self.b:g}, words: {self.stemmer}"

    def scores(self, collection: Collection) -> Iterator[Float[np.ndarray, " N"]]:
        """Yield for each query the score of every document. Documents without a word of the query are not found."""
        import bm25s

        index: Any = bm25s.BM25(method="lucene", k1=self.k1, b=self.b)
        documents = self.words.of(list(collection.documents.values()))
        if any(documents):
            index.index(documents, show_progress=False)
        for words in self.words.of(list(collection.queries.values())):
            known = [word for word in words if any(documents) and word in index.vocab_dict]
            scores = index.get_scores(known) if known else np.zeros(len(documents))
            yield np.where(scores > 0, scores, -np.inf)


@dataclass(frozen=True)
class Lsa:
    """Latent semantic analysis: the cosine of tf-idf vectors (1 + log tf, smoothed idf) after a truncated SVD."""

    dimensions: int = 256
    words: Words = Words()

    @property
    def name(self) -> str:
        return "LSA"

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
