from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, repeat
from typing import Any, Literal

import numpy as np
import pytest
import torch

from bertie.base.contracts import MicroBatch, Sequence
from bertie.batches.collate import collate, join
from bertie.batches.loader import Position, Step
from bertie.model.config import TransformerConfig
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.objectives.label_row import label_row
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.length import StepCount
from bertie.training.loop import LoopSettings, StepResult, evaluate, train_steps
from bertie.training.optimizers import AdamW, BertAdam, Lamb, Optimizer
from bertie.training.records import loss_metrics
from bertie.training.schedules import LinearDecay

OBJECTIVES = (MaskedLM(), NextSentence())
SETTINGS = LoopSettings(StepCount(5), 1e-3, 1.0, seed=0, precision="fp32", loss_weights={"mlm": 1.0, "nsp": 0.5})


def sequences(count: int, seed: int = 0) -> list[Sequence]:
    rng = np.random.default_rng(seed)
    generated = []
    for _ in range(count):
        n = int(rng.integers(8, 40))
        ids = rng.integers(60, 500, n).astype(np.int32)
        generated.append(Sequence(ids, np.zeros(n, np.int32), np.ones(n, bool), pair_label=int(rng.integers(0, 2))))
    return generated


@pytest.fixture
def micro(small_tokenizer: Tokenizer) -> MicroBatch:
    return join([label_row(collate(sequences(12), 64), OBJECTIVES, small_tokenizer, 0, 0)])


def step_of(*batches: MicroBatch) -> Step:
    return Step(list(batches), Position(0, 0), Position(0, 1))


def train(model: Model, stream: Iterator[Step], settings: LoopSettings, first: int = 0) -> list[StepResult]:
    return list(train_steps(model, stream, AdamW().build(model), LinearDecay(), settings, first))


def split(micro: MicroBatch) -> list[MicroBatch]:
    """Split a micro-batch of 12 sequences into two, of 4 and 8 sequences."""
    whole = micro.batch
    border = int(whole.ragged.cu_seqlens[4])
    parts = []
    for low, high, part in ((0, border, slice(0, 4)), (border, len(whole.input_ids), slice(4, 12))):
        kinds = whole.pair_label[part]
        made = [
            Sequence(ids, np.zeros(len(ids), np.int32), np.ones(len(ids), bool), pair_label=int(kind))
            for ids, kind in zip(np.split(whole.input_ids, whole.ragged.cu_seqlens[1:-1])[part], kinds, strict=True)
        ]
        targets = {}
        for name, target in micro.targets.items():
            at = micro.rows[target.index]
            inside = (at >= low) & (at < high)
            targets[name] = replace(
                target, index=at[inside] - low, label=target.label[inside], weight=target.weight[inside]
            )
        parts.append(MicroBatch.of(collate(made, 64), targets))
    return parts


