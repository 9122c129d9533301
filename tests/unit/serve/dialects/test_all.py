"""What holds in every dialect: keys, the size of a body, and errors in the form of the dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from bertie.serve.dialects import DIALECTS
from bertie.serve.exchange import Dialect, Endpoint
from bertie.serve.keys import ApiKeys
from bertie.serve.service import Service

from ..conftest import Server, serving

KEY = "k" * 32
POSTS = [(dialect, each) for dialect in DIALECTS for each in dialect.endpoints if each.request is not None]
every = pytest.mark.parametrize(("dialect", "endpoint"), POSTS, ids=lambda each: getattr(each, "path", None))


@pytest.fixture(scope="module")
def locked(make_service: Callable[..., Service]) -> Iterator[Server]:
    with serving(make_service("mlm", keys=ApiKeys((sha256(KEY.encode()).digest(),)), max_bytes=2000)) as server:
        yield server


def path_of(dialect: Dialect, endpoint: Endpoint) -> str:
    return dialect.base + endpoint.path.replace("{model:path}", "mlm").replace("{task:path}", "fill-mask")


def refused(answer: Any, status: int, dialect: Dialect) -> str:
    assert answer.status == status, answer.body
    return str(msgspec.json.decode(answer.body, type=dialect.error))


@every
def test_keys_and_bounds_hold(locked: Server, dialect: Dialect, endpoint: Endpoint) -> None:
    path, key = path_of(dialect, endpoint), {"Authorization": f"Bearer {KEY}"}
    assert "give a valid key" in refused(locked.post(path, {}), 401, dialect)
    assert "give a valid key" in refused(locked.post(path, {}, Authorization="Bearer no"), 401, dialect)
    assert "2,000" in refused(locked.post(path, {"a": "b" * 2000}, **key), 413, dialect)
    assert "application/json" in refused(locked.post(path, {}, **key, **{"Content-Type": "text/plain"}), 415, dialect)
    assert "nothing" in refused(locked.post(path, {"nothing": 1}, **key), 422, dialect)
    assert locked.service.buffered == 0


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_unknown_paths_have_the_form_of_the_dialect(locked: Server, dialect: Dialect) -> None:
    assert "no such path" in refused(locked.get(f"{dialect.base}/no/such/path"), 404, dialect)
