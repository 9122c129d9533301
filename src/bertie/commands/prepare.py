"""bertie prepare"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base import console
from bertie.base.errors import UsageError, UserError
from bertie.commands.common import ExecutorOptions, selected
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.corpus.document_blocks import Filters
from bertie.corpus.prepare import prepare
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.shard_format import unlisted_files
from bertie.corpus.shards import open_shards
from bertie.files.store import is_url
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Args:
    """Turn text into token shards, and hold out some documents for evaluation. Run the same command again to resume."""

    text: Positional[tuple[str, ...]] = ()
    """.txt, .jsonl, .csv, .tsv or .parquet files (also .gz, .bz2, .xz, .zst), folders, patterns, URLs, hf:DATASET."""
    tokenizer: Path | None = None
    """Tokenizer: the output of `bertie tokenizer train`, or a folder with the tokenizer of a BERT, RoBERTa or GPT-2.
    Required, except with --check."""
    out: Path | None = None
    """Output folder for the shards. Required, except with --check."""
    check: str | None = None
    """Only check an existing folder of shards: compare every file with the manifest. Use it without other arguments."""
    eval_share: float = 0.01
    """Share of the documents to hold out, 0 to 1; duplicates are held out together."""
    language: str = "en"
    """Language of the text for sentence splitting, a two-letter code. For text in several languages: --languages."""
    filters: Flat[Filters] = Filters()
    reading: Flat[ReaderOptions] = ReaderOptions()
    work: Flat[ExecutorOptions] = ExecutorOptions()


def run(args: Args) -> JsonResult:
    if args.check:
        if args != Args(check=args.check):
            raise UsageError("--check reads existing shards: remove the other arguments")
        if is_url(args.check):
            raise UsageError(f"--check {args.check}: give a local folder, not an object store")
        folder = Path(args.check)
        manifest = open_shards(folder).manifest
        if others := unlisted_files(folder, manifest):
            more = f" and {len(others) - 1:,} more files are" if others[1:] else " is"
            raise UserError(f"{folder}: {others[0]}{more} not in the manifest: remove what is not part of the shards")
        size = sum(file["bytes"] for file in manifest["files"].values())
        console.result(f"{folder}: {len(manifest['files']):,} files, {size / 1e6:,.1f} MB, intact")
        return _summary(folder, manifest)
    if not args.tokenizer or not args.out:
        raise UsageError("bertie prepare needs --tokenizer and --out (see bertie prepare --help)")
    options = selected(args, "eval_share", "language", "filters")
    options |= {"reader_options": args.reading, "executor": args.work.build()}
    manifest = prepare(args.text, Tokenizer.load(args.tokenizer), args.out, **options)
    for name, counts in manifest["splits"].items():
        several = f", {counts['translated']:,} documents in several languages" if args.reading.languages else ""
        console.info(f"{name}: {counts['documents']:,} documents, {counts['tokens']:,} tokens{several}")
    console.info(f"report: {args.out}/report.html")
    return _summary(args.out, manifest)


def _summary(folder: Path, manifest: dict[str, Any]) -> JsonResult:
    """Return the part of the manifest that `--json` prints."""
    names = ("splits", "documents", "bytes", "skipped", "filtered", "duplicates", "empty", "characters")
    return {"shards": str(folder), **{name: manifest.get(name) for name in (*names, "unknown_characters")}}
