"""A model that is trained with its first layers, which the others join."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.unit.small_recipes import pretraining

import bertie
from bertie.base import config as configuration
from bertie.base.errors import UsageError
from bertie.batches.contiguous import DocSentences
from bertie.checkpoints.read import read_checkpoint
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining.phases import Phase
from bertie.pretraining.recipe import PretrainConfig
from bertie.training.run_folder import read_metrics
from bertie.training.schedules import LinearDecay

GROWING = (Phase(0.5, layers=1), Phase(0.5))


@pytest.fixture
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    size = replace(tiny_config, norm_position="modern", position_embedding="rotary", type_vocab_size=0)
    objective = (MaskedLM(mlm_probability=0.3),)
    config = pretraining(size, DocSentences(max_length=32), objective, steps=20, eval_every=1, checkpoint_every=10)
    return replace(config, phases=GROWING)


def test_later_layers_are_the_identity_until_they_join(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    middle, end = (read_checkpoint(tmp_path / f"run/checkpoints/step-000000{step}").weights for step in (10, 20))
    later = [name for name in end if name.startswith("encoder.layers.1.")]
    assert all(not middle[f"encoder.layers.1.{part}.weight"].any() for part in ("attention.out", "down"))
    assert all(not torch.equal(middle[name], end[name]) for name in later)
    assert not torch.equal(middle["encoder.layers.0.up.weight"], end["encoder.layers.0.up.weight"])
    losses = [record["mlm_loss"] for record in read_metrics(tmp_path / "run", "eval")]
    assert abs(losses[10] - losses[9]) < 0.1  # nothing jumps when they join
    assert losses[-1] < losses[9] < losses[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": (Phase(0.5, layers=2), Phase(0.5, layers=1))}, "layers \\[2, 1\\]: give as many as before or more"),
        ({"phases": (Phase(0.5, layers=1), Phase(0.5, layers=3))}, "and all 2 in the last"),
    ],
)
def test_phases_that_do_not_grow_are_refused(config: PretrainConfig, change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(config, **change)


def test_layers_after_their_residuals_are_refused(tiny_config: TransformerConfig) -> None:
    with pytest.raises(UsageError, match="norm_position pre or modern"):
        replace(pretraining(tiny_config, steps=20), phases=GROWING)


def test_a_smaller_run_gets_layers_that_change_nothing_at_first(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    shallow = replace(config, phases=(), model=replace(config.model, num_hidden_layers=1))
    before = bertie.pretrain(shallow, small_shards, tmp_path / "shallow", threads=1)["eval"]
    start = str(tmp_path / "shallow")
    deeper = replace(shallow, init_from=start, init_layers=3, schedule=LinearDecay(warmup=1.0))
    bertie.pretrain(deeper, small_shards, tmp_path / "deeper", threads=1)
    first = read_metrics(tmp_path / "deeper", "eval")[0]
    assert first["mlm_loss"] == pytest.approx(before["mlm_loss"], abs=0.02)  # one step at a low learning rate
    again = replace(shallow, init_from=start, phases=(Phase(0.5, layers=5), Phase(0.5)))
    assert [phase.layers for phase in again.resolved_phases] == [0, 0]
    assert bertie.load(tmp_path / "deeper").model.encoder.config.num_hidden_layers == 3
    for changed, message in (({"init_layers": 2}, "has 3: give more"), ({"init_from": ""}, "init_layers is 3, but")):
        plain = configuration.plain(deeper) | {"init_from": str(tmp_path / "deeper")} | changed
        with pytest.raises(UsageError, match=message):
            bertie.pretrain(plain, small_shards, tmp_path / "refused", threads=1)
