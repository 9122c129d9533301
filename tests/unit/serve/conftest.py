"""Small models behind a real server on a free port of this machine."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from tests.unit.predict.small_models import close as close
from tests.unit.predict.small_models import model_of, saved

import bertie
from bertie.model.config import TransformerConfig
from bertie.predict.predictor import Predictor
from bertie.serve.keys import ApiKeys
from bertie.serve.limits import Front, Limits
from bertie.serve.logs import JsonLog
from bertie.serve.operations import serve_model
from bertie.serve.server import listen, start_server
from bertie.serve.service import Service
from bertie.serve.vectors import VOCABULARY, fingerprint
from bertie.tasks import AnyTask, Choose, Classify, MultiLabel, Regress, Relate, Span, Tag
from bertie.tokenizers.added_tokens import with_tokens
from bertie.tokenizers.tokenizer import Tokenizer

RELATION_MARKERS = ("E1", "/E1", "E2", "/E2")


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]


@dataclass(frozen=True, eq=False)
class Server:
    """A server that runs in a thread of this process."""

    port: int
    service: Service
    connections: set[Any]
    """The open connections of uvicorn."""

    def knows(self, client: socket.socket) -> bool:
        """Whether the server has the connection of a client."""
        return client.getsockname() in [each.client for each in self.connections.copy()]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()

    @property
    def knowing_ids(self) -> dict[str, str]:
        """The header of a client that knows the vocabulary of the first model, and so may send token ids."""
        return {VOCABULARY: fingerprint(next(iter(self.service.models.values())))}

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, None, headers)

    def post(self, path: str, message: Any, **headers: str) -> Answer:
        """Send JSON, or bytes as they are."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.request("POST", path, body, {"Content-Type": "application/json"} | headers)


@contextmanager
def serving(service: Service, front: Front = Front()) -> Iterator[Server]:
    """Run a server until the end of the block."""
    listener, server = listen("127.0.0.1", 0), start_server(service, front)

    async def run() -> None:
        service.start()
        await server._serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    assert thread.is_alive(), "the server did not start"
    try:
        yield Server(listener.getsockname()[1], service, server.server_state.connections)
    finally:
        server.should_exit = True
        thread.join(300)
        service.stop(5)
        service.log.close()
        assert not thread.is_alive()


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def activated(outputs: np.ndarray, name: str) -> np.ndarray:
    """The scores of a model of `predictors` for the outputs of its head."""
    return softmax(outputs) if name == "classifier" else expit(outputs)


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def predictors(
    pretrained: Path,
    tiny_config: TransformerConfig,
    small_tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Predictor]:
    """One small model for each kind of prediction."""
    tasks: dict[str, AnyTask] = {
        "classifier": Classify(labels=("bad", "good"), paired=False),
        "labels": MultiLabel(labels=("a", "b", "c"), paired=False),
        "cross-encoder": Regress(paired=True),
        "span": Span(),
        "tagger": Tag(labels=("O", "B-X")),
        "choice": Choose(),
        "relation": Relate(labels=("X(e1,e2)", "Other"), markers={name: f"[{name}]" for name in RELATION_MARKERS}),
    }
    found = {"mlm": bertie.load(pretrained, threads=1)}
    for number, (name, task) in enumerate(tasks.items()):
        folder = tmp_path_factory.mktemp(name)
        tokenizer = with_tokens(small_tokenizer, task.added_tokens if isinstance(task, Relate) else ())
        model = model_of(replace(tiny_config, vocab_size=tokenizer.size), task, seed=number)
        paired = {"paired": task.paired} if isinstance(task, Classify | MultiLabel | Regress) else {}
        labels: dict[str, Any] = {"labels": list(task.labels)} if task.labels else {}
        labels |= {"markers": task.markers} if isinstance(task, Relate) else {}
        found[name] = saved(folder, model, tokenizer, {"kind": task.kind, "max_length": 64, **paired, **labels})
    return found


@pytest.fixture(scope="session")
def make_service(predictors: dict[str, Predictor]) -> Callable[..., Service]:
    """Build a service with some of the models, or with others, whose vectors may have some smaller widths."""

    def build(
        *names: str, key: str = "", widths: tuple[int, ...] = (), others: Mapping[str, Predictor] = {}, **limits: Any
    ) -> Service:
        allowed = Limits(**limits)
        models = {name: predictors[name] for name in names} | dict(others)
        served = {name: serve_model(name, model, allowed.queue_tokens, widths) for name, model in models.items()}
        keys = ApiKeys((sha256(key.encode()).digest(),)) if key else ApiKeys()
        return Service(served, allowed, JsonLog(requests=False), keys)

    return build


@pytest.fixture(scope="module")
def server(make_service: Callable[..., Service], predictors: dict[str, Predictor]) -> Iterator[Server]:
    """A server with all models."""
    with serving(make_service(*predictors)) as running:
        yield running
