"""Limits, keys, health, time limits, and clients that go away."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.base.contracts import Sequence
from bertie.base.errors import UsageError, UserError
from bertie.serve.keys import ApiKeys
from bertie.serve.limits import Front, Limits, Refused, try_later
from bertie.serve.service import ClientGone, Service
from bertie.serve.speed import BatchSpeed

from .conftest import Answer, Server, serving, wait_until

KEY, OTHER = "sk-first-key", "sk-second-key"
Build = Callable[..., Service]


@pytest.fixture(scope="module")
def small(make_service: Build) -> Iterator[Server]:
    """A server with low limits."""
    limits = {
        "max_bytes": 2000,
        "max_items": 10,
        "max_characters": 300,
        "max_text_characters": 100,
        "queue_tokens": 200,
    }
    with serving(make_service("mlm", "classifier", "span", "tagger", "choice", **limits)) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "message", "text"),
    [
        ("embeddings", {"input": "a" * 101}, "101 characters in one text"),
        ("embeddings", {"input": ["a" * 80] * 4}, "320 characters"),
        ("embeddings", {"input": ["a"] * 11}, "11 texts"),
        ("embeddings", {"input": "a" * 2000}, "2,0"),
        ("similarity", {"texts": ["a"] * 6, "others": ["a"] * 5}, "11 texts"),
        ("rerank", {"query": "a" * 101, "documents": ["b"]}, "101 characters in one text"),
        ("rerank", {"query": "a", "documents": ["b"] * 11}, "12 texts"),
        ("fill-mask", {"inputs": ["[MASK]"] * 11}, "11 texts"),
        ("predict", {"model": "span", "inputs": [{"question": "a", "context": "b c " * 25}]}, "101 characters"),
        ("embeddings", {"input": [[7] * 62] * 4}, "256 tokens"),
        ("predict", {"model": "choice", "inputs": [["a"] + [""] * 10]}, "11 texts"),
        ("predict", {"model": "tagger", "inputs": [[""] * 101]}, "101 characters in one text"),
        ("attention", {"text": "a", "text_pair": "a" * 101}, "shorten text_pair"),
    ],
)
def test_what_is_too_large_is_refused(path: str, message: dict[str, Any], text: str, small: Server) -> None:
    answer = small.post(f"/v1/{path}", {"model": "mlm"} | message, **small.knowing_ids)
    assert answer.status == 413, answer.body
    assert text in answer.error["message"]
    assert "--" in answer.error["message"], "the operator's flag"


def test_a_body_without_a_length_is_limited_too(small: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", small.port, timeout=300)
    body = (b'"' + b"a" * 500 for _ in range(10))
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"}, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    assert "bytes in the body" in json.loads(response.read())["error"]["message"]
    connection.close()


class Held:
    """A server whose worker waits before the vectors of a model until it is released."""

    def __init__(self, server: Server):
        self.server, self.share = server, server.service.models["mlm"].share
        self.released, self.entered, self.sequences = threading.Event(), threading.Event(), 0
        self.waiting: list[threading.Thread] = []
        lane = server.service.models["mlm"].lanes["vectors"]
        compute = lane.compute

        def wait(sequences: list[Sequence]) -> list[Any]:
            self.entered.set()
            assert self.released.wait(60)
            self.sequences += len(sequences)
            return compute(sequences)

        lane.compute = wait

    def post(self, given: Any) -> Answer:
        return self.server.post("/v1/embeddings", {"input": given}, **self.server.knowing_ids)

    def post_later(self, given: Any, tokens: int = 0) -> None:
        """Send a request from another thread. tokens: wait until so many tokens are in the queue."""
        self.waiting.append(threading.Thread(target=self.post, args=(given,), daemon=True))
        self.waiting[-1].start()
        wait_until(lambda: self.entered.is_set() and self.share.tokens >= tokens)

    def release(self) -> None:
        self.released.set()
        for thread in self.waiting:
            thread.join(300)


@contextmanager
def held(service: Service) -> Iterator[Held]:
    with serving(service) as server:
        found = Held(server)
        try:
            yield found
        finally:
            found.release()


def ids(tokens: int) -> list[int]:
    return [7] * (tokens - 2)


@pytest.mark.parametrize("given", ["a", ["a"]])
def test_a_full_queue_refuses_one_text_and_a_list_alike(given: Any, make_service: Build) -> None:
    with held(make_service("mlm", queue_tokens=30)) as it:
        it.post_later([ids(12)] * 2, 24)
        it.post_later([ids(6)], 30)
        answer = it.post(given)
        assert (answer.status, answer.error["type"]) == (429, "overloaded_error")
        assert int(answer.headers["retry-after"]) >= 1
        assert it.server.get("/readyz").status == 200  # overload is no reason to restart
        it.release()
        assert it.post(given).status == 200


def set_speed(service: Service, rate: float) -> None:
    """Let the service believe that a model computes some tokens per second."""
    for lane in service.models["mlm"].lanes.values():
        lane.speed = BatchSpeed()
        lane.speed.count(1000, 1000 / rate)


def test_an_idle_server_admits_what_fits_its_queue_whatever_speed_it_expects(make_service: Build) -> None:
    """Only a computation shows whether the expectation is right: the start may have been slow."""
    service = make_service("mlm", queue_tokens=600)
    with serving(service) as server:
        set_speed(service, 0.1)
        message = {"input": [ids(30)] * 20}
        assert server.post("/v1/embeddings", message, **server.knowing_ids).status == 200
        speed = service.models["mlm"].lanes["vectors"].speed
        wait_until(lambda: speed.seconds(600, 4096) < 6000)  # and learns from it


def test_a_request_that_cannot_end_in_time_is_refused_before_it_is_computed(make_service: Build) -> None:
    """With a status after which clients do not send it again. The speed is measured afresh."""
    service = make_service("mlm", timeout=5)
    with serving(service) as server:
        health = service.models["mlm"].health
        health.probe = lambda: time.sleep(0.2)
        set_speed(service, 0.1)
        message = {"input": [ids(30)] * 200}
        answer = server.post("/v1/embeddings", message, **server.knowing_ids)
        assert (answer.status, answer.error["code"]) == (413, "too_many_tokens")
        assert "--timeout" in answer.error["message"]
        assert service.models["mlm"].lanes["vectors"].speed.batch(health.probe_tokens) < 1
        assert server.post("/v1/embeddings", {"input": [ids(30)]}, **server.knowing_ids).status == 200


def test_as_many_texts_as_clients_send_at_once_are_answered_in_order(
    make_service: Build, small_texts: list[str]
) -> None:
    with serving(make_service("mlm")) as server:
        texts = [f"{number} {small_texts[number % 400][:60]}" for number in range(2048)]
        answer = server.post("/v1/embeddings", {"input": texts})
        assert answer.status == 200
        vectors = np.array([item["embedding"] for item in answer.json["data"]])
        some = [0, 1, 1000, 2047]
        alone = [server.post("/v1/embeddings", {"input": texts[i]}).json["data"][0]["embedding"] for i in some]
        np.testing.assert_allclose(vectors[some], alone, atol=1e-5)


def test_a_queue_that_would_take_too_long_is_full(make_service: Build) -> None:
    """Otherwise all requests would wait until they time out, and none would be answered."""
    with held(make_service("mlm", timeout=20, batch_tokens=30)) as it:
        set_speed(it.server.service, 9)  # so 90 tokens take half of the timeout
        it.post_later([ids(30)] * 4)  # alone, it may be larger
        answer = it.post("a")
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 10  # three batches of 30 tokens
        it.release()
        assert it.post("a").status == 200


def test_requests_that_would_miss_the_target_are_refused_at_once(make_service: Build) -> None:
    """The batch that is computed, the waiting tokens, and the tokens of the request itself count."""
    with held(make_service("mlm", timeout=600, latency_target=400, batch_tokens=64)) as it:
        set_speed(it.server.service, 1)
        it.post_later([ids(60)] * 2, 120)
        refused = [it.post([ids(50)] * 6)]
        it.post_later([ids(60)] * 2, 240)
        refused.append(it.post([ids(50)] * 3))
        for answer in refused:
            assert (answer.status, answer.error["code"]) == (429, "queue")
            assert int(answer.headers["retry-after"]) >= 60
        it.release()
        assert it.share.tokens == 0
        assert it.post([ids(60)]).status == 200


def test_a_request_that_alone_misses_the_target_is_computed_after_the_others(make_service: Build) -> None:
    with held(make_service("mlm", timeout=700, latency_target=400, batch_tokens=64)) as it:
        set_speed(it.server.service, 1)
        it.post_later([ids(60)] * 8, 480)
        assert it.post([ids(60)] * 8).status == 429
        it.post_later([ids(60)], 540)
        large, small = it.waiting
        it.released.set()
        small.join(300)
        assert large.is_alive()


@pytest.mark.parametrize("timeout", [0.0, 300.0])
def test_clients_that_give_up_show_that_predictions_were_too_short(timeout: float, make_service: Build) -> None:
    """Otherwise only those teach something whose predictions were right."""
    service = make_service("mlm", latency_target=20)
    set_speed(service, 10)
    lane = service.models["mlm"].lanes["vectors"]

    async def gone() -> None:
        [(*_, job)] = lane.jobs
        job.admitted -= 60  # it has waited for so long
        if timeout:
            return
        await asyncio.get_running_loop().create_future()

    ids = np.full(100, 7, np.int32)
    sequence = Sequence(ids, np.zeros_like(ids), np.ones(100, bool))
    with pytest.raises(ClientGone if timeout else Refused):
        asyncio.run(service.compute(lane, [sequence], gone, timeout, 0.0))
    assert service._correction.factor(time.monotonic()) > 1.5
    assert lane.owner.tokens == 0


def test_the_speed_is_known_before_the_first_request(make_service: Build) -> None:
    """An overload from the first second on is refused in time, too."""
    service = make_service("mlm")
    with serving(service):
        assert all(lane.speed.batch(1000) > 0 for lane in service.models["mlm"].lanes.values())


def test_a_request_that_takes_too_long_leaves_the_queue(make_service: Build) -> None:
    with held(make_service("mlm", timeout=0.3, batch_tokens=16)) as it:
        answer = it.post(["ban the kopa"] * 50)
        assert (answer.status, answer.error["type"]) == (504, "timeout_error")
        it.release()
        wait_until(lambda: it.share.tokens == 0)
        assert it.sequences < 10  # the batch that was being computed, and no more
        wait_until(lambda: it.post("a").status == 200)  # also if others load the machine


def test_the_work_of_a_client_that_went_away_is_dropped(make_service: Build) -> None:
    with held(make_service("mlm", batch_tokens=16)) as it:
        connection = http.client.HTTPConnection("127.0.0.1", it.server.port, timeout=300)
        body = json.dumps({"input": ["ban the kopa"] * 50})
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        wait_until(lambda: it.entered.is_set() and it.share.sequences == 50)
        connection.close()
        wait_until(lambda: it.share.sequences < 10)
        it.release()
        wait_until(lambda: it.share.tokens == 0)
        assert it.sequences < 10
        assert b'status="499"' in it.server.get("/metrics").body
        assert it.server.service.buffered == 0


def test_a_failing_model_gets_500_then_the_server_is_not_ready(
    make_service: Build, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertie.serve.worker.PROBE_SECONDS", 0.05)
    service = make_service("mlm", "classifier")
    broken = service.models["mlm"]

    def fail(_: object = None) -> list[Any]:
        if not working:
            raise RuntimeError("secret text")
        return original([])

    working: list[bool] = [True]
    lane = broken.lanes["vectors"]
    original, probe = lane.compute, broken.health.probe
    with serving(service) as server:
        working.clear()
        lane.compute = broken.health.probe = fail
        statuses = [server.post("/v1/embeddings", {"input": "a", "model": "mlm"}).status for _ in range(3)]
        assert statuses == [500] * 3
        wait_until(lambda: server.get("/readyz").status == 503)
        assert server.get("/readyz").json["reasons"] == ["model mlm: its last computations failed"]
        assert server.get("/livez").status == 200
        assert server.post("/v1/embeddings", {"input": "a", "model": "mlm"}).status == 503
        assert server.post("/v1/embeddings", {"input": "a", "model": "classifier"}).status == 200
        lane.compute, broken.health.probe = original, probe
        wait_until(lambda: server.get("/readyz").status == 200)
        assert server.post("/v1/embeddings", {"input": "a", "model": "mlm"}).status == 200
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    failed = [line for line in lines if line["event"] == "batch_failed"]
    assert [line["error"] for line in failed] == ["builtins.RuntimeError"] * 3
    assert "secret" not in json.dumps(lines)


def test_a_hanging_model_makes_the_server_not_live(make_service: Build) -> None:
    with held(make_service("mlm", timeout=1, hang_timeout=0.2)) as it:
        it.post_later("a")
        wait_until(lambda: it.server.get("/livez").status == 503)
        assert it.server.get("/readyz").status == it.post("a").status == 503
        it.release()
        wait_until(lambda: it.server.get("/livez").status == 200)


def test_keys(make_service: Build, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# comment\n{KEY}\n\n  {OTHER}\n")
    keys = ApiKeys.read(path)
    with serving(replace(make_service("mlm"), keys=keys)) as server:
        message = {"input": "a"}
        for authorization, status in (
            (f"Bearer {KEY}", 200),
            (f"bearer {OTHER}", 200),
            ("Bearer wrong", 401),
            (f"Bearer {KEY[:-1]}", 401),
            (f"Basic {KEY}", 401),
            ("Bearer # comment", 401),
            ("Bearer \xff", 401),
            ("", 401),
        ):
            answer = server.post("/v1/embeddings", message, Authorization=authorization)
            assert answer.status == status, authorization
            assert KEY.encode() not in answer.body
        assert answer.headers["www-authenticate"] == "Bearer"
        assert server.get("/v1/models").status == server.get("/metrics").status == 401
        assert server.get("/livez").status == server.get("/readyz").status == 200
    assert KEY not in repr(keys)


def test_key_files_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for text, problem in (("\n# x\n", "has no key"), ("a b\n", "a space"), ("ä\n", "outside ASCII")):
        path.write_text(text)
        with pytest.raises(UserError, match=problem):
            ApiKeys.read(path)
    with pytest.raises(UsageError, match="--api-keys"):
        ApiKeys.read(tmp_path / "none")


def test_refused_clients_do_not_return_together() -> None:
    for seconds, least in ((0.0, 1), (1.0, 1), (7.2, 8), (300.0, 300)):
        refused = [try_later(429, "queue", "too much", seconds) for _ in range(5000)]
        assert {each.retry_after for each in refused} == set(range(least, 2 * least + 1))


def test_limits_are_checked() -> None:
    for name, value in (("queue_tokens", 0), ("timeout", 0), ("batch_tokens", -1), ("max_connections", 10**6)):
        with pytest.raises(UsageError, match=name):
            Limits(**{name: value})
    with pytest.raises(UsageError, match="--latency-target 5: "):
        Limits(timeout=5, latency_target=5)


def test_pages_of_named_origins_may_use_it(make_service: Build) -> None:
    """As a browser asks for OpenAI's client, which sends headers of its own."""
    sent = "authorization,content-type,x-vocabulary,x-stainless-arch,x-stainless-os,x-stainless-retry-count"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": sent}
    named, other = {"Origin": "https://page.example"}, {"Origin": "https://other.example"}
    with serving(make_service("mlm"), Front(("https://page.example",))) as server:
        allowed = server.request("OPTIONS", "/v1/embeddings", None, named | asked)
        assert allowed.status == 200
        assert set(allowed.headers["access-control-allow-headers"].split(",")) == set(sent.split(","))
        assert "access-control-allow-credentials" not in allowed.headers
        tokens = server.post("/v1/tokenize", {"texts": ["a"]}, **named)
        refused = server.post("/v1/embeddings", {"input": 1}, **named)
        for answer, status in ((tokens, 200), (refused, 422)):
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == named["Origin"]
            exposed = answer.headers["access-control-expose-headers"].split(", ")
            assert set(exposed) == {"X-Request-Id", "Retry-After", "Server-Timing", "X-Vocabulary"}
        assert {"x-request-id", "server-timing", "x-vocabulary"} <= set(tokens.headers)
        strange = server.request("OPTIONS", "/v1/embeddings", None, asked | other)
        assert (strange.status, "access-control-allow-origin" in strange.headers) == (400, False)
    with serving(make_service("mlm")) as server:
        assert server.request("OPTIONS", "/v1/embeddings", None, named | asked).status == 405
        assert "access-control-allow-origin" not in server.post("/v1/embeddings", {"input": "a"}, **named).headers


