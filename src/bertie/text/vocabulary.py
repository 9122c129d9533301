"""From text to a tokenizer's folder: a vocabulary of its own, or more words for one that stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertie import console, storage
from bertie.errors import UsageError, UserError
from bertie.files import sources
from bertie.files.sources import Source
from bertie.text import word_counts, wordpiece
from bertie.text.coverage import measure_coverage
from bertie.text.executors import Executor, LocalExecutor
from bertie.text.merges import Criterion
from bertie.text.read_counts import ReadCounts
from bertie.text.readers import ReaderOptions, read_sources
from bertie.text.tokenizer import CONTINUATION, SPECIAL_TOKENS, NormalizerOptions, Tokenizer
from bertie.text.word_counts import MAX_UNIQUE_WORDS, WordCounts

REPORT = "vocabulary.json"


def train_tokenizer(
    texts: Iterable[str | Path],
    out: Path,
    *,
    vocab_size: int = 30_000,
    rules: NormalizerOptions = NormalizerOptions(),
    criterion: Criterion = "frequency",
    alphabet_limit: int = 1000,
    min_frequency: int = 2,
    user_tokens: Sequence[str] = (),
    unused: int = 0,
    max_unique_words: int = MAX_UNIQUE_WORDS,
    exact: bool = True,
    reading: ReaderOptions = ReaderOptions(),
    executor: Executor = LocalExecutor(),
) -> Tokenizer:
    """Train a WordPiece vocabulary on text files and write it, as a tokenizer, to the new folder `out`.

    user_tokens: kept whole wherever they stand. unused: how many [unused…] entries to reserve. max_unique_words: words to
    count at most. exact: a text that cannot fill vocab_size is an error, else the vocabulary is as large as the text
    makes it. How it fits the text is said, and stands in vocabulary.json. Errors: UsageError, UserError; `out` is then
    not there.
    """
    texts = list(texts)
    storage.require_fresh(out, "the tokenizer")
    sources.require_outside(out, texts)
    if unused and not 0 <= unused < vocab_size:
        raise UsageError(f"--unused {unused}: give 0 or more, and fewer than the {vocab_size} entries")
    reserved = [*user_tokens, *(f"[unused{number}]" for number in range(unused))]
    _require_user_tokens(user_tokens, reserved)
    if max_unique_words < 1000:
        raise UsageError(f"--max-unique-words {max_unique_words}: give at least 1,000 words")
    table = count_words(texts, rules, user_tokens, max_unique_words, reading, executor)
    entries = wordpiece.train(
        table.counts,
        vocab_size=vocab_size,
        criterion=criterion,
        alphabet_limit=alphabet_limit,
        min_frequency=min_frequency,
        reserved=reserved,
        exact=exact,
    )
    tokenizer = Tokenizer.build(entries, rules, user_tokens)
    _save(tokenizer, out, table, {"criterion": criterion, "min_frequency": min_frequency})
    return tokenizer


def extend_tokenizer(
    tokenizer: Tokenizer,
    texts: Iterable[str | Path],
    out: Path,
    *,
    add: int = 1000,
    min_frequency: int = 5,
    reading: ReaderOptions = ReaderOptions(),
    executor: Executor = LocalExecutor(),
) -> Tokenizer:
    """Append the words of a new field to a vocabulary: those that save the most pieces, on the text.

    All entries keep their ids, so a model goes on from the old one (`pretrain --init-from`). A word with a character that
    the vocabulary does not have, [UNK] until now, counts as cut into its characters. Errors: UsageError, UserError.
    """
    texts = list(texts)
    storage.require_fresh(out, "the tokenizer")
    sources.require_outside(out, texts)
    if not 1 <= add <= 1_000_000:
        raise UsageError(f"--add {add}: give a number of words, at least 1")
    if min_frequency < 1:
        raise UsageError(f"--min-frequency {min_frequency}: give at least 1")
    table = count_words(texts, tokenizer.normalization, tokenizer.user_tokens, MAX_UNIQUE_WORDS, reading, executor)
    known = set(tokenizer.words)
    frequent = sorted(word for word, count in table.counts.items() if count >= min_frequency and word not in known)
    saved = {}
    for word, ids in zip(frequent, tokenizer.encode(frequent), strict=True):
        pieces = max(len(word), 2) if tokenizer.unk_id in ids else len(ids)
        saved[word] = table.counts[word] * (pieces - 1)
    new = [word for word in sorted(saved, key=lambda word: (-saved[word], word)) if saved[word]][:add]
    if not new:
        lower = "lower --min-frequency or " if min_frequency > 1 else ""
        times = f"{console.plural(min_frequency, 'time')} or more"
        raise UserError(f"no word that the vocabulary lacks occurs {times} in the text: {lower}give more text")
    extended = tokenizer.rebuilt([*tokenizer.words, *new])
    _save(extended, out, table, {"added": len(new), "min_frequency": min_frequency})
    return extended


def _save(tokenizer: Tokenizer, out: Path, table: WordCounts, how: dict[str, Any]) -> None:
    found = measure_coverage(tokenizer, table.counts)
    with storage.atomic_folder(out) as folder:
        tokenizer.save(folder)
        told = {**how, "entries": tokenizer.size, "fit": asdict(found), "words_forgotten": table.forgotten}
        storage.write_json(folder / REPORT, told)
    console.info(
        f"{tokenizer.size:,} entries, of which {found.used:,} occur; {found.pieces_per_word:.3f} pieces a word; "
        f"{found.whole:.1%} of words whole, {found.unknown:.3%} unknown"
    )


@dataclass(frozen=True)
class _Group:
    files: tuple[Source, ...]
    rules: NormalizerOptions
    user_tokens: tuple[str, ...]
    limit: int
    reading: ReaderOptions


def count_words(
    texts: Iterable[str | Path],
    rules: NormalizerOptions,
    user_tokens: Sequence[str] = (),
    limit: int = MAX_UNIQUE_WORDS,
    reading: ReaderOptions = ReaderOptions(),
    executor: Executor = LocalExecutor(),
) -> WordCounts:
    """How often each word occurs in text files. What was skipped, or forgotten for want of room, is said."""
    together = sources.groups(sources.find(texts))
    groups = [_Group(tuple(group), rules, tuple(user_tokens), limit, reading) for group in together]
    table, tally = WordCounts(limit), ReadCounts()
    sizes = [sum(file.size for file in group) / 1e6 for group in together]
    with console.progress("count words", sum(sizes), "MB") as bar, closing(executor.run(_count, groups)) as results:
        for size, (found, forgotten, told) in zip(sizes, results, strict=True):
            table.add(found, forgotten)
            tally.add(told)
            bar.advance(size)
    for line in tally.lines():
        console.info(line)
    if table.forgotten:
        console.warn(
            f"the word table was full: rare words that occur {table.forgotten:,} times together, of {table.counts.total():,}, "
            f"were forgotten; --max-unique-words {2 * limit} would keep more"
        )
    return table


def _count(group: _Group) -> tuple[dict[str, int], int, dict[str, Any]]:
    tally = ReadCounts()
    documents = read_sources(list(group.files), group.reading, tally)
    table = word_counts.count_words(
        (document.text for document in documents), group.rules, group.user_tokens, group.limit
    )
    return dict(table.counts), table.forgotten, tally.as_json()


def _require_user_tokens(user_tokens: Sequence[str], reserved: list[str]) -> None:
    for token in user_tokens:
        if not token or token.split() != [token]:
            raise UsageError(f"--user-tokens {token!r}: give a string without blanks")
        if len(token) == 1 or token.startswith(CONTINUATION):
            raise UsageError(f"--user-tokens {token!r}: a single character is an entry anyway, and ## continues a word")
    if twice := {token for token, count in Counter(reserved).items() if count > 1 or token in SPECIAL_TOKENS}:
        raise UsageError(f"--user-tokens {min(twice)!r} is in the vocabulary already")