def test_split_into_micro_batches_does_not_change_the_step(micro: MicroBatch, tiny_config: TransformerConfig) -> None:
    """A step of 12 sequences equals a step of 4 and 8 sequences."""
    found, weights = [], []
    for work in ([micro], split(micro)):
        model = new_model(tiny_config, OBJECTIVES, 0).double()
        [progress] = train(model, repeat(step_of(*work)), replace(SETTINGS, length=StepCount(1)))
        losses = {name: (float(loss.total), float(loss.count)) for name, loss in progress.losses.items()}
        found.append((losses, float(progress.grad_norm), progress.tokens))
        weights.append(list(model.parameters()))
    for name in ("mlm", "nsp"):
        assert found[0][0][name] == pytest.approx(found[1][0][name], rel=1e-6)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)
    assert found[0][2] == found[1][2]
    for a, b in zip(*weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_scale_of_target_weights_does_not_change_the_step(micro: MicroBatch, tiny_config: TransformerConfig) -> None:
    """A window of a long text has the weight 1 / windows. A step of a few windows is as large as any other step."""
    light = replace(micro, targets={name: replace(t, weight=t.weight / 1000) for name, t in micro.targets.items()})
    assert 0 < light.counts["mlm"] < 1
    [whole], [part] = (
        train(new_model(tiny_config, OBJECTIVES, 0), repeat(step_of(m)), replace(SETTINGS, length=StepCount(1)))
        for m in (micro, light)
    )
    assert float(part.grad_norm) == pytest.approx(float(whole.grad_norm), rel=1e-4)
    assert loss_metrics(part.losses, SETTINGS.loss_weights) == pytest.approx(
        loss_metrics(whole.losses, SETTINGS.loss_weights), rel=1e-4
    )
    nothing = replace(micro, targets={name: replace(t, weight=t.weight * 0) for name, t in micro.targets.items()})
    [none] = train(
        new_model(tiny_config, OBJECTIVES, 0), repeat(step_of(nothing)), replace(SETTINGS, length=StepCount(1))
    )
    assert (float(none.grad_norm), loss_metrics(none.losses, SETTINGS.loss_weights)["loss"]) == (0, 0)


def test_steps_match_a_plain_training_loop(micro: MicroBatch, tiny_config: TransformerConfig) -> None:
    """Compare three steps with mean losses, gradient clipping and torch's AdamW, written out."""
    ours, plain = new_model(tiny_config, OBJECTIVES, 0), new_model(tiny_config, OBJECTIVES, 0)
    found = train(ours, repeat(step_of(micro)), replace(SETTINGS, max_grad_norm=0.1, length=StepCount(3)))
    optimizer = AdamW().build(plain)
    for progress, rate in zip(found, (1e-3, 2e-3 / 3, 1e-3 / 3), strict=True):
        losses = plain.train()(micro.tensors())
        objective = losses["mlm"].total / losses["mlm"].count + 0.5 * losses["nsp"].total / losses["nsp"].count
        optimizer.zero_grad()
        objective.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        assert norm > 0.1  # clipping had an effect
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        assert float(progress.grad_norm) == pytest.approx(float(norm), rel=1e-4)
        assert progress.learning_rate == pytest.approx(rate)
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"relative_bias_buckets": 8},
        {"disentangled_distances": 16, "position_embedding": "none", "conv_kernel_size": 3},
        {"num_key_value_heads": 1, "norm": "rms", "mlm_matrix": "own"},
    ],
    ids=str,
)
def test_dropout_is_reproducible_and_resumes(
    changes: dict[str, Any], micro: MicroBatch, tiny_config: TransformerConfig
) -> None:
    """Dropout masks depend on seed, step and micro-batch only: a resumed run draws the same masks."""
    config = replace(tiny_config, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3, **changes)

    def losses(seed: int, noise: int = 0) -> list[float]:
        model = new_model(config, OBJECTIVES, 0)
        torch.manual_seed(noise)
        progress = train(model, repeat(step_of(micro, micro)), replace(SETTINGS, seed=seed))
        return [float(p.losses["mlm"].total) for p in progress]

    assert losses(0) == losses(0, noise=1)
    assert losses(0) != losses(1)
    no_updates = replace(SETTINGS, learning_rate=0.0)
    whole = train(new_model(config, OBJECTIVES, 0), repeat(step_of(micro)), no_updates)
    rest = train(new_model(config, OBJECTIVES, 0), repeat(step_of(micro)), no_updates, first=3)
    totals = [[float(p.losses["mlm"].total) for p in part] for part in (whole, rest)]
    assert totals[0][3:] == totals[1]
    assert len(set(totals[0])) == 5  # each step has its own dropout masks


