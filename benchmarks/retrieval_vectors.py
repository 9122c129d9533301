"""Small vectors in a search: quality of int8, binary and shorter vectors on collections, and time in a million vectors.

    python benchmarks/retrieval_vectors.py quality MODEL COLLECTION... [--widths 96]
    python benchmarks/retrieval_vectors.py time --threads 2

quality: nDCG@10 of all ways with the same vectors, which are kept by content. int8 and binary compare codes alone; "+ float"
takes the first 40 by their codes, and orders them by the float vectors. time: one query in a million random vectors of 384
numbers, which have clusters, beside torch's matrix-vector product, in turns, median; recall@10 against the exact first ten.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from bertie.base import runtime
from bertie.examples.queries.collection import Collection, read_collection
from bertie.predict.load import load
from bertie.retrieval.judge import judge
from bertie.retrieval.system import DenseSearch
from bertie.retrieval.vector_store import Codes, VectorStore

FIRST = 10


@dataclass(frozen=True, eq=False)
class Stored:
    """A search by a store of vectors."""

    store: VectorStore
    queries: np.ndarray
    rescored: bool
    name: str = "stored"
    settings: str = ""

    def scores(self, collection: Collection) -> Iterator[np.ndarray]:  # noqa: ARG002
        for query in self.queries:
            scores = self.store.coarse(query)
            if self.rescored:
                rows = self.store.nearest(query, FIRST)
                exact = np.full(len(scores), -np.inf)
                exact[rows] = self.store.exact(query, rows)
                scores = exact
            yield np.where(np.isnan(scores), -np.inf, scores)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def quality(source: str, folders: list[str], widths: list[int]) -> None:
    model = load(source)
    ways: list[tuple[str, Codes, bool, int]] = [
        ("float32", "float32", False, 0),
        ("int8", "int8", False, 0),
        ("int8 + float", "int8", True, 0),
        ("binary", "binary", False, 0),
        ("binary + float", "binary", True, 0),
    ]
    for width in widths:
        ways.append((f"{width} numbers", "float32", False, width))
    table: dict[str, list[float]] = {}
    for folder in folders:
        collection = read_collection(folder).judged()
        documents = unit(DenseSearch(model).document_vectors(collection))
        queries = unit(model.embed(list(collection.queries.values()), prompt_name="query"))
        for name, codes, rescored, width in ways:
            cut = [unit(side[:, :width] if width else side).astype(np.float32) for side in (documents, queries)]
            system = Stored(VectorStore.of(cut[0], "cosine", codes), cut[1], rescored)
            table.setdefault(name, []).append(judge(system, collection, (FIRST,), FIRST).values[:, 0].mean())
    whole = np.mean(table["float32"])
    for name, values in table.items():
        shown = "  ".join(f"{value:.4f}" for value in values)
        print(f"{name:>16}  {shown}  mean {np.mean(values):.4f}  {100 * np.mean(values) / whole:.1f} %")


def timed(count: int, width: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((count // 100, width), np.float32)
    vectors = np.repeat(centers, 100, 0) + 0.5 * rng.standard_normal((count, width), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = unit(vectors[rng.choice(count, 20)] + 0.02 * rng.standard_normal((20, width), np.float32)).astype(
        np.float32
    )
    stores = {codes: VectorStore.of(vectors, "cosine", codes) for codes in ("float32", "int8", "binary")}
    tensor = torch.from_numpy(vectors)
    exact = [set(stores["float32"].nearest(query, FIRST).tolist()) for query in queries]
    ways: dict[str, Callable[[np.ndarray], object]] = {
        "torch's product": lambda query: tensor @ torch.from_numpy(query)
    }
    ways |= {f"{codes}, first ten": lambda query, s=store: s.nearest(query, FIRST) for codes, store in stores.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            way(queries[number % len(queries)])
            if number:
                times[name].append(time.perf_counter() - started)
    for name, taken in times.items():
        print(f"{name:>20}: {1000 * statistics.median(taken):.1f} ms")
    for codes, store in stores.items():
        found = [len(exact[i] & {*store.nearest(query, FIRST).tolist()}) / FIRST for i, query in enumerate(queries)]
        print(f"recall@10 of {codes}: {np.mean(found):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("quality", "time"))
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--widths", type=int, nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    runtime.use_threads(args.threads)
    if args.what == "quality":
        quality(args.sources[0], args.sources[1:], args.widths)
    else:
        timed(args.count, 384, args.rounds)


if __name__ == "__main__":
    main()
