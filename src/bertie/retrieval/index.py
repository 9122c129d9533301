"""Index a folder of text, and search it by vectors and by words together.

An index is a folder: index.json, with its settings; passages.jsonl, a passage in each line; vectors.npy, their float32 vectors;
and words, the files of bm25s. docs/reference/index-format.md describes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertie.base import console, storage
from bertie.base.config import Count
from bertie.base.console import percent
from bertie.base.errors import UsageError, UserError, raise_error
from bertie.corpus.readers import ReaderOptions
from bertie.examples.queries.collection import Collection
from bertie.examples.rows import read_rows
from bertie.files import sources
from bertie.model.pooling import Pooling
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import unit
from bertie.retrieval.baselines import Bm25, WordIndex
from bertie.retrieval.fused import CANDIDATES, FusionWeight, choose_weight, dev_queries, fuse
from bertie.retrieval.measures import order
from bertie.retrieval.passages import WHOLE_FILES, TextPassage, read_passages
from bertie.retrieval.system import DenseSearch
from bertie.retrieval.vector_store import RECALL_QUERIES, Codes, VectorStore
from bertie.tokenizers.truncation import special_tokens

FACTS, PASSAGES, VECTORS, WORDS, GRAPH = "index.json", "passages.jsonl", "vectors.npy", "words", "vectors.usearch"
FORMAT = 1
MOST_TOKENS = 256  # of a passage, unless the user asks for more


@dataclass(frozen=True)
class IndexOptions:
    """How to index."""

    tokens: Count = 0
    """Most tokens of a passage; 0: as many as the model reads, at most 256."""
    pooling: Pooling | None = None
    """Pooling of the token vectors into the vector of a passage. By default as the model was trained, otherwise mean."""
    dimensions: Count = 0
    """Numbers of a vector to keep, the first ones, for models that were trained for it; 0: all."""
    codes: Codes = "float32"
    """What a search compares first, in memory: the vectors, or 8 bits (int8) or 1 bit (binary) for each number; beyond a million
    passages, a graph (usearch). The best passages are then compared by their vectors, which stay on disk."""
    sentence_language: str = "en"
    """ISO 639 code of the language, for the ends of sentences."""


@dataclass(frozen=True)
class Hit:
    """A passage that a search found."""

    score: float
    """From 0 to 1: the scores of the model and of BM25, each scaled over the candidates, in one sum."""
    document: str
    """File and record, or id, of its document."""
    heading: str
    """The heading of its section, or its title; empty if there is none."""
    text: str
    """The passage, below its heading."""
    marks: list[tuple[int, int]]
    """Start and end, in characters of `text`, of the words that the query has, too."""


@dataclass(frozen=True, eq=False)
class Index:
    """An opened index, with its model."""

    dense: DenseSearch
    passages: list[dict[str, str]]
    store: VectorStore
    words: WordIndex
    weight: FusionWeight

    def search(self, query: str, top_k: int = 5) -> list[Hit]:
        """Find the passages that are nearest to a query. Raises UsageError, or UserError for an invalid text."""
        if top_k < 1:
            raise UsageError(f"--top-k {top_k}: give at least 1")
        return self.search_vector(query, self.dense.query_vectors([query])[0], top_k)

    def search_vector(self, query: str, vector_E: Float[np.ndarray, " E"], top_k: int) -> list[Hit]:
        """Find passages for a query whose vector is known."""
        words_N, most = self.words.scores(query), max(CANDIDATES, top_k)
        by_words = order(words_N, np.arange(len(words_N)), most)
        rows_C = np.union1d(self.store.nearest(vector_E, most), by_words)
        fused_C = fuse(self.store.exact(vector_E, rows_C), words_N[rows_C], self.weight.value)
        best = order(fused_C, rows_C, top_k)
        return [self._hit(query, int(rows_C[i]), float(fused_C[i])) for i in best]

    def _hit(self, query: str, row: int, score: float) -> Hit:
        found = self.passages[row]
        text = found["text"].removeprefix(found["heading"]).lstrip("\n")
        return Hit(score, found["document"], found["heading"], text, self.words.words.marks(text, query))


def index(
    texts: str | Path | Iterable[str | Path],
    model: str | Path | Predictor,
    out: str | Path,
    options: IndexOptions = IndexOptions(),
    bm25: Bm25 = Bm25(),
    *,
    reader: ReaderOptions = WHOLE_FILES,
) -> dict[str, Any]:
    """Index texts, or update an index: only passages that it does not have are read by the model.

    Args:
        texts: Files and folders, as `prepare` reads them, or a folder as BEIR's, whose dev queries choose the model's weight.
        model: A model with vectors: loaded, or a source as in `load`.
        out: The index to write. If it exists, it must have the same model and settings.
        options: How to index.
        bm25: The BM25 beside the model.
        reader: How to read the texts.

    Returns:
        {"out", "documents", "passages", "new": passages that the model read, "weight": of the model's score}.

    Raises:
        UsageError: `out` is something else, or an index with other settings.
        UserError: The texts cannot be read, or have no passage.
    """
    out, paths = Path(out), sources.as_list(texts)
    sources.require_outside(out, paths)
    dense = DenseSearch.of(model if isinstance(model, Predictor) else load(model), options.pooling, options.dimensions)
    predictor = dense.model
    limit = predictor.max_length - special_tokens(predictor.text_tokenizer, 1)
    if options.tokens > limit:
        raise UsageError(f"--tokens {options.tokens}: the model reads {limit}")
    facts = {"format": FORMAT, "fingerprint": dense.fingerprint, **asdict(options), "bm25": asdict(bm25)}
    known = _known(out, facts)
    tokens = options.tokens or min(limit, MOST_TOKENS)
    found = read_passages(paths, reader, predictor.text_tokenizer, tokens, options.sentence_language)
    all_texts = [passage.text for passage in found]
    new = len({*all_texts} - known.keys())
    similarity, vectors_NE = predictor.text_embedding.similarity, dense.embed(all_texts, known)
    vectors_NE = unit(vectors_NE) if similarity == "cosine" else vectors_NE
    weight = _weight(replace(dense, known=dict(zip(all_texts, vectors_NE, strict=True))), bm25, found, paths)
    facts |= {"model": os.path.relpath(predictor.folder.resolve(), out.resolve()), "weight": weight}
    store = VectorStore.of(vectors_NE, similarity, options.codes)
    _write(out, facts, found, store, bm25.index(all_texts))
    count = len({passage.document for passage in found})
    console.info(
        f"{out}: {len(found):,} passages of {count:,} documents, {new:,} of them new; {weight.value:g} of the model's score, "
        f"{weight.origin}"
    )
    if options.codes != "float32":
        tried = f"of the exact first ten of {min(RECALL_QUERIES, len(found))} passages"
        console.info(f"{options.codes} finds {percent(store.recall())} {tried}")
    return {"out": str(out), "documents": count, "passages": len(found), "new": new, "weight": weight.value}


def _write(out: Path, facts: dict[str, Any], found: list[TextPassage], store: VectorStore, words: WordIndex) -> None:
    with storage.atomic_folder(out, replace=True) as folder:
        storage.write_json_lines(
            folder / PASSAGES, ({n: getattr(p, n) for n in ("document", "heading", "text")} for p in found)
        )
        storage.write_array(folder / VECTORS, store.floats)
        if store.codes == "usearch":
            store.small.save(str(folder / GRAPH))
        words.save(folder / WORDS)
        storage.write_json(folder / FACTS, facts)


def open_index(path: str | Path, model: str | Path | Predictor | None = None) -> Index:
    """Open an index.

    Args:
        path: The folder.
        model: Its model, loaded or a source as in `load`; None: from where it was when the index was made.

    Raises:
        UsageError: There is no index.
        UserError: The index is damaged, or was made by another model.
    """
    path, facts = Path(path), index_facts(path)
    predictor = model if isinstance(model, Predictor) else load(model or facts["model"])
    dense = DenseSearch.of(predictor, facts["pooling"], facts["dimensions"])
    if dense.fingerprint != facts["fingerprint"]:
        raise UserError(f"{path} was made by another model than {predictor.folder}: index the text again")
    rows, vectors_NE = _read(path)
    store = VectorStore.of(vectors_NE, dense.model.text_embedding.similarity, facts["codes"], path / GRAPH)
    words = WordIndex.load(path / WORDS, Bm25(**facts["bm25"]).words, len(rows))
    return Index(dense, rows, store, words, FusionWeight(*facts["weight"]))


def search(index: str | Path | Index, query: str, top_k: int = 5) -> list[Hit]:
    """Find the passages of an index that are nearest to a query, best first. index: opened, or its folder; see `open_index`."""
    return (index if isinstance(index, Index) else open_index(index)).search(query, top_k)


def is_index(path: str | Path) -> bool:
    """Return whether a path is the folder of an index."""
    return (Path(path) / FACTS).is_file()


def index_facts(path: str | Path) -> dict[str, Any]:
    """Return the settings of an index: index.json, with the path of its model. Raises UsageError or UserError."""
    if not is_index(path):
        raise UsageError(f"{path} is no index: make one with bertie index")
    facts = storage.read_json(Path(path) / FACTS)
    if facts.get("format") != FORMAT:
        raise UserError(f"{path}: format {facts.get('format')}, and this bertie reads {FORMAT}: index the text again")
    return facts | {"model": str((Path(path) / facts["model"]).resolve())}


def _known(out: Path, facts: dict[str, Any]) -> Mapping[str, np.ndarray]:
    """Return the vectors of an existing index by their texts. Raises UsageError if it has other settings."""
    if not out.exists() or not any(out.iterdir()):
        return {}
    before = index_facts(out)
    if changed := [name for name, value in facts.items() if before[name] != value]:
        what = "made by another model" if changed == ["fingerprint"] else f"made with another {changed[-1]}"
        raise UsageError(f"{out} was {what}: give another --out, or remove it")
    rows, vectors_NE = _read(out)
    return dict(zip((row["text"] for row in rows), vectors_NE, strict=True))


def _read(path: Path) -> tuple[list[dict[str, str]], Float[np.ndarray, "N E"]]:
    """Return the passages and their vectors. Raises UserError."""
    rows = [raise_error(row).values for row in read_rows(path / PASSAGES)]
    vectors_NE = np.load(path / VECTORS, mmap_mode="c")
    if len(rows) != len(vectors_NE):
        raise UserError(f"{path} is damaged: {len(rows):,} passages, {len(vectors_NE):,} vectors: index the text again")
    return rows, vectors_NE


def _weight(dense: DenseSearch, bm25: Bm25, found: list[TextPassage], paths: list[str | Path]) -> FusionWeight:
    """Choose the weight of the model: on the dev queries of a collection, whose grades count for all passages of a document."""
    collection = Collection({str(number): passage.text for number, passage in enumerate(found)}, {}, {})
    dev = dev_queries(Path(paths[0])) if len(paths) == 1 else None
    if dev is None:
        return choose_weight(dense, bm25, collection)
    numbers: dict[str, list[str]] = {}
    for number, passage in enumerate(found):
        numbers.setdefault(passage.document, []).append(str(number))
    grades = {
        query: {number: grade for document, grade in of.items() for number in numbers.get(document, ())}
        for query, of in dev.grades.items()
    }
    return choose_weight(dense, bm25, collection, replace(collection, queries=dev.queries, grades=grades))
