"""bertie prepare"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from bertie import console
from bertie.commands.common import ExecutorFlags, ExecutorOptions, Flat, Output, OutputFlags, ReaderFlags, ReaderOptions
from bertie.errors import UsageError, UserError
from bertie.text.blocks import Filters
from bertie.text.prepare import prepare
from bertie.text.shards import open_shards, unlisted_files
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Args:
    """Turn text into token shards, with some documents held out for evaluation. Killed, the same command goes on."""

    text: Positional[tuple[str, ...]] = ()
    """.txt, .jsonl, .csv, .tsv or .parquet files, also .gz, .bz2, .xz or .zst; folders, patterns, URLs, hf:DATASET."""
    tokenizer: Path | None = None
    """Folder of `bertie tokenizer train`, or any with a BERT's vocab.txt or tokenizer.json."""
    out: Path | None = None
    """Folder to make."""
    check: Path | None = None
    """Instead of all this: compare every file of a folder of shards with its manifest."""
    eval_share: float = 0.01
    """Share of the documents to hold out, 0 to 1; equal documents stay on one side."""
    language: str = "en"
    """Language of the text, for sentence splitting (a two-letter code)."""
    filters: Annotated[Filters, Flat] = Filters()
    reading: ReaderFlags = ReaderOptions()
    work: ExecutorFlags = ExecutorOptions()
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    if args.check:
        if args != Args(check=args.check, output=args.output):
            raise UsageError("--check only looks at shards that were made: give nothing else with it")
        manifest = open_shards(args.check).manifest
        if others := unlisted_files(args.check, manifest):
            raise UserError(
                f"{args.check}: {others[0]} is none of its files, and {len(others) - 1:,} more: take them out"
            )
        size = sum(file["bytes"] for file in manifest["files"].values())
        console.info(f"{args.check}: {len(manifest['files']):,} files, {size / 1e6:,.1f} MB, as they were made")
        return told(args.check, manifest)
    if not args.tokenizer or not args.out:
        raise UsageError("bertie prepare lacks --tokenizer or --out (bertie prepare --help)")
    manifest = prepare(
        args.text,
        Tokenizer.load(args.tokenizer),
        args.out,
        eval_share=args.eval_share,
        language=args.language,
        reading=args.reading,
        filters=args.filters,
        executor=args.work.build(),
    )
    for name, counts in manifest["splits"].items():
        console.info(f"{name}: {counts['documents']:,} documents, {counts['tokens']:,} tokens")
    console.info(f"{args.out}/report.html shows them")
    return told(args.out, manifest)


def told(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """What a script wants to know."""
    names = ("splits", "documents", "bytes", "skipped", "filtered", "duplicates", "empty")
    return {"shards": str(folder), **{name: manifest[name] for name in names}}
