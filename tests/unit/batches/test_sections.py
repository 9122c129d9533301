from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from bertie.base.errors import UsageError
from bertie.batches.contiguous import DocSentences, FullSentences
from bertie.batches.layouts import Layout
from bertie.batches.loader import Loader, Position, StepPlan, StepShape
from bertie.batches.sections import require_sections, sections
from bertie.batches.sentence_pairs import SentencePairs
from bertie.batches.sentences import Sentences
from bertie.batches.translations import Translations
from bertie.corpus.shards import Shards, open_shards
from bertie.corpus.token_corpus import Corpus

SIZES = np.array([30, 10, 25, 40, 5, 35, 20, 15])
STARTS = np.append(0, np.cumsum(SIZES))


def cut(corpus: Corpus, count: int) -> Corpus:
    """Return the same corpus in more shards, each of whole documents."""
    documents = np.linspace(0, len(corpus.document_starts) - 1, count + 1).astype(int)
    starts = corpus.document_starts[documents]
    tokens, word_starts = (np.concatenate(list(arrays)) for arrays in (corpus.tokens, corpus.word_starts))
    return replace(
        corpus,
        shard_starts=starts,
        tokens=[tokens[a:b] for a, b in pairwise(starts)],
        word_starts=[word_starts[a:b] for a, b in pairwise(starts)],
    )


@pytest.fixture(scope="module")
def shards(small_shards: Path) -> Shards:
    opened = open_shards(small_shards)
    return replace(opened, train=cut(opened.train, 12))


def loader(shards: Shards, layout: Layout, shuffle_tokens: int = 10_000, rows: int = 2, **more: int) -> Loader:
    return Loader(
        shards.train, shards.tokenizer, layout, StepShape(rows, 512), 0, shuffle_tokens=shuffle_tokens, **more
    )


def contents(steps: list[StepPlan]) -> list[list[list[int]]]:
    return [[batch.input_ids.tolist() for batch in step.all_rows] for step in steps]


def test_sections_have_every_shard_once() -> None:
    for epoch in range(20):
        found = sections(STARTS, 70, 0, epoch)
        assert sorted(np.concatenate(found)) == list(range(8))
        assert len(found) in (3, 4)
        assert all(0 < SIZES[section].sum() <= 70 for section in found)
    assert any(
        first.tolist() != second.tolist() for first, second in zip(sections(STARTS, 70, 0, 0), found, strict=False)
    )


@pytest.mark.parametrize("most", [0, 180, 10**12])
def test_one_section_keeps_the_order(most: int) -> None:
    assert [section.tolist() for section in sections(STARTS, most, 0, 3)] == [list(range(8))]


def test_sections_that_cannot_have_a_shard_or_a_step_are_refused() -> None:
    require_sections(STARTS, 40, 40)
    require_sections(STARTS, 0, 1000)
    with pytest.raises(UsageError, match=r"training\.shuffle_tokens is 39, but the largest shard has 40"):
        require_sections(STARTS, 39, 10)
    with pytest.raises(UsageError, match="shuffle_tokens is 40, but a step has 41"):
        require_sections(STARTS, 40, 41)


def test_selected_shards_are_a_corpus_of_their_own(translated_shards: Path) -> None:
    corpus = cut(open_shards(translated_shards).train, 5)
    chosen = corpus.select(np.array([3, 0, 4]))
    found, expected = [], []
    for shard in (3, 0, 4):
        first, last = corpus.shard_starts[shard : shard + 2]
        inside = corpus.document_starts[(corpus.document_starts >= first) & (corpus.document_starts <= last)]
        expected += [(corpus.slice(a, b)[0].tolist(), corpus.language(a)) for a, b in pairwise(inside.tolist())]
    for start, stop in pairwise(chosen.document_starts.tolist()):
        found.append((chosen.slice(start, stop)[0].tolist(), chosen.language(start)))
    assert found == expected
    assert set(chosen.document_starts) <= set(chosen.sentence_starts)
    assert chosen.languages is not None
    assert len(chosen.languages) == len(chosen.sentence_starts) - 1
    assert chosen.shard_starts[-1] == chosen.sentence_starts[-1] == sum(map(len, chosen.tokens))


