from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.base.contracts import Batch, MicroBatch, Sequence, Targets
from bertie.batches.collate import collate, filler
from bertie.batches.layouts import SentencePairs
from bertie.batches.loader import Position
from bertie.corpus.shards import Shards, open_shards
from bertie.objectives.masking import SPAN_LENGTHS, Masking, ngram_lengths, select
from bertie.objectives.mlm import MaskedLM
from bertie.objectives.objective import Labeling
from bertie.pretraining.eval_set import eval_batches
from bertie.pretraining.feed import Feed
from bertie.pretraining.phases import resolve_phases
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.length import StepCount

WHOLE: tuple[Masking, ...] = ("words", "spans", "ngrams")
SPECIAL = np.array([0, 1, 2, 3, 4])


def labeling(seed: int) -> Labeling:
    tokenizer = SimpleNamespace(special_ids=SPECIAL, require_words=lambda _: None)
    return Labeling(tokenizer, np.random.default_rng(seed))  # type: ignore[arg-type]


def sequence(starts: list[bool], separators: tuple[int, ...] = ()) -> Sequence:
    """A sequence [CLS] … [SEP] with the given word starts, and [SEP] at further positions."""
    n = len(starts) + 2
    ids = np.arange(100, 100 + n, dtype=np.int32)
    ids[[0, n - 1, *separators]] = [2, 3, *(3 for _ in separators)]
    word_starts = np.array([True, *starts, True])
    word_starts[list(separators)] = True
    return Sequence(ids, np.zeros(n, np.int32), word_starts, pair_label=0)


