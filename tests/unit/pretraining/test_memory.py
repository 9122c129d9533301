from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertie.batches.collate import collate, join
from bertie.contracts import MicroBatch, Sequence
from bertie.model.config import BertConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.feed import label_row
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.memory import estimate_memory, largest_fitting
from bertie.text.tokenizer import Tokenizer

OBJECTIVES = (MaskedLM(), NextSentence())


@pytest.fixture
def micro(small_tokenizer: Tokenizer) -> MicroBatch:
    ids = np.random.default_rng(0).integers(60, 500, (8, 64)).astype(np.int32)
    made = [Sequence(row, np.zeros(64, np.int32), np.ones(64, bool), kind=0) for row in ids]
    return join([label_row(collate(made, 64), OBJECTIVES, small_tokenizer, 0, 0)])


def test_needs_are_counted_without_numbers(tiny_config: BertConfig, micro: MicroBatch) -> None:
    """Against the sizes of what autograd keeps of a real model."""
    model, kept = new_model(tiny_config, OBJECTIVES, 0), {}
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(micro.tensors())
    expected = sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)
    found = estimate_memory(tiny_config, OBJECTIVES, micro, recompute=False)
    assert expected <= found.activations < 1.3 * expected  # the last layer's few queries lie on a grid as on a GPU
    assert found.weights == 4 * model.size
    assert found.total == found.activations + 4 * found.weights


def test_needs_grow_with_layers_unless_they_are_computed_again(tiny_config: BertConfig, micro: MicroBatch) -> None:
    deep = replace(tiny_config, num_hidden_layers=10)
    found = [
        [estimate_memory(size, OBJECTIVES, micro, again).activations for size in (tiny_config, deep)]
        for again in (False, True)
    ]
    inputs = 8 * 8 * 64 * 32 * 4  # eight more layers: 8 sequences of 64 tokens, 32 wide, fp32
    assert found[1][1] - found[1][0] == pytest.approx(inputs, rel=0.01)
    assert found[0][1] - found[0][0] > 10 * inputs


@pytest.mark.usefixtures("one_thread")
def test_computing_again_changes_no_bit(tiny_config: BertConfig, micro: MicroBatch) -> None:
    gradients = []
    for again in (False, True):
        model = new_model(
            replace(tiny_config, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2), OBJECTIVES, 0
        )
        model.encoder.recompute = again
        torch.manual_seed(1)
        losses = model.train()(micro.tensors())
        torch.stack([loss.total for loss in losses.values()]).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("room", "rows"),
    [(1000, 9), (1099, 9), (1100, 10), (200, 1), (10, 1)],
    ids=["some", "not one more", "one", "tight", "none"],
)
def test_rows_that_fit(room: int, rows: int) -> None:
    """100 bytes of weights and gradients, and 100 more for every row."""
    asked: list[int] = []

    def peak(count: int) -> int:
        asked.append(count)
        return 100 + 100 * count

    assert largest_fitting(peak, room) == rows
    assert asked == [1, 2]


def test_where_two_rows_are_too_many() -> None:
    def peak(count: int) -> int:
        if count > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 100

    assert largest_fitting(peak, 10**9) == 1


def test_rows_that_cost_nothing() -> None:
    assert largest_fitting(lambda _: 100, 1000) == 901