def test_micro_batches_of_a_step_have_their_own_dropout(
    micro: MicroBatch, tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertie.base import runtime

    seeds: list[tuple[int, ...]] = []
    monkeypatch.setattr(runtime, "reseed_torch", lambda *key: seeds.append(key))
    train(new_model(tiny_config, OBJECTIVES, 0), repeat(step_of(micro, micro)), replace(SETTINGS, length=StepCount(2)))
    assert len(seeds) == len(set(seeds)) == 1 + 4  # the initial weights, and two micro-batches of two steps


def test_batch_without_targets_of_a_head_has_zero_loss(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    unlabeled = [replace(sequence, pair_label=-1) for sequence in sequences(4)]
    micro = join([label_row(collate(unlabeled, 64), OBJECTIVES, small_tokenizer, 0, 0)])
    [progress] = train(
        new_model(tiny_config, OBJECTIVES, 0), repeat(step_of(micro)), replace(SETTINGS, length=StepCount(1))
    )
    assert float(progress.losses["nsp"].total) == 0
    assert torch.isfinite(progress.grad_norm)


def test_evaluation_uses_no_dropout_and_does_not_change_the_model(
    micro: MicroBatch, tiny_config: TransformerConfig
) -> None:
    model = new_model(replace(tiny_config, hidden_dropout_prob=0.5), OBJECTIVES, 0).train()
    before = [parameter.clone() for parameter in model.parameters()]
    first, second = (evaluate(model, [micro, micro], "fp32") for _ in range(2))
    assert float(first["mlm"].total) == float(second["mlm"].total)
    assert float(first["mlm"].count) == 2 * micro.counts["mlm"]
    alone = evaluate(model, [micro], "fp32")
    assert first
    assert alone
    assert float(first["mlm"].total) == pytest.approx(2 * float(alone["mlm"].total))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_bf16_losses_are_close_to_fp32(micro: MicroBatch, tiny_config: TransformerConfig) -> None:
    found = []
    for precision in ("fp32", "bf16"):
        settings = replace(SETTINGS, precision=precision)
        model = new_model(tiny_config, OBJECTIVES, 0)
        progress = train(model, repeat(step_of(micro)), settings)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        found.append([float(p.losses["mlm"].total / p.losses["mlm"].count) for p in progress])
    assert found[0] == pytest.approx(found[1], rel=0.01)
    assert found[0] != found[1]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_optimizer_computes_in_the_precision_of_the_run(
    micro: MicroBatch, tiny_config: TransformerConfig, precision: Literal["fp32", "bf16"]
) -> None:
    """Not in one that each process chooses: the weights of the ranks would drift apart."""
    seen: list[bool] = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # noqa: ARG002  # type: ignore[override]
            seen.append(torch.is_autocast_enabled("cpu"))

    model = new_model(tiny_config, OBJECTIVES, 0)
    settings = replace(SETTINGS, precision=precision, length=StepCount(2))
    list(train_steps(model, repeat(step_of(micro)), Recorder(model.parameters()), LinearDecay(), settings))
    assert seen == [precision == "bf16"] * 2


@pytest.mark.parametrize("kind", [AdamW(), BertAdam(), Lamb()], ids=lambda kind: kind.kind)
@pytest.mark.parametrize("first", [0, 2], ids=["first step", "later step"])
def test_step_with_infinite_gradient_changes_nothing(
    micro: MicroBatch, tiny_config: TransformerConfig, kind: Optimizer, first: int
) -> None:
    model = new_model(tiny_config, OBJECTIVES, 0)
    optimizer = kind.build(model)
    passes = count()

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.inf if next(passes) == first else gradient

    model.encoder.layers[0].up.weight.register_hook(poison)
    states = []
    for progress in train_steps(
        model, repeat(step_of(micro)), optimizer, LinearDecay(), replace(SETTINGS, length=StepCount(4))
    ):
        state = [value.clone() for p in model.parameters() for value in optimizer.state[p].values()]
        states.append([*(parameter.detach().clone() for parameter in model.parameters()), *state])
        assert bool(progress.skipped) == (progress.step == first)
    initial = new_model(tiny_config, OBJECTIVES, 0)
    before = states[first - 1] if first else list(initial.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, states[first], strict=False))
    assert not all(torch.equal(a, b) for a, b in zip(states[first], states[first + 1], strict=True))
    assert all(torch.isfinite(tensor).all() for tensor in states[-1])


def test_evaluation_can_be_stopped(micro: MicroBatch, tiny_config: TransformerConfig) -> None:
    model = new_model(tiny_config, OBJECTIVES, 0).train()
    asked = iter([False, True])
    assert evaluate(model, [micro, micro, micro], "fp32", should_stop=lambda: next(asked)) is None
    assert model.training
