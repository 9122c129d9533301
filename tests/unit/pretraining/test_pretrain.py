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

import bertie
from bertie import runtime, seeding
from bertie.batches.layouts import SentencePairs
from bertie.checkpoints.folder import read_checkpoint
from bertie.contracts import Loss, MicroBatch
from bertie.errors import UsageError, UserError
from bertie.model.attention import IMPLEMENTATIONS, eager
from bertie.model.config import BertConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining import feed
from bertie.pretraining import pretrain as pretrain_module
from bertie.pretraining.feed import eval_batches
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.phases import Phase
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.text.shards import open_shards
from bertie.training import trainer
from bertie.training.optimizers import AdamW
from bertie.training.run_report import describe_machine
from bertie.training.schedules import Linear

TRAINING = PretrainTraining(
    steps=30, batch_size=16, learning_rate=1e-2, row_tokens=512, precision="fp32", eval_every=10
)


@pytest.fixture
def config(tiny_config: BertConfig) -> PretrainConfig:
    size = replace(tiny_config, vocab_size=0)
    return PretrainConfig(
        size, SentencePairs(max_length=32), (MaskedLM(), NextSentence()), AdamW(), Linear(warmup=0.1), TRAINING
    )


def pretrain(config: PretrainConfig, shards: Path, out: Path) -> dict[str, Any]:
    return bertie.pretrain(config, shards, out, threads=1)


def records(run: Path, split: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in found if record["split"] == split]


