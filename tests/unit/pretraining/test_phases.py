from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import bertie
from bertie.batches.loader import Position, StepShape
from bertie.batches.sentence_pairs import SentencePairs
from bertie.corpus.shards import Shards, open_shards
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.feed import Feed
from bertie.pretraining.phases import Phase, phase_index, resolve_phases
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.length import StepCount
from bertie.training.optimizers import AdamW
from bertie.training.run_folder import read_metrics
from bertie.training.schedules import LinearDecay

LAYOUT = SentencePairs(max_length=32)
TWO = (Phase(0.75), Phase(0.25, max_length=64, batch_size=4))


@pytest.fixture(scope="module")
def shards(small_shards: Path) -> Shards:
    return open_shards(small_shards)


def test_run_without_phases_is_one_phase() -> None:
    [phase] = resolve_phases((), LAYOUT, 16, 512, 7)
    assert (phase.end_step, phase.layout, phase.shape) == (7, LAYOUT, StepShape(1, 512))


def test_shares_become_steps() -> None:
    short, long = resolve_phases(TWO, LAYOUT, 16, 256, 10)
    assert (short.end_step, short.layout.max_length, short.shape) == (8, 32, StepShape(2, 256))
    assert (long.end_step, long.layout.max_length, long.shape) == (10, 64, StepShape(1, 256))
    assert [phase_index([short, long], step) for step in (0, 7, 8, 9)] == [0, 0, 1, 1]
    thirds = resolve_phases((Phase(1 / 3), Phase(1 / 3), Phase(1 / 3)), LAYOUT, 16, 256, 100)
    assert [phase.end_step for phase in thirds] == [33, 67, 100]


def test_rounded_shares_still_reach_the_last_step() -> None:
    third = Phase(0.3333331)
    assert (
        resolve_phases((third, third, third), SentencePairs(max_length=32), 16, 512, 1_000_000)[-1].end_step
        == 1_000_000
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_from_any_step_equal_the_steps_from_the_start(shards: Shards, workers: int) -> None:
    phases = resolve_phases(TWO, LAYOUT, 16, 512, 16)
    masked = MaskedLM(mlm_probability=0.1, mlm_probability_end=0.9)  # the masks depend on the progress of the run
    feed = Feed(phases, shards, (masked,), 0, 8, workers, SINGLE_PROCESS, StepCount(16))
    steps = list(feed.steps(0, Position()))
    assert len(steps) == 16
    batches = [[micro.batch for micro in step.micro_batches] for step in steps]
    assert [batch.ragged.max_seqlen for batch, *_ in batches] == [32] * 12 + [64] * 4
    assert steps[12].position == Position(steps[11].position.epoch + 1, 0)
    for first in (1, 11, 12, 13, 15):
        with closing(feed.steps(first, steps[first].position)) as stream:
            again = list(islice(stream, 3))
        for found, step, expected in zip(again, steps[first:], batches[first:], strict=False):
            assert found.position == step.position
            assert found.after == step.after
            own = [micro.batch.input_ids.tolist() for micro in found.micro_batches]
            assert own == [batch.input_ids.tolist() for batch in expected]


def test_run_of_two_phases_changes_length_and_batch(
    tiny_config: TransformerConfig, small_shards: Path, tmp_path: Path
) -> None:
    training = PretrainTraining(12, 16, 1e-2, row_tokens=512, precision="fp32", eval_every=4, checkpoint_every=3)
    size = replace(tiny_config, vocab_size=0)
    config = PretrainConfig(size, LAYOUT, (MaskedLM(), NextSentence()), AdamW(), LinearDecay(warmup=0.1), training, TWO)
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    tokens = [record["tokens"] for record in read_metrics(tmp_path / "run", "train")]
    steps = [after - before for before, after in zip([0, *tokens], tokens, strict=False)]
    assert all(460 < step <= 512 for step in steps[:9])
    assert all(220 < step <= 256 for step in steps[9:])
    assert bertie.load(tmp_path / "run").max_length == 64


def test_static_epochs_repeat_the_masks(tiny_config: TransformerConfig, shards: Shards) -> None:
    def inputs(static_epochs: int, epoch: int) -> list[int]:
        training = PretrainTraining(12, 16, 1e-2, row_tokens=512, static_epochs=static_epochs)
        config = PretrainConfig(tiny_config, LAYOUT, (MaskedLM(), NextSentence()), AdamW(), LinearDecay(), training)
        feed = Feed(config.resolved_phases, shards, config.objectives, 0, 1, 0, SINGLE_PROCESS, config.length())
        with closing(feed.steps(0, Position(epoch, 3))) as steps:
            return next(steps).micro_batches[0].batch.input_ids.tolist()

    assert inputs(2, 0) == inputs(2, 2) == inputs(0, 0)
    assert inputs(2, 1) == inputs(2, 5) == inputs(0, 1)
    assert len({tuple(inputs(0, epoch)) for epoch in range(3)}) == 3
