"""Corpus preparation: text files to token shards, in parallel and resumable stages.

    files ──blocks──▶ blocks of documents ──duplicates──▶ duplicates to leave out ──encode──▶ tokens by block ──▶ shards

Each stage consists of independent work items, and a finished item is never computed again. All intermediate files are
in a hidden work folder beside the output folder; it needs as much disk as the text and the shards together. A killed
run resumes from there. An item depends only on files and results are collected in order, so the shards are
byte-identical for any number of workers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bertie import __version__
from bertie.base import console, storage
from bertie.base.errors import redacted
from bertie.corpus import document_blocks, duplicates, encode, near_duplicates, shard_format, shard_writer, statistics
from bertie.corpus.coverage import report_unknown
from bertie.corpus.document_blocks import Filters, PrepareSettings
from bertie.corpus.duplicates import HashPart
from bertie.corpus.executors import Executor, LocalExecutor, run
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.statistics import CorpusStatistics
from bertie.files import sources
from bertie.files.sources import Source
from bertie.tokenizers.tokenizer import Tokenizer

LIBRARIES = ("sentencex", "tokenizers", "datasketch")  # whose versions determine the bytes of the shards


def prepare(
    texts: str | Path | Iterable[str | Path],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    eval_share: float = 0.01,
    language: str = "en",
    reader_options: ReaderOptions = ReaderOptions(),
    filters: Filters = Filters(),
    executor: Executor = LocalExecutor(),
    shard_bytes: int = 64_000_000,
) -> dict[str, Any]:
    """Tokenize text files and write them as token shards, split into a training and an evaluation set.

    The same input gives the same bytes, with any executor. If the process is killed, the same call resumes where it
    stopped. `out` also gets statistics.json and report.html.

    Args:
        texts: .txt, .jsonl, .csv, .tsv or .parquet files, also compressed; folders, patterns, URLs, hf:DATASET.
        tokenizer: The tokenizer. The shards keep a copy of it.
        out: Folder to create. It must not exist.
        eval_share: Share of the documents to hold out for evaluation, between 0 and 1. The hash of a document's text
            decides, so equal documents are in the same split.
        language: ISO 639 code of the language, for sentence splitting. With `reader_options.languages`, each text is split
            by the rules of its own language.
        reader_options: How to read the files. `languages` names the fields of a corpus with translations.
        filters: Documents to leave out.
        executor: Where to run: processes of this machine, or a Ray cluster.
        shard_bytes: Bytes of UTF-8 text after which a training shard ends. A shard consists of whole documents, and
            ends at the latest with the group of files that a worker reads.

    Returns:
        The manifest of the shards: counts, checksums and settings.

    Raises:
        UsageError: An argument is invalid, `out` exists, or a file is missing.
        UserError: A file cannot be read, or a split has fewer than 2 documents, the minimum for pairs of texts.
        MachineError: A worker was lost. The same call resumes.
    """
    texts, out = sources.as_list(texts), Path(out)
    if (out / shard_format.MANIFEST).is_file():
        storage.discard_work(out)
    storage.require_fresh(out, "the shards")
    sources.require_outside(out, texts)
    settings = PrepareSettings(eval_share, language, reader_options, filters, shard_bytes, tokenizer.fingerprint)
    files = sources.find(texts)
    with storage.work_folder(out, _plan(settings, files)) as work:
        names = [{"name": file.name, "bytes": file.size} for file in files]
        corpus = CorpusStatistics(names, languages=reader_options.languages)
        folder = _run_stages(settings, tokenizer, executor, work, files, corpus)
        storage.write_json(folder / statistics.FILE, corpus.to_json())
        storage.write_atomic(folder / statistics.PAGE, statistics.corpus_page(corpus, tokenizer))
        report_unknown(tokenizer, corpus.to_json(), "the corpus")
        manifest = shard_writer.write_manifest(
            folder, tokenizer, corpus.splits, {**settings.as_json(), **corpus.counts()}
        )
        storage.publish(folder, out.resolve())
    return manifest


def _plan(settings: PrepareSettings, files: list[Source]) -> dict[str, Any]:
    """Return everything that determines the bytes of the shards. A run resumes only work with an equal plan."""
    return {
        **settings.as_json(),
        "tokenizer": settings.fingerprint,
        "versions": {"bertie": __version__, **{name: metadata.version(name) for name in LIBRARIES}},
        "files": [[redacted(file.path), file.size, file.stamp] for file in files],
    }


def _run_stages(
    settings: PrepareSettings,
    tokenizer: Tokenizer,
    executor: Executor,
    work: Path,
    files: list[Source],
    corpus: CorpusStatistics,
) -> Path:
    """Run all stages, add their results to `corpus`, and return the folder of the shards, without a manifest."""
    tokenizer.save(work / shard_format.TOKENIZER)
    storage.remove_leftovers(work / shard_format.TOKENIZER)

    def text_so_far() -> str:
        return f"{document_blocks.bytes_written(work) / 1e6:,.0f} MB of text"

    groups = list(enumerate(sources.groups(files)))
    read, size = partial(document_blocks.read_group, settings, work), lambda group: sources.megabytes(group[1])
    names: list[str] = []
    for result in run(executor, read, groups, "read", "MB", size, text_so_far):
        corpus.add_group(result)
        names += result["blocks"]
    corpus.require_languages()
    parts = [part for kind in settings.filters.kinds for part in duplicates.hash_parts(work, kind, names)]
    find = partial(_find_copies, settings.filters, work, names)
    for _ in run(executor, find, parts, "find duplicates", "parts"):
        pass
    blocks = list(enumerate(names))
    encoded = list(run(executor, partial(encode.encode_block, settings, work), blocks, "encode", "blocks"))
    corpus.add_blocks(encoded)
    corpus.near_copies = near_duplicates.examples(work, names, len(settings.reader_options.languages) or 1)
    for line in corpus.lines():
        console.info(line)
    corpus.require_documents(settings.eval_share)
    if corpus.languages and not any(split["translated"] for split in corpus.splits.values()):
        console.warn("no record has text in several languages: train with layout.translation_prob = 0")
    return _assemble(work, encoded, tokenizer, corpus)


def _find_copies(filters: Filters, work: Path, names: list[str], part: HashPart) -> None:
    if part.kind.startswith(near_duplicates.NEAR):
        near_duplicates.find_near_duplicates(work, names, filters.near_duplicates, part)
    else:
        duplicates.find_duplicates(work, names, part)


def _assemble(work: Path, encoded: list[dict[str, Any]], tokenizer: Tokenizer, corpus: CorpusStatistics) -> Path:
    """Collect the shards of all blocks in one folder.

    The training shards stay as they are, one per block. Evaluation shards are small, so several are merged into one
    with about as many tokens as the largest training shard.
    """
    folder = work / "shards"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(work / shard_format.TOKENIZER, folder / shard_format.TOKENIZER)
    source = work / encode.FOLDER
    counts = np.zeros((len(shard_format.SPLITS), tokenizer.size), np.int64)
    for number in range(len(encoded)):
        counts += np.load(source / f"{number:05d}.counts.npy")
    train, evaluation = shard_format.SPLITS
    train_blocks = [number for number, result in enumerate(encoded) if result[train]["documents"]]
    (folder / train).mkdir()
    for shard, number in enumerate(train_blocks):
        for kind in shard_format.array_kinds(bool(corpus.languages)):
            _link(
                source / train / shard_format.array_name(number, kind),
                folder / train / shard_format.array_name(shard, kind),
            )
    eval_blocks = [number for number, result in enumerate(encoded) if result[evaluation]["documents"]]
    first_tokens = np.cumsum([0, *(encoded[number][evaluation]["tokens"] for number in eval_blocks)])[:-1]
    shard_tokens = max(result[train]["tokens"] for result in encoded)
    shard_of = first_tokens // max(shard_tokens, 1)
    eval_shards = np.unique(shard_of)
    for shard, value in enumerate(eval_shards):
        parts = [(source / evaluation, number) for number, of in zip(eval_blocks, shard_of, strict=True) if of == value]
        shard_writer.merge_shards(folder / evaluation, shard, parts, bool(corpus.languages))
    corpus.add_shards(counts, [len(train_blocks), len(eval_shards)], tokenizer)
    return folder


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
