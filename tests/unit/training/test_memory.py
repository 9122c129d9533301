from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from bertie.base.contracts import MicroBatch, Sequence
from bertie.batches.collate import collate, join
from bertie.checkpoints.read import Checkpoint, read_checkpoint
from bertie.model.config import TransformerConfig
from bertie.model.model import Model
from bertie.objectives import AnyObjective, Distillation, MaskedLM, NextSentence, ReplacedToken
from bertie.objectives.label_row import label_row
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.memory import estimate_memory, largest_fitting

OBJECTIVES = (MaskedLM(), NextSentence())


ELECTRA = (MaskedLM(), ReplacedToken(generator_size=0.5))


def build(
    size: TransformerConfig, objectives: tuple[AnyObjective, ...] = OBJECTIVES, teacher: Checkpoint | None = None
) -> Model:
    return new_model(size, objectives, 0, teacher=teacher)


def labeled(tokenizer: Tokenizer, objectives: tuple[AnyObjective, ...]) -> MicroBatch:
    ids = np.random.default_rng(0).integers(60, 500, (8, 64)).astype(np.int32)
    sequences = [Sequence(row, np.zeros(64, np.int32), np.ones(64, bool), pair_label=0) for row in ids]
    return join([label_row(collate(sequences, 64), objectives, tokenizer, 0, 0)])


@pytest.fixture
def micro(small_tokenizer: Tokenizer) -> MicroBatch:
    return labeled(small_tokenizer, OBJECTIVES)


@pytest.mark.parametrize("objectives", [OBJECTIVES, ELECTRA])
def test_estimate_matches_what_autograd_saves(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, objectives: tuple[AnyObjective, ...]
) -> None:
    """Compare the estimate, made on the meta device, with the tensors saved by a real forward pass."""
    micro, build_model = labeled(small_tokenizer, objectives), partial(build, objectives=objectives)
    model, saved = build_model(tiny_config), {}
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def record(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        model(micro.tensors())
    expected = sum(tensor.untyped_storage().nbytes() for key, tensor in saved.items() if key not in own)
    found = estimate_memory(build_model, tiny_config, micro, recompute=False)
    # On the meta device, as on a GPU, the queries of the last layer are padded to a grid.
    assert expected <= found.activations < 1.3 * expected
    assert found.weights == 4 * model.size
    assert found.total == found.activations + 4 * found.weights


def test_the_weights_of_a_teacher_count_without_gradients(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, pretrained: Path
) -> None:
    objectives, teacher = (MaskedLM(), Distillation()), read_checkpoint(pretrained)
    micro = labeled(small_tokenizer, objectives)
    found = estimate_memory(partial(build, objectives=objectives, teacher=teacher), tiny_config, micro, False)
    model = build(tiny_config, objectives, teacher)
    assert model.teacher is not None
    teacher_size = sum(parameter.numel() for part in model.teacher for parameter in part.parameters())
    assert teacher_size > 20_000
    assert found.gradients == 4 * model.size
    assert found.weights == 4 * (model.size + teacher_size)
    assert found.total == found.activations + 4 * found.gradients + 4 * teacher_size


def test_recomputation_keeps_only_the_inputs_of_further_layers(
    tiny_config: TransformerConfig, micro: MicroBatch
) -> None:
    deep = replace(tiny_config, num_hidden_layers=10)
    found = [
        [estimate_memory(build, size, micro, recompute).activations for size in (tiny_config, deep)]
        for recompute in (False, True)
    ]
    inputs = 8 * 8 * 64 * 32 * 4  # eight more layers: 8 sequences of 64 tokens, 32 wide, fp32
    assert found[1][1] - found[1][0] == pytest.approx(inputs, rel=0.01)
    assert found[0][1] - found[0][0] > 10 * inputs


@pytest.mark.parametrize("objectives", [OBJECTIVES, ELECTRA])
def test_recomputation_gives_the_same_gradients_bit_for_bit(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, objectives: tuple[AnyObjective, ...]
) -> None:
    gradients, micro = [], labeled(small_tokenizer, objectives)
    for recompute in (False, True):
        model = build(replace(tiny_config, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2), objectives)
        model.recompute_layers(recompute)
        assert all(transformer.recompute is recompute for transformer in model.transformers)
        torch.manual_seed(1)
        losses = model.train()(micro.tensors())
        torch.stack([loss.total for loss in losses.values()]).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("room", "rows"),
    [(1000, 9), (1099, 9), (1100, 10), (200, 1), (10, 1)],
    ids=["nine rows", "almost ten rows", "ten rows", "one row", "less than one row"],
)
def test_rows_are_extrapolated_from_one_and_two_rows(room: int, rows: int) -> None:
    """100 bytes are fixed, and every row needs 100 more."""
    asked: list[int] = []

    def peak(count: int) -> int:
        asked.append(count)
        return 100 + 100 * count

    assert largest_fitting(peak, room) == rows
    assert asked == [1, 2]


def test_one_row_if_two_do_not_fit() -> None:
    def peak(count: int) -> int:
        if count > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 100

    assert largest_fitting(peak, 10**9) == 1
