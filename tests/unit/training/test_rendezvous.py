from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from bertie.errors import UserError
from bertie.training import rendezvous
from bertie.training.rendezvous import fresh_store


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
