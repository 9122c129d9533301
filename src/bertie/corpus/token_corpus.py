"""One split of a prepared corpus: its tokens, and where its documents and sentences begin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bertie.corpus.remote_shards import RemoteArrays, fetch_ahead


@dataclass(frozen=True, eq=False)
class Corpus:
    """One split of a prepared corpus, memory-mapped; from an object store, a shard is fetched when it is first read.

    Token positions count through all shards. No document crosses a shard boundary.

    Attributes:
        document_starts: int64 [documents + 1], first token of each document, and the number of tokens.
        sentence_starts: int64 [sentences + 1], likewise for sentences. Every document start is also a sentence start.
        shard_starts: int64 [shards + 1], first token of each shard, and the number of tokens.
        tokens: Token ids of each shard, uint16 or uint32.
        word_starts: For each shard, bool per token: false for tokens that continue a word.
        languages: uint16 [sentences], language of each sentence, an index into `Shards.languages`. None if the corpus has
            no languages.
    """

    document_starts: np.ndarray
    sentence_starts: np.ndarray
    shard_starts: np.ndarray
    tokens: Sequence[np.ndarray]
    word_starts: Sequence[np.ndarray]
    languages: np.ndarray | None = None

    def slice(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Read tokens `start` to `stop` - 1 of a single document: input_ids int32 [n], word_starts bool [n]."""
        shard = int(np.searchsorted(self.shard_starts, start, side="right")) - 1
        start, stop = start - int(self.shard_starts[shard]), stop - int(self.shard_starts[shard])
        return self.tokens[shard][start:stop].astype(np.int32), np.array(self.word_starts[shard][start:stop])

    def language(self, token: int) -> int:
        """Return the language of a token: an index into `Shards.languages`. The corpus must have languages."""
        assert self.languages is not None
        return int(self.languages[np.searchsorted(self.sentence_starts, token, side="right") - 1])

    def frequencies(self, vocabulary_size: int, max_tokens: int = 50_000_000) -> np.ndarray:
        """Count each token id in the first shards, up to about `max_tokens` tokens: int64 [vocabulary_size]."""
        counts = np.zeros(vocabulary_size, np.int64)
        for shard in range(int(np.searchsorted(self.shard_starts[:-1], max_tokens))):
            counts += np.bincount(self.tokens[shard], minlength=vocabulary_size)
        return counts

    def select(self, shards: np.ndarray) -> Corpus:
        """Return the corpus of some shards in another order, int64 [n]. Its token positions count through these."""
        first, last = self.shard_starts[shards], self.shard_starts[shards + 1]
        shard_starts = np.cumsum([0, *(last - first)], dtype=np.int64)

        def parts(starts: np.ndarray) -> list[slice]:
            return [slice(*edges) for edges in np.searchsorted(starts, np.stack([first, last], 1)).tolist()]

        def joined(starts: np.ndarray) -> np.ndarray:
            places = zip(parts(starts), shard_starts - np.append(first, 0), strict=False)
            return np.concatenate([*(starts[part] + move for part, move in places), shard_starts[-1:]])

        def chosen(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            return arrays.select(shards) if isinstance(arrays, RemoteArrays) else [arrays[shard] for shard in shards]

        languages = self.languages
        if languages is not None:
            languages = np.concatenate([languages[part] for part in parts(self.sentence_starts)])
        starts = joined(self.document_starts), joined(self.sentence_starts)
        return Corpus(*starts, shard_starts, chosen(self.tokens), chosen(self.word_starts), languages)

    @staticmethod
    def joined(corpora: Sequence[Corpus]) -> Corpus:
        """Return the corpus of the shards of several local ones, in this order."""
        first = np.cumsum([0, *(each.shard_starts[-1] for each in corpora)], dtype=np.int64)

        def starts(name: str) -> np.ndarray:
            moved = [getattr(each, name)[:-1] + move for each, move in zip(corpora, first, strict=False)]
            return np.concatenate([*moved, first[-1:]])

        tokens, word_starts = (
            [part for each in corpora for part in getattr(each, n)] for n in ("tokens", "word_starts")
        )
        languages = [each.languages for each in corpora if each.languages is not None]
        return Corpus(
            starts("document_starts"),
            starts("sentence_starts"),
            starts("shard_starts"),
            tokens,
            word_starts,
            np.concatenate(languages) if languages else None,
        )

    def fetch_ahead(self, shards: Iterable[int]) -> None:
        """Begin to fetch shards from an object store in the background, in this order. Local ones need nothing."""
        if isinstance(self.tokens, RemoteArrays) and isinstance(self.word_starts, RemoteArrays):
            order = list(shards)
            fetch_ahead(self.tokens.select(order), self.word_starts.select(order))
