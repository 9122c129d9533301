"""Documents to token shards, in stages of pieces that any number of workers share out, and that are done once.

    files ──blocks──▶ blocks of documents ──duplicates──▶ which to leave out ──encode──▶ tokens of each block ──▶ shards

All of it lies in a hidden folder beside the one to make, until that is whole: as large as the text and the shards together.
What was killed goes on there. A piece depends on files alone and results are taken in order, so the shards are the same
bytes whoever made them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bertie import __version__, console, storage
from bertie.errors import UsageError
from bertie.files import sources
from bertie.files.sources import Source
from bertie.text import blocks, duplicates, encode, shards, statistics
from bertie.text.blocks import FileGroup, Filters
from bertie.text.encode import Block
from bertie.text.executors import Executor, LocalExecutor
from bertie.text.readers import ReaderOptions
from bertie.text.statistics import CorpusStatistics
from bertie.text.tokenizer import Tokenizer


def prepare(
    texts: Iterable[str | Path],
    tokenizer: Tokenizer,
    out: Path,
    *,
    eval_share: float = 0.01,
    language: str = "en",
    reading: ReaderOptions = ReaderOptions(),
    filters: Filters = Filters(),
    executor: Executor = LocalExecutor(),
    shard_bytes: int = 64_000_000,
) -> dict[str, Any]:
    """Write token shards to `out`, which must not exist, and return their manifest. Same input, same bytes.

    A document goes to the eval side by the hash of its text, with probability `eval_share`: equal documents lie on
    one side. A shard ends with the document that brings it to `shard_bytes` bytes of text, or with its files' end.
    Killed, the same call goes on where it was.
    Errors: UsageError; UserError, also where a side has fewer than two documents (a pair of texts takes two).
    """
    texts = list(texts)
    if (out / shards.MANIFEST).is_file():
        storage.discard_work(out)
    storage.require_fresh(out, "the shards")
    sources.require_outside(out, texts)
    if not 0 < eval_share < 1:
        raise UsageError(f"--eval-share {eval_share:g}: give a share of the documents between 0 and 1, such as 0.01")
    if shard_bytes < 1:
        raise UsageError(f"--shard-bytes {shard_bytes}: give at least 1")
    settings = {
        "eval_share": eval_share,
        "language": language,
        "shard_bytes": shard_bytes,
        "filters": asdict(filters),
        "reading": asdict(reading),
    }
    files = sources.find(texts)
    with storage.work_folder(out, _plan(settings, tokenizer, files)) as work:
        tokenizer.save(work / shards.TOKENIZER)
        storage.remove_leftovers(work / shards.TOKENIZER)
        told = CorpusStatistics(files=[{"name": file.name, "bytes": file.size} for file in files])
        names = _read(work, files, reading, filters, shard_bytes, executor, told)
        _find_duplicates(work, names, filters, executor)
        every = (language, eval_share, filters.duplicates, tokenizer.fingerprint)
        pieces = [Block(work, name, number, *every) for number, name in enumerate(names)]
        encoded = list(_run(executor, encode.encode_block, pieces, "encode", "blocks"))
        told.encoded(encoded)
        for line in told.lines():
            console.info(line)
        told.require_documents(eval_share)
        folder = _assemble(work, encoded, tokenizer, told)
        storage.write_json(folder / statistics.FILE, told.statistics())
        storage.write_atomic(folder / statistics.PAGE, statistics.corpus_page(told))
        manifest = shards.write_manifest(folder, tokenizer, told.splits, {**settings, **told.counts()})
        storage.publish(folder, out.resolve())
    return manifest


def _plan(settings: dict[str, Any], tokenizer: Tokenizer, files: list[Source]) -> dict[str, Any]:
    """All that decides the bytes of the shards."""
    return {
        **settings,
        "tokenizer": tokenizer.fingerprint,
        "versions": {"bertie": __version__, **{name: metadata.version(name) for name in ("sentencex", "tokenizers")}},
        "files": [[file.path, file.size, file.stamp] for file in files],
    }


def _run(executor: Executor, work: Callable[[Any], Any], pieces: list[Any], title: str, unit: str) -> Iterator[Any]:
    """Results in order, with progress."""
    with console.progress(title, len(pieces), unit) as bar, closing(executor.run(work, pieces)) as results:
        for result in results:
            yield result
            bar.advance()


def _read(
    work: Path,
    files: list[Source],
    reading: ReaderOptions,
    filters: Filters,
    block_bytes: int,
    executor: Executor,
    told: CorpusStatistics,
) -> list[str]:
    """The names of all blocks, in order."""
    together = sources.groups(files)
    groups = [FileGroup(work, i, tuple(group), reading, filters, block_bytes) for i, group in enumerate(together)]
    sizes = [sum(file.size for file in group) / 1e6 for group in together]
    names: list[str] = []
    with (
        console.progress("read", sum(sizes), "MB") as bar,
        console.status(bar, lambda: f"{blocks.bytes_written(work) / 1e6:,.0f} MB of text"),
        closing(executor.run(blocks.read_group, groups)) as results,
    ):
        for size, result in zip(sizes, results, strict=True):
            told.read(result)
            names += result["blocks"]
            bar.advance(size)
    return names


def _find_duplicates(work: Path, names: list[str], filters: Filters, executor: Executor) -> None:
    pieces = [
        part for kind in duplicates.kinds(filters.duplicates) for part in duplicates.hash_parts(work, kind, names)
    ]
    for _ in _run(executor, duplicates.find_duplicates, pieces, "find duplicates", "parts"):
        pass


def _assemble(work: Path, encoded: list[dict[str, Any]], tokenizer: Tokenizer, told: CorpusStatistics) -> Path:
    """The shards of all blocks in one folder: of training as they are, of evaluation as many together as make a shard."""
    folder = work / "shards"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(work / shards.TOKENIZER, folder / shards.TOKENIZER)
    source = work / encode.FOLDER
    counts = np.zeros((len(shards.SPLITS), tokenizer.size), np.int64)
    for number in range(len(encoded)):
        counts += np.load(source / f"{number:05d}.counts.npy")
    train, held_out = shards.SPLITS
    trained = [number for number, result in enumerate(encoded) if result[train]["documents"]]
    (folder / train).mkdir()
    for shard, number in enumerate(trained):
        for kind in shards.ARRAYS:
            _link(source / train / shards.array_name(number, kind), folder / train / shards.array_name(shard, kind))
    evaluated = [number for number, result in enumerate(encoded) if result[held_out]["documents"]]
    sizes = np.cumsum([0, *(encoded[number][held_out]["tokens"] for number in evaluated)])
    most = max(result[train]["tokens"] for result in encoded)
    shard_of = sizes[:-1] // max(most, 1)  # by the token that a part begins with
    joined = np.unique(shard_of)
    for shard, together in enumerate(joined):
        parts = [number for number, of in zip(evaluated, shard_of, strict=True) if of == together]
        shards.merge_shards(folder / held_out, shard, [(source / held_out, number) for number in parts])
    told.assembled(counts, [len(trained), len(joined)], tokenizer)
    return folder


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
