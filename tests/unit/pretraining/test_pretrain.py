from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.unit.small_recipes import pretraining

import bertie
from bertie.base import runtime, seeding
from bertie.base.contracts import Loss, MicroBatch
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.model_card import CardFacts
from bertie.checkpoints.read import read_checkpoint
from bertie.corpus.shards import open_shards
from bertie.model.attention.attention import IMPLEMENTATIONS, eager
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining import eval_set
from bertie.pretraining import sources as sources_module
from bertie.pretraining.eval_set import eval_batches
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.phases import Phase
from bertie.pretraining.recipe import PretrainConfig
from bertie.training import trainer
from bertie.training.optimizers import AdamW, Lamb, Muon, Optimizer
from bertie.training.schedules import LinearDecay


@pytest.fixture
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    return pretraining(tiny_config, warmup=0.1, steps=30, eval_every=10, max_eval_tokens=1000)


def pretrain(config: PretrainConfig, shards: Path, out: Path) -> dict[str, Any]:
    return bertie.pretrain(config, shards, out, threads=1)


def records(run: Path, split: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in found if record["split"] == split]


def test_run_writes_metrics_checkpoint_and_report(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    config = replace(config, training=replace(config.training, max_eval_tokens=100_000))
    result = pretrain(config, small_shards, tmp_path / "run")
    train, held_out = records(tmp_path / "run", "train"), records(tmp_path / "run", "eval")
    assert [record["step"] for record in train] == list(range(1, 31))
    assert [record["step"] for record in held_out] == [10, 20, 30]
    assert result["eval"] == held_out[-1]
    assert result["finished_before"] is False
    shown = result._repr_html_()  # pyright: ignore[reportAttributeAccessIssue]
    assert "eval: mlm loss" in shown
    assert "<iframe srcdoc=" in shown
    assert train[0]["mlm_loss"] == pytest.approx(np.log(500), abs=0.2)
    assert held_out[-1]["mlm_loss"] < 4.5
    assert held_out[-1]["loss"] == pytest.approx(held_out[-1]["mlm_loss"] + held_out[-1]["nsp_loss"], rel=1e-5)
    for record in train:
        assert record["lr"] == pytest.approx(1e-2 * LinearDecay(warmup=0.1).factor(record["step"] - 1, 30), rel=1e-6)
        assert {"epoch", "tokens", "seconds", "grad_norm", "tokens_per_second", "nsp_accuracy"} <= record.keys()
    assert {record["epoch"] for record in [*train, *held_out] if record["tokens"] <= train[0]["tokens"]} == {0}
    assert train[-1]["epoch"] == held_out[-1]["epoch"]
    # Tokens without filler: nearly 16 × 32 per step.
    assert 0.9 * 16 * 32 * 30 < train[-1]["tokens"] <= 16 * 32 * 30
    checkpoint = read_checkpoint(tmp_path / "run")
    assert checkpoint.heads == {"mlm", "nsp"}
    assert checkpoint.config.vocab_size == 500
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"unigram model {open_shards(small_shards).unigram_loss:.2f}" in page
    assert pretrain(config, small_shards, tmp_path / "run")["finished_before"] is True


def test_repeated_run_gives_the_same_weights(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    """With dropout, and with evaluations at other steps, which must not affect training."""
    config = replace(config, model=replace(config.model, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1))
    for name, every in (("a", 4), ("b", 3)):
        training = replace(config.training, steps=8, eval_every=every, checkpoint_every=every)
        pretrain(replace(config, training=training), small_shards, tmp_path / name)
    losses = [[record["loss"] for record in records(tmp_path / name, "train")] for name in ("a", "b")]
    assert losses[0] == losses[1]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]


def test_initial_weights_depend_on_the_seed_only(tiny_config: TransformerConfig) -> None:
    def weights(seed: int, noise: int) -> torch.Tensor:
        torch.manual_seed(noise)
        return new_model(tiny_config, (MaskedLM(),), seed).encoder.embeddings.word.weight

    assert torch.equal(weights(0, noise=1), weights(0, noise=2))
    assert not torch.equal(weights(0, noise=1), weights(1, noise=1))


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.0), Lamb(weight_decay=0.0), Muon(weight_decay=0.0)])
def test_embeddings_move_by_their_own_learning_rate(
    optimizer: Optimizer, config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    """The first step is proportional to the learning rate, so a quarter of it moves the embeddings a quarter as far."""
    start = read_checkpoint(first_step(config, small_shards, tmp_path / "start", learning_rate=0.0)).weights
    config = replace(config, optimizer=optimizer)
    whole = read_checkpoint(first_step(config, small_shards, tmp_path / "whole")).weights
    quarter = read_checkpoint(first_step(config, small_shards, tmp_path / "quarter", embedding_lr_scale=0.25)).weights
    for name, weight in whole.items():
        factor = 0.25 if name.startswith("encoder.embeddings.") else 1.0
        moved = weight - start[name]
        assert moved.any() or name.endswith("segment.weight")
        torch.testing.assert_close(quarter[name] - start[name], factor * moved, rtol=1e-3, atol=1e-6)


def first_step(config: PretrainConfig, shards: Path, out: Path, **changes: Any) -> Path:
    """Train with changed settings, and return the checkpoint of the first step."""
    training = replace(config.training, steps=2, eval_every=0, checkpoint_every=1, keep_checkpoints=2, **changes)
    pretrain(replace(config, schedule=LinearDecay(warmup=0.5), training=training), shards, out)
    return out / "checkpoints" / "step-00000001"


def test_evaluation_set_is_always_the_same(config: PretrainConfig, small_shards: Path) -> None:
    shards = open_shards(small_shards)

    def build(max_eval_tokens: int) -> list[MicroBatch]:
        return eval_batches(config.objectives, config.layout, shards.eval, shards.tokenizer, max_eval_tokens)

    first, second = build(100_000), build(100_000)
    for a, b in zip(first, second, strict=True):
        assert a.batch.input_ids.tolist() == b.batch.input_ids.tolist()
        assert a.rows.tolist() == b.rows.tolist()
        assert len(a.batch.input_ids) <= eval_set.EVAL_ROW_TOKENS
    assert sum(micro.tokens for micro in first) > 0.9 * int(shards.eval.document_starts[-1])
    assert 900 < sum(micro.tokens for micro in build(1000)) <= 1000
    assert sum(len(micro.batch.pair_label) for micro in build(1)) == 1  # at least one sequence


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_a_checkpoint_and_the_next_call_resumes(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    record = trainer.train_record

    def interrupted(*args: Any) -> Any:
        result = record(*args)
        if result["step"] == 3:
            os.kill(os.getpid(), number)
        return result

    config = replace(config, training=replace(config.training, steps=6))
    handlers = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, small_shards, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000003"]
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == handlers
    more_checkpoints = replace(config, training=replace(config.training, checkpoint_every=2, keep_checkpoints=3))
    more_checkpoints = replace(more_checkpoints, card=CardFacts("mit"))
    for settings, name in ((more_checkpoints, "run"), (config, "undisturbed")):
        pretrain(settings, small_shards, tmp_path / name)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "undisturbed")]
    assert weights[0] == weights[1]


