"""Seconds from the start of the process to the first step of a pre-training, first and second start, on synthetic tokens.

    python benchmarks/start.py --out FILE.json --work FOLDER [--recipe modern-base] [--tokens 100_000_000] [--starts 2]
        [--vocabulary 30_000] [-- FLAGS OF PRETRAIN …]

The shards are random phrases of random tokens, some far more often than others, in documents of random lengths: written once
into FOLDER. Each start is a process of its own, with a new run folder. All share a cache of compiled code that is empty at the
first start. The parts of a start are those that bertie writes into environment.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import runtime, seeding, storage
from bertie.corpus.shard_format import SPLITS, TOKENIZER
from bertie.corpus.shard_writer import TokenizedDocuments, write_manifest, write_shard
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer
from results import environment

SHARD_TOKENS = 15_000_000  # about as many as 64 MB of text have
HELD_OUT = 500_000
DOCUMENT_TOKENS, SENTENCE_TOKENS = 300, 22  # means
PHRASES, PHRASE = 300_000, 6  # repeated sequences, and tokens of each
VOCABULARY = 30_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--recipe", default="modern-base")
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("flags", nargs="*", help="flags of pretrain, after --")
    args = parser.parse_args()
    shards = args.work / f"shards-{args.tokens}-{args.vocabulary}"
    if not shards.is_dir():
        write_shards(shards, args.tokens, args.vocabulary)
    found, threads = list[dict[str, Any]](), runtime.use_threads()
    for start in measured_starts(shards, args.work, args.recipe, args.starts, args.flags):
        found.append(start)
        storage.write_json(args.out, {"environment": environment(threads), "tokens": args.tokens, "starts": found})
        print(start, flush=True)


def measured_starts(shards: Path, work: Path, recipe: str, starts: int, flags: list[str]) -> Iterator[dict[str, Any]]:
    """Start a pre-training of two steps so many times. Yields the seconds of each start by part."""
    shutil.rmtree(cache := work / "cache", ignore_errors=True)
    for number in range(starts):
        shutil.rmtree(out := work / f"run-{number}", ignore_errors=True)
        command = [sys.executable, "-m", "bertie", "pretrain", recipe, "--data", shards, "--out", out]
        command += ["--training.steps", "2", "--training.max-eval-tokens", "10000", *flags]
        subprocess.run(list(map(str, command)), check=True, env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)})
        yield storage.read_json(out / "environment.json")["starts"][-1]


def write_shards(folder: Path, tokens: int, vocabulary: int) -> None:
    """Write shards of random phrases, so that as many pairs of tokens occur as in text. Frequencies follow Zipf's law."""
    words = (f"w{number}" for number in range(vocabulary - len(SPECIAL_TOKENS)))
    tokenizer, rng = Tokenizer.build([*SPECIAL_TOKENS, *words]), seeding.generator(0, 0)
    made = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    tokenizer.save(made / TOKENIZER)
    first, counts = len(SPECIAL_TOKENS), dict[str, dict[str, Any]]()
    phrases = first + zipf(vocabulary - first, PHRASES * PHRASE, rng).reshape(PHRASES, PHRASE)
    for split, wanted in zip(SPLITS, (tokens, min(HELD_OUT, tokens // 10)), strict=True):
        sizes = [min(SHARD_TOKENS, wanted - first) for first in range(0, wanted, SHARD_TOKENS)]
        counts[split] = {"shards": len(sizes), "tokens": wanted, "documents": 0, "words": wanted, "unknown": 0}
        for number, size in enumerate(sizes):
            documents = random_documents(size, phrases, rng)
            counts[split]["documents"] += len(documents.documents)
            write_shard(made / split, number, documents, tokenizer)
    write_manifest(made, tokenizer, counts, {})
    made.rename(folder)


def random_documents(size: int, phrases: np.ndarray, rng: np.random.Generator) -> TokenizedDocuments:
    """Return `size` tokens of random phrases as documents."""
    ids = phrases[zipf(len(phrases), -(-size // PHRASE), rng)].ravel()[:size]
    starts = np.flatnonzero(rng.random(size) < 1 / SENTENCE_TOKENS)
    sentences = np.diff(np.unique(np.concatenate([[0], starts, [size]])))
    begins = np.flatnonzero(rng.random(len(sentences)) < SENTENCE_TOKENS / DOCUMENT_TOKENS)
    documents = np.diff(np.unique(np.concatenate([[0], begins, [len(sentences)]])))
    return TokenizedDocuments(ids.astype(np.int32), sentences, documents)


def zipf(entries: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return random numbers below `entries`, of which the first are the most frequent."""
    weights = 1 / np.arange(10, entries + 10)
    return np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(size)).clip(0, entries - 1)


if __name__ == "__main__":
    main()