def test_a_run(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    told = pretrain(config, small_shards, tmp_path / "run")
    train, held = records(tmp_path / "run", "train"), records(tmp_path / "run", "eval")
    assert [record["step"] for record in train] == list(range(1, 31))
    assert [record["step"] for record in held] == [10, 20, 30]
    assert told["eval"] == held[-1]
    assert told["finished_before"] is False
    assert train[0]["mlm_loss"] == pytest.approx(np.log(500), abs=0.2)
    assert held[-1]["mlm_loss"] < 4.5
    assert held[-1]["loss"] == pytest.approx(held[-1]["mlm_loss"] + held[-1]["nsp_loss"], rel=1e-5)
    for record in train:
        assert record["lr"] == pytest.approx(1e-2 * Linear(warmup=0.1).factor(record["step"] - 1, 30), rel=1e-6)
        assert {"epoch", "tokens", "seconds", "grad_norm", "tokens_per_second", "nsp_accuracy"} <= record.keys()
    assert {record["epoch"] for record in [*train, *held] if record["tokens"] <= train[0]["tokens"]} == {0}
    assert train[-1]["epoch"] == held[-1]["epoch"]
    # Real tokens, without filler: nearly 16 × 32 a step.
    assert 0.9 * 16 * 32 * 30 < train[-1]["tokens"] <= 16 * 32 * 30
    checkpoint = read_checkpoint(tmp_path / "run")
    assert checkpoint.heads == {"mlm", "nsp"}
    assert checkpoint.config.vocab_size == 500
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"entropy of words {open_shards(small_shards).eval.unigram_entropy:.2f}" in page
    assert pretrain(config, small_shards, tmp_path / "run")["finished_before"] is True


def test_the_same_again_is_the_same(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    """With dropout, and evaluation at other steps: neither it nor the clock may touch the training."""
    config = replace(config, model=replace(config.model, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1))
    for name, every in (("a", 10), ("b", 7)):
        training = replace(config.training, eval_every=every, checkpoint_every=every)
        pretrain(replace(config, training=training), small_shards, tmp_path / name)
    losses = [[record["loss"] for record in records(tmp_path / name, "train")] for name in ("a", "b")]
    assert losses[0] == losses[1]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]


def test_another_seed_is_another_run(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    first = []
    for seed in (0, 1):
        short = replace(config, seed=seed, training=replace(config.training, steps=1))
        pretrain(short, small_shards, tmp_path / str(seed))
        first.append(records(tmp_path / str(seed), "train")[0]["loss"])
    assert first[0] != first[1]


def test_initial_weights_are_a_function_of_the_seed(tiny_config: BertConfig) -> None:
    def weights(seed: int, noise: int) -> torch.Tensor:
        torch.manual_seed(noise)
        return new_model(tiny_config, (MaskedLM(),), seed).encoder.embeddings.word.weight

    assert torch.equal(weights(0, noise=1), weights(0, noise=2))
    assert not torch.equal(weights(0, noise=1), weights(1, noise=1))


def test_held_out_text_is_laid_out_once_and_for_all(config: PretrainConfig, small_shards: Path) -> None:
    shards = open_shards(small_shards)

    def work(max_eval_tokens: int) -> list[MicroBatch]:
        return eval_batches(config.objectives, config.layout, shards.eval, shards.tokenizer, max_eval_tokens)

    first, second = work(100_000), work(100_000)
    for a, b in zip(first, second, strict=True):
        assert a.batch.input_ids.tolist() == b.batch.input_ids.tolist()
        assert a.rows.tolist() == b.rows.tolist()
        assert len(a.batch.input_ids) <= feed.EVAL_ROW_TOKENS
    assert sum(micro.tokens for micro in first) > 0.9 * int(shards.eval.document_starts[-1])
    assert 900 < sum(micro.tokens for micro in work(1000)) <= 1000
    assert sum(len(micro.batch.kind) for micro in work(1)) == 1  # at least one sequence


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_the_next_call_goes_on(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    record = trainer.train_record

    def interrupted(*args: Any) -> Any:
        found = record(*args)
        if found["step"] == 7:
            os.kill(os.getpid(), number)
        return found

    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, small_shards, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000007"]
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before
    more_often = replace(config, training=replace(config.training, checkpoint_every=10, keep_checkpoints=3))
    for settings, name in ((more_often, "run"), (config, "undisturbed")):
        pretrain(settings, small_shards, tmp_path / name)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "undisturbed")]
    assert weights[0] == weights[1]


def test_held_out_sequences_longer_than_an_evaluation_row(
    config: PretrainConfig, small_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "EVAL_ROW_TOKENS", 20)
    shards = open_shards(small_shards)
    work = eval_batches(config.objectives, config.layout, shards.eval, shards.tokenizer, 100_000)
    assert max(len(micro.batch.input_ids) for micro in work) == 32
    assert {len(micro.batch.kind) for micro in work if len(micro.batch.input_ids) > 20} == {1}


def test_speed_is_that_of_the_steps(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, clock, late = pretrain_module.evaluate, time.monotonic, 0.0

    def slow(*args: Any) -> Any:
        nonlocal late
        late += 10_000.0
        return evaluate(*args)

    monkeypatch.setattr(pretrain_module, "evaluate", slow)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + late)
    training = replace(config.training, steps=4, eval_every=2)
    pretrain(replace(config, training=training), small_shards, tmp_path / "run")
    train = records(tmp_path / "run", "train")
    assert train[2]["seconds"] - train[1]["seconds"] > 10_000
    assert train[2]["tokens_per_second"] > (train[2]["tokens"] - train[1]["tokens"]) / 10_000


def test_every_batch_and_objective_draws_from_its_own_stream(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[int, ...]] = []
    original = seeding.generator

    def generator(seed: int, *stream: int) -> np.random.Generator:
        keys.append(stream)
        return original(seed, *stream)

    monkeypatch.setattr(seeding, "generator", generator)
    monkeypatch.setattr(feed, "EVAL_ROW_TOKENS", 128)
    pretrain(
        replace(config, training=replace(config.training, steps=4, row_tokens=128)), small_shards, tmp_path / "run"
    )
    for kind in (seeding.LABELS, seeding.EVAL_LABELS):
        drawn = [key for key in keys if key[0] == kind]
        assert len(drawn) == len(set(drawn)) > 30


def test_what_cannot_be_is_refused(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for change, message in (
        ({"model": replace(config.model, vocab_size=400)}, "the shards' vocabulary has 500 entries"),
        ({"layout": SentencePairs(max_length=65)}, r"layout\.max_length 65 is more than"),
        ({"objectives": ()}, r"objectives is \[\]"),
        ({"objectives": (MaskedLM(), MaskedLM())}, "each of another kind"),
        ({"model": replace(config.model, type_vocab_size=1)}, "pairs of texts need 2"),
    ):
        with pytest.raises(UsageError, match=message):
            pretrain(replace(config, **change), small_shards, out)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="init_from does not say of which checkpoint"):
        replace(config, init_optimizer="kept")
    with pytest.raises(UsageError, match=r"phases\.1\.max_length is 4"):
        pretrain(replace(config, phases=(Phase(0.5), Phase(0.5, max_length=4))), small_shards, out)
    with pytest.raises(UserError, match=r"lower --training\.batch-size"):
        pretrain(replace(config, training=replace(config.training, batch_size=10_000)), small_shards, out)
    assert not out.exists()


@pytest.mark.parametrize(
    "name", ["steps", "batch_size", "row_tokens", "max_eval_tokens", "keep_checkpoints", "max_grad_norm"]
)
def test_numbers_below_their_least_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"training\.{name} is 0"):
        replace(TRAINING, **{name: 0})  # type: ignore[arg-type]


