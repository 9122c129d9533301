"""Statistics of a prepared corpus: for the manifest, statistics.json and report.html."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from bertie.base.console import plural
from bertie.base.errors import UserError
from bertie.base.report import Page
from bertie.corpus.coverage import unknown_share
from bertie.corpus.near_duplicates import NEAR, NearCopy
from bertie.corpus.readers import ReadCounts
from bertie.corpus.shard_format import SPLITS
from bertie.corpus.shards import unigram_loss
from bertie.tokenizers.special_tokens import printable
from bertie.tokenizers.tokenizer import Tokenizer

FILE, PAGE = "statistics.json", "report.html"
COUNTS = ("documents", "sentences", "tokens", "words")
LENGTHS = ("document_tokens", "sentence_tokens")
MOST_FREQUENT = 30


@dataclass
class CorpusStatistics:
    """Collects the results of the stages of `prepare`, in the order of the `add_` methods."""

    files: list[dict[str, Any]]  # {"name", "bytes" on disk}
    documents: int = 0  # documents read
    bytes: int = 0  # of their text, as UTF-8
    empty: int = 0  # documents without tokens
    characters: int = 0  # of tokenized documents, except blanks
    unknown_characters: int = 0  # those of them that became [UNK]
    filtered: Counter[str] = field(default_factory=Counter)  # reason -> documents
    duplicates: dict[str, Counter[str]] = field(default_factory=dict)  # kind -> {"count", "bytes"}
    near_copies: list[NearCopy] = field(default_factory=list)  # examples of texts that were left out
    read_counts: ReadCounts = field(default_factory=ReadCounts)
    languages: tuple[str, ...] = ()  # names of the languages; () if the corpus has none
    language_documents: list[int] = field(default_factory=list)  # documents read that have text in each language
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)  # split -> counts
    lengths: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # split -> LENGTHS -> histogram (`encode`)
    unigram_loss: float = 0.0  # on the held-out text, see `shards.unigram_loss`
    most_frequent: list[list[Any]] = field(default_factory=list)  # [token, occurrences in the training set]

    def add_group(self, result: dict[str, Any]) -> None:
        """Add the result of `document_blocks.read_group`."""
        self.documents += result["documents"]
        self.bytes += result["bytes"]
        self.filtered.update(result["filtered"])
        self.read_counts.add(result)
        totals = zip_longest(self.language_documents, result["languages"], fillvalue=0)
        self.language_documents = [before + more for before, more in totals]

    def require_languages(self) -> None:
        """Raise UserError if a language has no text at all: its name is probably wrong."""
        for name, documents in zip(self.languages, self.language_documents, strict=False):
            if not documents:
                raise UserError(f"no record has text in {name!r}: correct --languages, or remove {name!r} from it")

    def add_blocks(self, results: list[dict[str, Any]]) -> None:
        """Set the sums of all results of `encode.encode_block`."""
        for name in ("empty", "characters", "unknown_characters"):
            setattr(self, name, sum(result[name] for result in results))
        for result in results:
            for kind, dropped in result["duplicates"].items():
                self.duplicates.setdefault(kind, Counter()).update(dropped)
        for name in SPLITS:
            self.splits[name] = {key: sum(result[name][key] for result in results) for key in COUNTS}
            self.lengths[name] = {
                key: [sum(bins) for bins in zip_longest(*(result[name][key] for result in results), fillvalue=0)]
                for key in LENGTHS
            }
            if self.languages:
                self.splits[name]["languages"] = {
                    language: sum(result[name]["languages"][number] for result in results)
                    for number, language in enumerate(self.languages)
                }
                self.splits[name]["translated"] = sum(result[name]["translated"] for result in results)

    def require_documents(self, eval_share: float) -> None:
        """Raise UserError if a set has fewer than 2 documents."""
        total = sum(split["documents"] for split in self.splits.values())
        if total == 0:
            reason = f"all {self.empty} documents lack tokens" if self.empty else "the files hold no documents"
            if self.filtered:
                reason = f"{self.filtered.total():,} documents were left out: {', '.join(self.filtered)}"
            raise UserError(f"no text to prepare: {reason}")
        for name, title, change in (("eval", "evaluation", "raise"), ("train", "training", "lower")):
            if (documents := self.splits[name]["documents"]) < 2:
                few = "In .txt files, a blank line ends a document; with --documents line, every line is one. "
                raise UserError(
                    f"the {title} set has {documents} of {total} documents, but needs at least 2",
                    f"{few * (total < 10)}{change.capitalize()} --eval-share {eval_share:g}, or give more documents",
                )

    def add_shards(self, counts: np.ndarray, shard_counts: list[int], tokenizer: Tokenizer) -> None:
        """Add what is known once the shards are complete.

        Args:
            counts: int64 [splits, V], occurrences of each vocabulary entry.
            shard_counts: Number of shards of each split.
            tokenizer: The tokenizer of the shards.
        """
        for name, split_counts, number in zip(SPLITS, counts, shard_counts, strict=True):
            self.splits[name] |= {
                "shards": number,
                "unknown": int(split_counts[tokenizer.unk_id]) if tokenizer.special.unk else 0,
            }
        self.unigram_loss = unigram_loss(counts[0], counts[1], tokenizer.special_ids)
        for token in np.argsort(-counts[0], kind="stable")[:MOST_FREQUENT].tolist():
            self.most_frequent.append([tokenizer.vocabulary[token], int(counts[0, token])])

    def counts(self) -> dict[str, Any]:
        """Return the counts for the manifest. They do not depend on the machine or the place of the files."""
        return {
            "files_read": self.files,
            "documents": self.documents,
            "bytes": self.bytes,
            "skipped": {reason: count for reason, (count, _) in self.read_counts.skipped.items()},
            "filtered": self.filtered,
            "duplicates": self.duplicates,
            "blank": self.read_counts.blank,
            "empty": self.empty,
            "characters": self.characters,
            "unknown_characters": self.unknown_characters,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the content of statistics.json."""
        return {
            **self.counts(),
            "splits": self.splits,
            "unigram_loss": self.unigram_loss,
            "lengths": self.lengths,
            "commonest": self.most_frequent,
        }

    def lines(self, places: bool = True) -> list[str]:
        """Return one line for each kind of text that was left out. places: whether to name the files' paths."""
        lines = self.read_counts.lines(places)
        lines += [f"left out {count:,} documents {reason}" for reason, count in self.filtered.items()]
        lines += [
            f"left out {dropped['count']:,} {kind.removeprefix(NEAR)} {'nearly ' * kind.startswith(NEAR)}equal to earlier ones "
            f"({dropped['bytes'] / 1e6:,.1f} MB)"
            for kind, dropped in self.duplicates.items()
            if dropped["count"]
        ]
        if self.empty:
            lines.append(f"left out {self.empty:,} documents without tokens")
        return lines


