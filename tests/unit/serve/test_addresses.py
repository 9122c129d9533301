"""Where the server is: IPv6, a path behind a proxy, and models whose names have a slash."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bertie.base.errors import UsageError
from bertie.commands.serve import Args, _names, run
from bertie.predict.predictor import Predictor
from bertie.serve.app import build_app
from bertie.serve.limits import Front
from bertie.serve.server import announce, listen
from bertie.serve.service import Service

from .conftest import serving


def test_names_may_have_a_slash(tmp_path: Path) -> None:
    assert _names(["org/mini=runs/a", "b=c", "runs/last"]) == {"org/mini": "runs/a", "b": "c", "last": "runs/last"}
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert _names([str(odd)]) == {"a=b": str(odd)}


def test_a_model_whose_name_has_a_slash(make_service: Callable[..., Service], predictors: dict[str, Predictor]) -> None:
    others = {"org/mini": predictors["mlm"], "other": predictors["classifier"]}
    with serving(make_service(others=others)) as server:
        assert server.post("/v1/embeddings", {"input": "a", "model": "org/mini"}).status == 200
        assert server.get("/v1/models/org/mini").json["id"] == "org/mini"
        assert server.post("/tei/models/org/mini/embed", {"inputs": "a"}).status == 200
        assert server.post("/tei/models/org/mini", {"inputs": "a"}).status == 200
        assert server.get("/tei/models/org/mini/info").json["model_id"] == "org/mini"


def test_all_addresses_of_both_families(
    capsys: pytest.CaptureFixture[str], make_service: Callable[..., Service]
) -> None:
    with listen("::", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("::1",):
            socket.create_connection((host, port)).close()
    announce(make_service("mlm"), "::1", port, Front())
    assert f"http://[::1]:{port}/ is a page" in capsys.readouterr().err


def test_a_path_behind_a_proxy(make_service: Callable[..., Service]) -> None:
    """Some proxies leave the path out, and others do not."""
    service = make_service("mlm")
    with serving(service), TestClient(build_app(service, Front(root_path="/bert")), follow_redirects=False) as client:
        for prefix in ("/bert", ""):
            assert client.get(f"{prefix}/").headers["content-type"].startswith("text/html")
            assert client.post(f"{prefix}/v1/embeddings", json={"input": "a"}).status_code == 200
            assert client.get(f"{prefix}/openapi.json").json()["servers"] == [{"url": "/bert"}]
        assert client.get("/bert").headers["location"] == "/bert/"
        assert client.get("/bertie/v1/models").status_code == 404


@pytest.mark.parametrize("path", ["bert", "/a b", "/a//b", "http://x/"])
def test_a_root_path_is_a_path(path: str) -> None:
    with pytest.raises(UsageError, match="give a path such as /bert"):
        run(Args(["x"], root_path=path))
