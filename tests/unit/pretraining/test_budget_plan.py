from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
from bertie import UsageError, UserError
from bertie.base import runtime
from bertie.cli import main
from bertie.corpus.prepare import prepare
from bertie.corpus.remote_shards import ShardCache
from bertie.corpus.shards import open_shards
from bertie.pretraining import budget_plan, plan_report, pretrain, scaling
from bertie.pretraining.budget_plan import FILL_A_GPU, GPUS, MOST_EPOCHS, RECIPES, Gpu, Target
from bertie.pretraining.pretrain import Setup, set_up
from bertie.pretraining.step_cost import flops_per_step, seconds_per_step
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.distributed import SINGLE_PROCESS

COPIES = 30


@pytest.fixture(scope="module")
def shards(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough text for runs as long as the shortest that was measured."""
    folder = tmp_path_factory.mktemp("plan")
    texts = [f"{text} {copy}" for copy in range(COPIES) for text in small_texts]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare([folder / "text.jsonl"], small_tokenizer, folder / "shards", eval_share=0.01)
    return folder / "shards"


def seconds(setup: Setup) -> float:
    """The seconds of a step of a machine that makes 10^11 operations per second."""
    return flops_per_step(setup) / 1e11


MEMORY: dict[str, float] = {}


def memory(setup: Setup, target: Target) -> float:
    """What `_memory` says, once for each recipe: it follows all layers of a model."""
    key = f"{setup.config} {target.gpu}"
    if key not in MEMORY:
        MEMORY[key] = memory_of(setup, target)
    return MEMORY[key]


memory_of = budget_plan._memory


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of known speed and memory, so that a test does not depend on this machine."""
    monkeypatch.setattr(runtime, "memory", lambda: (100 << 30, 100 << 30))
    monkeypatch.setattr(budget_plan, "_memory", memory)
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(budget_plan, "seconds_per_step", seconds)
    monkeypatch.setattr(budget_plan, "_prepare", lambda *_: 10.0)


def losses(result: dict[str, Any]) -> dict[str, float]:
    return {each["recipe"]: each["loss"] for each in result["outlooks"]}


def test_it_recommends_the_recipe_with_the_lowest_loss(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = bertie.plan(shards, "2h", threads=1)
    assert ([*losses(result)], [*result["left_out"]]) == ([*RECIPES[1:4]], [RECIPES[0], RECIPES[4]])
    assert result["recommended"] == min(losses(result), key=losses(result).__getitem__)
    assert result["text_tokens"] == int(open_shards(shards).train.document_starts[-1])
    for each in result["outlooks"]:
        assert each["epochs"] == pytest.approx(each["tokens"] / result["text_tokens"])
        assert each["timed"] == (each["recipe"] in RECIPES[:3])
        assert each["steps"] == int(each["tokens"] / each["batch_size"] / 128)
    speeds = [each["tokens_per_second"] for each in result["outlooks"]]
    assert speeds == sorted(speeds, reverse=True)
    shown = capsys.readouterr().err
    assert f"{result['recommended']} has the lowest loss" in shown
    assert "timing modern-tiny\ntiming modern-mini\n" in shown


def test_steps_that_take_long_are_not_timed(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_plan, "PATIENCE", 1e-9)
    monkeypatch.setattr(budget_plan, "RECIPES", ("modern-tiny", "modern-small"))
    result = bertie.plan(shards, "2h", threads=1)
    assert not any(each["timed"] for each in result["outlooks"])


def test_preparation_and_evaluations_count(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [base] = [each for each in bertie.plan(shards, "2h")["outlooks"] if each["recipe"] == "modern-base"]
    held_out = sum(
        each.tokens for each in set_up("modern-base", shards, shards / "none", 1, SINGLE_PROCESS).eval_sets[0][""]
    )
    step = base["batch_size"] * 128
    read = base["tokens"] + held_out / 3 * (base["tokens"] / (500 * step) + 1)
    assert read / base["tokens_per_second"] == pytest.approx(2 * 3600 - 10)
    assert "the preparation takes" not in capsys.readouterr().err
    bertie.plan(shards, "95s")
    assert "warning: the preparation takes 10 s of 95 s" in capsys.readouterr().err
    with pytest.raises(UsageError, match="the preparation takes 10 s of 5 s: give more time"):
        bertie.plan(shards, "5s")


def test_the_preparation_is_that_of_a_real_run(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    prepared: list[Any] = []
    left: list[float] = []
    job = Setup.job

    def watch(setup: Setup, *args: Any) -> Any:
        prepared.extend(setup.config.objectives)
        return job(setup, *args)

    monkeypatch.setattr(Setup, "job", watch)
    monkeypatch.setattr(budget_plan, "_outlooks", lambda target: left.append(target.seconds) or ([], {}))
    with pytest.raises(UsageError):
        bertie.plan(shards, "60s", threads=1)
    assert [each.initialization for each in prepared] == ["patterns"]
    assert 0 < left[0] < 60


def test_it_times_real_steps(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_plan, "seconds_per_step", seconds_per_step)
    monkeypatch.setattr(budget_plan, "RECIPES", ("modern-tiny",))
    [outlook] = bertie.plan(shards, "10m", threads=1)["outlooks"]
    assert outlook["timed"]
    assert outlook["tokens_per_second"] > 100


def test_the_command_runs(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = bertie.plan(shards, "3 m", threads=1)
    words = shlex.split(result["command"])
    recipe = result["recommended"]
    assert words[:7] == ["bertie", "pretrain", recipe, "--data", str(shards), "--out", f"runs/{recipe}-3m"]
    assert words[7:] == ["--budget", "3m", "--training.batch-size", words[10], "--threads", "1"]
    assert main([*words[1:], "--dry-run"]) == 0
    assert "the budget of 3 minutes" in capsys.readouterr().out


def test_the_command_has_the_rows_that_were_timed(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_plan, "RECIPES", ("modern-base",))
    assert bertie.plan(shards, "2h")["command"].endswith(" --training.row-tokens 2048")
    assert "--training.row-tokens" not in bertie.plan(shards, "10m", device="l4")["command"]


def test_the_command_has_the_cache(shards: Path, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "a cache", 0.5)
    words = shlex.split(bertie.plan(f"file://{shards}", "10m", device="l4", cache=cache)["command"])
    assert words[words.index("--data") + 1] == f"file://{shards}"
    assert words[-4:] == ["--cache", str(tmp_path / "a cache"), "--cache-gb", "0.5"]


def test_the_timed_steps_are_as_large_as_those_of_the_command(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: dict[str, int] = {}

    def watch(setup: Setup) -> float:
        timed[f"{setup.config.model.hidden_size}"] = setup.config.training.batch_size
        return seconds(setup)

    monkeypatch.setitem(budget_plan.TIMED, "cpu", (256, 8192))  # as on a GPU
    monkeypatch.setattr(budget_plan, "seconds_per_step", watch)
    monkeypatch.setattr(budget_plan, "RECIPES", ("modern-small",))
    [outlook] = bertie.plan(shards, "20m")["outlooks"]
    assert timed == {"512": outlook["batch_size"]}
    assert outlook["batch_size"] < 256


def test_the_speed_of_a_gpu_elsewhere_follows_from_its_peak_rate(
    shards: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = bertie.plan(shards, "3m", device="h100", utilization=0.5)
    assert list(losses(half)) == list(FILL_A_GPU)
    shown = capsys.readouterr().err
    assert "assumes 50.0 % of the peak rate" in shown
    assert "Recipes smaller than modern-base do not fill a GPU" in shown
    base = half["outlooks"][0]
    operations = 989e12 * 0.5 / base["tokens_per_second"]
    assert operations > 6 * base["parameters"]  # and those of attention and of the predictions
    assert operations < 9 * base["parameters"]
    monkeypatch.setattr(budget_plan, "FILL_A_GPU", FILL_A_GPU[:1])
    for device, utilization, share in (("h100", 0.25, 0.5), ("a100", 0.5, 312 / 989), ("h100", 0.0, 0.6)):
        other = bertie.plan(shards, "3m", device=device, utilization=utilization)  # pyright: ignore[reportArgumentType]
        assert other["outlooks"][0]["tokens_per_second"] == pytest.approx(base["tokens_per_second"] * share)


def test_recipes_that_read_less_than_was_measured_are_left_out(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = bertie.plan(shards, "3m")
    assert [*losses(result), *result["left_out"]] == list(RECIPES)
    assert "fewer than 512,000 tokens" in result["left_out"]["modern-large"]
    assert "modern-base, modern-large: fewer than" in capsys.readouterr().err


def test_recipes_that_read_the_text_too_often_are_left_out(shards: Path) -> None:
    result = bertie.plan(shards, "2h")
    assert "and learns little after 100 times" in result["left_out"]["modern-tiny"]
    assert all(each["epochs"] <= MOST_EPOCHS for each in result["outlooks"])


def test_recipes_that_need_more_memory_are_left_out(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GPUS, "l4", Gpu(121, 8))
    result = bertie.plan(shards, "10m", device="l4")
    assert list(losses(result)) == ["modern-base"]
    assert "GB of memory, 7.2 GB are usable" in result["left_out"]["modern-large"]


def test_a_recipe_that_runs_out_of_memory_does_not_end_the_plan(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(error: RuntimeError) -> Callable[[Setup], float]:
        def step(setup: Setup) -> float:
            if setup.config.model.hidden_size == 512:
                raise error
            return seconds(setup)

        return step

    monkeypatch.setattr(budget_plan, "RECIPES", ("modern-mini", "modern-small"))
    monkeypatch.setattr(budget_plan, "seconds_per_step", full(torch.OutOfMemoryError("CUDA out of memory")))
    assert bertie.plan(shards, "2h")["left_out"]["modern-small"] == "runs out of memory"
    monkeypatch.setattr(budget_plan, "seconds_per_step", full(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        bertie.plan(shards, "2h")


def test_the_shards_are_opened_once_and_no_run_folder_is_read(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(budget_plan, "open_shards", lambda *words: opened.append(words[0]) or open_shards(*words))
    monkeypatch.setattr(pretrain, "open_shards", None)
    (shards / "plan").mkdir()
    (shards / "plan" / "environment.json").write_text("damaged")
    bertie.plan(shards, "3m")
    assert opened == [shards]


def test_losses_of_repeated_text_are_lower_bounds(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = bertie.plan(shards, "2h", threads=1)
    shown = capsys.readouterr().err
    rows = {line.split()[0]: line for line in shown.splitlines() if " M " in line}
    for each in result["outlooks"]:
        assert (f"at least {each['low']:.2f}" in rows[each["recipe"]]) == (each["epochs"] > 4)
    assert {each["epochs"] > 4 for each in result["outlooks"]} == {True, False}
    assert "only the lower end of the interval is shown" in shown


def test_a_loss_above_that_of_counting_words_is_a_warning(
    shards: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bertie.plan(shards, "2h", threads=1)
    counting = open_shards(shards).unigram_loss
    assert f"more than the {counting:.2f} nats of counting words" not in capsys.readouterr().err
    monkeypatch.setattr(budget_plan, "RECIPES", ("modern-mini",))
    monkeypatch.setattr(budget_plan.scaling, "expected_loss", lambda *_: scaling.Expected(9.0, 8.9, 9.1))
    bertie.plan(shards, "2h", threads=1)
    assert f"a loss of 9.00 nats is more than the {counting:.2f} nats of counting words" in capsys.readouterr().err


def test_amounts_have_three_digits() -> None:
    shown = [plan_report._amount(count) for count in (1_514_570_471, 285_599_775, 999_999_999, 512_000, 12)]
    assert shown == ["1.51 billion", "286 million", "1.00 billion", "512 thousand", "12"]


def test_the_plan_of_a_short_text_is_refused(
    tmp_path: Path, small_texts: list[str], small_tokenizer: Tokenizer
) -> None:
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in small_texts[:20]))
    prepare([tmp_path / "text.jsonl"], small_tokenizer, tmp_path / "shards", eval_share=0.1)
    least = math.ceil(scaling.measured_tokens()[0] / scaling.useful_tokens(100, 1))
    with pytest.raises(UserError, match=f"training tokens: give at least {least:,}"):
        bertie.plan(tmp_path / "shards", "1h")


def test_timed_steps_have_at_most_half_the_text(small_shards: Path) -> None:
    target = Target("h100", GPUS["h100"], 0.3, 0, math.inf, open_shards(small_shards), 60)
    assert target.sizes() == (target.text // 256, 8192)
    assert replace(target, gpu=None).sizes() == (16, 2048)


@pytest.mark.parametrize(
    ("budget", "options", "message"),
    [
        ("0h", {}, "budget is '0h': give more than 0 s and at most 366 d"),
        ("24", {}, "budget is '24': give"),
        ("nan", {}, "budget is 'nan': give"),
        (
            "11s",
            {},
            "budget 11s allows no plan (modern-tiny, modern-mini, modern-small, modern-base, modern-large: fewer than",
        ),
        ("1h", {"utilization": 0.4}, "--utilization is for a GPU elsewhere"),
        ("1h", {"device": "h100", "threads": 2}, "--threads is for this machine, and the plan for h100"),
        ("1h", {"device": "h100", "utilization": -1.0}, "--utilization -1: give a number above 0, at most 1"),
        ("1h", {"device": "h100", "utilization": 1.5}, "--utilization 1.5: give"),
        ("1h", {"device": "h100", "utilization": math.nan}, "--utilization nan: give"),
    ],
)
def test_errors(budget: str, options: dict[str, Any], message: str, shards: Path) -> None:
    with pytest.raises(UsageError) as caught:
        bertie.plan(shards, budget, **options)
    assert message in str(caught.value)


def test_the_command_line(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(shards.rglob("*"))
    assert main(["plan", "--data", str(shards), "--budget", "5m", "--device", "l4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["device"] == "l4"
    assert sorted(shards.rglob("*")) == before
    for device in ("tpu", "cpu", "cuda"):
        assert main(["plan", "--data", str(shards), "--budget", "24h", "--device", device]) == 2
        assert f"'l4', found '{device}'" in capsys.readouterr().err
    assert main(["plan", "--data", str(tmp_path), "--budget", "24h"]) in (1, 2)
    assert str(tmp_path) in capsys.readouterr().err
