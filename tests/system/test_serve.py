"""`bertie serve` as a process: signals under load, and wrong arguments."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertie
from bertie.cli import main


class Process:
    """A server process. `events` are the JSON lines of its stderr so far, and `stdout` is the rest at its end."""

    def __init__(self, *arguments: str):
        command = [sys.executable, "-m", "bertie", "serve", *arguments, "--port", "0", "--threads", "1"]
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ)
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        with self.popen.stderr as lines:
            for line in lines:
                self.lines.append(line)
                if line.startswith("{"):
                    self.events.append(json.loads(line))

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event and return it."""
        end = time.monotonic() + 1200
        while time.monotonic() < end:
            if found := [event for event in self.events if event["event"] == name]:
                return found[0]
            assert self.popen.poll() is None or self._reader.is_alive(), "".join(self.lines)
            time.sleep(0.01)
        raise AssertionError(f"no {name}: {''.join(self.lines)}")

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        self.popen.send_signal(sent)
        return self.wait()

    def wait(self) -> int:
        code = self.popen.wait(300)
        self._reader.join(300)
        assert self.popen.stdout is not None
        if not self.popen.stdout.closed:
            self.stdout = self.popen.stdout.read()
            self.popen.stdout.close()
        return code

    def request(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def post(self, message: object) -> tuple[int, Any]:
        status, body = self.request("POST", "/v1/embeddings", json.dumps(message))
        return status, json.loads(body)

    def get(self, path: str) -> int:
        return self.request("GET", path)[0]

    def waiting_tokens(self) -> float:
        """Return the tokens in the queue."""
        lines = self.request("GET", "/metrics")[1].splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(b"bertie_queue_tokens{"))

    @property
    def port(self) -> int:
        return self.event("started")["port"]


@contextmanager
def process(*arguments: str) -> Iterator[Process]:
    found = Process(*arguments)
    try:
        found.event("started")
        yield found
    finally:
        found.popen.kill()
        found.wait()


def test_sigterm_under_load_loses_no_admitted_request(pretrained: Path, small_texts: list[str]) -> None:
    """The server's log and the clients agree on the number of answers, although the queue was full of work."""
    statuses: Counter[int] = Counter()
    unanswered: list[type] = []
    lock = threading.Lock()
    patient = ("--timeout", "600", "--drain-timeout", "600")  # on a busy machine, the default refuses or drops requests
    with process(str(pretrained), "--batch-tokens", "64", *patient) as server:
        port = server.port
        stopped = threading.Event()

        def client(number: int, count: int = 20) -> None:
            texts = small_texts[number : number + count]
            while not stopped.is_set():
                try:
                    status, found = server.post({"input": texts})
                    assert status != 200 or len(found["data"]) == count
                    with lock:
                        statuses[status] += 1
                except OSError as error:  # refused, because nobody listens any more
                    with lock:
                        unanswered.append(type(error))
                    return

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        while sum(statuses.values()) < 12:
            time.sleep(0.01)
        long = threading.Thread(target=client, args=(0, 200))  # its texts fill about 200 batches
        threads.append(long)
        long.start()
        while server.waiting_tokens() < 7_000:
            time.sleep(0.01)
        code = server.stop()
        stopped.set()
        for thread in threads:
            thread.join(300)
        answers = [event for event in server.events if event.get("path") == "/v1/embeddings"]
        logged = Counter(event["status"] for event in answers)
    assert code == 0
    assert port
    assert server.event("draining")["tokens"] > 0
    assert server.event("stopped")["worker_ended"]
    assert logged == statuses
    assert set(statuses) == {200}
    closed = {ConnectionRefusedError, ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected}
    assert set(unanswered) <= closed


@pytest.mark.slow
def test_three_minutes_of_all_kinds_of_requests_and_overload(pretrained: Path) -> None:
    """The script checks every answer, the deadline of admitted requests, and that memory stays."""
    script = Path(__file__).parents[2] / "benchmarks/serve.py"
    command = [sys.executable, str(script), "soak", str(pretrained), "--seconds", "180", "--threads", "1"]
    command += ["--timeout", "120"]  # other programs may slow the machine down after requests were admitted
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all answered" in done.stdout