def test_sequence_longer_than_an_evaluation_row_gets_its_own_row(
    config: PretrainConfig, small_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_set, "EVAL_ROW_TOKENS", 20)
    shards = open_shards(small_shards)
    work = eval_batches(config.objectives, config.layout, shards.eval, shards.tokenizer, 100_000)
    assert max(len(micro.batch.input_ids) for micro in work) == 32
    assert {len(micro.batch.pair_label) for micro in work if len(micro.batch.input_ids) > 20} == {1}


def test_tokens_per_second_exclude_evaluation(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, clock, late = sources_module.evaluate, time.monotonic, 0.0

    def slow(*args: Any) -> Any:
        nonlocal late
        late += 10_000.0
        return evaluate(*args)

    monkeypatch.setattr(sources_module, "evaluate", slow)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + late)
    training = replace(config.training, steps=4, eval_every=2)
    pretrain(replace(config, training=training), small_shards, tmp_path / "run")
    train = records(tmp_path / "run", "train")
    assert train[2]["seconds"] - train[1]["seconds"] > 10_000
    assert train[2]["tokens_per_second"] > (train[2]["tokens"] - train[1]["tokens"]) / 10_000


def test_every_row_and_objective_uses_its_own_random_stream(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[int, ...]] = []
    original = seeding.generator

    def generator(seed: int, *stream: int) -> np.random.Generator:
        keys.append(stream)
        return original(seed, *stream)

    monkeypatch.setattr(seeding, "generator", generator)
    monkeypatch.setattr(eval_set, "EVAL_ROW_TOKENS", 128)
    settings = replace(config.training, steps=4, row_tokens=128, max_eval_tokens=100_000)
    pretrain(replace(config, training=settings), small_shards, tmp_path / "run")
    for kind in (seeding.LABELS, seeding.EVAL_LABELS):
        drawn = [key for key in keys if key[0] == kind]
        assert len(drawn) == len(set(drawn)) > 30