def test_a_section_reads_its_own_shards(shards: Shards) -> None:
    """The tokens of each step are those of the shards of its section, and those of an epoch are nearly all."""
    corpus, read = shards.train, 0
    own = loader(shards, DocSentences(max_length=64), rows=1)
    parts = sections(corpus.shard_starts, 10_000, 0, 0)
    assert len(parts) > 3
    texts = [np.concatenate([corpus.tokens[shard] for shard in part]) for part in parts]
    for step in own.steps(Position()):
        if step.position.epoch:
            break
        [batch] = step.all_rows
        text = texts[step.position.section].tobytes()
        for sequence in np.split(batch.input_ids, batch.ragged.cu_seqlens[1:-1]):
            ids = sequence[1:-1].astype(texts[0].dtype)
            assert ids.tobytes() in text or not ids.any()  # [PAD] is 0
            read += len(ids) * bool(ids.any())
    assert read > 0.9 * corpus.shard_starts[-1]


@pytest.mark.parametrize(
    "layout",
    [SentencePairs(max_length=64), FullSentences(max_length=64, short_seq_prob=0.1), DocSentences(max_length=64)],
    ids=lambda layout: layout.kind,
)
def test_resuming_at_any_position_gives_the_same_steps(shards: Shards, layout: Layout) -> None:
    own = loader(shards, layout)
    steps = list(islice(own.steps(Position()), 90))
    assert {step.position.epoch for step in steps} == {0, 1, 2} or {step.position.epoch for step in steps} == {0, 1}
    expected = contents(steps)
    positions = [step.position for step in steps]
    edges = [i for i in range(1, 80) if positions[i].step == 0]
    assert len(edges) > 4
    for start in (1, *edges[:6], edges[1] - 1, edges[2] + 1):
        resumed = list(islice(own.steps(positions[start]), 20))
        assert steps[start - 1].after == positions[start]
        assert [step.position for step in resumed] == positions[start : start + 20]
        assert contents(resumed) == expected[start : start + 20]
    streams = {(step.source_epoch, step.position.step) for step in steps}
    assert len(streams) == len(steps)  # so that no two steps have the same masks


def test_all_layouts_read_sections(shards: Shards, translated_shards: Path) -> None:
    for layout in (SentencePairs(64, negatives="swapped"), Sentences(max_length=64)):
        assert len({step.position.section for step in islice(loader(shards, layout).steps(Position()), 30)}) > 2
    opened = open_shards(translated_shards)
    own = loader(replace(opened, train=cut(opened.train, 6)), Translations(max_length=64), 30_000, rows=4)
    assert max(step.position.section for step in islice(own.steps(Position()), 40)) > 0


def test_static_epochs_repeat_the_sections(shards: Shards) -> None:
    own = loader(shards, DocSentences(max_length=64), static_epochs=1)
    steps = list(own_epochs(own, 2))
    half = len(steps) // 2
    assert contents(steps[:half]) == contents(steps[half:])
    assert [step.source_epoch for step in steps[:half]] == [step.source_epoch for step in steps[half:]]


def own_epochs(own: Loader, count: int) -> list[StepPlan]:
    found = []
    for step in own.steps(Position()):
        if step.position.epoch == count:
            break
        found.append(step)
    return found


def test_resuming_reads_no_other_section(shards: Shards) -> None:
    """Not even to find out how many steps earlier sections have."""
    own = loader(shards, FullSentences(max_length=16))  # long sentences are split where words begin
    step = next(step for step in own.steps(Position()) if step.position.section == 2)
    part = sections(shards.train.shard_starts, 10_000, 0, 0)[2]

    class Guarded(list):
        def __getitem__(self, shard: int) -> np.ndarray:  # type: ignore[override]
            assert shard in part
            return super().__getitem__(shard)

    arrays = Guarded(shards.train.tokens), Guarded(shards.train.word_starts)
    guarded = replace(own, corpus=replace(shards.train, tokens=arrays[0], word_starts=arrays[1]))
    assert contents([next(guarded.steps(step.position))]) == contents([step])


def test_a_position_after_the_last_section_begins_the_next_epoch(shards: Shards) -> None:
    own = loader(shards, DocSentences(max_length=64))
    assert next(own.steps(Position(0, 0, 99))).position == Position(1)