def test_a_request_that_does_not_end_cannot_stop_the_stop(pretrained: Path) -> None:
    with process(str(pretrained), "--drain-timeout", "1", "--read-timeout", "3600") as server:
        client = begin_request(server)
        assert server.stop() == 0
        client.close()


def begin_request(server: Process) -> socket.socket:
    """Send all but the end of a request, which the server has read on return."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
    assert server.get("/livez") == 200  # it answers in order
    return client


def unfinished(server: Process, texts: list[str], *signals: signal.Signals) -> tuple[Counter[int], list[Any]]:
    """Fill the queue for more than a minute, and send signals. Returns statuses and the server's events."""
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(server.post({"input": texts * 4})[0]), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    while server.waiting_tokens() < 15_000:
        time.sleep(0.01)
    for each in signals:
        server.popen.send_signal(each)
        server.event("draining")  # a second signal before the first is handled would be the same one
    assert server.wait() == 0
    for thread in threads:
        thread.join(300)
    return Counter(found), server.events


def test_a_second_signal_does_not_wait(pretrained: Path, small_texts: list[str]) -> None:
    slow = ("--batch-tokens", "1", "--timeout", "600", "--drain-timeout", "600")
    with process(str(pretrained), *slow) as server:
        statuses, events = unfinished(server, small_texts, signal.SIGTERM, signal.SIGTERM)
    assert not {200, 500} & set(statuses)  # it does not compute what waits
    assert not [event for event in events if event["event"] == "bug"]


def test_the_server_answers_while_a_load_balancer_learns_that_it_drains(
    pretrained: Path, small_texts: list[str]
) -> None:
    """A second signal ends it at once, although the load balancer needs an hour and one request is not complete."""
    patient = ("--drain-delay", "3600", "--drain-timeout", "3600", "--json", "--pooling", "cls")
    with process(f"own-name={pretrained}", *patient) as server:
        assert server.get("/readyz") == 200
        client = begin_request(server)
        server.popen.send_signal(signal.SIGINT)
        server.event("draining")
        assert server.get("/readyz") == 503
        assert server.get("/livez") == 200
        status, answer = server.post({"input": small_texts[:3], "model": "own-name"})
        assert status == 200
        found = [each["embedding"] for each in answer["data"]]
        np.testing.assert_allclose(found, bertie.load(pretrained).embed(small_texts[:3], "cls"), atol=1e-5)
        assert server.stop(signal.SIGINT) == 0
        assert server.events[-1]["worker_ended"]
        assert server.events[-1]["level"] == "info"
        assert json.loads(server.stdout) == {"models": ["own-name"]}
        client.close()


def test_requests_that_cannot_be_completed_in_time_get_503(pretrained: Path, small_texts: list[str]) -> None:
    slow = ("--batch-tokens", "1", "--timeout", "600", "--drain-timeout", "1")
    with process(str(pretrained), *slow) as server:
        statuses, events = unfinished(server, small_texts, signal.SIGTERM)
    assert 503 in statuses
    assert set(statuses) <= {429, 503}
    logged = Counter(event["status"] for event in events if event.get("path") == "/v1/embeddings")
    assert logged == statuses


def test_wrong_arguments(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert main(["serve", str(tmp_path / "none")]) == 2
    assert main(["serve", str(pretrained), str(pretrained)]) == 2
    assert "two models have the name" in capsys.readouterr().err
    assert main(["serve", str(pretrained), "--timeout", "0"]) == 2
    assert main(["serve", str(pretrained), "--api-keys", str(tmp_path / "none")]) == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", str(pretrained), "--port", str(taken.getsockname()[1])]) == 1
    assert "choose another --host or --port" in capsys.readouterr().err
