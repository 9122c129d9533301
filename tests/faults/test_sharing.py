"""`predict`, `evaluate` and `embed` of several ranks, over gloo on the loopback interface, give what one process gives."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from killing import Nursery, finetune_command

RANKS = 3
ROWS = 4500  # five blocks: a rank has two, one or two of them


@pytest.fixture(scope="module")
def folder(nursery: Nursery, examples: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier `run`, and rows.jsonl: some have no text, some have more tokens than it reads."""
    folder = tmp_path_factory.mktemp("shared")
    code, text = nursery.run(finetune_command(examples, pretrained, folder / "run"))
    assert code == 0, text
    rows = [
        {"text": f"the {'abcdefgh'[i % 8] * (i % 5 + 1)} ship " * (23 if i % 23 == 11 else 1), "label": "xy"[i % 2]}
        for i in range(ROWS)
    ]
    for i in (0, 1024, 4000):
        rows[i] = {"label": "x"}
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[1:20]))
    return folder


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("name", ["rows.jsonl", "few.jsonl"])
def test_ranks_predict_the_same_bytes(nursery: Nursery, folder: Path, name: str) -> None:
    command = ["predict", str(folder / "run"), "--input", str(folder / name), "--json"]
    code, alone = nursery.run(command)
    together = nursery.start(command, ranks=RANKS)
    assert together.wait() == code == 0, together.texts
    assert together.codes == [0] * RANKS
    assert together.text == alone  # predictions, errors and warnings
    assert len(lines(alone)) == (ROWS + 1 if name == "rows.jsonl" else 20)
    assert not any(together.texts[1:])


@pytest.mark.parametrize(("unit", "ending"), [("text", "npy"), ("word", "parquet")])
def test_ranks_embed_the_same_bytes(nursery: Nursery, folder: Path, tmp_path: Path, unit: str, ending: str) -> None:
    def command(name: str) -> list[str]:
        out = tmp_path / f"{name}.{ending}"
        return ["embed", str(folder / "run"), "--input", str(folder / "rows.jsonl"), "--out", str(out), "--unit", unit]

    assert nursery.run(command("alone"))[0] == 0
    together = nursery.start(command("together"), ranks=RANKS)
    together.wait()
    assert together.codes == [0] * RANKS, together.texts
    assert (tmp_path / f"together.{ending}").read_bytes() == (tmp_path / f"alone.{ending}").read_bytes()
    assert not any(together.texts[1:])
    if unit == "text":
        assert np.flatnonzero(np.isnan(np.load(tmp_path / "together.npy")[:, 0])).tolist() == [0, 1024, 4000]


def test_ranks_evaluate_to_the_same_files(nursery: Nursery, folder: Path, tmp_path: Path) -> None:
    def command(name: str) -> list[str]:
        data = ["--data", str(folder / "rows.jsonl")]
        return ["evaluate", str(folder / "run"), *data, "--out", str(tmp_path / name)]

    assert nursery.run(command("alone"))[0] == 0
    together = nursery.start(command("together"), ranks=RANKS)
    together.wait()
    assert together.codes == [0] * RANKS, together.texts
    assert not any(together.texts[1:])
    alone, found = (json.loads((tmp_path / name / "scores.json").read_text()) for name in ("alone", "together"))
    assert {**found, "seconds": 0} == {**alone, "seconds": 0}
    alone, found = ((tmp_path / name / "predictions.jsonl").read_bytes() for name in ("alone", "together"))
    assert found == alone


def test_strict_ends_all_ranks_with_one_line(nursery: Nursery, folder: Path) -> None:
    rows = folder / "late.jsonl"
    rows.write_text((folder / "few.jsonl").read_text() * 100 + '{"label": "x"}\n')
    together = nursery.start(["predict", str(folder / "run"), "--input", str(rows), "--strict"], ranks=RANKS)
    together.wait()
    assert together.code == 1, together.texts
    assert len(lines(together.text)) == 1900
    assert [line for line in together.text.splitlines() if line.startswith("bertie: ")] == [
        together.text.splitlines()[-1]
    ]
    assert "late.jsonl" in together.text.splitlines()[-1]
    assert not any(together.texts[1:])


def test_a_rank_with_other_flags_is_refused(nursery: Nursery, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    command = ["embed", str(folder / "run"), "--input", str(folder / "rows.jsonl"), "--out", str(out)]
    together = nursery.start(command, ["with_flags", 1, "--language", "xx"], ranks=RANKS)
    together.wait()
    assert together.codes == [2] * RANKS, together.texts
    [error] = together.errors
    assert "language='xx'" in error
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_gone_ends_the_others(nursery: Nursery, folder: Path, tmp_path: Path) -> None:
    """Rank 0 waits between two blocks while rank 1 is killed."""
    out = tmp_path / "x.npy"
    command = ["embed", str(folder / "run"), "--input", str(folder / "rows.jsonl"), "--out", str(out)]
    together = nursery.start_held(command, "hold_at", "embed", 1, ranks=RANKS)
    os.kill(together.pids[1], signal.SIGKILL)
    together.go_on()
    together.wait()
    assert together.codes == [1, -9, 1], together.texts
    [error] = together.errors
    assert error.startswith("bertie: another rank has ended or cannot be reached")
    assert list(tmp_path.iterdir()) == []


def test_other_commands_refuse_several_ranks(nursery: Nursery, folder: Path, tmp_path: Path) -> None:
    command = ["prepare", str(folder / "rows.jsonl"), "--tokenizer", str(folder / "run"), "--out", str(tmp_path / "x")]
    together = nursery.start(command, ranks=RANKS)
    together.wait()
    assert together.codes == [2] * RANKS
    [line] = together.errors  # one of the ranks says it, before any of them ends
    assert line.startswith("bertie: prepare runs in one process, and torchrun has started 3: start it without torchrun")
    assert list(tmp_path.iterdir()) == []
