"""The ranks meet in torchrun's store, which may still hold keys of an earlier attempt, and agree who says an error."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from bertie.base.errors import UserError
from bertie.base.threads import torchrun_store

TIMEOUT = 600.0  # seconds for the slowest rank to import bertie and join
POLL_INTERVAL = 0.02  # seconds
SAYING = timedelta(seconds=10)  # for the rank that says an error, and for a store that may be gone
_attempt = [""]  # the token of the attempt that this process has joined


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
        attempt = _attempt[0] = store.get(f"bertie/welcome/{token}").decode()
        store.set(f"bertie/joined/{attempt}/{rank}", "")
        return PrefixStore(f"bertie/{attempt}", store)
    _attempt[0] = token
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


def say_once(what: str, say: Callable[[], None]) -> bool:
    """Say an error that several ranks may have, on the first of them only. The others return when it is said.

    torchrun ends all ranks as soon as one has ended: without this wait, it could end the one that is about to say it.

    Args:
        what: What is said, the same on all ranks that mean the same.
        say: Says it. Called on every rank if torchrun keeps no store, or cannot be reached.

    Returns:
        Whether this rank has said it.
    """
    key = hashlib.sha256(what.encode()).hexdigest()
    store = None
    with suppress(RuntimeError):
        store = _errors_store()
        if store is not None and store.add(f"says {key}", 1) > 1:
            store.wait([f"said {key}"], SAYING)
            return False
    say()
    with suppress(RuntimeError):
        for name in (f"said {key}", "said"):
            if store is not None:
                store.set(name, "")
    return True


def wait_until_said() -> None:
    """Wait until another rank has said an error with `say_once`, if torchrun keeps a store, but not forever."""
    with suppress(RuntimeError):
        if (store := _errors_store()) is not None:
            store.wait(["said"], SAYING)


def is_said() -> bool:
    """Return whether a rank has said an error with `say_once`, if torchrun keeps a store: torchrun then ends the others."""
    with suppress(RuntimeError):
        store = _errors_store()
        return store is not None and store.check(["said"])
    return False


def _errors_store() -> Store | None:
    """Connect to the part of torchrun's store that has what this attempt has said. Raises RuntimeError if it is gone."""
    if (place := torchrun_store()) is None:
        return None
    host, port, restarts = place
    store = TCPStore(host, port, is_master=False, timeout=SAYING)
    return PrefixStore(f"bertie/errors/{restarts}/{_attempt[0]}", store)
