"""A task outside of bertie, through fine-tuning, resuming and everything that loads the result."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import examples.own_task
import numpy as np
import pytest
import torch
from examples.own_task import OrderedHead, Ordinal
from tests.unit.small_recipes import fine_tuning, interrupted

import bertie
from bertie.base.contracts import Hidden, Sequence, Targets
from bertie.base.errors import UserError
from bertie.cli import main
from bertie.examples.texts import Example
from bertie.finetuning.recipe import read_recipe
from bertie.finetuning.sweep import has_failed
from bertie.serve.openapi import openapi
from bertie.tasks.task_json import task_from_json
from bertie.training.run_report import unit

STARS = ("1", "2", "10")
TASK = Ordinal(labels=STARS)
MODULE = "stars_of_a_test"
NAME = f"{MODULE}:Ordinal"


def text(label: str | None) -> Example:
    return Example("a", None, label, "here")


def test_the_example_by_hand() -> None:
    assert Ordinal().fit([text("10"), text("1"), text("2")]).labels == STARS
    assert read_recipe(Ordinal) == read_recipe(Ordinal())
    with pytest.raises(UserError, match="the class 'good' is not a number"):
        Ordinal().fit([text("1"), text("good")])
    assert [
        None if row is None else row.tolist() for row in TASK.gold([text("1"), text("2"), text("10"), text(None)])
    ] == [
        [0, 0],
        [1, 0],
        [1, 1],
        None,
    ]
    found = TASK.predicted(np.log(np.array([3.0, 0.25])).astype(np.float32))  # above 1: 3 in 4; above 2: 1 in 5
    assert found.label == "2"
    assert found.probabilities == pytest.approx({"1": 0.25, "2": 0.55, "10": 0.2})
    assert TASK.predicted(np.array([-9.0, 9.0], np.float32)).label == "1"  # thresholds that cross
    head = OrderedHead(4, 3, 0.0)
    sequences = [
        Sequence(*[np.zeros(1, np.int32)] * 2, np.zeros(1, bool), target=row)
        for row in TASK.gold([text("1"), text("10")])
    ]
    TASK.start_with_frequencies(head, sequences)
    assert head.above.tolist() == [0.0, 0.0]  # half of the examples are above each class
    states, targets = torch.randn(2, 4), Targets(torch.tensor([1, 0]), torch.tensor([[1, 0], [0, 0]]), torch.ones(2))  # type: ignore[arg-type]
    p = torch.sigmoid(states[[1, 0]] @ head.score.weight.T).repeat(1, 2)
    by_hand = -torch.where(targets.label > 0, p, 1 - p).log().mean(1).sum()  # type: ignore[operator]
    assert head(Hidden(states), targets).total.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_a_run_fails_if_its_error_is_not_lower() -> None:
    gold = [text(label) for label in ("1", "1", "10", "10")]
    assert not has_failed("mean_error", {"mean_error": 0.2}, TASK, gold)
    assert has_failed("mean_error", {"mean_error": 1.0}, TASK, gold)
    assert unit({}, "ordinal") == "in its own unit"


@pytest.fixture(scope="module")
def files(rows: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module that only a process that starts in it finds, and with examples."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(examples.own_task.__file__, folder / f"{MODULE}.py")
    stars = [row | {"label": {"no": "1", "yes": "3"}[row["label"]]} for row in rows]
    for name, part in (("train", stars[:50]), ("dev", stars[50:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder


SETTINGS = [
    "--training.epochs",
    "4",
    "--training.learning-rate",
    "6e-3",
    "--training.batch-size",
    "8",
    "--max-length",
    "24",
]
SETTINGS += [
    "--training.precision",
    "fp32",
    "--training.checkpoint-every",
    "5",
    "--threads",
    "1",
    "--task.truncation",
    "tail",
]


@contextmanager
def new_process(folder: Path) -> Iterator[None]:
    """Run the block as in a new process that starts in the folder: the module is not imported, and no path leads to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [path for path in sys.path if path])
        patch.delitem(sys.modules, MODULE, raising=False)
        yield


