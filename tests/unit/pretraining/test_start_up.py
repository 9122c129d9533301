from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.small_recipes import pretraining

import bertie
from bertie import cli
from bertie.base import storage, threads
from bertie.batches.loader import Position
from bertie.batches.sentence_pairs import SentencePairs
from bertie.corpus.shards import open_shards
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining import start_up
from bertie.pretraining.initial_weights import counted_weights, new_model
from bertie.pretraining.pretrain import set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.start_up import StartUp
from bertie.training.distributed import SINGLE_PROCESS

PARTS = ["shards", "batches", "model", "micro-batch", "compilation", "initial weights", "first step"]

COMPILE = """
import bertie.training.loop
import torch
from torch._dynamo.utils import counters
torch.compile(lambda x: (x.sin() * 2).cos())(torch.ones(8))
print(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])
"""


@pytest.fixture
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    training = {"steps": 3, "learning_rate": 1e-3, "row_tokens": 256, "max_eval_tokens": 500}
    return pretraining(tiny_config, objectives=(MaskedLM(initialization="cooccurrence"),), **training)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A clock that the test sets."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(start_up, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock  # type: ignore[return-value]


def test_a_start_ends_with_the_first_step(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    starts: list[dict[str, Any]] = []
    run: Any = SimpleNamespace(append=lambda _, start: starts.append(start))
    start = StartUp(since=98.0)
    for part, now in (("shards", 101.0), ("model", 104.5)):
        clock.now = now
        start.end(part)
    for step, now in ((1, 106.5), (2, 999.0)):
        clock.now = now
        start.end_with_step(run, {"step": step})
    seconds = {"Python": 2.0, "shards": 1.0, "model": 3.5, "first step": 2.0, "total": 8.5}
    assert starts == [{"step": 1, "seconds": seconds}]
    assert capsys.readouterr().err == ("first step after 8.5 s: Python 2.0, shards 1.0, model 3.5, first step 2.0\n")


def test_each_start_of_a_run_is_noted(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    """A start that resumes, too. One that finds a finished run has no first step."""
    recipe = replace(config, training=replace(config.training, checkpoint_every=1))
    job, _ = set_up(recipe, small_shards, tmp_path / "run", 1, SINGLE_PROCESS).job(None)
    assert job.on_step is not None
    for _ in range(2):
        bertie.pretrain(recipe, small_shards, tmp_path / "run", threads=1)
    [first] = storage.read_json(tmp_path / "run" / "environment.json")["starts"]
    assert first["step"] == 1
    assert list(first["seconds"]) == [*PARTS, "total"]
    assert first["seconds"]["total"] == pytest.approx(sum(first["seconds"][part] for part in PARTS), abs=0.01)
    (tmp_path / "run" / "manifest.json").unlink()
    (tmp_path / "run" / "checkpoints" / "step-00000003").rename(tmp_path / "unused")
    bertie.pretrain(recipe, small_shards, tmp_path / "run", threads=1)
    starts = storage.read_json(tmp_path / "run" / "environment.json")["starts"]
    assert [start["step"] for start in starts] == [1, 3]


def test_the_command_counts_from_the_start_of_the_process(
    small_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--training.steps",
        "2",
        "--training.max-eval-tokens",
        "500",
        "--training.batch-size",
        "4",
        "--threads",
        "1",
    ]
    command = ["pretrain", "modern-tiny", "--data", str(small_shards), "--out", str(tmp_path / "run"), *flags]
    assert cli.main(command) == 0
    assert " s: Python " in capsys.readouterr().err
    assert "Python" in storage.read_json(tmp_path / "run" / "environment.json")["starts"][0]["seconds"]


def test_counted_weights_do_not_depend_on_the_work_beside(config: PretrainConfig, small_shards: Path) -> None:
    shards, size = open_shards(small_shards), replace(config.model, vocab_size=500)
    expected = new_model(size, config.objectives, 0)
    config.objectives[0].initialize(expected, shards)  # type: ignore[union-attr]
    model = new_model(size, config.objectives, 0)
    with counted_weights(config.objectives, model, shards) as set_weights:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        torch.randn(7)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name])
        set_weights()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected.state_dict()[name])
    assert not torch.equal(model.encoder.embeddings.word.weight, before["encoder.embeddings.word.weight"])


def test_the_text_is_laid_out_once_before_training(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs, lay_out = list[int](), SentencePairs.epoch

    def epoch(self: SentencePairs, corpus: Any, *others: Any) -> Any:
        epochs.append(len(corpus.document_starts))
        return lay_out(self, corpus, *others)

    monkeypatch.setattr(SentencePairs, "epoch", epoch)
    setup = set_up(config, small_shards, tmp_path / "run", 1, SINGLE_PROCESS)
    feed = replace(setup.feed, micro_batch=2)
    sample = feed.first_step(feed.phases[0])
    assert sample is setup.feed.first_step(feed.phases[0])
    assert len(epochs) == 2  # the held-out text, and the training text
    with closing(feed.steps(0, Position())) as steps:
        next(steps)
    assert feed.first_step(feed.phases[0]) is not sample  # its memory is free


def test_work_for_all_ranks_uses_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cpu_quota", lambda: 16)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert threads.single_rank_threads(1) == 1
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert threads.single_rank_threads(1) == 16
    assert threads.single_rank_threads(20) == 20


def test_compiled_code_is_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a variable names another folder, or nothing can be written there."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    threads.keep_compiled_code()
    assert name not in os.environ
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    threads.keep_compiled_code()
    assert os.environ[name] == str(tmp_path / "bertie" / "compiled")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    threads.keep_compiled_code()
    assert os.environ[name] == str(tmp_path / "bertie" / "compiled")


@pytest.mark.slow  # torch's compiler takes ten seconds
def test_a_second_process_finds_the_compiled_code(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    hits = [
        int(subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, check=True).stdout)
        for _ in range(2)
    ]
    assert hits[0] == 0
    assert hits[1] > 0
    assert any((tmp_path / "bertie" / "compiled").rglob("*.so"))
