"""Systems that search: a dense model, a reranker, a file of TREC. Each gives every document a score for each query.

N  documents    Q  queries    E  width of a vector
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float

from bertie.base import console, storage
from bertie.base.errors import UsageError, UserError, raise_error
from bertie.base.threads import cache_folder
from bertie.examples.queries.collection import Collection
from bertie.examples.rows import parse_finite, read_lines
from bertie.model.pooling import Pooling
from bertie.predict.embed import TextUnit, tell_lost, vector_blocks
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import similarities
from bertie.retrieval.measures import order
from bertie.tasks.inference import require_finite

QUERIES_AT_ONCE = 32
_UNIT = TextUnit(prompt_name="document")


class System(Protocol):
    """Something that searches a collection."""

    @property
    def name(self) -> str:
        """Its name in tables and files."""
        ...

    @property
    def settings(self) -> str:
        """All that its scores depend on, for people."""
        ...

    def scores(self, collection: Collection) -> Iterator[Float[np.ndarray, " N"]]:
        """Yield for each query the score of every document, higher is better; -inf: it is not found."""
        ...


@dataclass(frozen=True, eq=False)
class DenseSearch:
    """A model that compares the vectors of queries and documents."""

    model: Predictor
    name: str = "model"
    known: Mapping[str, Float[np.ndarray, " E"]] | None = None
    """Vectors of texts that need not be computed, and for which none are kept."""

    @classmethod
    def of(cls, model: Predictor, pooling: Pooling | None = None, dimensions: int = 0) -> DenseSearch:
        """Return the search with another pooling, or with the first numbers of the vectors only, compared by the cosine.

        Raises UsageError if the vectors have no more numbers.
        """
        how = model.text_embedding.with_pooling(pooling)
        if dimensions >= (width := model.vector_width(pooling)):
            raise UsageError(f"--dimensions {dimensions}: the vectors have {width} numbers: give less")
        if dimensions:
            how = replace(how, dimensions=dimensions, similarity="cosine")
        return cls(replace(model, text_embedding=how))

    @property
    def settings(self) -> str:
        how = self.model.text_embedding
        prompts = [how.prompt(name, None) for name in ("query", "document")]
        prompts = f"; prompts {prompts[0]!r}, {prompts[1]!r}" * any(prompts)
        pooling = " and ".join(how.pooling)
        return f"{self.model.folder.name}: pooling {pooling}, {how.similarity}, {self.model.max_length} tokens{prompts}"

    def scores(self, collection: Collection) -> Iterator[Float[np.ndarray, " N"]]:
        documents, queries = self.document_vectors(collection), list(collection.queries.values())
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            vectors = self.query_vectors(queries[start : start + QUERIES_AT_ONCE])
            scores = similarities(self.model.text_embedding.similarity, vectors, documents)
            yield from np.where(np.isnan(scores), -np.inf, scores)

    def query_vectors(self, queries: list[str]) -> Float[np.ndarray, "Q E"]:
        """Return the vectors of queries. Raises UserError if one is invalid, or has none."""
        vectors = self.model.embed(queries, prompt_name="query")
        require_finite(torch.from_numpy(vectors))
        return vectors

    def document_vectors(self, collection: Collection) -> Float[np.ndarray, "N E"]:
        """Return the vectors of the documents, which are kept for the next time by their content; NaN: a text without tokens.

        Raises:
            UserError: No text has a vector.
        """
        texts = list(collection.documents.values())
        if self.known is not None:
            return self.embed(texts, self.known)
        digest = hashlib.sha256(f"{self.fingerprint} {self.model.engine} {len(texts)}".encode())
        for text in texts:
            digest.update(f"{len(text)} {text}".encode())
        path = cache_folder() / "vectors" / f"{digest.hexdigest()[:32]}.npy"
        if path.exists():
            return np.load(path)
        vectors = self.embed(texts, {})
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_array(path, vectors)
        console.info(f"the vectors of {len(texts):,} documents are kept in {path}")
        return vectors

    def embed(self, texts: list[str], known: Mapping[str, np.ndarray]) -> Float[np.ndarray, "N E"]:
        """Return the vectors of documents, and compute those that are not known. Errors as for `document_vectors`."""
        new = list(dict.fromkeys(text for text in texts if text not in known))
        vectors = list[np.ndarray]()
        with console.progress("embed", len(new), "documents") as bar:
            for count, _, block in vector_blocks(self.model, _UNIT, new):
                vectors += [*block]
                bar.advance(count)
        of = {**known, **dict(zip(new, vectors, strict=True))}
        all_NE = np.stack([of[text] for text in texts])
        tell_lost(int(np.isnan(all_NE).any(1).sum()), 0, len(texts))
        return all_NE

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that the vectors of a text depend on, but for the engine."""
        tokenizer = self.model.text_tokenizer.fingerprint
        how = (self.model.text_embedding, self.model.max_length, _UNIT, self.model.model.encoder.config, tokenizer)
        digest = hashlib.sha256(repr(how).encode())
        for name, tensor in self.model.model.state_dict().items():
            digest.update(name.encode() + tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class Reranker:
    """A model that reads a query with each of the first documents of another system."""

    model: Predictor
    first: System
    depth: int = 100
    label: str = ""
    name: str = "model"

    @property
    def settings(self) -> str:
        model = f"{self.model.folder.name}, {self.model.max_length} tokens"
        return f"{model}, over the first {self.depth} of: {self.first.name}, {self.first.settings}"

    def scores(self, collection: Collection) -> Iterator[Float[np.ndarray, " N"]]:
        texts, ties = list(collection.documents.values()), tie_order(collection)
        firsts = self.first.scores(collection)
        with console.progress("rerank", len(collection.queries), "queries") as bar:
            for query, first in zip(collection.queries.values(), firsts, strict=True):
                scores, chosen = np.full(len(texts), -np.inf), order(first, ties, self.depth)
                with console.silenced():  # of truncated texts in each query: `settings` has the length
                    scores[chosen] = self.model.rerank(query, [texts[i] for i in chosen], self.label)
                bar.advance(1)
                yield scores


@dataclass(frozen=True, eq=False)
class RunFile:
    """A ranking in TREC's format: query, Q0, document, rank, score, name. Only the scores order the documents."""

    path: Path
    name: str
    """Its name in tables and files."""
    task = None  # it has no model

    @property
    def folder(self) -> Path:
        """What is judged, in place of the folder of a model."""
        return self.path

    @property
    def settings(self) -> str:
        return f"the scores in {self.path}"

    @cached_property
    def found(self) -> dict[str, dict[str, float]]:
        """For each query the scores of documents. Raises UserError if a line is wrong, or names a document again."""
        found: dict[str, dict[str, float]] = {}
        for number, line in read_lines(self.path):
            if not (cells := raise_error(line).split()):
                continue
            place, score = f"{self.path}:{number}", parse_finite(cells[4]) if len(cells) == 6 else None
            if score is None:
                raise UserError(
                    f"{place}: expected query, Q0, document, rank, score and name, with blanks between them"
                )
            if found.setdefault(cells[0], {}).setdefault(cells[2], score) is not score:
                raise UserError(f"{place}: the document {cells[2]} again for the query {cells[0]}")
        return found

    def scores(self, collection: Collection) -> Iterator[Float[np.ndarray, " N"]]:
        number = {document: i for i, document in enumerate(collection.documents)}
        if not self.found.keys() & collection.queries.keys():
            raise UserError(f"{self.path}: no query of {collection.name}")
        for query in collection.queries:
            scores = np.full(len(number), -np.inf)
            for document, score in self.found.get(query, {}).items():
                if document not in number:
                    raise UserError(f"{self.path}: the document {document!r} is not in {collection.name}")
                scores[number[document]] = score
            yield scores


def tie_order(collection: Collection) -> np.ndarray:
    """Return the order of documents with equal scores, int64 [N]: by id, the last one first, as in trec_eval."""
    place = np.empty(len(collection.documents), np.int64)
    ids = [document.encode() for document in collection.documents]
    place[sorted(range(len(ids)), key=ids.__getitem__, reverse=True)] = np.arange(len(ids))
    return place


def write_run(path: Path, name: str, found: dict[str, list[tuple[str, float]]]) -> None:
    """Write a ranking in TREC's format, which other programs and `RunFile` read."""
    lines = (
        f"{query} Q0 {document} {rank} {score!r} {name}\n"
        for query, documents in found.items()
        for rank, (document, score) in enumerate(documents, 1)
    )
    storage.write_atomic(path, "".join(lines))
