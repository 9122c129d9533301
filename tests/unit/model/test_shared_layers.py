"""Layers that share weights: each weight is there once, and each layer is computed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoders import packed
from torch.utils.flop_counter import FlopCounterMode

import bertie
from bertie.base.contracts import MicroBatch, Sequence
from bertie.base.errors import UsageError
from bertie.batches.collate import collate, join
from bertie.checkpoints.folder import write_model
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.finetuning.single_run import require_layers
from bertie.model.config import TransformerConfig
from bertie.model.flops import model_flops
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.objectives import Distillation, MaskedLM, NextSentence
from bertie.objectives.initialization import require_patterns
from bertie.objectives.label_row import label_row
from bertie.predict.engines import calibration, cpu, torch_engine
from bertie.pretraining.initial_weights import new_model
from bertie.tasks import Classify
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.memory import estimate_memory
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

OBJECTIVES = (MaskedLM(), NextSentence())
needs_int8 = pytest.mark.skipif(not cpu.has(cpu.INT8), reason="needs a processor with int8 instructions")


@pytest.fixture
def shared(tiny_config: TransformerConfig) -> TransformerConfig:
    return replace(tiny_config, num_hidden_layers=5, num_hidden_groups=2)


@pytest.fixture
def micro(small_tokenizer: Tokenizer) -> MicroBatch:
    """Sequences of one length, because torch's counter of products includes padding."""
    ids = np.random.default_rng(0).integers(60, 500, (6, 48)).astype(np.int32)
    sequences = [Sequence(row, np.zeros(48, np.int32), np.ones(48, bool), pair_label=0) for row in ids]
    return join([label_row(collate(sequences, 64), OBJECTIVES, small_tokenizer, 0, 0)])


