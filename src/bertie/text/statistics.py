"""What `prepare` has to tell about a corpus: counts that go into the manifest, statistics.json, and a page with pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from bertie.errors import UserError
from bertie.report import Page
from bertie.text import shards
from bertie.text.read_counts import ReadCounts
from bertie.text.tokenizer import Tokenizer

FILE, PAGE = "statistics.json", "report.html"
COUNTS = ("documents", "sentences", "tokens", "words")
LENGTHS = ("document_tokens", "sentence_tokens")
MOST_FREQUENT = 30
FEW = 8  # documents to hold out, where so few were that --eval-share has to change


@dataclass
class CorpusStatistics:
    """Gathers what the stages say, in their order."""

    files: list[dict[str, Any]]  # {"name", "bytes" on disk}
    documents: int = 0  # that were read, and their bytes as UTF-8
    bytes: int = 0
    empty: int = 0  # without tokens
    lowest: list[float] = field(default_factory=list)  # the smallest hashes of documents, 0 to 1, ascending
    filtered: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)
    tally: ReadCounts = field(default_factory=ReadCounts)
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    lengths: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # side → of what → how many of 1, 2–3, 4–7 …
    commonest: list[list[Any]] = field(default_factory=list)  # token, how often in the training text

    def read(self, result: dict[str, Any]) -> None:
        """What blocks.read_group gave."""
        self.documents += result["documents"]
        self.bytes += result["bytes"]
        for reason, count in result["filtered"].items():
            self.filtered[reason] = self.filtered.get(reason, 0) + count
        self.tally.add(result)

    def encoded(self, results: list[dict[str, Any]]) -> None:
        """What encode.encode_block gave."""
        self.empty = sum(result["empty"] for result in results)
        self.lowest = sorted(each for result in results for each in result["lowest"])[: FEW + 1]
        for result in results:
            for kind, dropped in result["duplicates"].items():
                counted = self.duplicates.setdefault(kind, {"count": 0, "bytes": 0})
                for what in counted:
                    counted[what] += dropped[what]
        for name in shards.SPLITS:
            self.splits[name] = {what: sum(result[name][what] for result in results) for what in COUNTS}
            self.lengths[name] = {
                what: [sum(bins) for bins in zip_longest(*(result[name][what] for result in results), fillvalue=0)]
                for what in LENGTHS
            }

    def require_documents(self, eval_share: float) -> None:
        """Errors: UserError where a side has fewer than two, with a share that gives both sides enough if there is one."""
        total = sum(side["documents"] for side in self.splits.values())
        if total == 0:
            because = f"all {self.empty} documents are without tokens" if self.empty else "the files hold no documents"
            if self.filtered:
                because = f"{sum(self.filtered.values()):,} documents were left out: {', '.join(self.filtered)}"
            raise UserError(f"no text to prepare: {because}")
        for name, flag in (("eval", "raise"), ("train", "lower")):
            if (found := self.splits[name]["documents"]) < 2:
                lacking = f"{found} of {total} documents on the {name} side, which needs at least 2"
                share, held = _share_of_few(self.lowest, total)
                if not held:
                    raise UserError(f"{lacking}, and no --eval-share gives both sides enough: give more documents")
                raise UserError(
                    f"{lacking}: {flag} --eval-share (now {eval_share:g}) to {share}, which holds out {held}, "
                    "or give more documents"
                )

    def assembled(self, counts: np.ndarray, numbers: list[int], tokenizer: Tokenizer) -> None:
        """counts: int64 [sides, V]; numbers: of shards."""
        for name, side, number in zip(shards.SPLITS, counts, numbers, strict=True):
            without = side.copy()
            without[tokenizer.special_ids] = 0
            unknown = int(side[tokenizer.unk_id])
            self.splits[name] |= {
                "shards": number,
                "unknown": unknown,
                "unigram_entropy": shards.unigram_entropy(without),
            }
        for token in np.argsort(-counts[0], kind="stable")[:MOST_FREQUENT].tolist():
            self.commonest.append([tokenizer.words[token], int(counts[0, token])])

    def counts(self) -> dict[str, Any]:
        """For the manifest: the same on every machine, wherever the files lie."""
        return {
            "files_read": self.files,
            "documents": self.documents,
            "bytes": self.bytes,
            "skipped": {reason: count for reason, (count, _) in self.tally.skipped.items()},
            "filtered": self.filtered,
            "duplicates": self.duplicates,
            "blank": self.tally.blank,
            "empty": self.empty,
        }

    def statistics(self) -> dict[str, Any]:
        return {**self.counts(), "splits": self.splits, "lengths": self.lengths, "commonest": self.commonest}

    def lines(self, places: bool = True) -> list[str]:
        """What was left out, for people. places: name the files, as this machine does."""
        found = self.tally.lines(places)
        found += [f"left out {count:,} documents {reason}" for reason, count in self.filtered.items()]
        found += [
            f"left out {dropped['count']:,} {kind} that are equal to earlier ones ({dropped['bytes'] / 1e6:,.1f} MB)"
            for kind, dropped in self.duplicates.items()
            if dropped["count"]
        ]
        if self.empty:
            found.append(f"left out {self.empty:,} documents without tokens")
        return found


def _share_of_few(lowest: list[float], total: int) -> tuple[float, int]:
    """The --eval-share, as short as it can be written, that holds out a few documents, and how many; 0, 0 if there is none.

    lowest: the smallest hashes of `total` documents, ascending. Equal documents have equal hashes.
    """
    possible = [held for held in range(2, min(FEW, total - 2) + 1) if lowest[held - 1] < lowest[held]]
    if not possible:
        return 0.0, 0
    held = min(possible, key=lambda held: abs(held - total // 5))
    below, above = lowest[held - 1], lowest[held]
    rounded = (math.floor(below * 10**digits + 1) / 10**digits for digits in range(1, 16))
    return next((share for share in rounded if below < share <= above), above), held


def corpus_page(told: CorpusStatistics) -> str:
    """HTML."""
    train, held_out = (told.splits[name] for name in shards.SPLITS)
    size = sum(file["bytes"] for file in told.files)
    read = f"{told.documents:,} documents, {told.bytes / 1e6:,.1f} MB of text, from {len(told.files):,} files"
    shown = Page("Corpus", f"{read} ({size / 1e6:,.1f} MB on disk).")
    rows = [(what, train[what], held_out[what]) for what in (*COUNTS, "shards")]
    shown.table(("", "training", "held out"), rows)
    words = max(train["words"], 1)
    shown.paragraph(
        f"A word is {train['tokens'] / words:.3f} tokens on average, and {train['unknown'] / max(train['tokens'], 1):.3%} of the "
        f"tokens are [UNK]. A model that knows nothing but how often each token occurs has a loss of "
        f"{train['unigram_entropy']:.2f} nats: one that learns falls below that."
    )
    shown.heading("Left out")
    if lines := told.lines(places=False):
        for line in lines:
            shown.paragraph(line[0].upper() + line[1:] + ".")
    else:
        shown.paragraph("Nothing.")
    shown.heading("Lengths")
    for what, caption in (("document_tokens", "documents"), ("sentence_tokens", "sentences")):
        bins = {_span(power): count for power, count in enumerate(told.lengths["train"][what])}
        shown.bar_chart(bins, "tokens", f"{caption} for training, by their tokens")
    shown.heading("The commonest tokens")
    total = max(train["tokens"], 1)
    shown.table(
        ("token", "times", "share, %"), [(token, count, 100 * count / total) for token, count in told.commonest]
    )
    return shown.html()


def _span(power: int) -> str:
    low, high = 1 << power, (2 << power) - 1
    return f"{_short(low)}–{_short(high)}" if power else "1"


def _short(number: int) -> str:
    if number < 1 << 10:
        return f"{number}"
    return f"{number / 2**10:.3g} Ki" if number < 1 << 20 else f"{number / 2**20:.3g} Mi"