@pytest.fixture(scope="module")
def run(files: Path, start: Path) -> Path:
    """A run of the command line, interrupted and resumed by the same command."""
    command = ["finetune", NAME, "--train", "train.jsonl", "--dev", "dev.jsonl", "--model", str(start), "--out", "run"]
    with new_process(files), interrupted(lambda counters: counters.step == 10):
        if main([*command, *SETTINGS]) == 130:
            raise KeyboardInterrupt
    with new_process(files):
        assert main([*command, *SETTINGS]) == 0
        assert main(["finetune", "--task", NAME, *command[2:], *SETTINGS]) == 0  # it is finished: read back
    return files / "run"


@pytest.fixture
def elsewhere(run: Path) -> Iterator[Path]:
    with new_process(run.parent):
        yield run.parent


def test_a_run_is_loaded_with_its_code_only_if_that_is_allowed(
    elsewhere: Path, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = json.loads(Path("run/task.json").read_text())
    assert (saved["kind"], saved["code"], saved["truncation"]) == ("ordinal", NAME, "tail")
    for command in (["predict", "run", "a"], ["evaluate", "run", "--data", "dev.jsonl"], ["verify", "run"]):
        assert main(command) == 1
        assert f"run/task.json: the task is {NAME}, code that is not part of bertie" in capsys.readouterr().err
    with pytest.raises(UserError, match="code that is not part of bertie"):
        task_from_json(saved | {"kind": NAME, "code": ""}, "task.json")
    assert main(["predict", "run", "--", "--allow-code"]) == 1  # that is a text
    assert MODULE not in sys.modules
    assert main(["predict", "run", "and a", "--allow-code"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] == "3"
    loaded = bertie.load("run", threads=1)  # the module is imported now
    best = {"accuracy": 1.0, "within_one": 1.0, "mean_error": 0.0}
    assert loaded.evaluate("dev.jsonl")["scores"] == best
    task: Any = loaded.task
    recipe = replace(fine_tuning(4, 6e-3), task=replace(task, labels=(), paired=None))
    tuned = bertie.finetune(recipe, elsewhere / "train.jsonl", start, dev=elsewhere / "dev.jsonl", threads=1)
    assert tuned.scores == best


def test_only_what_needs_the_task_needs_its_code(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--train", "train.jsonl", "--dev", "dev.jsonl", "--out", str(elsewhere / "next")]
    assert main(["finetune", "classify", *files, "--model", "run", *SETTINGS, "--training.steps", "1"]) == 0
    assert "dropped its ordinal head" in capsys.readouterr().err
    assert MODULE not in sys.modules


@pytest.mark.usefixtures("elsewhere")
def test_other_commands_take_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", NAME, "dev.jsonl", "--task.label", "label"]) == 0
    assert "labels: 3 5, 1 5" in capsys.readouterr().out
    assert main(["score", NAME, "--data", "dev.jsonl", "--predictions", "run/dev/predictions.jsonl"]) == 0
    assert "mean_error 0.0000" in capsys.readouterr().out
    assert main(["finetune", NAME, "--help"]) == 0
    assert "--task.… of kind `ordinal`:" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
def test_a_converted_model_keeps_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "run", "hf", "--to", "hf", "--allow_code"]) == 0
    assert "transformers has no class for the head (ordinal regression)" in capsys.readouterr().err
    assert main(["evaluate", "hf", "--data", "dev.jsonl", "--allow-code"]) == 0
    assert "accuracy 1.0000" in capsys.readouterr().out
    assert main(["convert", "run", "onnx", "--to", "onnx", "--allow-code"]) == 2
    assert "a graph cannot hold the head (ordinal regression), which no class" in capsys.readouterr().err


def test_the_server_describes_predictions_of_another_form() -> None:
    @dataclass(frozen=True)
    class Verdict:
        stars: int

    class Judged(Ordinal):
        prediction = Verdict

    described = openapi(tasks=[Judged()])["components"]["schemas"]
    assert described["Verdict"]["properties"] == {"stars": {"type": "integer"}}
    assert {"$ref": "#/components/schemas/Verdict"} in described["PredictResponse"]["properties"]["predictions"][
        "items"
    ]["anyOf"]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "said"), [("own_task", "mean_error"), ("own_objective", "told apart")])
def test_the_examples_run_as_scripts(script: str, said: str) -> None:
    path = Path(examples.own_task.__file__).with_name(f"{script}.py")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stdout) == (0, True), done.stderr
