from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time

import nbformat
import pytest
from nbclient import NotebookClient

from bertie.base import console


def test_the_rate_ignores_work_done_before_this_process_started(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    with console.progress("train", 1000, "steps", done=900) as bar:
        clock[0] += 10
        bar.advance(50, "loss 1.0")
        assert bar.line() == "train: 950 of 1,000 steps, 5/s, 10 s left  loss 1.0"
    with console.progress("read", 0, "MB") as bar:
        assert bar.line() == "read: 0 MB, 0/s"
        bar.advance(999.7)
        assert bar.line().startswith("read: 1,000 MB")
    with console.progress("pretrain", 60, "s") as bar:  # a budget of time
        clock[0] += 30
        bar.advance(20)
        assert bar.line() == "pretrain: 20 of 60 s, 40 s left"
    with console.progress("GloVe", 9.36658e6, "pairs") as bar:
        clock[0] += 30
        bar.advance(7.2e6)
        assert bar.pace == ", 240,000/s"
        assert bar.line() == "GloVe: 7,200,000 of 9,366,580 pairs, 240,000/s, 9 s left"


def test_progress_prints_a_line_every_30_seconds_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    with console.progress("train", 100, "steps") as bar:
        for _ in range(95):
            clock[0] += 1
            bar.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 3


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
def test_a_closed_or_full_stderr_does_not_stop_the_work(redirect: str) -> None:
    program = (
        "from bertie.base import console\n"
        "console.info('a')\n"
        "with console.progress('p', 1, 'x') as bar: bar.advance()\n"
        "print('done')"
    )
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} {redirect}"
    process = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert process.stdout == "done\n"


def test_status_shows_the_detail_while_nothing_advances(capsys: pytest.CaptureFixture[str]) -> None:
    bar = console.Progress("read", 2, "MB", printed=-1000)
    with console.status(bar, lambda: "5 MB of text"):
        deadline = time.monotonic() + 300
        while "5 MB of text" not in (output := capsys.readouterr().err) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert output.startswith("read: 0 of 2 MB")
    assert not any(thread.name == "status" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0.4 s"),
        (0, "0 s"),
        (2.4, "2 s"),
        (90, "90 s"),
        (150, "2.5 minutes"),
        (9000, "2.5 hours"),
        (864000, "10 days"),
    ],
)
def test_durations_have_a_unit_that_suits_them(seconds: float, shown: str) -> None:
    assert console.duration(seconds) == shown


def test_a_notebook_has_one_bar_for_each_work_and_warnings_alone_are_on_stderr() -> None:
    code = """
from bertie.base import console
for passing in (True, False):
    with console.progress("read", 4, "rows", passing=passing) as bar:
        for _ in range(4):
            bar.advance()
            bar.printed = 0
console.info("a line")
console.warn("a warning")
with console.silenced(), console.progress("read", 4, "rows"):
    console.info("nothing")
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, kernel_name="python3").execute()
    passing, bar, line, warning = notebook.cells[0].outputs
    assert passing.data == {}
    assert bar.data["text/plain"].startswith("read: 4 of 4 rows")
    assert bar.data["text/html"].startswith('<pre><progress max="1" value="1.000"></progress> read: 4 of 4 rows')
    assert (line.name, line.text) == ("stdout", "a line\n")
    assert (warning.name, warning.text) == ("stderr", "warning: a warning\n")