def test_divergence_is_said_and_its_batch_kept(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    settings = replace(config.training, learning_rate=1e9, max_skipped_steps=3)
    wild = replace(config, training=settings, optimizer=AdamW(weight_decay=1.0))
    with pytest.raises(
        UserError, match=r"3 steps in a row .* the training has diverged; lower --training\.learning-rate"
    ):
        pretrain(wild, small_shards, tmp_path / "run")
    train = records(tmp_path / "run", "train")
    assert [record.get("skipped", False) for record in train[-4:]] == [False, True, True, True]
    assert train[-1]["loss"] is None
    [path] = (tmp_path / "run").glob("bad-step-*.npz")
    assert f"{train[-1]['step']:08d}" in path.name
    kept = np.load(path)
    for name, size in (("input_ids", 512), ("mlm.label", 77), ("nsp.weight", len(kept["0.kind"]))):
        assert len(kept[f"0.{name}"]) == size


def test_a_loss_that_is_no_number_at_the_end_is_no_model(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    settings = replace(config.training, learning_rate=1e9, steps=8)
    wild = replace(config, training=settings, optimizer=AdamW(weight_decay=1.0))
    for _ in range(2):  # as often as it is asked
        with pytest.raises(UserError, match="the held-out loss is not finite: the training has diverged; lower"):
            pretrain(wild, small_shards, tmp_path / "run")
    assert records(tmp_path / "run", "eval")[-1]["loss"] is None
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_finished_run_whose_model_was_damaged_is_not_called_finished(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    short = replace(config, training=replace(config.training, steps=2))
    pretrain(short, small_shards, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        pretrain(short, small_shards, tmp_path / "run")


def test_what_is_known_of_the_machine_stands_in_the_report(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    short = replace(config, training=replace(config.training, steps=2))
    pretrain(short, small_shards, tmp_path / "run")
    (tmp_path / "run" / "environment.json").write_text('{"threads": 1, "versions": 3}')
    assert describe_machine(tmp_path / "run") == "On 1 thread of ?, in ?; ?."


def test_a_single_bad_step_is_skipped_and_logged(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, asked = torch.nn.utils.clip_grad_norm_, itertools.count(1)

    def poisoned(parameters: Any, most: float) -> torch.Tensor:
        norm = clip(parameters, most)
        return norm * (torch.nan if next(asked) in (4, 6) else 1)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", poisoned)
    pretrain(replace(config, training=replace(config.training, max_skipped_steps=2)), small_shards, tmp_path / "run")
    train = records(tmp_path / "run", "train")
    assert [record["step"] for record in train if record.get("skipped")] == [4, 6]
    assert train[3]["grad_norm"] is None
    assert train[-1]["mlm_loss"] < train[0]["mlm_loss"]
    [counters] = (tmp_path / "run" / "checkpoints").glob("*30/training_state/counters.json")
    assert json.loads(counters.read_text())["skipped"] == 2
    assert (tmp_path / "run" / "report.html").exists()


def test_an_interrupt_while_it_evaluates(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is heeded there, and the evaluation is made up for."""
    evaluate = pretrain_module.evaluate

    def interrupted(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*args)

    with monkeypatch.context() as patch:
        patch.setattr(pretrain_module, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, small_shards, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000010"]
    assert records(tmp_path / "run", "eval") == []
    for name in ("run", "undisturbed"):
        pretrain(config, small_shards, tmp_path / name)
    found, expected = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("run", "undisturbed"))
    timing = re.compile(r'"(seconds|tokens_per_second|utilisation)": [\d.e+]+')
    assert timing.sub("", found) == timing.sub("", expected)


@pytest.mark.parametrize(
    ("judgements", "interrupted", "phases", "best"),
    [
        ([5, 1, 4, 2, 3, 6], None, (), 10),
        ([math.nan, 3, 2, 4, 5, 6], None, (), 15),
        ([5, 1, 4, 2, 3, 6], 1, (), 10),  # while it evaluated the best one
        ([5, 1, 4, 9, 7, 8], None, (Phase(0.5), Phase(0.5, max_length=48)), 25),  # of the text of the phase it is in
    ],
    ids=["the lowest", "the first is no number", "interrupted", "phases"],
)
def test_the_best_checkpoint_is_kept_beside_the_newest(
    config: PretrainConfig,
    small_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    judgements: list[float],
    interrupted: int | None,
    phases: tuple[Phase, ...],
    best: int,
) -> None:
    evaluate, asked, interrupts = pretrain_module.evaluate, itertools.count(), [interrupted]

    def judged(*args: Any) -> Any:
        number = next(asked)
        if number == interrupts[0]:
            signal.raise_signal(signal.SIGINT)
        losses = evaluate(*args)
        if losses is None:
            return None
        return {
            name: Loss(torch.tensor(judgements[number] * 100.0), loss.count, loss.hits) for name, loss in losses.items()
        }

    monkeypatch.setattr(pretrain_module, "evaluate", judged)
    training = replace(config.training, eval_every=5, checkpoint_every=5, keep_checkpoints=1)
    config = replace(config, training=training, phases=phases)
    if interrupted is not None:
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, small_shards, tmp_path / "run")
        asked, interrupts[0] = itertools.count(interrupted), None
    pretrain(config, small_shards, tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [f"step-{best:08d}", "step-00000030"]


@pytest.mark.filterwarnings("ignore")
def test_curves_for_tensorboard(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training = replace(config.training, tensorboard=True, steps=5)
    pretrain(replace(config, training=training), small_shards, tmp_path / "run")
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    assert {"train/mlm_loss", "train/lr", "eval/mlm_loss"} <= set(found.Tags()["scalars"])
    assert len(found.Scalars("train/mlm_loss")) == 5


@pytest.mark.parametrize(
    ("micro_batch", "again", "memory", "advice"),
    [
        (4, False, 2_300_000, r"4 rows .* --training\.micro-batch 2 should fit"),
        (2, False, 10**9, r"2 rows .* --training\.micro-batch 1 should fit"),
        (1, False, 10**9, r"1 row .* give --training\.activation-checkpointing, or a smaller model"),
        (4, True, 10**5, r"4 rows .* give a smaller model; of a new run, fewer --training\.row-tokens"),
    ],
)
def test_out_of_memory_is_said_with_what_would_fit(
    config: PretrainConfig,
    small_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    micro_batch: int,
    again: bool,
    memory: int,
    advice: str,
) -> None:
    def exhausted(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(trainer, "train", exhausted)
    monkeypatch.setattr(runtime, "memory", lambda: (0, memory))
    training = replace(config.training, row_tokens=128, micro_batch=micro_batch, activation_checkpointing=again)
    with pytest.raises(UserError, match=advice):
        pretrain(replace(config, training=training), small_shards, tmp_path / "run")


def test_a_run_goes_on_with_another_micro_batch(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    first = replace(config.training, row_tokens=128, micro_batch=4, steps=5)
    pretrain(replace(config, training=first), small_shards, tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()  # as if it were not finished
    pretrain(replace(config, training=replace(first, micro_batch=2)), small_shards, tmp_path / "run")


def test_checkpoints_by_the_clock(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    training = replace(config.training, checkpoint_every=0, checkpoint_minutes=1e-9, keep_checkpoints=100, steps=5)
    pretrain(replace(config, training=training), small_shards, tmp_path / "run")
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 5


def test_micro_batches_and_workers_change_nothing_of_what_is_read(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    """Rows of 128 tokens: one by one, two or (because three do not divide four) two together, and prepared elsewhere."""
    found = []
    for name, micro_batch, workers in (("a", 1, 0), ("b", 2, 0), ("c", 3, 0), ("d", 1, 2)):
        settings = replace(config.training, row_tokens=128, micro_batch=micro_batch, workers=workers, steps=12)
        pretrain(replace(config, training=settings), small_shards, tmp_path / name)
        found.append([(r["loss"], r["mlm_accuracy"], r["tokens"]) for r in records(tmp_path / name, "train")])
    assert found[0] == found[3]
    assert found[1] == found[2]
    for one, other in zip(found[0], found[1], strict=True):
        assert one[0] == pytest.approx(other[0], rel=1e-4)
        assert one[2] == other[2]


def test_varlen_where_it_cannot_be(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    asked = replace(config.training, attention="varlen")
    dropping = replace(config.model, attention_probs_dropout_prob=0.1)
    with pytest.raises(UsageError, match=r"model\.attention_probs_dropout_prob is 0\.1: set that to 0"):
        replace(config, model=dropping, training=asked)
    if runtime.device().type == "cpu":
        with pytest.raises(UsageError, match=r"varlen, which needs a GPU .* here it is fp32 on cpu"):
            pretrain(
                replace(config, model=replace(config.model, attention_probs_dropout_prob=0.0), training=asked),
                small_shards,
                tmp_path / "run",
            )
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["grouped", "looped"])
def test_a_cpus_attention_on_another_device(
    kind: Literal["grouped", "looped"],
    config: PretrainConfig,
    small_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    asked = replace(config, training=replace(config.training, attention=kind))
    with pytest.raises(UsageError, match=f"training.attention is {kind}, which is for a CPU, and not for cuda"):
        pretrain(asked, small_shards, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_attention_that_is_asked_for_is_used(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    monkeypatch.setitem(IMPLEMENTATIONS, "eager", lambda *a, **options: used.append(1) or eager(*a, **options))
    short = replace(config.training, steps=2, attention="eager")
    pretrain(replace(config, training=short), small_shards, tmp_path / "run")
    assert used


@pytest.mark.parametrize("clock", [0.0, 1e9], ids=["just saved", "long ago"])
def test_the_rank_that_writes_decides_when_it_is_time_to(clock: float) -> None:
    """By its own clock; the others do as it says, so that all read their losses at the same steps."""
    said: list[bool] = []
    ranks = SimpleNamespace(any=lambda due: said.append(due) or True)
    for run, due in ((object(), clock > 0), (None, False)):
        session = trainer._Session.__new__(trainer._Session)
        session.job, session.run = SimpleNamespace(checkpoint_minutes=1.0, ranks=ranks), run  # type: ignore[assignment]
        session.last_save = time.monotonic() - clock
        assert session.timed_save_is_due()
        assert said.pop() == due