def row(seed: int, tokens: int = 4096, subword: float = 0.25) -> Batch:
    """A row of pairs of 40 to 128 tokens, with filler at the end."""
    rng = np.random.default_rng(seed)
    sequences, left = [], tokens - 9
    while left >= 128:
        n = int(rng.integers(38, 127))
        sequences.append(sequence((rng.random(n) >= subword).tolist(), (n // 2,)))
        left -= n + 2
    return collate([*sequences, *filler(left + 9, 0, 128)], 128)


ROWS = [row(seed) for seed in range(30)]


def words_of(batch: Batch) -> np.ndarray:
    """Number of the word of each token. Special tokens, and the tokens after them, begin a word."""
    special = np.isin(batch.input_ids, SPECIAL)
    return np.cumsum(batch.word_starts | special | np.append(True, special[:-1]))


def test_words_of_a_short_sequence_by_hand() -> None:
    """Tokens 1 to 8 are the words (1 2 3) (4) (5 6) (7 8). A share of 2 tokens is one word: no two words have 2 tokens."""
    batch = collate([sequence([True, False, False, True, True, False, True, False])], 16)
    found = {tuple(select("words", batch, labeling(s), 0.25, 4).positions) for s in range(200)}
    assert found == {(5, 6), (7, 8), (1, 2, 3), (4,)}


@pytest.mark.parametrize("masking", WHOLE)
def test_units_consist_of_whole_words_of_one_text(masking: Masking) -> None:
    for seed, batch in enumerate(ROWS):
        selection = select(masking, batch, labeling(seed), 0.15, 615)
        assert not np.isin(batch.input_ids[selection.positions], SPECIAL).any()
        assert (np.diff(selection.positions) > 0).all()
        words = words_of(batch)
        chosen = np.isin(words, words[selection.positions])
        assert np.flatnonzero(chosen).tolist() == selection.positions.tolist()
        same = np.diff(selection.unit) == 0
        assert (np.diff(selection.positions)[same] == 1).all()
        if masking == "spans":  # tokens beside a span are not selected
            assert (np.diff(selection.positions)[~same] > 1).all()


@pytest.mark.parametrize("masking", WHOLE)
@pytest.mark.parametrize("share", [0.05, 0.15, 0.4])
def test_the_share_of_a_row_is_exact_and_every_sequence_has_a_target(masking: Masking, share: float) -> None:
    for seed, batch in enumerate(ROWS):
        capacity = math.ceil(share * 4096)
        exact = select("tokens", batch, labeling(seed), share, capacity).positions
        found = select(masking, batch, labeling(seed), share, capacity).positions
        assert len(found) == len(exact)
        owners = [np.searchsorted(batch.ragged.cu_seqlens, positions, side="right") for positions in (found, exact)]
        assert set(owners[0]) == set(owners[1])
        spread = np.bincount(owners[0], minlength=40) - np.bincount(owners[1], minlength=40)
        assert abs(spread).max() <= 20


def lengths_in_words(masking: Masking, rounds: int) -> np.ndarray:
    counts = np.zeros(12)
    for seed in range(rounds):
        batch = ROWS[seed % len(ROWS)]
        selection = select(masking, batch, labeling(seed), 0.15, 615)
        words = words_of(batch)[selection.positions]
        _, first = np.unique(selection.unit, return_index=True)
        last = np.append(first[1:], len(words)) - 1
        counts += np.bincount(words[last] - words[first] + 1, minlength=12)
    return counts / counts.sum()


def test_lengths_of_spans_and_ngrams_have_the_published_distributions() -> None:
    """Ends of texts shorten some. In sequences of 128 tokens, these are few."""
    assert SPAN_LENGTHS @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01)
    spans = lengths_in_words("spans", 150)
    assert spans[0] == spans[11] == 0
    assert abs(spans[1:11] - SPAN_LENGTHS).max() < 0.04
    ngrams = lengths_in_words("ngrams", 60)
    assert ngram_lengths(3) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert ngrams[1:4] == pytest.approx(ngram_lengths(3), abs=0.03)


@pytest.mark.parametrize("masking", WHOLE)
def test_every_word_is_selected_about_equally_often(masking: Masking) -> None:
    """Long words as often as short ones. Spans start everywhere, so only the first words of a text are in fewer spans."""
    lengths = [1, 3, 1, 2] * 15
    batch = collate([sequence([i == 0 for n in lengths for i in range(n)]) for _ in range(24)], 128)
    words, counts = words_of(batch), np.zeros(len(batch.input_ids))
    capacity = math.ceil(0.15 * len(counts))
    for seed in range(500):
        counts[select(masking, batch, labeling(seed), 0.15, capacity).positions] += 1
    rates = counts.reshape(24, -1).mean(0) / 500
    _, first = np.unique(words[: len(rates)], return_index=True)
    rates = rates[first[1:-1]]
    middle = slice(12, 60) if masking == "spans" else slice(3, 60)
    assert rates.mean() == pytest.approx(0.15, rel=0.05)
    assert abs(rates[middle] / rates[middle].mean() - 1).max() < 0.2
    by_length = [rates[middle][np.array(lengths)[middle] == n].mean() for n in (1, 2, 3)]
    assert by_length == pytest.approx([rates[middle].mean()] * 3, rel=0.05)


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=25),
    share=st.sampled_from([0.01, 0.15, 0.5, 1.0]),
    masking=st.sampled_from(("tokens", *WHOLE)),
    seed=st.integers(0, 1000),
)
def test_short_sequences_do_not_exceed_the_constant_number_of_targets(
    texts: list[list[bool]], share: float, masking: Masking, seed: int, small_tokenizer: Tokenizer
) -> None:
    batch = collate([sequence(starts) for starts in texts], 16)
    objective = MaskedLM(mlm_probability=share, masking=masking)
    _, targets, _ = objective.label(batch, Labeling(small_tokenizer, np.random.default_rng(seed)))
    assert len(targets.index) == math.ceil(share * len(batch.input_ids))
    found = targets.index[targets.weight > 0]
    assert found.tolist() == sorted(set(found.tolist()))
    if masking == "tokens":
        wanted = sum(max(1, round(share * len(starts))) for starts in texts)
        assert len(found) == min(len(targets.index), wanted)
    assert targets.label[targets.weight > 0].tolist() == batch.input_ids[found].tolist()


def test_a_span_is_replaced_as_a_whole(small_tokenizer: Tokenizer) -> None:
    kinds, mixed = [], 0
    for seed, batch in enumerate(ROWS):
        after, targets, _ = MaskedLM(masking="spans").label(
            batch, Labeling(small_tokenizer, np.random.default_rng(seed))
        )
        positions = targets.index[targets.weight > 0]
        new, old = after.input_ids[positions], batch.input_ids[positions]
        kind = np.where(new == small_tokenizer.mask_id, 0, np.where(new == old, 2, 1))
        borders = [0, *(np.flatnonzero(np.diff(positions) > 1) + 1), len(positions)]
        for low, high in pairwise(borders):
            assert (kind[low:high] == 0).all() or (kind[low:high] > 0).all()
            mixed += len(set(kind[low:high])) - 1
            kinds.append(min(kind[low:high]))
    assert mixed <= 0.01 * len(kinds)  # a random subword is the original one with a probability of 1 in 495
    shares = np.bincount(kinds) / len(kinds)
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=4 * math.sqrt(0.16 / len(kinds)))


