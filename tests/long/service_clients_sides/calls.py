"""Marks for the calls of clients, which run.py makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

JOB: dict[str, Any] = json.loads(sys.argv[1])
"""`url`: the URL of the server, and `key`: its key; `tei`: the URL of a server with one model and --dialect tei, without keys;
`text` and `texts`; `snippets`: their names and code."""
KEY: str = JOB["key"]
CALLS: list[tuple[str, str, str, Callable[[], Any]]] = []
"""Name, kind, what is wanted, and function."""

Mark = Callable[[Callable[[], Any]], Callable[[], Any]]


def gives(*wanted: str) -> Mark:
    """Mark a call. wanted: the name of its answer in service_clients.py; several: the answer is a list of these."""
    return _marked("gives", "+".join(wanted))


def refuses(message: str) -> Mark:
    """Mark a call that has to fail. message: what the text of the exception has to contain."""
    return _marked("refuses", message)


def _marked(kind: str, wanted: str) -> Mark:
    def mark(function: Callable[[], Any]) -> Callable[[], Any]:
        CALLS.append((function.__name__, kind, wanted, function))
        return function

    return mark