def test_the_memory_of_bodies_is_bounded(make_service: Build) -> None:
    with held(make_service("mlm", buffer_bytes=1000)) as it:
        it.post_later("a " * 300)
        answer = it.post("a " * 300)
        assert (answer.status, answer.error["code"]) == (429, "buffer")
        it.release()
        assert it.post("a " * 300).status == 200
        for path, message in (("embeddings", {"input": "a " * 600}), ("similarity", {"texts": ["a"] * 7})):
            answer = it.server.post(f"/v1/{path}", message)  # which never fits, so that it is not to be sent again
            assert (answer.status, "--buffer-bytes" in answer.error["message"]) == (413, True)
        assert it.server.service.buffered == 0


def test_the_memory_of_answers_that_nobody_reads_is_bounded(make_service: Build) -> None:
    """The answer is larger than the buffers of the connection, which has at most 4 MB on Linux."""
    service = make_service("mlm", buffer_bytes=60_000_000, read_timeout=3600, timeout=3600)
    message = {"texts": ["a"] * 1500}
    body = json.dumps(message).encode()
    head = b"POST /v1/similarity HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(service) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head + body)
        wait_until(lambda: 4_000_000 < service.buffered < 60_000_000)  # 4 to 19 bytes a number, by rounding
        answer = server.post("/v1/similarity", message)
        assert (answer.status, answer.error["code"]) == (429, "buffer")
        client.close()
        wait_until(lambda: service.buffered == 0)
        assert server.post("/v1/embeddings", {"input": "a"}).status == 200


