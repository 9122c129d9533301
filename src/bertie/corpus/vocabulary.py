"""Vocabulary training: text files to a new tokenizer, or additional words for an existing one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bertie.base import console, storage
from bertie.base.console import percent
from bertie.base.errors import UsageError, UserError
from bertie.corpus import bpe, unigram, word_counts, wordpiece
from bertie.corpus.accents import counting_rules, decide_accents
from bertie.corpus.coverage import can_be_unknown, measure_coverage
from bertie.corpus.executors import Executor, LocalExecutor, run
from bertie.corpus.merges import Criterion
from bertie.corpus.readers import ReadCounts, ReaderOptions, read_sources
from bertie.corpus.word_counts import MAX_UNIQUE_WORDS, WordCounts
from bertie.files import sources
from bertie.files.sources import Source
from bertie.tokenizers import wordpiece_backend
from bertie.tokenizers.folder import ReadingRules
from bertie.tokenizers.library_backend import UNIGRAM_RULES, WITHOUT_BLANKS
from bertie.tokenizers.special_tokens import LINE_BREAK, printable
from bertie.tokenizers.tokenizer import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    SPECIAL_TOKENS,
    ByteLevel,
    NormalizerOptions,
    Tokenizer,
)

Algorithm = Literal["wordpiece", "bpe", "unigram"]
REPORT = "vocabulary.json"
OTHER_RULES: dict[str, ReadingRules] = {"bpe": ByteLevel(), "unigram": UNIGRAM_RULES}
ALPHABET_LIMIT = 1000


def train_tokenizer(
    texts: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    algorithm: Algorithm = "wordpiece",
    vocab_size: int = 30_000,
    normalization: NormalizerOptions = NormalizerOptions(),
    criterion: Criterion = "frequency",
    alphabet_limit: int = ALPHABET_LIMIT,
    min_frequency: int = 2,
    user_tokens: Sequence[str] = (),
    unused: int = 0,
    max_word_length: int = MAX_WORD_CHARACTERS,
    max_unique_words: int = MAX_UNIQUE_WORDS,
    reader_options: ReaderOptions = ReaderOptions(),
    executor: Executor = LocalExecutor(),
) -> Tokenizer:
    """Train a vocabulary on text files and write it, as a tokenizer, to a new folder: the same bytes for the same text.

    Args:
        texts: .txt, .jsonl, .csv, .tsv or .parquet files, also compressed; folders, patterns, URLs, hf:DATASET.
        out: Folder to create. It must not exist. Its vocabulary.json reports how well the vocabulary covers the text.
        algorithm: "wordpiece"; "bpe" (byte-level, as RoBERTa's); or "unigram" (as XLM-RoBERTa's), for text without
            spaces.
        vocab_size: Number of entries, special tokens included. A small text may fill fewer, which is a warning.
        normalization: How WordPiece normalizes text. Undecided accents are kept if 1 % of the words or more have some.
        criterion: Pair to merge next: the most frequent one, or (WordPiece) the one with the highest likelihood.
        alphabet_limit: Number of characters WordPiece keeps. Words with others become [UNK].
        min_frequency: Pairs with fewer occurrences are not merged.
        user_tokens: Strings that become entries, matched in the raw text. With "\\n", `prepare` keeps line breaks.
        unused: Number of entries [unused0], [unused1], … to reserve.
        max_word_length: Characters of WordPiece's longest word; only tokenizer.json has a number other than 100.
        max_unique_words: Number of distinct words to count, at least 1,000. Beyond it, the rarest are dropped.
        reader_options: How to read the files.
        executor: Where to count words: processes of this machine, or a Ray cluster.

    Raises:
        UsageError: An argument is invalid or does not apply to the algorithm, `out` exists, or a file is missing.
        UserError: A file cannot be read, or the text is empty.
        MachineError: A worker was lost.
    """
    texts, out = sources.as_list(texts), Path(out)
    _require_valid(texts, out, max_unique_words)
    common: Any = {"vocab_size": vocab_size, "min_frequency": min_frequency}
    common["reserved"] = _reserved_entries(user_tokens, unused, vocab_size)
    _require_defaults(algorithm, normalization, criterion, alphabet_limit, max_word_length, user_tokens)
    rules = OTHER_RULES.get(algorithm) or counting_rules(normalization)
    table = count_words(texts, rules, user_tokens, max_unique_words, reader_options, executor)
    settings: dict[str, Any] = {"algorithm": algorithm}
    if algorithm == "bpe":
        tokenizer = Tokenizer.build_bpe(*bpe.train(table.counts, **common), user_tokens)
    elif algorithm == "unigram":
        tokenizer = Tokenizer.build_unigram(unigram.train(table.counts, **common), user_tokens)
    else:
        table, normalization, accents = decide_accents(table, normalization)
        settings, longest = {**accents, "criterion": criterion}, max_word_length
        common |= {"criterion": criterion, "alphabet_limit": alphabet_limit, "max_word_length": longest}
        entries = wordpiece.train(table.counts, **common)
        tokenizer = Tokenizer(wordpiece_backend.build(entries, normalization, "the text", user_tokens, longest))
    return _save(tokenizer, out, table, {**settings, "min_frequency": min_frequency}, vocab_size)


def _require_defaults(
    algorithm: Algorithm,
    normalization: NormalizerOptions,
    criterion: Criterion,
    alphabet_limit: int,
    max_word_length: int,
    user_tokens: Sequence[str],
) -> None:
    """Raise UsageError if an option does not apply to byte-level BPE or unigram vocabularies, and the algorithm is one."""
    if algorithm == "wordpiece":
        return
    for flags, is_default in (
        ("--cased, --keep-accents, --whole-chinese and --drop-punctuation do", normalization == NormalizerOptions()),
        (f"--criterion {criterion} does", criterion == "frequency"),
        ("--alphabet-limit does", alphabet_limit == ALPHABET_LIMIT),
        ("--max-word-length does", max_word_length == MAX_WORD_CHARACTERS),
    ):
        if not is_default:
            raise UsageError(f"{flags} not apply to --algorithm {algorithm}: omit it")
    for token in user_tokens:
        if algorithm == "bpe" and not token.isascii():
            raise UsageError(f"--user-tokens {token!r}: with --algorithm bpe, give ASCII characters only")
        if token in bpe.ROBERTA_ORDER:
            raise UsageError(f"--user-tokens {token!r} is already in the vocabulary")


def extend_tokenizer(
    tokenizer: Tokenizer,
    texts: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    add: int = 1000,
    min_frequency: int = 5,
    reader_options: ReaderOptions = ReaderOptions(),
    executor: Executor = LocalExecutor(),
) -> Tokenizer:
    """Append words of a new domain to a vocabulary: the words that most reduce the number of pieces of a text.

    Existing entries keep their ids, so a model with the old vocabulary can be trained further (`pretrain --init-from`).
    A word that is [UNK] so far, because it has a character without an entry, counts as split into its characters.

    Args:
        tokenizer: The tokenizer to extend. It is not changed.
        texts: Files of the new domain, as for `train_tokenizer`.
        out: Folder to create. It must not exist.
        add: Number of words to append, at most.
        min_frequency: Words with fewer occurrences are not appended.
        reader_options: How to read the files.
        executor: Where to count words: processes of this machine, or a Ray cluster.

    Raises:
        UsageError: An argument is invalid, `out` exists, or a file is missing.
        UserError: A file cannot be read, the text has no word to add, or the tokenizer has settings that bertie cannot
            reproduce.
        MachineError: A worker was lost.
    """
    backend = tokenizer.backend.extensible()
    texts, out = sources.as_list(texts), Path(out)
    _require_valid(texts, out)
    if not 1 <= add <= 1_000_000:
        raise UsageError(f"--add {add}: give a number of words from 1 to 1,000,000")
    if min_frequency < 1:
        raise UsageError(f"--min-frequency {min_frequency}: give at least 1")
    table = count_words(
        texts, tokenizer.normalization, tokenizer.user_tokens, MAX_UNIQUE_WORDS, reader_options, executor
    )
    known = set(tokenizer.vocabulary)
    counts = {word: count for word, count in table.counts.items() if len(word) <= backend.max_word_length}
    frequent = sorted(word for word, count in counts.items() if count >= min_frequency and word not in known)
    pieces_saved = {}
    for word, ids in zip(frequent, tokenizer.encode(frequent), strict=True):
        pieces = max(len(word), 2) if tokenizer.unk_id in ids else len(ids)
        pieces_saved[word] = table.counts[word] * (pieces - 1)
    ranked = sorted(pieces_saved, key=lambda word: (-pieces_saved[word], word))
    new = [word for word in ranked if pieces_saved[word]][:add]
    if not new:
        raise UserError(
            f"the vocabulary already has every word that occurs {min_frequency} times (--min-frequency) or more: give more text"
        )
    extended = tokenizer.with_vocabulary([*tokenizer.vocabulary, *new])
    return _save(extended, out, table, {"added": len(new), "min_frequency": min_frequency})


def _require_valid(texts: list[str | Path], out: Path, max_unique_words: int = MAX_UNIQUE_WORDS) -> None:
    storage.require_fresh(out, "the tokenizer")
    sources.require_outside(out, texts)
    if max_unique_words < 1000:
        raise UsageError(f"--max-unique-words {max_unique_words}: give at least 1,000 words")


def _save(tokenizer: Tokenizer, out: Path, table: WordCounts, settings: dict[str, Any], wanted: int = 0) -> Tokenizer:
    """Write the tokenizer and vocabulary.json, print how well the vocabulary covers the text, and return the tokenizer.

    wanted: Number of entries that the text should have filled.
    """
    if tokenizer.size < wanted:
        console.warn(
            f"the text fills only {tokenizer.size:,} of {wanted:,} entries (--vocab-size): give more text, or a lower "
            f"--min-frequency than {settings['min_frequency']}"
        )
    coverage = measure_coverage(tokenizer, table.counts)
    # Without blanks in the text, what is counted as words are whole sentences, and every piece is a word.
    blankless = sum(count for word, count in table.counts.items() if WITHOUT_BLANKS.search(word))
    words = tokenizer.algorithm != "unigram" or 2 * blankless < coverage.words
    with storage.atomic_folder(out) as folder:
        tokenizer.save(folder)
        report = {**settings, "entries": tokenizer.size, "fit": asdict(coverage), "words_forgotten": table.forgotten}
        storage.write_json(folder / REPORT, report)
    shares = f"; {coverage.pieces_per_word:.3f} pieces per word; {percent(coverage.whole)} of words are a single entry"
    if can_be_unknown(tokenizer):
        shares += f", {percent(coverage.unknown)} are {tokenizer.special.unk}"
    console.info(f"{tokenizer.size:,} entries, {coverage.used:,} of them occur in the text{shares * words}")
    coverage.share.warn(str(out))
    return tokenizer


def count_words(
    texts: Iterable[str | Path],
    normalization: ReadingRules,
    user_tokens: Sequence[str] = (),
    limit: int = MAX_UNIQUE_WORDS,
    reader_options: ReaderOptions = ReaderOptions(),
    executor: Executor = LocalExecutor(),
) -> WordCounts:
    """Count the words of text files. Skipped records and dropped words are reported on stderr.

    Args:
        texts: Files, as for `train_tokenizer`.
        normalization: How to normalize text before words are counted, or `ByteLevel`.
        user_tokens: Strings that are not part of words.
        limit: Number of distinct words to keep. Beyond it, the rarest words are dropped.
        reader_options: How to read the files.
        executor: Where to count.

    Raises:
        UsageError: A file is missing, or its format is unknown.
        UserError: A file cannot be read.
        MachineError: A worker was lost.
    """
    table, read_counts = WordCounts(limit), ReadCounts()
    count = partial(word_counts.count_words, normalization=normalization, user_tokens=user_tokens, limit=limit)
    count, groups = partial(_count, reader_options, count), sources.groups(sources.find(texts))
    for part, part_read_counts in run(executor, count, groups, "count words", "MB", sources.megabytes):
        table.add(part.counts, part.forgotten)
        read_counts.add(part_read_counts)
    for line in read_counts.lines():
        console.info(line)
    if table.forgotten:
        console.warn(
            f"the text has more than {limit:,} different words: the rarest were dropped, {table.forgotten:,} "
            f"occurrences in all (kept: {table.counts.total():,}); to keep more, use --max-unique-words {2 * limit}"
        )
    return table


def _count(
    reader_options: ReaderOptions, count: Callable[[Iterable[str]], WordCounts], files: list[Source]
) -> tuple[WordCounts, dict[str, Any]]:
    """Count the words of a group of files. Also returns `ReadCounts.as_json`."""
    read_counts = ReadCounts()
    counted = count(document.text for document in read_sources(files, reader_options, read_counts))
    return counted, read_counts.as_json()


def _reserved_entries(user_tokens: Sequence[str], unused: int, vocab_size: int) -> list[str]:
    """Return the user tokens and [unused…] entries, or raise UsageError if one is invalid."""
    if unused and not 0 <= unused < vocab_size:
        raise UsageError(f"--unused {unused}: give a number from 0 to below --vocab-size {vocab_size}")
    reserved = [*user_tokens, *(f"[unused{number}]" for number in range(unused))]
    for token in user_tokens:
        if token == LINE_BREAK:
            continue
        if token == printable(LINE_BREAK):
            raise UsageError(f"--user-tokens {token}: for the line break, use --line-breaks")
        if not token or token.split() != [token]:
            raise UsageError(f"--user-tokens {token!r}: give a string without spaces")
        if len(token) == 1 or token.startswith(CONTINUATION):
            raise UsageError(f"--user-tokens {token!r}: give at least two characters, not starting with {CONTINUATION}")
    if repeated := {token for token, count in Counter(reserved).items() if count > 1 or token in SPECIAL_TOKENS}:
        raise UsageError(f"--user-tokens {min(repeated)!r} is already in the vocabulary")
    return reserved
