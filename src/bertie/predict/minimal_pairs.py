"""Minimal pairs: does a model find the acceptable sentence of two more probable (BLiMP, Warstadt et al. 2020)?"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from bertie.base import console, storage
from bertie.base.errors import SHOWN, UsageError, UserError, first_few, join_names
from bertie.examples.rows import Row, convert_rows, read_rows, require_string
from bertie.predict.likelihood import TextScore, score_texts
from bertie.predict.load import load
from bertie.predict.minimal_pairs_page import page
from bertie.predict.predictor import Predictor
from bertie.predict.token_model import TokenModel, tell_generator

BLOCK = 512  # pairs that are read, scored and written together
WORST = 20  # wrong pairs on the page
FILES = PAIRS, RESULTS, TABLE, PAGE = ("pairs.jsonl", "results.json", "results.csv", "report.html")
GroupKind = Literal["all", "field", "linguistics_term", "UID"]
Z = 1.959964  # quantile of the normal distribution for 95 %


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ in what makes one of them unacceptable."""

    good: str
    """The acceptable sentence."""
    bad: str
    """The unacceptable sentence."""
    groups: dict[GroupKind, str]
    """The columns UID (the phenomenon; by default the name of the file), linguistics_term and field, if they are not empty."""
    source: str
    """File and line."""


class ScoredPair(NamedTuple):
    """A pair with the log-likelihoods of its sentences, in nats."""

    pair: MinimalPair
    good: float
    bad: float

    @property
    def margin(self) -> float:
        """Log-likelihood of the acceptable sentence minus the other one's. The pair is correct if it is positive."""
        return self.good - self.bad


@dataclass(frozen=True)
class GroupResult:
    """The accuracy in a group of pairs."""

    kind: GroupKind
    """The column whose value the pairs share; "all" for all pairs."""
    name: str
    """The shared value."""
    pairs: int
    """Number of pairs."""
    correct: int
    """Pairs whose acceptable sentence has the higher log-likelihood."""
    ties: int
    """Pairs whose sentences have the same log-likelihood. They count as wrong."""
    accuracy: float
    """correct / pairs."""
    low: float
    """Lower end of the 95 % confidence interval of the accuracy (Wilson 1927)."""
    high: float
    """Upper end of the interval."""


