from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.base.contracts import FILLER, Batch, Sequence
from bertie.base.errors import UsageError, UserError
from bertie.batches import spans as layout_spans
from bertie.batches.contiguous import DocSentences, FullSentences
from bertie.batches.layouts import Layout
from bertie.batches.loader import Loader, Position, StepPlan, StepShape
from bertie.batches.packing import pack
from bertie.batches.sentence_pairs import PairSpan, SentencePairs
from bertie.batches.sentences import Sentences
from bertie.batches.spans import LayoutEpoch
from bertie.batches.translations import Translations
from bertie.corpus.shards import Shards, open_shards


@pytest.fixture(scope="module")
def shards(small_shards: Path) -> Shards:
    return open_shards(small_shards)


@pytest.fixture
def loader(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Windows of 300 sequences, so that the rows of some steps come from two windows."""
    monkeypatch.setattr(layout_spans, "WINDOW", 300)
    return Loader(shards.train, shards.tokenizer, SentencePairs(max_length=64), StepShape(3, 512), seed=0)


def arrays(batch: Batch) -> list[list[int]]:
    names = ("input_ids", "token_type_ids", "position_ids", "word_starts", "pair_label", "example")
    return [getattr(batch, name).tolist() for name in names] + [batch.ragged.cu_seqlens.tolist()]


def contents(steps: list[StepPlan]) -> list[list[list[list[int]]]]:
    return [[arrays(batch) for batch in step.all_rows] for step in steps]


def epoch_of(loader: Loader, epoch: int) -> list[StepPlan]:
    steps = []
    for step in loader.steps(Position(epoch, 0)):
        if step.position.epoch != epoch:
            break
        steps.append(step)
    return steps


def sequences(steps: list[StepPlan]) -> list[tuple[int, ...]]:
    """The token ids of every sequence except filler."""
    found = []
    for step in steps:
        for batch in step.all_rows:
            parts = np.split(batch.input_ids, batch.ragged.cu_seqlens[1:-1])
            found += [tuple(p.tolist()) for p, e in zip(parts, batch.example, strict=True) if e != FILLER]
    return found


LAYOUTS: list[Layout] = [
    FullSentences(max_length=48, short_seq_prob=0.2),
    DocSentences(max_length=48),
    SentencePairs(max_length=48),
    SentencePairs(max_length=48, negatives="swapped"),
    Translations(max_length=48),
    Sentences(max_length=48),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_epoch_is_a_shuffled_pure_function_of_seed_and_epoch(
    layout: Layout, translated_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout_spans, "WINDOW", 50)
    shards = open_shards(translated_shards)

    def windows(seed: int, epoch: int, order: tuple[int, ...] = (0, 1, 2)) -> list[list[Any]]:
        made = layout.epoch(shards.train, shards.tokenizer, seed, epoch)
        assert made.windows > 3
        found = {window: made.window(window) for window in order}
        return [found[window] for window in (0, 1, 2)]

    first = windows(0, 0)
    assert first == windows(0, 0, (2, 0, 1))
    for other in (windows(0, 1), windows(1, 0)):
        assert all(one != two for one, two in zip(first, other, strict=True))
    starts = [np.ravel(span.a if isinstance(span, PairSpan) else span)[0] for window in first for span in window]
    assert abs(np.corrcoef(starts, np.arange(len(starts)))[0, 1]) < 0.25


@pytest.mark.parametrize(
    ("kind", "least"),
    [(FullSentences, 3), (DocSentences, 3), (SentencePairs, 5), (Translations, 6), (Sentences, 6)],
)
def test_a_maximum_length_has_room_for_special_tokens_and_texts(kind: Any, least: int) -> None:
    assert kind(max_length=least).max_length == least
    with pytest.raises(UsageError, match=rf"layout\.max_length is {least - 1}"):
        kind(max_length=least - 1)


@pytest.mark.parametrize(
    ("batch_size", "max_length", "row_tokens", "expected"),
    [
        (256, 128, 4096, StepShape(8, 4096)),
        (32, 128, 4096, StepShape(1, 4096)),
        (48, 128, 4096, StepShape(2, 3072)),  # 1.5 rows
        (1, 128, 4096, StepShape(1, 128)),
        (4, 512, 100, StepShape(4, 512)),  # a row holds at least one sequence
        (5, 50, 4096, StepShape(1, 256)),  # a multiple of 8
    ],
)
def test_step_shape_has_the_tokens_of_the_batch(
    batch_size: int, max_length: int, row_tokens: int, expected: StepShape
) -> None:
    assert StepShape.of(batch_size, max_length, row_tokens) == expected


def test_filler_completes_every_row(loader: Loader, shards: Shards) -> None:
    filler_tokens = 0
    for step in epoch_of(loader, 0):
        assert len(step.all_rows) == 3
        for batch in step.all_rows:
            assert len(batch.input_ids) == batch.ragged.cu_seqlens[-1] == 512
            assert batch.ragged.max_seqlen == 64
            assert batch.ragged.lengths.max() <= 64
            assert batch.position_ids.max() < 64
            is_filler = np.repeat(batch.example == FILLER, batch.ragged.lengths)
            assert (batch.input_ids[is_filler] == shards.tokenizer.pad_id).all()
            assert (batch.input_ids[~is_filler] != shards.tokenizer.pad_id).all()
            filler_tokens += is_filler.sum()
    assert filler_tokens


def test_steps_use_the_packed_rows_in_order(loader: Loader) -> None:
    """Every row of every window occurs once, except the last ones, which are fewer than a step has."""
    epoch = loader.layout.epoch(loader.corpus, loader.tokenizer, 0, 0)
    expected = []
    for window in range(epoch.windows):
        found = epoch.window(window)
        for row in pack(epoch.lengths(window), 512):
            expected.append([tuple(epoch.sequence(found[i]).input_ids.tolist()) for i in row])
    steps = epoch_of(loader, 0)
    found = [
        sequences([replace(step, build_row=lambda _, batch=batch: batch, rows=1)])
        for step in steps
        for batch in step.all_rows
    ]
    assert len(found) == len(expected) // 3 * 3
    assert found == expected[: len(found)]


def test_resuming_at_any_position_gives_the_same_steps(loader: Loader) -> None:
    steps = list(islice(loader.steps(Position(0, 0)), 60))
    per_epoch = sum(step.position.epoch == 0 for step in steps)
    assert 20 < per_epoch < 50  # the steps extend into a second epoch
    expected = contents(steps)
    for start in (1, 7, per_epoch - 1, per_epoch, per_epoch + 3):
        position = steps[start].position
        assert position == steps[start - 1].after
        resumed = list(islice(loader.steps(position), 60 - start))
        assert contents(resumed) == expected[start:]
        assert [step.position for step in resumed] == [step.position for step in steps[start:]]


def test_resuming_does_not_read_earlier_steps(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any position in the epoch, a step reads only its own tokens."""
    lengths_read: list[int] = []
    epoch_of_layout = SentencePairs.epoch

    def counting(*args: Any) -> LayoutEpoch:
        epoch = epoch_of_layout(*args)

        def counted(span: PairSpan) -> Sequence:
            lengths_read.append(len(sequence := epoch.sequence(span)))
            return sequence

        return replace(epoch, sequence=counted)

    monkeypatch.setattr(SentencePairs, "epoch", counting)
    for start in (0, 15):
        lengths_read.clear()
        assert len(next(loader.steps(Position(1, start))).all_rows) == 3
        assert sum(lengths_read) <= 3 * 512


def test_a_step_larger_than_the_corpus_is_refused(shards: Shards) -> None:
    loader = Loader(shards.train, shards.tokenizer, SentencePairs(max_length=64), StepShape(64, 4096), seed=0)
    with pytest.raises(UserError, match=r"corpus too small: .* lower --training\.batch-size"):
        next(loader.steps(Position()))


def test_static_epochs_repeat_the_sequences_of_the_first_epochs(loader: Loader) -> None:
    static = replace(loader, static_epochs=2)
    rows = [contents(epoch_of(static, epoch)) for epoch in range(4)]
    assert rows[2:] == rows[:2]
    assert rows[0] != rows[1]
    assert rows[:2] == [contents(epoch_of(loader, epoch)) for epoch in range(2)]
    assert [next(static.steps(Position(epoch))).source_epoch for epoch in range(4)] == [0, 1, 0, 1]
    assert next(static.steps(Position(3))).position == Position(3)