def gradients(model: Model, micro: MicroBatch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    losses = model(micro.tensors())
    torch.stack([loss.total for loss in losses.values()]).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def encoder_of(config: TransformerConfig) -> TransformerEncoder:
    torch.manual_seed(0)
    encoder = TransformerEncoder(config)
    initialize_weights(encoder, 0.2)
    return encoder.eval()


def own_layer(name: str, config: TransformerConfig) -> str:
    return re.sub(r"(?<=layers\.)\d+", lambda number: str(config.group(int(number[0]))), name)


@pytest.mark.parametrize(
    ("layers", "groups", "expected"),
    [(4, 1, [0, 0, 0, 0]), (4, 2, [0, 0, 1, 1]), (5, 2, [0, 0, 0, 1, 1]), (3, 3, [0, 1, 2]), (3, 0, [0, 1, 2])],
)
def test_consecutive_layers_form_groups(
    layers: int, groups: int, expected: list[int], tiny_config: TransformerConfig
) -> None:
    config = replace(tiny_config, num_hidden_layers=layers, num_hidden_groups=groups)
    encoder = TransformerEncoder(config)
    assert [config.group(layer) for layer in range(layers)] == expected
    assert config.shares_layers == (groups in (1, 2))
    distinct = list(dict.fromkeys(encoder.layers))
    assert [distinct.index(layer) for layer in encoder.layers] == expected
    assert len(encoder.layers) == layers


def test_weights_and_the_state_of_the_optimizer_exist_once(shared: TransformerConfig, micro: MicroBatch) -> None:
    model = new_model(shared, OBJECTIVES, 0)
    names = [name for name in model.state_dict() if name.startswith("encoder.layers.")]
    assert {name.split(".")[2] for name in names} == {"0", "1"}
    assert set(names) <= {name for name, _ in model.named_parameters()}
    two = new_model(replace(shared, num_hidden_layers=2, num_hidden_groups=0), OBJECTIVES, 0)
    assert model.size == two.size
    optimizer = AdamW().build(model, 0.5)
    gradients(model, micro)
    optimizer.step()
    assert sum(state["exp_avg"].numel() for state in optimizer.state.values()) == model.size
    scales = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    assert [scales[id(layer.up.weight)] for layer in model.encoder.layers] == [0.25, 0.25, 0.25, 0.5, 0.5]


@pytest.mark.parametrize("recompute", [False, True])
def test_the_gradient_is_the_sum_over_the_layers_of_an_unshared_copy(
    recompute: bool, shared: TransformerConfig, micro: MicroBatch
) -> None:
    model = new_model(shared, OBJECTIVES, 0)
    model.recompute_layers(recompute)
    copy = new_model(replace(shared, num_hidden_groups=0), OBJECTIVES, 0)
    copy.load_state_dict({name: model.state_dict()[own_layer(name, shared)] for name in copy.state_dict()})
    expected: dict[str, Any] = {}
    for name, gradient in gradients(copy, micro).items():
        expected[own_layer(name, shared)] = expected.get(own_layer(name, shared), 0) + gradient
    torch.testing.assert_close(gradients(model, micro), expected)


def test_every_layer_counts_in_flops_and_memory(shared: TransformerConfig, micro: MicroBatch) -> None:
    unshared = replace(shared, num_hidden_groups=0)
    model = new_model(shared, OBJECTIVES, 0)
    with FlopCounterMode(display=False) as counter:
        gradients(model, micro)
    assert model_flops(model, micro) == pytest.approx(counter.get_total_flops(), rel=0.03)
    assert model_flops(model, micro) == model_flops(new_model(unshared, OBJECTIVES, 0), micro)
    for recompute in (False, True):
        own, other = (
            estimate_memory(lambda size: new_model(size, OBJECTIVES, 0), size, micro, recompute)
            for size in (shared, unshared)
        )
        assert own.activations == other.activations
        assert own.weights == 4 * model.size < other.weights


@needs_int8
@torch.inference_mode()
def test_engines_quantize_once_what_all_layers_read(shared: TransformerConfig, micro: MicroBatch) -> None:
    encoder, batch = encoder_of(shared), micro.tensors().batch
    measured = calibration.measure(encoder, lambda observed: observed(batch))
    assert {name.split(".")[0] for name in measured} == {"0", "1"}
    packed = torch_engine.int8(encoder, measured)
    assert [packed.packed.index(parts) for parts in packed.packed] == [0, 0, 0, 3, 3]
    assert packed.packed[0].qkv is packed.packed[2].qkv
    found, expected = packed(batch).last, encoder(batch).last
    assert float(torch.nn.functional.cosine_similarity(found, expected).mean()) > 0.98


def test_calibration_sees_the_inputs_of_all_layers(shared: TransformerConfig) -> None:
    """The inputs of the first layer alone would fill the usual number of rows."""
    encoder = encoder_of(replace(shared, num_hidden_groups=1))
    ids = np.random.default_rng(0).integers(60, 500, (64, 64)).astype(np.int32)
    batch = packed(*ids)
    seen: list[torch.Tensor] = []
    encoder.layers[0].up.register_forward_hook(lambda _, given, __: seen.append(given[0].abs().amax(0)))
    encoder.requires_grad_(False)
    encoder(batch)
    highest = torch.stack(seen)
    assert (highest.amax(0) > 1.05 * highest[:2].amax(0)).any()
    smooth_I = calibration.measure(encoder, lambda other: other(batch))["0.up.smooth"]
    found = smooth_I.square() * encoder.layers[0].up.weight.abs().amax(0)
    assert (found > 1.05 * highest[:2].amax(0)).any()
    torch.testing.assert_close(found, highest.amax(0), rtol=0.2, atol=0)  # of a part of the rows


def test_a_student_copies_the_groups_of_its_teacher(
    shared: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    write_model(tmp_path, new_model(shared, OBJECTIVES, 1), small_tokenizer)
    objective = Distillation(teacher=str(tmp_path))
    size = replace(shared, num_hidden_layers=2)
    teacher = objective.read_teacher(size, 64, False, small_tokenizer, "--objectives.1")
    model = new_model(size, (MaskedLM(), objective), 0, teacher=teacher)
    model.heads["distil"].copy_teacher()  # type: ignore[operator]
    own = model.encoder.state_dict()
    assert all(torch.equal(tensor, teacher.weights[f"encoder.{name}"]) for name, tensor in own.items())
    with pytest.raises(UsageError, match=r"model.num_hidden_groups is 0, but 2 in"):
        objective.read_teacher(replace(size, num_hidden_groups=0), 64, False, small_tokenizer, "--objectives.1")


def test_what_would_change_one_layer_alone_is_refused(
    shared: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"patterns.*model\.num_hidden_groups"):
        require_patterns(replace(shared, position_embedding="rotary"), OBJECTIVES)
    training = FinetuneTraining(reinit_layers=1)
    config = FinetuneConfig(Classify(), AdamW(), LinearDecay(), training)
    with pytest.raises(UsageError, match=r"training\.reinit_layers is 1, but the layers of the model share weights"):
        require_layers(config, Classify(), shared)
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", new_model(shared, OBJECTIVES, 0), small_tokenizer)
    with pytest.raises(UsageError, match=r"num_hidden_groups is 2.*no head can be disabled"):
        bertie.prune_heads(tmp_path / "model", tmp_path / "out", heads=[(1, 1)])
