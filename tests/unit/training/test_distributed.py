"""What a process refuses before it meets the other ranks. tests/faults/test_ranks.py has what they do together."""

from __future__ import annotations

import socket

import pytest
import torch

from bertie.base.errors import UsageError
from bertie.training import distributed
from bertie.training.distributed import process_group, translated_errors


@pytest.fixture(autouse=True)
def rank_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def refusal() -> str:
    with pytest.raises(UsageError) as raised, process_group():
        pass
    return str(raised.value)


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the ranks that have one: the others would not say it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert refusal() == (
        "torchrun has started 8 processes on this machine, and they see 4 GPUs: give --nproc-per-node 4"
    )


@pytest.mark.parametrize(("port", "place"), [(None, "127.0.0.1:?"), ("no number", "127.0.0.1:no number")])
def test_ranks_without_a_meeting_place_are_refused(
    monkeypatch: pytest.MonkeyPatch, port: str | None, place: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    if port:
        monkeypatch.setenv("MASTER_PORT", port)
    assert refusal().startswith(f"the ranks do not meet at {place} (")


def test_a_port_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 keeps the store, if torchrun does not."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("RANK", "0")
    with socket.create_server(("0.0.0.0", 0)) as other:
        monkeypatch.setenv("MASTER_PORT", str(other.getsockname()[1]))
        assert "EADDRINUSE" in refusal()


def test_missing_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "TIMEOUT", 1.0)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("RANK", "0")
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    assert "waiting for clients. 1/8 clients joined." in refusal()


def test_an_error_without_a_message_is_raised_as_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^$"), translated_errors():
        raise RuntimeError