def test_contradictory_settings_are_refused(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for change, message in (
        ({"model": replace(config.model, vocab_size=400)}, r"model\.vocab_size is 400, but the shards have 500"),
        ({"training": replace(config.training, batch_size=10_000)}, r"lower --training\.batch-size"),
        (
            {"training": replace(config.training, shuffle_tokens=600)},
            r"training\.shuffle_tokens is 600",
        ),
    ):
        with pytest.raises(UserError, match=message):
            pretrain(replace(config, **change), small_shards, out)  # type: ignore[arg-type]
        assert not out.exists()


def test_divergence_is_an_error_and_its_batch_is_saved(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    settings = replace(config.training, learning_rate=1e9, max_skipped_steps=3)
    diverging = replace(config, training=settings, optimizer=AdamW(weight_decay=1.0))
    with pytest.raises(
        UserError, match=r"3 steps in a row .* the training has diverged; lower --training\.learning-rate"
    ):
        pretrain(diverging, small_shards, tmp_path / "run")
    train = records(tmp_path / "run", "train")
    assert [record.get("skipped", False) for record in train[-4:]] == [False, True, True, True]
    assert train[-1]["loss"] is None
    [path] = (tmp_path / "run").glob("bad-step-*.npz")
    assert f"{train[-1]['step']:08d}" in path.name
    saved = np.load(path)
    for name, size in (("input_ids", 512), ("mlm.label", 77), ("nsp.weight", len(saved["0.pair_label"]))):
        assert len(saved[f"0.{name}"]) == size


def test_run_with_a_non_finite_last_loss_writes_no_model(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    settings = replace(config.training, learning_rate=1e9, steps=8)
    diverging = replace(config, training=settings, optimizer=AdamW(weight_decay=1.0))
    for _ in range(2):  # a repeated call fails too
        with pytest.raises(UserError, match="the held-out loss is not finite: the training has diverged; lower"):
            pretrain(diverging, small_shards, tmp_path / "run")
    assert records(tmp_path / "run", "eval")[-1]["loss"] is None
    assert not (tmp_path / "run" / "config.json").exists()


def test_finished_run_with_a_missing_file_is_refused(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    short = replace(config, training=replace(config.training, steps=2))
    pretrain(short, small_shards, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        pretrain(short, small_shards, tmp_path / "run")


def test_single_non_finite_step_is_skipped_and_logged(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, calls = torch.nn.utils.clip_grad_norm_, itertools.count(1)

    def poisoned(parameters: Any, max_norm: float) -> torch.Tensor:
        norm = clip(parameters, max_norm)
        return norm * (torch.nan if next(calls) in (4, 6) else 1)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", poisoned)
    pretrain(replace(config, training=replace(config.training, max_skipped_steps=2)), small_shards, tmp_path / "run")
    train = records(tmp_path / "run", "train")
    assert [record["step"] for record in train if record.get("skipped")] == [4, 6]
    assert train[3]["grad_norm"] is None
    assert train[-1]["mlm_loss"] < train[0]["mlm_loss"]
    [counters] = (tmp_path / "run" / "checkpoints").glob("*30/training_state/counters.json")
    assert json.loads(counters.read_text())["skipped"] == 2
    assert (tmp_path / "run" / "report.html").exists()


def test_interrupted_evaluation_is_repeated_on_resume(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt stops the evaluation, and the resumed run evaluates first."""
    evaluate = sources_module.evaluate
    config = replace(config, training=replace(config.training, steps=6, eval_every=2))

    def interrupted(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*args)

    with monkeypatch.context() as patch:
        patch.setattr(sources_module, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, small_shards, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
    assert records(tmp_path / "run", "eval") == []
    for name in ("run", "undisturbed"):
        pretrain(config, small_shards, tmp_path / name)
    found, expected = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("run", "undisturbed"))
    timing = re.compile(r'"(seconds|tokens_per_second|utilization)": [\d.e+]+')
    assert timing.sub("", found) == timing.sub("", expected)


@pytest.mark.parametrize(
    ("losses", "interrupted", "phases", "best"),
    [
        ([5, 1, 4, 2, 3, 6], None, (), 2),
        ([math.nan, 3, 2, 4, 5, 6], None, (), 3),
        ([5, 1, 4, 2, 3, 6], 1, (), 2),  # during the best evaluation
        (
            [5, 1, 4, 9, 7, 8],
            None,
            (Phase(0.5), Phase(0.5, max_length=48)),
            5,
        ),  # only losses of one phase are compared
    ],
    ids=["lowest loss", "first loss is NaN", "interrupted", "phases"],
)
def test_best_checkpoint_is_kept_in_addition_to_the_newest(
    config: PretrainConfig,
    small_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    losses: list[float],
    interrupted: int | None,
    phases: tuple[Phase, ...],
    best: int,
) -> None:
    evaluate, calls, interrupts = sources_module.evaluate, itertools.count(), [interrupted]

    def with_given_loss(*args: Any) -> Any:
        number = next(calls)
        if number == interrupts[0]:
            signal.raise_signal(signal.SIGINT)
        computed = evaluate(*args)
        if computed is None:
            return None
        return {
            name: Loss(torch.tensor(losses[number] * 100.0), loss.count, loss.hits) for name, loss in computed.items()
        }

    monkeypatch.setattr(sources_module, "evaluate", with_given_loss)
    training = replace(config.training, steps=6, eval_every=1, checkpoint_every=1, keep_checkpoints=1)
    config = replace(config, training=training, phases=phases)
    if interrupted is not None:
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, small_shards, tmp_path / "run")
        calls, interrupts[0] = itertools.count(interrupted), None
    pretrain(config, small_shards, tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [f"step-{best:08d}", "step-00000006"]


def test_patience_ends_a_pre_training_with_the_best_weights(
    config: PretrainConfig,
    small_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    evaluate, losses = sources_module.evaluate, iter([5.0, 1.0, 4.0, 2.0])

    def with_given_loss(*args: Any) -> Any:
        value = next(losses)
        return {name: replace(loss, total=loss.count * value) for name, loss in evaluate(*args).items()}

    monkeypatch.setattr(sources_module, "evaluate", with_given_loss)
    training = replace(config.training, eval_every=2, patience=2)
    found = pretrain(replace(config, training=training), small_shards, tmp_path / "run")
    assert [record["step"] for record in records(tmp_path / "run", "eval")] == [2, 4, 6, 8]
    assert found["eval"]["step"] == 4
    best = read_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000004").weights
    saved = read_checkpoint(tmp_path / "run").weights
    assert all(torch.equal(saved[name], best[name]) for name in saved)
    assert re.search(
        r"stopped early, in epoch \d+, after step 8: no held-out loss below [\d.]+ in 2 evaluations; loading the weights of "
        "step 4, the best evaluation",
        capsys.readouterr().err,
    )


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_files_have_curves(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training = replace(config.training, trackers=("tensorboard",), steps=5)
    pretrain(replace(config, training=training), small_shards, tmp_path / "run")
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    assert {"train/mlm_loss", "train/lr", "eval/mlm_loss"} <= set(found.Tags()["scalars"])
    assert len(found.Scalars("train/mlm_loss")) == 5


@pytest.mark.parametrize(
    ("micro_batch", "recompute", "memory", "advice"),
    [
        (4, False, 2_300_000, r"4 rows .* --training\.micro-batch 2 should fit"),
        (2, False, 10**9, r"2 rows .* --training\.micro-batch 1 should fit"),
        (1, False, 10**9, r"1 row .* try --training\.activation-checkpointing, a smaller model"),
        (4, True, 10**5, r"4 rows .* try a smaller model, or a lower --training\.row-tokens"),
    ],
)
def test_out_of_memory_error_names_settings_that_fit(
    config: PretrainConfig,
    small_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    micro_batch: int,
    recompute: bool,
    memory: int,
    advice: str,
) -> None:
    def exhausted(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(trainer, "train", exhausted)
    monkeypatch.setattr(runtime, "memory", lambda: (0, memory))
    training = replace(config.training, row_tokens=128, micro_batch=micro_batch, activation_checkpointing=recompute)
    with pytest.raises(UserError, match=advice):
        pretrain(replace(config, training=training), small_shards, tmp_path / "run")


def test_run_resumes_with_another_micro_batch(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    first = replace(config.training, row_tokens=128, micro_batch=4, steps=5)
    pretrain(replace(config, training=first), small_shards, tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()  # as if it were not finished
    pretrain(replace(config, training=replace(first, micro_batch=2)), small_shards, tmp_path / "run")


def test_checkpoints_are_saved_by_time(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    training = replace(config.training, checkpoint_every=0, checkpoint_minutes=1e-9, keep_checkpoints=100, steps=5)
    pretrain(replace(config, training=training), small_shards, tmp_path / "run")
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 5


def test_micro_batches_and_workers_do_not_change_the_data(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    """Four rows per step: passes of 1 row, of 2, of 3 (rounded to 2, a divisor of 4), and with worker processes."""
    found = []
    for name, micro_batch, workers in (("a", 1, 0), ("b", 2, 0), ("c", 3, 0), ("d", 1, 2)):
        settings = replace(config.training, row_tokens=128, micro_batch=micro_batch, workers=workers, steps=4)
        pretrain(replace(config, training=settings), small_shards, tmp_path / name)
        found.append([(r["loss"], r["mlm_accuracy"], r["tokens"]) for r in records(tmp_path / name, "train")])
    assert found[0] == found[3]
    assert found[1] == found[2]
    for one, other in zip(found[0], found[1], strict=True):
        assert one[0] == pytest.approx(other[0], rel=1e-4)
        assert one[2] == other[2]


@pytest.mark.parametrize(("kind", "other"), [("grouped", "cuda"), ("looped", "cuda"), ("varlen", "cpu")])
def test_attention_is_refused_on_another_device(
    kind: Literal["grouped", "looped", "varlen"],
    other: str,
    config: PretrainConfig,
    small_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "device", lambda: torch.device(other))
    asked = replace(config, training=replace(config.training, attention=kind, precision="bf16"))
    with pytest.raises(UsageError, match=rf"training\.attention {kind} needs .*, but this is bf16 on {other}"):
        pretrain(asked, small_shards, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_requested_attention_is_used(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    monkeypatch.setitem(IMPLEMENTATIONS, "eager", lambda x: used.append(1) or eager(x))
    short = replace(config.training, steps=2, attention="eager")
    pretrain(replace(config, training=short), small_shards, tmp_path / "run")
    assert used


@pytest.mark.parametrize("clock", [0.0, 1e9], ids=["just saved", "saved long ago"])
def test_only_the_saving_rank_decides_when_a_timed_checkpoint_is_due(clock: float) -> None:
    """All ranks follow the clock of the rank that saves, so that they log their losses at the same steps."""
    flags: list[bool] = []
    ranks = SimpleNamespace(any=lambda due: flags.append(due) or True)
    for run, due in ((object(), clock > 0), (None, False)):
        session = trainer._Session.__new__(trainer._Session)
        session.job, session.run = SimpleNamespace(checkpoint_minutes=1.0, ranks=ranks), run  # type: ignore[assignment]
        session.last_save = time.monotonic() - clock
        assert session.timed_save_is_due()
        assert flags.pop() == due
