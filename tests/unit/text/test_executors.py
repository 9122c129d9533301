from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertie.errors import UsageError, UserError
from bertie.files import sources
from bertie.text.executors import LocalExecutor, RayExecutor, make_executor
from bertie.text.prepare import prepare
from bertie.text.vocabulary import train_tokenizer


def later(number: int) -> int:
    """The first pieces end last."""
    time.sleep(0.02 * (8 - number))
    return number * number


def refused(number: int) -> int:
    if number == 3:
        raise UserError("piece 3 is bad")
    return number


def killed(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_results_come_in_order(workers: int) -> None:
    assert list(LocalExecutor(workers).run(later, range(8))) == [number * number for number in range(8)]
    assert list(LocalExecutor(workers).run(later, [])) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_come_out_as_they_are(workers: int) -> None:
    with pytest.raises(UserError, match=r"^piece 3 is bad$"):
        list(LocalExecutor(workers).run(refused, range(8)))


def test_a_worker_that_dies_is_said() -> None:
    with pytest.raises(UserError, match="one of 2 workers was ended from outside"):
        list(LocalExecutor(2).run(killed, range(8)))


PARENT = """
import signal, threading
from bertie.text.executors import LocalExecutor
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what runs behind it
def work(number):
    print(number, flush=True)
    threading.Event().wait()
list(LocalExecutor(2).run(work, range(8)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_began_them(how: int) -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        assert {parent.stdout.readline(), parent.stdout.readline()} == {b"0\n", b"1\n"}  # both workers are busy
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(children) >= 2
        parent.send_signal(how)
        parent.wait(30)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)


def test_a_negative_number_of_workers() -> None:
    assert make_executor("local", 3, "local") == LocalExecutor(3)
    assert make_executor("ray", 0, "auto") == RayExecutor("auto", 0)
    with pytest.raises(UsageError, match="--workers -1"):
        make_executor("local", -1, "local")


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A real one on this machine, of two processors."""
    ray = pytest.importorskip("ray", reason="needs the package ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.usefixtures("ray_cluster")
def test_ray_gives_results_in_order_and_errors_as_they_are() -> None:
    assert list(RayExecutor(workers=2).run(later, range(8))) == [number * number for number in range(8)]
    with pytest.raises(UserError, match=r"^piece 3 is bad$"):
        list(RayExecutor(workers=2).run(refused, range(8)))
    with pytest.raises(UserError, match="Ray lost a worker"):
        list(RayExecutor(workers=2).run(killed, range(8)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("ray_cluster")
def test_vocabulary_and_shards_are_the_same_bytes_from_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MIN_GROUP_BYTES", 5000)
    (tmp_path / "texts").mkdir()
    for number in range(4):
        lines = [f"Document {number}, line {line}, of {line * line}. The end." for line in range(100)]
        (tmp_path / "texts" / f"{number}.txt").write_text("\n\n".join(lines))
    for name, where in (("local", LocalExecutor(1)), ("ray", RayExecutor())):
        made = train_tokenizer([tmp_path / "texts"], tmp_path / f"{name}-tokenizer", vocab_size=70, executor=where)
        prepare([tmp_path / "texts"], made, tmp_path / name, eval_share=0.1, shard_bytes=1000, executor=where)
    for name in ("", "-tokenizer"):
        local, ray = (
            {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            for folder in (tmp_path / f"local{name}", tmp_path / f"ray{name}")
        )
        assert local == ray


def test_no_cluster_where_nobody_listens() -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=r"no Ray cluster at 127\.0\.0\.1:1: "):
        list(RayExecutor("127.0.0.1:1").run(later, range(2)))
    assert time.monotonic() - started < 60  # Ray itself waits for minutes
    with pytest.raises(UsageError, match="say --executor ray too"):
        make_executor("local", 0, "127.0.0.1:1")
