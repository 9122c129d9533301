from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from bertie.base import storage
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.training.compare import compare
from bertie.training.run_folder import short_names


def a_run(folder: Path, steps: int, evals: int, rate: float, bad: int = 0) -> Path:
    folder.mkdir(parents=True)
    environment = {"versions": {"torch": "9.9"}, "threads": 3, "cpu": "A CPU", "precision": "fp32"}
    storage.write_json(folder / "environment.json", environment)
    (folder / "config.toml").write_text(f"seed = 0\n[training]\nlearning_rate = {rate}\n")
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        place = {"step": step, "epoch": 0, "tokens": 1000 * step, "seconds": 6.0 * step}
        losses = {"loss": 8.0, "mlm_loss": None if step == bad else 7.0 - step / steps, "mlm_accuracy": 0.1}
        lines.append({"split": "train", **place, **losses, "tokens_per_second": 160.0 + step})
        if step > steps - evals:
            lines.append({"split": "eval", **place, **losses})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_page_shows_curves_scores_and_differing_settings(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "one", 40, 4, 0.25), a_run(tmp_path / "two", 80, 0, 0.5, bad=70)]
    result = compare(runs, tmp_path / "page.html")
    assert result["differences"] == {"training.learning_rate": [0.25, 0.5]}
    assert [run["step"] for run in result["runs"]] == [40, 80]
    assert [run["tokens_per_second"] for run in result["runs"]] == [180.5, 200.5]
    assert result["runs"][0]["eval"]["mlm_loss"] == 6.0
    assert result["runs"][1]["eval"] is None
    html = (tmp_path / "page.html").read_text()
    for text in (
        "<h1>one and two</h1>",
        "two, training",
        "masked LM, nats",
        "million tokens",
        "minutes",
        "learning_rate",
        "A CPU",
    ):
        assert text in html


def test_runs_of_equal_names_and_settings_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / place / "run", 10, 2, 0.25) for place in "ab"]
    assert compare(runs, tmp_path / "page.html")["differences"] == {}
    html = (tmp_path / "page.html").read_text()
    assert "All settings are the same." in html
    assert ">b/run<" in html


def test_names_are_as_short_as_possible() -> None:
    assert short_names([Path("runs/mini"), "runs/sst2"]) == ["mini", "sst2"]
    checkpoints = [f"{run}/checkpoints/step-00000100" for run in ("a", "b")]
    assert short_names(["/x/b", *checkpoints]) == ["/x/b", *checkpoints]
    assert short_names(checkpoints) == checkpoints


def test_invalid_runs_are_refused(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", 10, 2, 0.25)
    (tmp_path / "empty").mkdir()
    without_steps = a_run(tmp_path / "without-steps", 0, 0, 0.25)
    for runs, message in (
        ([run], "two or more runs"),
        ([run, tmp_path / "empty"], "empty is not a run"),
        ([run, without_steps], "contains no training step yet"),
        ([run, run], "is given twice"),
    ):
        with pytest.raises(UsageError, match=message):
            compare(runs, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("kept", [("mlm", "classify"), ("mlm", "both", "nsp")])
def test_runs_without_a_common_loss_are_refused(tmp_path: Path, kept: tuple[str, ...]) -> None:
    runs = [a_run(tmp_path / name, 10, 2, 0.25) for name in kept]
    for run in runs:
        text = (run / "metrics.jsonl").read_text()
        both = text.replace('"mlm_loss"', '"nsp_loss": 1.0, "mlm_loss"')
        (run / "metrics.jsonl").write_text(both if run.name == "both" else text.replace('"mlm_', f'"{run.name}_'))
    message = rf"{kept[-1]} has no loss in common with the others \(mlm_loss, mlm_accuracy\)"
    with pytest.raises(UsageError, match=message):
        compare(runs, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_damaged_metrics_are_refused(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / name, 10, 2, 0.25) for name in "ab"]
    with open(runs[1] / "metrics.jsonl", "a") as file:
        file.write("[\n")
    with pytest.raises(UserError, match=r"b/metrics\.jsonl is damaged"):
        compare(runs, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_only_an_html_page_is_replaced(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / name, 10, 2, 0.25) for name in "ab"]
    (tmp_path / "mine.txt").write_text("mine")
    os.mkfifo(tmp_path / "pipe")  # a device such as /dev/null, too, would become a file
    for name in ("mine.txt", "pipe"):
        with pytest.raises(UsageError, match=f"{name} already exists and is not an HTML page"):
            compare(runs, tmp_path / name)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "pipe").is_fifo()
    for _ in range(2):
        compare(runs, tmp_path / "page.html")


def test_diverged_runs_are_compared(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / name, 10, 2, 0.25) for name in "ab"]
    path = runs[1] / "metrics.jsonl"
    path.write_text(re.sub(r'"mlm_loss": [\d.]+', '"mlm_loss": null', path.read_text()))
    compare(runs, tmp_path / "page.html")
    assert ">–</td>" in (tmp_path / "page.html").read_text()
    assert main(["runs", "compare", *map(str, runs), "--out", str(tmp_path)]) == 2


def test_evaluation_is_that_of_the_saved_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With patience, these are the weights of the lowest loss; of equal losses, the first."""
    runs = [a_run(tmp_path / name, 10, 4, 0.25) for name in "ab"]
    with (runs[1] / "config.toml").open("a") as file:
        file.write("patience = 3\n")
    assert main(["runs", "compare", *map(str, runs), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [run["eval"]["step"] for run in json.loads(out)["runs"]] == [10, 7]
    assert f"{runs[0]}: step 10, 10,000 tokens, mlm_loss 6.0000" in err
    assert f"{runs[1]}: step 10, 10,000 tokens, at step 7: mlm_loss 6.3000" in err
    assert f"setting: {runs[0]} | {runs[1]}" in err
    assert "Evaluated after step" in (tmp_path / "page.html").read_text()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(a_run(tmp_path / name, 10, 2, rate)) for name, rate in (("a", 0.25), ("b", 0.5))]
    assert main(["runs", "compare", *runs, "--out", str(tmp_path / "page.html"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["page"] == str(tmp_path / "page.html")
    assert "training.learning_rate: 0.25 | 0.5" in err
