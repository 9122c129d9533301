"""Clients that are broken, slow or hostile: a short answer in bounded time, never a 500, never a stuck worker."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie.serve.service import Service

from .conftest import Server, serving, wait_until

Build = Callable[..., Service]
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def impatient(make_service: Build) -> Iterator[Server]:
    """A server that waits half a second for what clients send, and for a few seconds until they take an answer."""
    with serving(make_service("mlm", "classifier", read_timeout=0.5, timeout=10)) as running:
        yield running


@pytest.fixture(autouse=True)
def _still_works(server: Server) -> Iterator[None]:
    yield
    assert server.post("/v1/embeddings", {"input": "a", "model": "mlm"}).status == 200
    assert server.service.buffered == 0
    assert {model.share.tokens for model in server.service.models.values()} == {0}


@pytest.fixture(scope="module")
def bare(make_service: Build, without_special_tokens: Path) -> Iterator[Server]:
    """A server with a model whose tokenizer adds no special tokens."""
    with serving(make_service(others={"bare": bertie.load(without_special_tokens, threads=1)})) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "message", "field"),
    [
        ("/v1/embeddings", {"input": ""}, "input"),
        ("/v1/embeddings", {"input": [""]}, "input[0]"),
        ("/v1/embeddings", {"input": ["ban", ""]}, "input[1]"),
        ("/v1/embeddings", {"input": [[]]}, "input[0]"),
        ("/v1/rerank", {"query": "", "documents": ["ban"]}, "query"),
        ("/tei/embed_all", {"inputs": ["ban", " "], "truncate": True}, "inputs[1]"),
    ],
)
def test_a_text_without_any_token_is_refused(path: str, message: Any, field: str, bare: Server) -> None:
    answer = bare.post(path, message, **bare.knowing_ids)
    assert (answer.status, f'"{field} has no tokens' in answer.body.decode()) == (422, True)
    [model] = bare.service.models.values()
    assert (model.share.tokens, model.share.sequences) == (0, 0)
    assert bare.post("/v1/embeddings", {"input": "ban"}).status == 200


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=300)


def read_all(client: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    found = b""
    try:
        while part := client.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


TEXTS = {
    "dots": "." * 100_000,
    "one word": "a" * 100_000,
    "Chinese": "\u4e00" * 100_000,
    "nothing": "",
    "line breaks": "\r\n\u2028\u0085" * 100,
    "emoji": "👩‍👩‍👧‍👦" * 1000,
    "special tokens": "[CLS] [SEP] [PAD] [MASK]" * 100,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_odd_texts_are_texts(text: str, server: Server) -> None:
    assert server.post("/v1/embeddings", {"input": [text, "ban"], "model": "mlm"}).status == 200
    assert server.post("/v1/predict", {"inputs": [text, "ban"], "model": "classifier"}).status == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"input": "\\ud800"}', "half a surrogate pair"),
        (b'{"input": ["a", "\\udc00 b"]}', "half a surrogate pair"),
        (b'{"input": "\xed\xa0\x80"}', "utf-8"),
        (b'{"input": "a"', "not valid JSON"),
    ],
)
def test_what_is_not_json_is_named(body: bytes, named: str, server: Server) -> None:
    answer = server.post("/v1/embeddings", body)
    assert (answer.status, answer.error["code"]) == (400, "json")
    assert named in answer.error["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model":"mlm","input":[' + b'"",' * 1_000_000 + b'""]}', 413),
        (b'{"model":"mlm","input":[' + b"1," * 2_000_000 + b"1]}", 413),
        (b'{"model":"mlm","input":"' + b"a" * 50_000_000 + b'"}', 413),
        (b'{"model":"mlm","input":' + b"[" * 4_000_000, 422),
        (b'{"model":"' + b"a" * 4_000_000 + b'","input":"a"}', 404),
        (b'{"input":"a",' * 1000, 400),
    ],
    ids=["empty texts", "ids", "50 MB", "deep", "model", "repeated"],
)
def test_large_bodies_cost_little_memory(body: bytes, status: int, server: Server) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = server.post("/v1/embeddings", body, **server.knowing_ids)
    assert answer.status == status
    assert len(answer.body) < 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KB


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\0" * 1000,
    ],
)
def test_what_is_not_http_is_refused(sent: bytes, impatient: Server) -> None:
    with connect(impatient) as client:
        client.sendall(sent)
        client.settimeout(10)
        found = read_all(client)
    assert b" 500 " not in found[:20]
    assert found[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 415")


def post(body: bytes, path: bytes = b"/v1/embeddings", more: bytes = b"") -> bytes:
    """The bytes of a request with a body."""
    head = b"POST %s HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"
    return head % (path, len(body), more) + body


@pytest.mark.parametrize("sent", [b"GET /livez HTTP/1.1\r\nx: ", b"GET /", b"GET /livez HTTP/1.1\r\n"])
def test_a_header_without_end_is_cut_off(sent: bytes, impatient: Server) -> None:
    part = b"a" * 10_000 if sent[-1:] != b"\n" else b"a: b\r\n" * 1000
    with connect(impatient) as client:
        client.sendall(sent)
        sent_bytes = 0
        try:
            while sent_bytes < 100_000_000:
                client.sendall(part)
                sent_bytes += len(part)
        except ConnectionError:  # the server has closed it
            pass
        assert sent_bytes < 10_000_000  # what fits into the buffers of the connection
        assert read_all(client)[:12] in (b"", b"HTTP/1.1 431", b"HTTP/1.1 400")


def test_an_offer_of_http2_gets_an_answer_in_http1(server: Server) -> None:
    """curl --http2 and Java's client send one."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    assert server.post("/v1/embeddings", {"input": "a", "model": "mlm"}, **offer).status == 200


