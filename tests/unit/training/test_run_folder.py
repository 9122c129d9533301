from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bertie.base import storage
from bertie.base.errors import UsageError, UserError
from bertie.training import run_folder
from bertie.training.run_folder import RunFolder, read_metrics, run_precision

SETTINGS: dict[str, Any] = {"seed": 0, "model": {"layers": 2, "rates": [0.1, 0.2]}}


def open_run(path: Path, settings: dict[str, Any] = SETTINGS) -> RunFolder:
    return RunFolder(path, settings, threads=1)


def test_new_run_has_configuration_environment_and_lock(tmp_path: Path) -> None:
    with open_run(tmp_path / "deep" / "run") as run:
        assert not run.finished
        assert {path.name for path in run.path.iterdir()} == {"config.toml", "environment.json", ".lock"}
        environment = json.loads((run.path / "environment.json").read_text())
        assert environment["threads"] == 1
        assert {"versions", "cpu", "command", "commit", "started"} <= environment.keys()
    with open_run(run.path):  # resumes
        pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**SETTINGS, "seed": 1}, "seed is 0 there and 1 here"),
        (
            {**SETTINGS, "model": {"layers": 2, "rates": [0.1]}},
            r"model\.rates is \[0\.1, 0\.2\] there and \[0\.1\] here",
        ),
        ({**SETTINGS, "extra": True}, "extra is None there and True here"),
        ({"seed": 0}, r"model\.layers is 2 there and None here"),
    ],
)
def test_run_of_other_settings_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with open_run(tmp_path / "run") as run:
        run.log({"split": "train", "step": 1})
        run.flush()
    with pytest.raises(UsageError, match=message):
        open_run(tmp_path / "run", settings)


def test_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("years of work")
    for path in (tmp_path, tmp_path / "thesis.doc"):
        with pytest.raises(UsageError, match=r"already exists and is not a bertie run"):
            open_run(path)
    assert (tmp_path / "thesis.doc").read_text() == "years of work"


def test_folder_is_locked_until_the_block_ends(tmp_path: Path) -> None:
    """The lock is released even if an exception is kept alive, as an interactive session does."""

    def interrupted() -> None:
        with open_run(tmp_path / "run"):
            with pytest.raises(UsageError, match="another process is writing"):
                open_run(tmp_path / "run")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        interrupted()
    with open_run(tmp_path / "run"):
        assert error.traceback


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """In the block, a write beyond `size` bytes of a file is cut off and fails, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_metrics_that_cannot_be_written_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(run_folder.console, "warn", lambda text, **_: said.append(text))
    with open_run(tmp_path / "run") as run:
        run.log({"step": 1})
        run.flush()
        path = run.path / "metrics.jsonl"
        before = path.read_bytes()
        run.log({"step": 2})
        with files_of_at_most(len(before) + 3):
            run.show()
            assert path.read_bytes() == before
            with pytest.raises(UserError, match=re.escape(f"cannot write {path}: ")):
                run.flush()
        assert path.read_bytes() == before
        size, digest = run.flush()
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
        assert (size, digest) == (path.stat().st_size, storage.sha256(path))
    assert [text.endswith("training continues, and will write the log later") for text in said] == [True]


def test_metrics_are_buffered_flushed_and_truncated(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        progress = {"step": 1, "tokens": 9, "seconds": 0.5}
        run.log({"split": "train", **progress, "loss": 1 / 3, "tokens_per_second": 18.0})
        assert not (run.path / "metrics.jsonl").exists()  # buffered until the next flush
        size, digest = run.flush()
        assert size == (run.path / "metrics.jsonl").stat().st_size
        run.log({"split": "eval", **progress, "loss": 0.5})
        run.flush()
        assert [record["loss"] for record in read_metrics(run.path, "train")] == [0.3333333]
        assert len(read_metrics(run.path, "eval")) == 1
        run.truncate_metrics(size, digest)
        assert read_metrics(run.path, "eval") == []
        with pytest.raises(UserError, match=r"metrics\.jsonl is shorter than its checkpoint says"):
            run.truncate_metrics(size + 1, digest)


def test_precision_is_decided_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertie.base import runtime

    monkeypatch.setattr(runtime, "resolve_precision", lambda *_: "bf16")
    with open_run(tmp_path / "run") as run:
        assert run_precision(run, "auto") == "bf16"
        monkeypatch.setattr(runtime, "resolve_precision", lambda *_: "fp32")
        assert run_precision(run, "auto") == "bf16"


def test_settings_may_change_before_the_first_step(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", {"size": 10**9}, 1):
        pass  # as after an out-of-memory error
    with RunFolder(tmp_path / "run", {"size": 10}, 2) as run:
        assert (run.path / "config.toml").read_text() == "size = 10\n"
        assert json.loads((run.path / "environment.json").read_text())["threads"] == 2
        run.truncate_metrics(0, "")
        run.log({"split": "train", "step": 1})
        run.flush()
    with pytest.raises(UsageError, match="size is 10 there and 20 here"):
        RunFolder(tmp_path / "run", {"size": 20}, 1)
    with RunFolder(tmp_path / "run", {"size": 10}, 1):  # the refused call released its lock
        pass


def test_metrics_are_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(run_folder.time, "monotonic", lambda: now[0])
    with RunFolder(tmp_path / "run", {"seed": 1}, 1) as run:
        run.truncate_metrics(0, "")
        run.log({"split": "train", "step": 1})
        assert run.path.joinpath("metrics.jsonl").read_text() == ""
        now[0] += 11
        run.log({"split": "train", "step": 2})
        assert len(run.path.joinpath("metrics.jsonl").read_text().splitlines()) == 2


def test_settings_may_change_if_no_step_was_written(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", {"budget": "1s"}, 1) as run:
        run.truncate_metrics(0, "")  # then the time was over
    with RunFolder(tmp_path / "run", {"budget": "20s"}, 1) as run:
        assert "20s" in (run.path / "config.toml").read_text()


def test_run_refuses_other_data_than_it_began_with(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        run.require_same("data", "some")
        run.require_same("data", "some")
        with pytest.raises(UsageError, match="was made from other data or another model"):
            run.require_same("data", "other")
