"""What a dialect is: the paths, messages and errors of one kind of clients. The operations behind them are those of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bertie.serve.exchange import Call, ErrorForm, Handler
from bertie.serve.limits import Refused


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of a dialect."""

    method: str
    path: str
    """Below the base of the dialect."""
    handler: Handler
    summary: str
    response: Any
    """Type of the response; None: plain text."""
    request: Any = None
    """Type of the message in the body; None: no body."""
    bare: bool = True
    """Whether it may also be served without the base."""
    protected: bool = True
    """Whether it needs a key, if the server has keys."""
    statuses: tuple[int, ...] = ()
    """Statuses of errors, besides those that every endpoint with a body has."""


@dataclass(frozen=True)
class Dialect:
    """What one kind of clients speaks."""

    name: str
    """Name for --dialect."""
    base: str
    """What stands before its paths, for a client's base URL. Empty: bertie's own, which has the paths it names."""
    endpoints: tuple[Endpoint, ...]
    """Its endpoints."""
    form: ErrorForm
    """The form of its errors."""
    error: type
    """Type of the message that `form` returns."""


def require_ready(call: Call) -> None:
    """Check, for a probe, whether this process takes requests. Raises Refused with status 503."""
    call.facts["logged"] = False  # probes come every few seconds
    if problems := call.service.ready_problems():
        raise Refused(503, "unhealthy", "; ".join(problems))
