from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG

from bertie.base import storage
from bertie.training.run_report import describe_machine, run_page

PRINT_SVG = FigureCanvasSVG.print_svg  # before conftest.py replaces it


def a_run(folder: Path, steps: int) -> Path:
    folder.mkdir()
    storage.write_json(
        folder / "environment.json",
        {"versions": {"torch": "9.9"}, "threads": 3, "cpu": "Some <CPU>", "precision": "bf16"},
    )
    (folder / "config.toml").write_text("[training]\nlearning_rate = 0.25\n")
    lines = []
    for step in range(1, steps + 1):
        progress = {"step": step, "epoch": 0, "tokens": 1000 * step, "seconds": 6.0 * step}
        losses = {
            "loss": 8.0,
            "mlm_loss": 7.0 - step / steps,
            "nsp_loss": 0.69,
            "mlm_accuracy": 0.1,
            "nsp_accuracy": 0.5,
        }
        lines.append(
            {"split": "train", **progress, **losses, "lr": 0.1, "grad_norm": 1.0, "tokens_per_second": 160.0 + step}
        )
    lines.append({"split": "eval", **progress, **losses, "mlm_loss": 6.125, "mlm_accuracy": 0.127})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_page_shows_scores_settings_and_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(FigureCanvasSVG, "print_svg", PRINT_SVG)
    html = run_page(
        a_run(tmp_path / "wiki & co", 200), "Pre-trained for 200 steps.", {"unigram model 7.14": 7.14}
    ).html()
    for text in ("<h1>wiki &amp; co</h1>", "Pre-trained for 200 steps.", "6.125", "12.7 %", "unigram model 7.14"):
        assert text in html
    assert "200,000 tokens, 20.0 minutes" in html
    assert "median speed of a step: 260 tokens per second" in html  # the median of 161 … 360
    assert "3 threads of Some &lt;CPU&gt;, in bf16; torch 9.9." in html
    assert "learning_rate = 0.25" in html
    assert html.count("unigram model 7.14</text>") == 1  # in the chart of the masked-LM loss only


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"ranks": [1]}, "On 3 threads of Some <CPU>, in bf16; torch 9.9."),
        ({"ranks": [8]}, "8 processes, each on 3 threads of Some <CPU>, in bf16; torch 9.9."),
        ({"ranks": [8, 1], "threads": 1}, "8, then 1 process, each on 1 thread of Some <CPU>, in bf16; torch 9.9."),
        ({"accelerator": "Some GPU"}, "On Some GPU with 3 threads of Some <CPU>, in bf16; torch 9.9."),
        (
            {"ranks": [8], "accelerator": "Some GPU"},
            "8 processes, each on Some GPU with 3 threads of Some <CPU>, in bf16; torch 9.9.",
        ),
    ],
)
def test_page_says_on_what_all_processes_ran(tmp_path, facts, told):
    run = a_run(tmp_path / "run", 1)
    storage.write_json(run / "environment.json", storage.read_json(run / "environment.json") | facts)
    assert describe_machine(run) == told


def test_page_of_an_early_stopped_run_shows_the_best_evaluation(tmp_path):
    run = a_run(tmp_path / "run", 5)
    [last] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1:]
    lines = [json.dumps({**last, "step": step, "loss": loss, "mlm_loss": loss}) for step, loss in ((6, 4.5), (7, 4.5))]
    worse = json.dumps({**last, "step": 8, "loss": 5.5, "mlm_loss": 5.5})
    with open(run / "metrics.jsonl", "a") as file:
        file.write("\n".join([*lines, worse]) + "\n")
    assert "After step 8, held out" in run_page(run, "", {}).html()
    (run / "config.toml").write_text("[training]\npatience = 1\n")
    html = run_page(run, "", {}).html()
    assert "lowest after step 6, and training ended after step 8. The model has the weights of step 6." in html
    assert "After step 6, held out" in html
