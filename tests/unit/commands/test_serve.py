"""What `bertie serve` refuses before it loads a model, and the names of the models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertie.base.errors import UsageError, UserError, redacted
from bertie.commands.serve import Args, _names, run
from bertie.serve.server import listen


def test_models_have_the_last_part_of_their_path_or_a_given_name(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    link = tmp_path / "linked"
    link.symlink_to(tmp_path / "target")
    given = [str(link), "runs/sst2/", "vectors=runs/mini", "org/model"]
    assert _names(given) == {
        "linked": str(link),
        "sst2": "runs/sst2/",
        "vectors": "runs/mini",
        "model": "org/model",
    }


def test_names_are_unique() -> None:
    with pytest.raises(
        UsageError, match="two models have the name 'mini': give one of them another name, as in mini-2=other/mini"
    ):
        _names(["runs/mini", "other/mini"])
    with pytest.raises(UsageError, match="needs RUN"):
        _names([])


GOOD = ("https://good.example:8443", "http://localhost", "http://[::1]:3000", "https://a.example:80", "*")


@pytest.mark.parametrize(
    "origin",
    [
        *("example.org", "https://example.org/", "https://example.org/path", "ftp://example.org", "", "null"),
        *("https://Example.org", "https://example.org:443", "http://example.org:80", "https://*.example.org"),
        *("https://me@example.org", "https://example.org?a", "https://example.org:x"),
    ],
)
def test_origins_are_as_browsers_write_them(origin: str) -> None:
    """Any other would let no page use the server, and nobody would say why."""
    with pytest.raises(UsageError, match=f"--cors {re.escape(redacted(origin))}: give an origin"):
        run(Args(["runs/mini"], cors=(*GOOD, origin)))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 64, "\udcff", "a..b", "256.0.0.1"])
def test_a_host_that_does_not_exist_is_an_error(host: str) -> None:
    with pytest.raises(UserError, match=r"cannot listen on .*: choose another --host or --port"):
        listen(host, 0)


def test_a_port_in_use_is_an_error() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(UserError, match="Address already in use"):
        listen("127.0.0.1", first.getsockname()[1])
