from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from bertie.errors import UserError
from bertie.training import rendezvous
from bertie.training.rendezvous import fresh_store


def together(store: dist.Store, ranks: range) -> list[dist.Store]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: fresh_store(store, rank, len(ranks)), ranks))


def test_an_attempt_finds_nothing_of_the_one_before() -> None:
    store = dist.HashStore()
    first = together(store, range(3))
    first[1].set("address", "of a process that is gone")
    assert first[0].get("address") == first[2].get("address")
    for count in (3, 2, 4):  # torchrun may start fewer, or more
        again = together(store, range(count))
        assert not any(one.check(["address"]) for one in again)
        again[0].set("address", str(count))
        assert all(one.get("address") == str(count).encode() for one in again)


def test_a_rank_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.1)
    store = dist.HashStore()
    store.set("bertie/hello/1", "of the attempt before")
    with pytest.raises(UserError, match=r"ranks \[1, 2\] of 3 did not come"):
        fresh_store(store, 0, 3)
