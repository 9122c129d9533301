from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import bertie
from bertie.batches.layouts import SentencePairs
from bertie.batches.loader import Position, StepShape
from bertie.errors import UsageError
from bertie.model.config import BertConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.phases import Phase, phase_index, plan_steps, resolve_phases
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.text.shards import Shards, open_shards
from bertie.training.optimizers import AdamW
from bertie.training.run_folder import read_metrics
from bertie.training.schedules import Linear

LAYOUT = SentencePairs(max_length=32)
TWO = (Phase(0.75), Phase(0.25, max_length=64, batch_size=4))


@pytest.fixture(scope="module")
def shards(small_shards: Path) -> Shards:
    return open_shards(small_shards)


def test_without_phases_there_is_one() -> None:
    [leg] = resolve_phases((), LAYOUT, 16, 512, 7)
    assert (leg.end_step, leg.layout, leg.shape) == (7, LAYOUT, StepShape(1, 512))


def test_shares_of_steps() -> None:
    short, long = resolve_phases(TWO, LAYOUT, 16, 256, 10)
    assert (short.end_step, short.layout.max_length, short.shape) == (8, 32, StepShape(2, 256))
    assert (long.end_step, long.layout.max_length, long.shape) == (10, 64, StepShape(1, 256))
    assert [phase_index([short, long], step) for step in (0, 7, 8, 9)] == [0, 0, 1, 1]
    thirds = resolve_phases((Phase(1 / 3), Phase(1 / 3), Phase(1 / 3)), LAYOUT, 16, 256, 100)
    assert [leg.end_step for leg in thirds] == [33, 67, 100]


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ((Phase(0.5),), "the shares make 0.5 together: they must make 1"),
        ((Phase(0.9), Phase(0.2)), "the shares make 1.1 together"),
        ((Phase(0.999), Phase(0.001)), r"phases\.1: 0\.001 of 10 steps is no step"),
        ((Phase(0.001), Phase(0.999)), r"phases\.0: 0\.001 of 10 steps is no step"),
    ],
)
def test_phases_that_cannot_be(phases: tuple[Phase, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve_phases(phases, LAYOUT, 16, 256, 10)


def test_shares_that_make_one_only_nearly_reach_the_last_step() -> None:
    third = Phase(0.3333331)
    assert (
        resolve_phases((third, third, third), SentencePairs(max_length=32), 16, 512, 1_000_000)[-1].end_step
        == 1_000_000
    )


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"phases\.share is 0"):
        Phase(0.0)


def test_any_step_goes_on_as_if_nothing_had_been_before(shards: Shards) -> None:
    way = resolve_phases(TWO, LAYOUT, 16, 512, 40)
    steps = list(plan_steps(way, shards, 0, 0, Position()))
    assert len(steps) == 40
    assert [step.batches[0].ragged.max_seqlen for step in steps] == [32] * 30 + [64] * 10
    assert steps[29].after == steps[30].position == Position(steps[29].position.epoch + 1, 0)
    for first in (1, 29, 30, 31, 39):
        again = list(islice(plan_steps(way, shards, 0, first, steps[first].position), 3))
        for found, expected in zip(again, steps[first:], strict=False):
            assert found.position == expected.position
            assert found.after == expected.after
            assert [b.input_ids.tolist() for b in found.batches] == [b.input_ids.tolist() for b in expected.batches]


@pytest.mark.usefixtures("one_thread")
def test_a_run_in_two_phases(tiny_config: BertConfig, small_shards: Path, tmp_path: Path) -> None:
    training = PretrainTraining(12, 16, 1e-2, row_tokens=512, precision="fp32", eval_every=4, checkpoint_every=3)
    size = replace(tiny_config, vocab_size=0)
    config = PretrainConfig(size, LAYOUT, (MaskedLM(), NextSentence()), AdamW(), Linear(warmup=0.1), training, TWO)
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    tokens = [record["tokens"] for record in read_metrics(tmp_path / "run", "train")]
    steps = [after - before for before, after in zip([0, *tokens], tokens, strict=False)]
    assert all(460 < step <= 512 for step in steps[:9])
    assert all(220 < step <= 256 for step in steps[9:])
    assert bertie.load(tmp_path / "run").max_length == 64
