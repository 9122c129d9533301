"""How the ranks of one attempt find each other in a store that may remember those of an attempt before."""

from __future__ import annotations

import secrets
import time

from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from bertie.errors import UserError

PATIENCE = 600.0  # seconds for the slowest rank to import and join
PAUSE = 0.02


def fresh_store(store: Store, rank: int, count: int) -> Store:
    """A part of the store that is this attempt's alone.

    torchrun keeps one store over all its restarts, without a name for the attempt (torch 2.13; pytorch/pytorch#135712). A
    rank that starts again may find the address of a process that is gone, where the new one has not put its own in its
    place yet. So each rank says hello by a name that nobody had before, and rank 0 answers under that name.
    Errors: UserError where one does not come.
    """
    own = secrets.token_hex(8)
    store.set(f"bertie/hello/{rank}", own)
    if rank > 0:
        attempt = store.get(f"bertie/welcome/{own}").decode()
        store.set(f"bertie/joined/{attempt}/{rank}", "")
        return PrefixStore(f"bertie/{attempt}", store)
    missing, until = set(range(1, count)), time.monotonic() + PATIENCE
    while missing:
        for other in sorted(missing):
            if store.check([f"bertie/hello/{other}"]):  # of this attempt, or of one before
                store.set(f"bertie/welcome/{store.get(f'bertie/hello/{other}').decode()}", own)
            if store.check([f"bertie/joined/{own}/{other}"]):
                missing.discard(other)
        if missing and time.monotonic() > until:
            raise UserError(f"ranks {sorted(missing)} of {count} did not come within {PATIENCE:.0f} seconds")
        time.sleep(PAUSE)
    return PrefixStore(f"bertie/{own}", store)
