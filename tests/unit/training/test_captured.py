from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertie.base.contracts import MicroBatch, Sequence
from bertie.batches.collate import collate, filler, join
from bertie.batches.fixed_shape import arrays_of
from bertie.batches.loader import Position, Step
from bertie.model.config import TransformerConfig
from bertie.model.encoders.xlnet import XlnetConfig
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence, PermutationLM
from bertie.objectives.label_row import label_row
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.captured import MOST_RECORDINGS, CapturedSteps, CudaGraphs
from bertie.training.distributed import SINGLE_PROCESS, LossFunction
from bertie.training.optimizers import AdamW, Optimizer
from bertie.training.static_inputs import StaticInputs
from bertie.training.step import Outcome, StepFunction

OBJECTIVES = (MaskedLM(), NextSentence())
FACTORS, TOKENS = [0.01, 0.1], 256


@dataclass
class Repeated(CudaGraphs):
    """In place of CUDA graphs: calls the work again. As with them, recording does nothing yet."""

    full: bool = False
    records: list[Callable[[], None]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    @property
    def crowded(self) -> bool:
        return self.full

    def warm_up(self, work: Callable[[], None]) -> None:
        work()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        number = len(self.records)
        self.records.append(work)

        def replay() -> None:
            self.calls.append(number)
            work()

        return replay


def row(count: int, seed: int, tokenizer: Tokenizer, rows: int = 1) -> MicroBatch:
    """Return a micro-batch of TOKENS tokens per row, each with a number of sequences, the rest filler."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        n = int(rng.integers(4, TOKENS // count))
        ids = rng.integers(60, 500, n).astype(np.int32)
        made.append(Sequence(ids, np.zeros(n, np.int32), np.ones(n, bool), pair_label=int(rng.integers(0, 2))))
    made += filler(TOKENS - sum(map(len, made)), tokenizer.pad_id, 64)
    return join([label_row(collate(made, 64), OBJECTIVES, tokenizer, 0, seed)] * rows)


def step_of(*passes: MicroBatch) -> Step:
    return Step(list(passes), Position(), Position())


def function_of(config: TransformerConfig, kind: Optimizer) -> StepFunction:
    model = new_model(config, OBJECTIVES, 0).train()
    optimizer = kind.build(model, embedding_lr_scale=0.5)
    losses = LossFunction(model)
    return StepFunction(model, optimizer, ["mlm", "nsp"], 0.1, 0, "fp32", SINGLE_PROCESS, losses)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_same(ours: Outcome, plain: Outcome, model: Model, other: Model) -> None:
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=1e-4, atol=1e-5)
    for a, b in zip(weights(model), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", get_args(Optimizer))
def test_captured_steps_equal_plain_ones(
    kind: type[Optimizer], small_tokenizer: Tokenizer, tiny_config: TransformerConfig
) -> None:
    """Compare steps of one and of three micro-batches with different numbers of sequences and learning rates."""
    ours, plain, recorder = function_of(tiny_config, kind()), function_of(tiny_config, kind()), Repeated()
    captured = CapturedSteps(ours, lambda: recorder)
    works = [
        step_of(row(6, 0, small_tokenizer)),
        step_of(row(4, 1, small_tokenizer)),
        step_of(*(row(count, count, small_tokenizer) for count in (5, 9, 7))),
        step_of(*(row(count, count + 1, small_tokenizer) for count in (4, 5))),
    ]
    for step, work in enumerate(works):
        rate = 1e-3 / (step + 1)
        found = captured(step, work, FACTORS, rate)
        assert_same(found, plain(step, work, FACTORS, rate), ours.model, plain.model)
        assert all(type(group["lr"]) is float for group in ours.optimizer.param_groups)
    # first, update; then first, next, update
    assert recorder.calls == [0, 1, 0, 1, 2, 3, 3, 4, 2, 3, 4]
    for a, b in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        for key, value in plain.optimizer.state[b].items():
            torch.testing.assert_close(ours.optimizer.state[a][key], value, rtol=1e-3, atol=1e-7)


def test_layers_that_join_are_recorded_anew(small_tokenizer: Tokenizer, tiny_config: TransformerConfig) -> None:
    config = replace(tiny_config, norm_position="modern", position_embedding="rotary")
    ours, plain, recorder = function_of(config, AdamW()), function_of(config, AdamW()), Repeated()
    captured = CapturedSteps(ours, lambda: recorder)
    for step, layers in enumerate((1, 1, 0, 0)):
        work = replace(step_of(row(6, step, small_tokenizer)), layers=layers)
        assert_same(captured(step, work, FACTORS, 1e-3), plain(step, work, FACTORS, 1e-3), ours.model, plain.model)
    assert len(recorder.records) == 2 * 2  # of two parts


def test_recording_changes_nothing(small_tokenizer: Tokenizer, tiny_config: TransformerConfig) -> None:
    function = function_of(tiny_config, AdamW())
    before = weights(function.model)

    class Full(Repeated):
        def record(self, work: Callable[[], None]) -> Callable[[], None]:
            for a, b in zip(weights(function.model), before, strict=True):
                assert torch.equal(a, b)
            assert all(not state["exp_avg"].any() for state in function.optimizer.state.values())
            return super().record(work)

    recorder = Full()
    CapturedSteps(function, lambda: recorder)(0, step_of(row(6, 0, small_tokenizer)), FACTORS, 1e-3)
    assert len(recorder.records) == 2


def test_a_step_that_is_not_finite_is_skipped(small_tokenizer: Tokenizer, tiny_config: TransformerConfig) -> None:
    function = function_of(tiny_config, AdamW())
    captured = CapturedSteps(function, Repeated)
    work = step_of(row(6, 0, small_tokenizer))
    assert float(captured(0, work, FACTORS, 1e-3).skipped) == 0
    before = weights(function.model)
    first = captured(1, work, [float("inf"), 1.0], 1e-3)
    assert float(first.skipped) == 1
    assert all(torch.equal(a, b) for a, b in zip(weights(function.model), before, strict=True))
    assert float(captured(2, work, FACTORS, 1e-3).skipped) == 0
    assert float(first.skipped) == 1  # a later step does not overwrite the result


def test_a_failed_recording_warns_once_and_trains_on(
    small_tokenizer: Tokenizer, tiny_config: TransformerConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Repeated):
        def record(self, work: Callable[[], None]) -> Callable[[], None]:
            del work
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    ours, plain = function_of(tiny_config, AdamW()), function_of(tiny_config, AdamW())
    captured = CapturedSteps(ours, Broken)
    for step in range(3):
        work = step_of(row(5 + step, step, small_tokenizer))
        found = captured(step, work, FACTORS, 1e-3)
        for a, b in zip(found, plain(step, work, FACTORS, 1e-3), strict=True):
            assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(weights(ours.model), weights(plain.model), strict=True))
    assert capsys.readouterr().err.count("not permitted when stream is capturing") == 1


def test_no_recording_stays_that_fills_the_memory(small_tokenizer: Tokenizer, tiny_config: TransformerConfig) -> None:
    recorder = Repeated(full=True)
    captured = CapturedSteps(function_of(tiny_config, AdamW()), lambda: recorder)
    for step in range(2):
        captured(step, step_of(row(5, step, small_tokenizer)), FACTORS, 1e-3)
    assert (len(recorder.records), recorder.calls) == (2, [])


def test_more_sequences_are_recorded_anew_and_not_forever(
    small_tokenizer: Tokenizer, tiny_config: TransformerConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Repeated()
    captured = CapturedSteps(function_of(tiny_config, AdamW()), lambda: recorder)
    micro = row(5, 0, small_tokenizer)
    for step in range(MOST_RECORDINGS + 2):
        ragged = replace(micro.batch.ragged, max_seqlen=64 + step)
        captured(step, step_of(replace(micro, batch=replace(micro.batch, ragged=ragged))), FACTORS, 1e-3)
    assert len(recorder.records) == 2 * MOST_RECORDINGS
    assert len(recorder.calls) == 2 * MOST_RECORDINGS
    assert capsys.readouterr().err.count("CUDA graphs") == 1


def test_passes_of_different_sizes_are_not_recorded(
    small_tokenizer: Tokenizer, tiny_config: TransformerConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of 3 rows in two passes."""
    ours, plain, recorder = function_of(tiny_config, AdamW()), function_of(tiny_config, AdamW()), Repeated()
    captured = CapturedSteps(ours, lambda: recorder)
    for step in range(2):
        work = step_of(row(5, step, small_tokenizer), row(5, step, small_tokenizer, rows=2))
        found = captured(step, work, FACTORS, 1e-3)
        for a, b in zip(found, plain(step, work, FACTORS, 1e-3), strict=True):
            assert torch.equal(a, b)
    assert recorder.records == []
    assert capsys.readouterr().err.count("no CUDA graphs") == 1


def test_models_say_whether_a_gpu_can_record_them(tiny_config: TransformerConfig) -> None:
    model = new_model(tiny_config, OBJECTIVES, 0)
    assert model.capturable
    model.recompute_layers(True)
    assert not model.capturable
    for change in (
        {"position_embedding": "alibi"},
        {"hidden_dropout_prob": 0.1},
        {"attention_probs_dropout_prob": 0.1},
    ):
        assert not new_model(replace(tiny_config, **change), OBJECTIVES, 0).capturable
    xlnet = XlnetConfig(
        vocab_size=100, num_hidden_layers=1, hidden_size=32, num_attention_heads=4, intermediate_size=64
    )
    assert not new_model(xlnet, (PermutationLM(),), 0).capturable


def test_static_inputs_hold_the_tensors_of_a_micro_batch(small_tokenizer: Tokenizer) -> None:
    device = torch.device("cpu")
    arrays = arrays_of(row(6, 0, small_tokenizer)) | {
        "word_starts": np.ones(3, bool),
        "rate": np.array([0.5], np.float32),
    }
    inputs = StaticInputs(arrays, device)
    places = {name: tensor.data_ptr() for name, tensor in inputs.tensors.items()}
    for scale in (1, 2):
        given = {name: array * scale if array.dtype != bool else ~array for name, array in arrays.items()}
        inputs.fill(given)
        for name, array in given.items():
            tensor = torch.as_tensor(array)
            kind = torch.bool if array.dtype == bool else torch.float32 if tensor.is_floating_point() else torch.int64
            assert torch.equal(inputs.tensors[name], tensor.to(kind))
            assert inputs.tensors[name].dtype == kind
    assert places == {name: tensor.data_ptr() for name, tensor in inputs.tensors.items()}
    assert all((place - min(places.values())) % 16 == 0 for place in places.values())