@pytest.mark.parametrize("masking", ["tokens", *WHOLE])
def test_share_of_unmasked_sequences(masking: Masking, small_tokenizer: Tokenizer) -> None:
    objective, bare, total = MaskedLM(masking=masking, unmasked_sequences=0.3), 0, 0
    for seed, batch in enumerate(ROWS):
        _, targets, _ = objective.label(batch, Labeling(small_tokenizer, np.random.default_rng(seed)))
        owner = np.searchsorted(batch.ragged.cu_seqlens, targets.index[targets.weight > 0], side="right") - 1
        found = np.bincount(owner, minlength=len(batch.pair_label))[batch.pair_label == 0]
        bare += (found == 0).sum()
        total += len(found)
        assert len(targets.index) == math.ceil(0.15 * 4096)
    assert bare / total == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / total))


def weights(targets: dict[str, Targets]) -> tuple[int, int]:
    return len(targets["mlm"].index), int(targets["mlm"].weight.sum())


@pytest.mark.parametrize(("start", "end"), [(0.3, 0.1), (0.1, 0.3)])
def test_scheduled_share_changes_linearly_with_the_step(start: float, end: float, small_shards: Path) -> None:
    """A resumed feed gives the same targets, few of their numbers differ, and the evaluation set does not change."""
    shards, layout = open_shards(small_shards), SentencePairs(max_length=32)
    objectives = (MaskedLM(mlm_probability=start, mlm_probability_end=end),)
    feed = Feed(resolve_phases((), layout, 32, 512, 10), shards, objectives, 0, 8, 0, SINGLE_PROCESS, StepCount(10))
    steps = list(feed.steps(0, Position()))
    assert len(steps) == 10
    tokens = [(~np.isin(step.micro_batches[0].batch.input_ids, [0, 2, 3])).sum() for step in steps]
    found = [weights(step.micro_batches[0].targets) for step in steps]
    eighths = [math.ceil((start + (end - start) * step / 10) / 0.3 * 8 - 1e-6) for step in range(10)]
    assert [size for size, _ in found] == [2 * math.ceil(0.3 / 8 * number * 512) for number in eighths]
    shares = [count / size for (_, count), size in zip(found, tokens, strict=True)]
    assert shares == pytest.approx([start + (end - start) * step / 10 for step in range(10)], abs=0.02)
    [resumed] = [step for _, step in zip(range(1), feed.steps(6, steps[6].position), strict=False)]
    assert resumed.micro_batches[0].batch.input_ids.tolist() == steps[6].micro_batches[0].batch.input_ids.tolist()
    require_equal_eval_sets(shards, objectives[0], MaskedLM(mlm_probability=start))


def require_equal_eval_sets(shards: Shards, *objectives: MaskedLM) -> None:
    layout = SentencePairs(max_length=32)
    sets = [eval_batches((each,), layout, shards.eval, shards.tokenizer, 4096) for each in objectives]
    ids, counts = ([[get(micro) for micro in batches] for batches in sets] for get in (input_ids, attrgetter("counts")))
    assert ids[0] == ids[1]
    assert counts[0] == counts[1]


def input_ids(micro: MicroBatch) -> list[int]:
    return micro.batch.input_ids.tolist()


@pytest.mark.parametrize("end", [None, 0.4])
def test_the_evaluation_set_may_have_a_share_of_its_own(end: float | None, small_shards: Path) -> None:
    shards, row = open_shards(small_shards), ROWS[0]
    own = MaskedLM(mlm_probability=0.3, mlm_probability_end=end, mlm_probability_eval=0.1)
    require_equal_eval_sets(shards, own, MaskedLM(mlm_probability=0.1))
    trained, plain = (
        each.label(row, Labeling(shards.tokenizer, np.random.default_rng(0), progress=0.5)).batch.input_ids.tolist()
        for each in (own, replace(own, mlm_probability_eval=None))
    )
    assert trained == plain
