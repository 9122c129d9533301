"""bertie tokenizer train"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertie.base import console, storage
from bertie.commands.common import STRIP_ACCENTS, ExecutorOptions, KeepAccents, selected
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.vocabulary import REPORT, train_tokenizer
from bertie.corpus.word_counts import MAX_UNIQUE_WORDS
from bertie.tokenizers.special_tokens import LINE_BREAK
from bertie.tokenizers.tokenizer import MAX_WORD_CHARACTERS, NormalizerOptions


@dataclass(frozen=True)
class Args:
    """Train a WordPiece, byte-level BPE or unigram vocabulary. The same text gives the same vocabulary on every run."""

    text: Positional[list[str]]
    """.txt, .jsonl, .csv, .tsv or .parquet files (also .gz, .bz2, .xz, .zst), folders, patterns, URLs, hf:DATASET."""
    out: Path
    """Output folder: the files of the vocabulary (vocab.txt, vocab.json and merges.txt, or tokenizer.json alone),
    tokenizer_config.json, and vocabulary.json (coverage of the text)."""
    algorithm: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """BERT's WordPiece; byte-level BPE as in RoBERTa, which keeps text as it is and has no [UNK]; or a unigram vocabulary
    as in XLM-RoBERTa, for languages that are written without spaces."""
    vocab_size: int = 30_000
    """Number of entries, special tokens included. A small text may fill fewer."""
    criterion: Literal["frequency", "likelihood"] = "frequency"
    """Pair of pieces to merge next: the most frequent, or the one that most increases the likelihood of the text."""
    cased: bool = False
    """Keep case and accents."""
    keep_accents: KeepAccents = None
    """Strip or keep accents. By default, --cased keeps them, and otherwise the text decides: they are kept if 1 % of its
    words or more have some."""
    whole_chinese: bool = False
    """Do not make every CJK character a word of its own."""
    drop_punctuation: bool = False
    """Treat punctuation as space: it separates words and has no tokens."""
    alphabet_limit: int = 1000
    """Number of characters to keep, most frequent first; words with other characters become [UNK]."""
    max_word_length: int = MAX_WORD_CHARACTERS
    """Characters of the longest word, up to 1,000; longer ones become [UNK]. For scripts without spaces. A number other
    than 100 is in tokenizer.json only, which transformers reads too."""
    min_frequency: int = 2
    """Smallest number of occurrences of a pair of pieces to merge."""
    user_tokens: tuple[str, ...] = ()
    """Strings that become entries and are never split, such as <url>."""
    line_breaks: bool = False
    """Add an entry for the line break: `prepare` then keeps line breaks, and models see lines and paragraphs."""
    unused: int = 0
    """Number of reserved entries: [unused0], [unused1] …"""
    max_unique_words: int = MAX_UNIQUE_WORDS
    """Maximum number of distinct words to count; beyond it, the rarest are dropped. 2 million take about 1.5 GB."""
    reading: Flat[ReaderOptions] = ReaderOptions()
    work: Flat[ExecutorOptions] = ExecutorOptions()


def run(args: Args) -> JsonResult:
    names = ("algorithm", "vocab_size", "criterion", "alphabet_limit", "max_word_length", "min_frequency", "unused")
    tokenizer = train_tokenizer(
        args.text,
        args.out,
        normalization=NormalizerOptions(
            not args.cased, STRIP_ACCENTS[args.keep_accents], not args.whole_chinese, args.drop_punctuation
        ),
        user_tokens=[*[LINE_BREAK] * args.line_breaks, *args.user_tokens],
        reader_options=args.reading,
        executor=args.work.build(),
        **selected(args, *names, "max_unique_words"),
    )
    return report_tokenizer(args.out, tokenizer.size, tokenizer.fingerprint)


def report_tokenizer(out: Path, size: int, fingerprint: str) -> JsonResult:
    """Report a tokenizer that was written to `out`, and return its JSON result."""
    console.info(f"{out}: {size:,} entries")
    report = storage.read_json(out / REPORT)
    return {"tokenizer": str(out), "size": size, "fingerprint": fingerprint, "fit": report["fit"]}
