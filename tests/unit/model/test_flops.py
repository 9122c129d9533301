from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bertie.base.contracts import MicroBatch, Sequence
from bertie.batches.collate import collate, join
from bertie.checkpoints.read import read_checkpoint
from bertie.model.config import TransformerConfig
from bertie.model.flops import model_flops
from bertie.model.transformer import use_layers
from bertie.objectives import AnyObjective, Distillation, MaskedLM, NextSentence, ReplacedToken, SpanBoundary
from bertie.objectives.label_row import label_row
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer

OBJECTIVES = (MaskedLM(), NextSentence())


def micro_batch(
    tokenizer: Tokenizer, lengths: list[int], objectives: tuple[AnyObjective, ...] = OBJECTIVES
) -> MicroBatch:
    rng = np.random.default_rng(0)
    sequences = [
        Sequence(rng.integers(60, 500, n).astype(np.int32), np.zeros(n, np.int32), np.ones(n, bool), pair_label=0)
        for n in lengths
    ]
    return join([label_row(collate(sequences, 64), objectives, tokenizer, 0, 0)])


@pytest.mark.parametrize(
    "objectives", [OBJECTIVES, (MaskedLM(masking="spans"), SpanBoundary()), (MaskedLM(), ReplacedToken())]
)
def test_flops_agree_with_torchs_counter(
    objectives: tuple[AnyObjective, ...], tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    """Sequences of one length, because torch's counter includes padding."""
    micro = micro_batch(small_tokenizer, [64] * 8, objectives)
    model = new_model(tiny_config, objectives, 0)
    with FlopCounterMode(display=False) as counter:
        losses = model(micro.tensors())
        torch.stack([loss.total for loss in losses.values()]).sum().backward()
    assert model_flops(model, micro) == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_layers_that_are_not_computed_do_not_count(tiny_config: TransformerConfig, small_tokenizer: Tokenizer) -> None:
    micro = micro_batch(small_tokenizer, [64] * 8)
    model, shallow = (new_model(replace(tiny_config, num_hidden_layers=layers), OBJECTIVES, 0) for layers in (2, 1))
    use_layers(model.encoder, 1)
    assert model_flops(model, micro) == model_flops(shallow, micro)


def test_entries_that_the_softmax_leaves_out_do_not_count(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    micro = micro_batch(small_tokenizer, [64] * 8, (MaskedLM(),))
    sampled, exact = (new_model(tiny_config, (MaskedLM(negatives=negatives),), 0) for negatives in (100, 0))
    predictions = len(micro.targets["mlm"].label)
    saved = 6 * predictions * (500 - 100 - predictions) * 32
    assert model_flops(exact, micro) - model_flops(sampled, micro) == saved > 0


@pytest.mark.parametrize("positions", ["all", "masked"])
def test_a_teacher_counts_with_its_forward_pass(
    positions: Literal["all", "masked"], tiny_config: TransformerConfig, pretrained: Path, small_tokenizer: Tokenizer
) -> None:
    objectives = (MaskedLM(), Distillation(positions=positions))
    micro = micro_batch(small_tokenizer, [64] * 8, objectives)
    student = replace(tiny_config, num_hidden_layers=1, type_vocab_size=0)
    model = new_model(student, objectives, 0, teacher=read_checkpoint(pretrained))
    with FlopCounterMode(display=False) as counter:
        losses = model(micro.tensors())
        torch.stack([loss.total for loss in losses.values()]).sum().backward()
    uncounted = 2 * len(micro.targets["distil"].label) * 500 * 32  # torch's counter does not know addmm_
    assert model_flops(model, micro) == pytest.approx(counter.get_total_flops() + uncounted, rel=0.01)
