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
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bertie import __version__, console, storage
from bertie.errors import UsageError
from bertie.files import sources
from bertie.files.sources import Source
from bertie.text import document_blocks, duplicates, encode, shard_format, shard_writer, statistics
from bertie.text.coverage import warn_of_unknown
from bertie.text.document_blocks import FileGroup, Filters
from bertie.text.encode import DocumentBlock
from bertie.text.executors import Executor, LocalExecutor
from bertie.text.readers import ReaderOptions
from bertie.text.statistics import CorpusStatistics
from bertie.text.tokenizer import Tokenizer


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
    _require_valid(texts, out, eval_share, shard_bytes)
    job = _Job(tokenizer, eval_share, language, reader_options, filters, executor, shard_bytes)
    _require_languages_alone(job)
    files = sources.find(texts)
    with storage.work_folder(out, _plan(job, files)) as work:
        names = [{"name": file.name, "bytes": file.size} for file in files]
        corpus = CorpusStatistics(names, languages=reader_options.languages)
        folder = _run_stages(job, work, files, corpus)
        storage.write_json(folder / statistics.FILE, corpus.to_json())
        storage.write_atomic(folder / statistics.PAGE, statistics.corpus_page(corpus))
        train = corpus.splits["train"]
        warn_of_unknown("the training set", train["unknown"] / max(train["words"], 1))
        manifest = shard_writer.write_manifest(folder, tokenizer, corpus.splits, {**job.settings(), **corpus.counts()})
        storage.publish(folder, out.resolve())
    return manifest


@dataclass(frozen=True)
class _Job:
    """The arguments of `prepare` that are not paths."""

    tokenizer: Tokenizer
    eval_share: float
    language: str
    reader_options: ReaderOptions
    filters: Filters
    executor: Executor
    shard_bytes: int

    def settings(self) -> dict[str, Any]:
        """Return the settings as the manifest lists them."""
        languages = list(self.reader_options.languages)
        return {
            **({shard_format.LANGUAGES: languages} if languages else {}),
            "eval_share": self.eval_share,
            "language": self.language,
            "shard_bytes": self.shard_bytes,
            "filters": asdict(self.filters),
            "reading": asdict(self.reader_options) | {"languages": languages},
        }


def _require_valid(texts: list[str | Path], out: Path, eval_share: float, shard_bytes: int) -> None:
    if (out / shard_format.MANIFEST).is_file():
        storage.discard_work(out)
    storage.require_fresh(out, "the shards")
    sources.require_outside(out, texts)
    if not 0 < eval_share < 1:
        raise UsageError(
            f"--eval-share {eval_share:g}: give a share of the documents between 0 and 1, for example 0.01"
        )
    if shard_bytes < 1:
        raise UsageError(f"--shard-bytes {shard_bytes}: give at least 1")


def _require_languages_alone(job: _Job) -> None:
    """Raise UsageError if an option does not apply to a corpus with translations."""
    if not job.reader_options.languages:
        return
    if job.language != "en":
        raise UsageError("--languages also sets the languages of sentence splitting: remove --language")
    if job.filters.duplicates == "paragraphs":
        raise UsageError(
            "--duplicates paragraphs would remove a paragraph without its translation: with --languages, choose documents "
            "or keep"
        )


def _plan(job: _Job, files: list[Source]) -> dict[str, Any]:
    """Return everything that determines the bytes of the shards. A run resumes only work with an equal plan."""
    return {
        **job.settings(),
        "tokenizer": job.tokenizer.fingerprint,
        "versions": {"bertie": __version__, **{name: metadata.version(name) for name in ("sentencex", "tokenizers")}},
        "files": [[file.path, file.size, file.stamp] for file in files],
    }


def _run_stages(job: _Job, work: Path, files: list[Source], corpus: CorpusStatistics) -> Path:
    """Run all stages, add their results to `corpus`, and return the folder of the shards, without a manifest."""
    job.tokenizer.save(work / shard_format.TOKENIZER)
    storage.remove_leftovers(work / shard_format.TOKENIZER)
    names = _read(job, work, files, corpus)
    corpus.require_languages()
    _find_duplicates(job, work, names)
    languages = job.reader_options.languages
    common = (job.language, languages, job.eval_share, job.filters.duplicates, job.tokenizer.fingerprint)
    items = [DocumentBlock(work, name, number, *common) for number, name in enumerate(names)]
    encoded = list(_run(job.executor, encode.encode_block, items, "encode", "blocks"))
    corpus.add_blocks(encoded)
    for line in corpus.lines():
        console.info(line)
    corpus.require_documents(job.eval_share)
    if languages and not any(split["translated"] for split in corpus.splits.values()):
        console.warn("no record has text in several languages: train with layout.translation_prob = 0")
    return _assemble(work, encoded, job.tokenizer, corpus)


def _run(executor: Executor, function: Callable[[Any], Any], items: list[Any], title: str, unit: str) -> Iterator[Any]:
    """Yield results in order, with a progress line."""
    with console.progress(title, len(items), unit) as bar, closing(executor.run(function, items)) as results:
        for result in results:
            yield result
            bar.advance()


def _read(job: _Job, work: Path, files: list[Source], corpus: CorpusStatistics) -> list[str]:
    """Read all files into blocks and return the names of the blocks, in order."""
    groups = [
        FileGroup(work, number, tuple(group), job.reader_options, job.filters, job.shard_bytes)
        for number, group in enumerate(sources.groups(files))
    ]
    sizes = [sum(file.size for file in group.files) / 1e6 for group in groups]
    names: list[str] = []
    with (
        console.progress("read", sum(sizes), "MB") as bar,
        console.status(bar, lambda: f"{document_blocks.bytes_written(work) / 1e6:,.0f} MB of text"),
        closing(job.executor.run(document_blocks.read_group, groups)) as results,
    ):
        for size, result in zip(sizes, results, strict=True):
            corpus.add_group(result)
            names += result["blocks"]
            bar.advance(size)
    return names


def _find_duplicates(job: _Job, work: Path, names: list[str]) -> None:
    kinds = duplicates.kinds(job.filters.duplicates)
    parts = [part for kind in kinds for part in duplicates.hash_parts(work, kind, names)]
    for _ in _run(job.executor, duplicates.find_duplicates, parts, "find duplicates", "parts"):
        pass


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
