"""Fine-tuning from an XLNet that was pre-trained with two streams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.small_recipes import fine_tuning, pretraining

import bertie
from bertie.base.errors import UsageError
from bertie.batches.sentence_pairs import SentencePairs
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import read_checkpoint
from bertie.finetuning.data import load_task_data
from bertie.finetuning.single_run import initialized_model
from bertie.model.encoder import build_encoder
from bertie.model.encoders.xlnet import XlnetConfig, XlnetEncoder
from bertie.model.model import Model
from bertie.objectives import NextSentence, PermutationLM
from bertie.tasks.classify import Classify
from bertie.tokenizers.tokenizer import Tokenizer

SIZE = XlnetConfig(2, 32, 4, 64, max_position_embeddings=64)
TIMES = {"steps": 6, "learning_rate": 3e-3, "row_tokens": 256, "checkpoint_every": 3}
PRETRAINING = pretraining(SIZE, SentencePairs(max_length=48), (PermutationLM(),), 0.1, **TIMES)
CONFIG = fine_tuning(3)
TRAINING = CONFIG.training


@pytest.fixture(scope="module")
def xlnet(small_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("xlnet") / "run"
    bertie.pretrain(PRETRAINING, small_shards, run, threads=1)
    return run


@pytest.mark.parametrize(
    "change",
    [
        {"training": replace(TRAINING, layer_decay=0.9, reinit_layers=1)},
        {"frozen": True, "layers": "scalar_mix", "lstm_hidden_size": 8},
    ],
    ids=str,
)
def test_an_xlnet_is_fine_tuned(
    change: dict[str, object], xlnet: Path, rows: list[dict[str, str]], tmp_path: Path
) -> None:
    config = replace(CONFIG, **change)  # type: ignore[arg-type]
    tuned = bertie.finetune(config, rows[:40], xlnet, tmp_path / "run", dev=rows[40:], threads=1)
    assert np.mean(tuned.losses[-5:]) < np.mean(tuned.losses[:5])
    loaded = bertie.load(tmp_path / "run")
    assert isinstance(loaded.model.encoder, XlnetEncoder)
    found, expected = loaded.predict(rows[:9]), tuned.predict(rows[:9])
    assert [each.probabilities for each in found] == [each.probabilities for each in expected]


def test_a_text_longer_than_the_segment_that_the_head_reads_is_refused(
    rows: list[dict[str, str]], small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """The first token would see nothing of the rest. A pooling of all tokens reads it all."""
    size = replace(SIZE, vocab_size=small_tokenizer.size, segment_length=16, memory_length=16)
    write_model(tmp_path, Model(build_encoder(size), {}), small_tokenizer)
    checkpoint = read_checkpoint(tmp_path)
    with pytest.raises(UsageError, match=r"max_length is 24, but the model reads segments of 16 tokens"):
        load_task_data(CONFIG, rows, rows, checkpoint)
    load_task_data(replace(CONFIG, max_length=16), rows, rows, checkpoint)
    load_task_data(replace(CONFIG, task=Classify(pooling="max")), rows, rows, checkpoint)


def test_top_layers_start_anew_with_their_biases(xlnet: Path, rows: list[dict[str, str]]) -> None:
    config, checkpoint = replace(CONFIG, training=replace(TRAINING, reinit_layers=1)), read_checkpoint(xlnet)
    task = load_task_data(config, rows[:20], rows[20:30], checkpoint).task
    model, _ = initialized_model(config, task, checkpoint)
    for name in ("content_bias", "position_bias", "segment_bias"):
        assert torch.any(model.get_parameter(f"encoder.layers.0.attention.{name}"))
        assert not torch.any(model.get_parameter(f"encoder.layers.1.attention.{name}"))


def test_an_xlnet_fills_masks_and_embeds(xlnet: Path) -> None:
    """A mask is predicted from the rest of the text: what the mask token itself is does not matter, nor do other masks."""
    model = bertie.load(xlnet)
    one, two = model.fill_mask("the [MASK] in the [MASK]", top_k=500)
    assert sum(each.probability for each in one) == pytest.approx(1, abs=1e-4)
    assert one != two
    with torch.no_grad():
        model.model.encoder.embeddings.word.weight[model.tokenizer.mask_id] += 3
        model.model.heads["plm"].bias[model.tokenizer.mask_id] = -30  # the output matrix has the same row
    again, _ = model.fill_mask("the [MASK] in the [MASK]", top_k=500)
    mask = model.tokenizer.vocabulary[model.tokenizer.mask_id]
    rest = [[each for each in found if each.token != mask][:20] for found in (one, again)]
    assert [each.token for each in rest[0]] == [each.token for each in rest[1]]
    assert model.embed(["the in", "in"]).shape == (2, 32)
    assert model.hidden_states(["the in"])[0].shape[0] == 3


def test_recipes_that_do_not_suit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"objectives\.plm .* objectives\.nsp"):
        replace(PRETRAINING, objectives=(PermutationLM(), NextSentence()))
    for change in ({"attention": "dense"}, {"activation_checkpointing": True}):
        with pytest.raises(UsageError, match=rf'training\.{next(iter(change))} .* model\.kind is "xlnet"'):
            replace(PRETRAINING, training=replace(PRETRAINING.training, **change))
