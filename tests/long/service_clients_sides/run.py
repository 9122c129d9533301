"""The part of service_clients.py that runs in an environment of clients.

    python run.py JOB MODULE ...

Makes the calls that the modules beside this file mark, and runs the snippets of the job. Prints a list of [name, kind, wanted,
found] as JSON. kind: "gives" or "refuses"; or that it is not what it should be.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from calls import CALLS, JOB


def plain(value: Any) -> Any:
    """Return a value of a client as JSON has it; results of reranking as pairs of number and score."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict) and "index" in value:
        return [value["index"], value.get("relevance_score", value.get("score"))]
    if hasattr(value, "relevance_score"):
        return [value.index, value.relevance_score]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def outcome(function: Callable[[], Any]) -> tuple[str, Any]:
    """Return the answer of a call, or what a user would see of its error."""
    try:
        value = function()
        return "gives", plain(asyncio.run(value) if inspect.iscoroutine(value) else value)
    except Exception as error:
        traceback.print_exc()
        return "refuses", f"{type(error).__name__}: {error}"


def snippet(code: str) -> dict[str, Any]:
    """Run a snippet. Returns what it computes."""
    values: dict[str, Any] = {}
    exec(code, values)
    return {name: values[name] for name in ("vector", "vectors", "ranks", "scores") if name in values}


def main() -> None:
    for module in sys.argv[2:]:
        importlib.import_module(module)
    calls = [*CALLS, *((name, "gives", "snippet", lambda code=code: snippet(code)) for name, code in JOB["snippets"])]
    found = []
    for name, kind, wanted, function in calls:
        came, value = outcome(function)
        found.append([name, kind if came == kind else f"{kind}, but it {came}", wanted, value])
    print("\n" + json.dumps(found))  # libraries print lines of their own


if __name__ == "__main__":
    main()
