from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from bertie.base.errors import UserError
from bertie.training import rendezvous
from bertie.training.rendezvous import fresh_store, is_said, say_once


def join_all(store: dist.Store, ranks: range) -> list[dist.Store]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: fresh_store(store, rank, len(ranks)), ranks))


def test_restart_does_not_see_keys_of_the_attempt_before() -> None:
    shared = dist.HashStore()
    first = join_all(shared, range(3))
    first[1].set("address", "of a process that has ended")
    assert first[0].get("address") == first[2].get("address")
    for count in (3, 2, 4):  # torchrun may restart with fewer or more ranks
        stores = join_all(shared, range(count))
        assert not any(store.check(["address"]) for store in stores)
        stores[0].set("address", str(count))
        assert all(store.get("address") == str(count).encode() for store in stores)


def test_missing_ranks_are_named_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "TIMEOUT", 0.1)
    store = dist.HashStore()
    store.set("bertie/hello/1", "of the attempt before")
    with pytest.raises(UserError, match=r"ranks \[1, 2\] of 3 did not join"):
        fresh_store(store, 0, 3)


def test_an_error_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message by one of the ranks that have it, and again in the next attempt. Without a store, all say it."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"USE_AGENT_STORE": "True", "RESTART_COUNT": "0"}
    for name, value in {f"TORCHELASTIC_{name}": value for name, value in place.items()}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    said: list[str] = []

    def say_all(*messages: str) -> list[str]:
        said.clear()
        with ThreadPoolExecutor(len(messages)) as pool:
            list(pool.map(lambda message: say_once(message, lambda: said.append(message)), messages))
        return sorted(said)

    assert not is_said()
    assert say_all("a", "b", "a", "a") == ["a", "b"]
    assert is_said()
    assert say_all("a") == []
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert say_all("a", "a") == ["a"]
    monkeypatch.setattr(rendezvous, "SAYING", timedelta(seconds=0.2))
    del store
    assert not is_said()
    assert say_all("a", "a") == ["a", "a"]
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    assert say_all("a", "a") == ["a", "a"]


def test_an_error_is_said_by_another_rank_if_the_first_one_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun may end a rank at any moment."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setattr(rendezvous, "SAYING", timedelta(seconds=0.2))

    def end() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        say_once("a", end)
    said: list[str] = []
    say_once("a", lambda: said.append("a"))
    assert said == ["a"]