OFFERS = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    b"Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n",
    b"Upgrade:\th2c\r\nconnection:Upgrade\r\n",
]


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_in_pieces_gets_an_answer_in_http1(offer: bytes, chunked: bool, server: Server) -> None:
    """Byte by byte, with a body, and as the second and third request on a connection."""
    body = json.dumps({"input": "a", "model": "mlm"}).encode()
    length = b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: %d\r\n" % len(body)
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    request = b"POST /v1/embeddings HTTP/1.1\r\nContent-Type: application/json\r\n" + offer + length + b"\r\n" + body
    probe = b"GET /livez HTTP/1.1\r\n" + offer + b"\r\n"
    with connect(server) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(request)):
            client.sendall(request[number : number + 1])
        client.sendall(request + probe + request[:30])
        client.sendall(request[30:] + b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n")
        found = read_all(client)
    assert found.count(b"HTTP/1.1 200") == 5
    assert found.count(b'"prompt_tokens":3') == 3


def test_no_redirect_to_a_host_that_the_client_names(server: Server) -> None:
    for path, status in (("/v1/embeddings/", 200), ("/v1/nothing/", 404)):
        answer = server.post(path, {"input": "a", "model": "mlm"}, Host="example.org")
        assert answer.status == status
        assert "location" not in answer.headers


def test_a_slow_header_ends_the_connection(impatient: Server) -> None:
    with connect(impatient) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\n")
        assert read_all(client) == b""


def test_a_slow_body_gets_408(impatient: Server) -> None:
    with connect(impatient) as client:
        client.sendall(post(b"{" * 100)[:-99])
        assert read_all(client).startswith(b"HTTP/1.1 408")
    assert impatient.service.buffered == 0


def test_a_client_that_does_not_read_is_cut_off(impatient: Server) -> None:
    """Its answers are larger than the buffers of the connection."""
    request = post(json.dumps({"input": ["a b"] * 2000, "model": "mlm"}).encode())
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", impatient.port))
    with client:
        for _ in range(8):
            client.sendall(request)
        wait_until(lambda: impatient.knows(client))
        wait_until(lambda: not impatient.knows(client), 60)
        found = read_all(client)
    assert found.count(b"HTTP/1.1 200") < 8
    wait_until(lambda: impatient.service.buffered == 0)


def test_half_closed_and_reset_connections(impatient: Server) -> None:
    request = post(json.dumps({"input": "a", "model": "mlm"}).encode())
    for number in range(20):
        client = connect(impatient)
        client.sendall(request[: number - 25])
        if number % 2:
            client.shutdown(socket.SHUT_WR)
        else:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    wait_until(lambda: impatient.service.buffered == 0)
    assert impatient.post("/v1/embeddings", {"input": "a", "model": "mlm"}).status == 200


def test_many_requests_on_one_connection(server: Server) -> None:
    """Pipelined, and each answered in order."""
    bodies = [json.dumps({"input": "a " * n, "model": "mlm"}).encode() for n in range(1, 20)]
    with connect(server) as client:
        for number, body in enumerate(bodies):
            client.sendall(post(body, more=b"Connection: close\r\n" * (number == len(bodies) - 1)))
        found = read_all(client)
    tokens = [int(part.split(b'"prompt_tokens":')[1].split(b",")[0]) for part in found.split(b"HTTP/1.1 ")[1:]]
    assert tokens == [n + 2 for n in range(1, 20)]