@dataclass
class _Tally:
    """Running results, in constant memory."""

    counts: dict[tuple[GroupKind, str], list[int]] = field(default_factory=dict)
    """Group -> pairs, correct, ties."""
    worst: list[ScoredPair] = field(default_factory=list)
    """The wrong pairs with the lowest margins, in order."""
    refused: int = 0
    """Rows that could not be scored."""
    messages: list[str] = field(default_factory=list)
    """The errors of the first ones."""

    def add(self, scored: ScoredPair) -> None:
        groups: dict[GroupKind, str] = {"all": "all", **scored.pair.groups}
        for group in groups.items():
            count = self.counts.setdefault(group, [0, 0, 0])
            for i, one in enumerate((1, scored.margin > 0, scored.margin == 0)):
                count[i] += one
        if scored.margin <= 0:
            self.worst = sorted([*self.worst, scored], key=lambda pair: pair.margin)[:WORST]

    def refuse(self, error: UserError) -> None:
        self.refused += 1
        self.messages += [str(error)] * (len(self.messages) < SHOWN)

    def groups(self) -> list[GroupResult]:
        groups = sorted(self.counts.items(), key=lambda item: (get_args(GroupKind).index(item[0][0]), item[0][1]))
        return [
            GroupResult(kind, name, pairs, correct, ties, correct / pairs, *wilson_interval(correct, pairs))
            for (kind, name), (pairs, correct, ties) in groups
        ]


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a proportion (Wilson 1927). It is not empty at 0 and 1."""
    share, spread = correct / total, Z**2 / total
    center = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return center - half if correct else 0.0, center + half if correct < total else 1.0


def read_pairs(path: Path) -> Iterator[MinimalPair | UserError]:
    """Read minimal pairs lazily, from .jsonl as BLiMP has it, or another table with the same columns.

    Yields:
        The pairs, in order, with a `UserError` in place of each bad row.

    Raises:
        UsageError: The file is missing or has an unknown format.
    """
    default = path.name.partition(".")[0] or path.name
    return convert_rows(read_rows(path), lambda row: _to_pair(row, default))


def _to_pair(row: Row, default: str) -> MinimalPair:
    if missing := [name for name in ("sentence_good", "sentence_bad") if name not in row.values]:
        raise UserError(f"{row.place}: no {' and no '.join(missing)}; its columns are: {join_names(row.values)}")
    good, bad = (require_string(row.values[name], name, row.place) for name in ("sentence_good", "sentence_bad"))
    kinds: tuple[GroupKind, ...] = ("UID", "linguistics_term", "field")
    groups: dict[GroupKind, str] = {kind: require_string(row.values.get(kind) or "", kind, row.place) for kind in kinds}
    groups["UID"] = groups["UID"] or default
    return MinimalPair(good, bad, {kind: name for kind, name in groups.items() if name}, row.source)


def score_pairs(
    model: TokenModel, pairs: Iterable[MinimalPair | UserError], within_word: bool = False
) -> Iterator[ScoredPair | UserError]:
    """Score pairs lazily, in order and in constant memory.

    Args:
        model: The model.
        pairs: The pairs. A `UserError` among them is yielded in its place.
        within_word: As in `Predictor.pseudo_log_likelihood`.
        from_left: The same.

    Yields:
        One result per pair. A `UserError` takes the place of a pair with a sentence that cannot be scored.
    """
    remaining = iter(pairs)
    while part := list(islice(remaining, BLOCK)):
        readable = [pair for pair in part if isinstance(pair, MinimalPair)]
        texts = [text for pair in readable for text in (pair.good, pair.bad)]
        names = [f"{pair.source}: sentence_{side}" for pair in readable for side in ("good", "bad")]
        scores = iter(score_texts(model, texts, names, within_word))
        yield from (pair if isinstance(pair, UserError) else _scored(pair, next(scores), next(scores)) for pair in part)


def _scored(pair: MinimalPair, good: TextScore | UserError, bad: TextScore | UserError) -> ScoredPair | UserError:
    if isinstance(good, UserError) or isinstance(bad, UserError):
        return good if isinstance(good, UserError) else cast(UserError, bad)
    if good.given != bad.given:
        problem = "the sentences begin with different tokens, which nothing predicts"
        return UserError(f"{pair.source}: {problem}, because the model has no token that starts a text")
    return ScoredPair(pair, good.log_likelihood, bad.log_likelihood)


def minimal_pairs(
    model: str | Path | Predictor,
    files: str | Path | Iterable[str | Path],
    out: str | Path | None = None,
    *,
    within_word: bool = False,
    from_left: bool = False,
    language: str = "",
) -> dict[str, Any]:
    """Score minimal pairs: how often is the acceptable sentence more probable than the other one?

    Masked language models are compared by the pseudo-log-likelihood of the two sentences, causal ones by the exact
    log-likelihood.

    Args:
        model: A loaded model, or a source as in `load`.
        files: A file, or several, with the columns sentence_good and sentence_bad, and optionally UID, linguistics_term and
            field.
        out: Output folder for pairs.jsonl, results.json, results.csv and report.html. None: write nothing.
        within_word: As in `Predictor.pseudo_log_likelihood`.
        from_left: The same.
        language: As in `load`. A loaded model has a language already.

    Returns:
        {"model", "score", "pairs", "refused", "accuracy", "seconds", "groups"}, and "out" if it was given. "groups" has one
        `GroupResult` as a dict for all pairs and for each field, linguistics_term and UID.

    Raises:
        UsageError: A file is missing, or `out` is not an empty folder.
        UserError: The model predicts no tokens, or no pair can be scored.
    """
    paths = [Path(path) for path in ([files] if isinstance(files, str | Path) else files)]
    if not paths:
        raise UsageError("give at least one file of minimal pairs")
    if out is not None:
        storage.require_fresh(Path(out), "the results")
    predictor = model if isinstance(model, Predictor) else load(model, language=language)
    token_model = predictor.token_model(from_left=from_left)
    tell_generator(predictor.model)
    started = time.monotonic()
    tally = _Tally()
    with storage.atomic_folder(Path(out)) if out is not None else nullcontext() as folder:
        _collect(score_pairs(token_model, chain.from_iterable(map(read_pairs, paths)), within_word), tally, folder)
        if not tally.counts:
            raise UserError(tally.messages[0] if tally.messages else f"{', '.join(map(str, paths))}: no pairs in it")
        result = _result(predictor, token_model, tally, within_word, time.monotonic() - started)
        if folder is not None:
            _write(folder, result, tally)
    if tally.refused:
        console.warn(f"{tally.refused:,} rows are left out: {first_few(tally.messages, tally.refused)}")
    return result | ({} if out is None else {"out": str(out)})


def _collect(scored: Iterable[ScoredPair | UserError], tally: _Tally, folder: Path | None) -> None:
    """Add the pairs to the tally, and write them to pairs.jsonl."""
    with (
        open(folder / PAIRS, "w", encoding="utf-8") if folder else nullcontext() as file,
        console.progress("minimal pairs", 0, "pairs", passing=True) as bar,
    ):
        for pair in scored:
            bar.advance(1)
            if isinstance(pair, UserError):
                tally.refuse(pair)
                continue
            tally.add(pair)
            if file is not None:
                file.write(json.dumps(_line(pair), ensure_ascii=False) + "\n")


def _line(scored: ScoredPair) -> dict[str, Any]:
    pair = scored.pair
    sentences = {"sentence_good": pair.good, "sentence_bad": pair.bad}
    scores = {"good": scored.good, "bad": scored.bad, "correct": scored.margin > 0}
    return {"source": pair.source, **pair.groups, **sentences, **scores}


def _result(
    predictor: Predictor, model: TokenModel, tally: _Tally, within_word: bool, seconds: float
) -> dict[str, Any]:
    score = "log-likelihood" if model.causal else "pseudo-log-likelihood"
    groups = tally.groups()
    return {
        "model": predictor.folder.absolute().name,
        "score": score + " with within-word masks" * (within_word and not model.causal),
        "pairs": groups[0].pairs,
        "refused": tally.refused,
        "accuracy": groups[0].accuracy,
        "seconds": round(seconds, 3),
        "groups": [asdict(group) for group in groups],
    }


def _write(folder: Path, result: dict[str, Any], tally: _Tally) -> None:
    storage.write_json(folder / RESULTS, result)
    table = io.StringIO()
    writer = csv.DictWriter(table, list(result["groups"][0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(result["groups"])
    storage.write_atomic(folder / TABLE, table.getvalue())
    storage.write_atomic(folder / PAGE, page(result, list(map(_line, tally.worst))))
