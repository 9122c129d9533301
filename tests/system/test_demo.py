"""The demo at a small scale, on Python's documentation and on another folder.

All but the slow tests have fewer sentences to classify, and fine-tune in this process: a process of its own, which loads
torch, takes longer than its fine-tuning.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import bertie
from bertie.cli import main
from bertie.demo import corpus


@pytest.fixture(scope="module")
def _small() -> Iterator[None]:
    """40 sentences per label, one process, and a third of Python's documentation, which is read once."""
    python_files = corpus._python_files
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_MAX_TRAIN", 40)
        patch.setattr(corpus, "_MAX_TEST", 40)
        patch.setattr("bertie.demo.main.python_data", cache(corpus.python_data))
        patch.setattr(corpus, "_python_files", lambda folder: sorted(python_files(folder))[::3])
        patch.setattr("bertie.base.threads.cpu_quota", lambda: 1)
        yield


@pytest.fixture(scope="module")
def demo(_small: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    assert main(["demo", "--out", str(out), "--scale", "0.02"]) == 0
    return out


@pytest.mark.slow
def test_demo_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    subprocess.run([sys.executable, "-m", "bertie", "demo", "--out", str(out), "--scale", "0.05"], check=True)
    require_complete(out, capsys)


def test_demo_writes_a_report_and_a_usable_model(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_complete(demo, capsys)


def require_complete(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (demo / "report.html").read_text()
    for part in ("Pre-training", "The gain from pre-training", "Predictions at [MASK]", "Run time", "<svg"):
        assert part in page
    comparison = json.loads((demo / "comparison.json").read_text())
    assert set(comparison["correct"]) == {"pre-trained", "from scratch", "bag of words"}
    [bag] = comparison["correct"].pop("bag of words")
    assert sum(bag) / len(bag) > 2 * comparison["majority"] > 0
    assert all(len(seeds) >= 2 for seeds in comparison["correct"].values())
    assert {len(right) for seeds in comparison["correct"].values() for right in seeds} == {len(bag)}
    assert main(["fill-mask", str(demo / "bert"), "Return the [MASK] of the list.", "--json"]) == 0
    [predictions] = json.loads(capsys.readouterr().out.splitlines()[-1])["masks"]
    assert len(predictions) == 5
    assert predictions[0]["probability"] >= predictions[-1]["probability"] > 0


def test_demo_leaves_its_text_and_its_labeled_sentences(demo: Path) -> None:
    comparison = json.loads((demo / "comparison.json").read_text())
    raw = (demo / "data" / "sentences.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbftext,label,document\r\n")
    found = bertie.inspect_data("classify", demo / "data" / "sentences.csv")
    assert (found["examples"], found["skipped"]) == (sum(comparison["examples"].values()), 0)
    labels = [row[1] for row in csv.reader(io.StringIO(raw.decode("utf-8-sig")))]
    assert len(set(labels[1:40])) > 5  # they are mixed
    documents = [json.loads(line) for line in (demo / "data" / "text.jsonl").read_text().splitlines()]
    assert {key for document in documents for key in document} == {"text", "source"}


def test_transformers_has_a_class_for_the_model(demo: Path) -> None:
    assert json.loads((demo / "bert" / "config.json").read_text())["model_type"] == "modernbert"


def test_demo_lowers_the_training_loss(demo: Path) -> None:
    records = [json.loads(line) for line in (demo / "bert" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["mlm_loss"] for record in records if record["split"] == "train"]
    assert sum(losses[-10:]) / 10 < sum(losses[:10]) / 10 - 0.1


def test_a_second_call_repeats_nothing(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def written() -> dict[Path, int]:
        new = ("report.html", "seconds.json", "text.jsonl", "sentences.csv")  # which every call writes
        files = [path for path in demo.rglob("*") if path.is_file() and path.name not in new]
        return {path: path.stat().st_mtime_ns for path in files}

    before, seconds = written(), json.loads((demo / "seconds.json").read_text())
    monkeypatch.setattr("bertie.demo.main.time", SimpleNamespace(monotonic=lambda: 0.0))
    assert main(["demo", "--out", str(demo), "--scale", "0.02"]) == 0
    summary = capsys.readouterr().err
    assert f"text: {demo}/data/text.jsonl; labeled sentences: {demo}/data/sentences.csv" in summary
    assert f"\n  bertie finetune classify --train {demo}/data/sentences.csv --model {demo}/bert --out " in summary
    # Finished stages keep their times. Every call reads the text.
    assert json.loads((demo / "seconds.json").read_text()) == {**seconds, "read the text": 0.0}
    assert written() == before
    assert {path.name for path in before} > {"model.safetensors", "metrics.jsonl", "comparison.json", "tokenizer.json"}


def test_another_scale_in_the_same_folder_is_refused(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(demo), "--scale", "0.1"]) == 2
    assert "another" in capsys.readouterr().err


def test_too_little_text_does_not_block_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text", tmp_path / "out"
    text.mkdir()
    out.mkdir()  # an empty folder is fine
    command = ["demo", "--out", str(out), "--scale", "0.01", "--corpus", str(text)]
    (text / "a.txt").write_text("One document.\n\nAnother one.\n")
    assert main(command) == 1
    assert "blank lines" in capsys.readouterr().err
    (text / "a.txt").write_text("".join(f"Document number {number}.\n\n" for number in range(10)))
    assert main(command) == 1  # too little for one step
    assert not (out / "bert").exists()
    (text / "a.txt").write_text(
        "".join(f"Document number {number}. {'More of it. ' * 150}\n\n" for number in range(10))
    )
    assert main(command) == 0
    assert (out / "report.html").is_file()
    assert [path.name for path in (out / "data").iterdir()] == ["text.jsonl"]  # one file has no classes


def test_an_output_folder_inside_the_corpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("One document.\n\nAnother one.\n")
    assert main(["demo", "--out", str(tmp_path / "runs" / "mine"), "--corpus", str(tmp_path)]) == 2
    assert "whose files are read as text" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_demo_of_another_folder(tmp_path: Path, corpus_folder: Path) -> None:
    out = tmp_path / "own"
    assert main(["demo", "--out", str(out), "--scale", "0.02", "--corpus", str(corpus_folder)]) == 0
    page = (out / "report.html").read_text()
    assert "does a sentence come from?" in page
    assert "[MASK]" in page