def corpus_page(corpus: CorpusStatistics, tokenizer: Tokenizer) -> str:
    """Render report.html."""
    train, evaluation = (corpus.splits[name] for name in SPLITS)
    size = sum(file["bytes"] for file in corpus.files)
    text = f"{corpus.documents:,} documents, {corpus.bytes / 1e6:,.1f} MB of text, from {plural(len(corpus.files), 'file')}"
    page = Page("Corpus", f"{text} ({size / 1e6:,.1f} MB on disk).")
    rows = [(key, train[key], evaluation[key]) for key in (*COUNTS, "shards") if train[key]]  # some have no words
    rows += [
        (f"documents in {name}", *(s["languages"][name] for s in (train, evaluation))) for name in corpus.languages
    ]
    if corpus.languages:
        rows.append(("documents in several languages", train["translated"], evaluation["translated"]))
    page.table(("", "training", "held out"), rows)
    tokens, both = max(train["tokens"], 1), train["tokens"] + evaluation["tokens"]
    per_word = f"{train['tokens'] / train['words']:.3f} tokens per word, and " if train["words"] else ""
    page.paragraph(
        f"The training set has {per_word}{corpus.characters / max(both, 1):.2f} characters per token, not counting spaces. "
        f"{unknown_share(tokenizer, corpus.to_json())}. A unigram model of it (token counts plus one) has a loss of "
        f"{corpus.unigram_loss:.2f} nats on the held-out set. A model that learns more than word frequencies gets below it."
    )
    page.heading("Left out")
    for line in corpus.lines(places=False) or ["nothing"]:
        page.paragraph(line[0].upper() + line[1:] + ".")
    if corpus.near_copies:
        page.table(("share", "left out", "nearly equal to"), corpus.near_copies)
    page.heading("Lengths")
    for key, unit in (("document_tokens", "documents"), ("sentence_tokens", "sentences")):
        bins = {_bin_label(power): count for power, count in enumerate(corpus.lengths["train"][key])}
        page.bar_chart(bins, "tokens", f"training {unit} by number of tokens")
    page.heading("Most frequent tokens")
    page.table(
        ("token", "occurrences", "share, %"),
        [(printable(token), count, 100 * count / tokens) for token, count in corpus.most_frequent],
    )
    return page.html()


def _bin_label(power: int) -> str:
    """Name a bin of the length histograms: 1, 2–3, 4–7 and so on."""
    low, high = 1 << power, (2 << power) - 1
    return f"{_format_number(low)}–{_format_number(high)}" if power else "1"


def _format_number(number: int) -> str:
    if number < 1 << 10:
        return f"{number}"
    return f"{number / 2**10:.3g} Ki" if number < 1 << 20 else f"{number / 2**20:.3g} Mi"