def test_logs_have_one_line_per_request_and_no_texts(make_service: Build, capfd: pytest.CaptureFixture[str]) -> None:
    service = make_service("mlm")
    service.log.requests = True
    with serving(service) as server:
        found = server.post("/v1/embeddings", {"input": ["my secret text"]})
        server.post("/v1/embeddings", {"input": ["my secret text"], "secret field": 1})
        server.get("/livez")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    good, bad = [line for line in lines if line["event"] == "request"]
    assert good["id"] == found.headers["x-request-id"]
    assert (good["status"], good["texts"], good["model"], good["path"]) == (200, 1, "mlm", "/v1/embeddings")
    assert {"tokenize_ms", "queue_ms", "compute_ms", "total_ms", "tokens"} <= good.keys()
    assert (bad["status"], bad["reason"]) == (422, "validation")
    assert "secret" not in json.dumps(lines)


def test_too_many_connections_get_503(make_service: Build) -> None:
    with serving(make_service("mlm", max_connections=3)) as server:
        held = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=300) for _ in range(3)]
        for connection in held:
            connection.request("GET", "/livez")
            connection.getresponse().read()
        assert server.get("/v1/models").status == 503
        for connection in held:
            connection.close()
        wait_until(lambda: server.post("/v1/embeddings", {"input": "a"}).status == 200)


def test_slow_tokenization_times_out(make_service: Build) -> None:
    service = make_service("mlm", timeout=0.3)
    go = threading.Event()
    with serving(service) as server:
        service._tokenizers.submit(go.wait, 300)
        assert server.post("/v1/embeddings", {"input": "a " * 1000}).status == 504
        wait_until(
            lambda: server.post("/v1/embeddings", {"input": "a"}).status == 200
        )  # short texts do not wait for it
        go.set()
        wait_until(lambda: server.post("/v1/embeddings", {"input": "a " * 1000}).status == 200)
