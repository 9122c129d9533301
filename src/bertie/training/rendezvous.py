"""Rendezvous of the ranks after a restart by torchrun, in a store that may still hold keys of an earlier attempt."""

from __future__ import annotations

import secrets
import time

from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from bertie.errors import UserError

TIMEOUT = 600.0  # seconds for the slowest rank to import bertie and join
POLL_INTERVAL = 0.02  # seconds


def fresh_store(store: Store, rank: int, count: int) -> Store:
    """Return a prefix of the store that only the ranks of this attempt use.

    torchrun keeps one store over all its restarts, and its keys do not name the attempt (torch 2.13;
    pytorch/pytorch#135712). A restarted rank may therefore read the address of a process that has ended, before the new
    process has replaced it. To avoid that, each rank announces itself under a random token, and rank 0 answers to that
    token with its own, which becomes the prefix.

    Args:
        store: The store of torchrun.
        rank: This process's rank.
        count: Number of ranks.

    Raises:
        UserError: On rank 0, if another rank does not join within TIMEOUT.
    """
    token = secrets.token_hex(8)
    store.set(f"bertie/hello/{rank}", token)
    if rank > 0:
        attempt = store.get(f"bertie/welcome/{token}").decode()
        store.set(f"bertie/joined/{attempt}/{rank}", "")
        return PrefixStore(f"bertie/{attempt}", store)
    missing, deadline = set(range(1, count)), time.monotonic() + TIMEOUT
    while missing:
        for other in sorted(missing):
            if store.check([f"bertie/hello/{other}"]):  # from this attempt or an earlier one
                store.set(f"bertie/welcome/{store.get(f'bertie/hello/{other}').decode()}", token)
            if store.check([f"bertie/joined/{token}/{other}"]):
                missing.discard(other)
        if missing and time.monotonic() > deadline:
            raise UserError(f"ranks {sorted(missing)} of {count} did not join within {TIMEOUT:.0f} seconds")
        time.sleep(POLL_INTERVAL)
    return PrefixStore(f"bertie/{token}", store)
