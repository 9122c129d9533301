from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.corpus.executors import LocalExecutor, RayExecutor, connect_ray, make_executor
from bertie.corpus.prepare import prepare
from bertie.corpus.vocabulary import train_tokenizer
from bertie.files import sources


def square_slowly(number: int) -> int:
    """The first items end last."""
    time.sleep(0.02 * (8 - number))
    return number * number


def fail_at_3(number: int) -> int:
    if number == 3:
        raise UserError("item 3 is bad")
    return number


def kill_worker_at_3(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_in_order(workers: int) -> None:
    assert list(LocalExecutor(workers).run(square_slowly, range(8))) == [number * number for number in range(8)]
    assert list(LocalExecutor(workers).run(square_slowly, [])) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_of_the_function_are_raised_unchanged(workers: int) -> None:
    with pytest.raises(UserError, match=r"^item 3 is bad$"):
        list(LocalExecutor(workers).run(fail_at_3, range(8)))


def test_lost_worker_is_an_error() -> None:
    with pytest.raises(UserError, match="one of 2 workers was killed"):
        list(LocalExecutor(2).run(kill_worker_at_3, range(8)))


PARENT = """
import os, signal, threading
from concurrent.futures import Future
from bertie.corpus.executors import LocalExecutor
signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes of a shell ignore it
def work(number):
    os.write(1, b"%d ready\\n" % number)  # one write: print may write the end of the line separately
    threading.Event().wait()
result = Future.result
def waiting(future, timeout=None):
    os.write(1, b"waiting\\n")
    return result(future, timeout)
Future.result = waiting
list(LocalExecutor(2).run(work, range(8)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(signal_number: int) -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        try:
            assert {parent.stdout.readline() for _ in range(3)} == {b"0 ready\n", b"1 ready\n", b"waiting\n"}
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            assert len(children) >= 2
            parent.send_signal(signal_number)
            parent.wait(30)
        finally:
            parent.kill()
    deadline = time.monotonic() + 300
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)


def test_make_executor_rejects_a_negative_number_of_workers() -> None:
    assert make_executor("local", 3, "local") == LocalExecutor(3)
    assert make_executor("ray", 0, "auto") == RayExecutor("auto", 0)
    with pytest.raises(UsageError, match="--workers -1"):
        make_executor("local", -1, "local")


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A real cluster on this machine, with two processors."""
    ray = pytest.importorskip("ray", reason="needs the package ray")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TASK_MAX_RETRIES", "0")  # of a task whose worker was killed
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.usefixtures("ray_cluster")
def test_ray_results_are_in_order_and_errors_unchanged() -> None:
    assert list(RayExecutor(workers=2).run(square_slowly, range(8))) == [number * number for number in range(8)]
    with pytest.raises(UserError, match=r"^item 3 is bad$"):
        list(RayExecutor(workers=2).run(fail_at_3, range(8)))
    with pytest.raises(UserError, match="Ray lost a worker"):
        list(RayExecutor(workers=2).run(kill_worker_at_3, range(8)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("ray_cluster")
def test_ray_and_local_processes_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MIN_GROUP_BYTES", 5000)
    (tmp_path / "texts").mkdir()
    for number in range(4):
        lines = [f"Document {number}, line {line}, of {line * line}. The end." for line in range(100)]
        (tmp_path / "texts" / f"{number}.txt").write_text("\n\n".join(lines))
    for name, executor in (("local", LocalExecutor(1)), ("ray", RayExecutor())):
        tokenizer = train_tokenizer(
            [tmp_path / "texts"], tmp_path / f"{name}-tokenizer", vocab_size=70, executor=executor
        )
        prepare([tmp_path / "texts"], tokenizer, tmp_path / name, eval_share=0.1, shard_bytes=1000, executor=executor)
    for name in ("", "-tokenizer"):
        local, ray = (
            {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            for folder in (tmp_path / f"local{name}", tmp_path / f"ray{name}")
        )
        assert local == ray


def test_unreachable_cluster_fails_without_waiting() -> None:
    with pytest.raises(UserError, match=r"no Ray cluster at 127\.0\.0\.1:1: "):
        list(RayExecutor("127.0.0.1:1").run(square_slowly, range(2)))
    with pytest.raises(UsageError, match=r"--ray-address 127\.0\.0\.1:1 needs --executor ray"):
        make_executor("local", 0, "127.0.0.1:1")


def test_a_cluster_that_refuses_may_want_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs the package ray")

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("failed to\nconnect")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=r": failed to connect; if it requires a token, set RAY_AUTH_MODE=token$"):
            connect_ray(address, 1)
