"""A stand-in of S3 (moto) whose GET requests may fail. Runs in the environment of remote_shards.py.

    python remote_shards_side.py PORT SHARE

SHARE of the requests fail: in turn, the answer is 503, ends in the middle, or has other bytes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


def failing(app: Callable[..., Iterable[bytes]], share: float) -> Callable[..., Iterable[bytes]]:
    draws, failures = random.Random(0), count()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "GET" or draws.random() >= share:
            return app(environ, start_response)
        kind = next(failures) % 3
        if kind == 0:
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        content = b"".join(app(environ, start_response))
        half = len(content) // 2
        return [content[:half]] if kind == 1 else [content[:half], bytes(byte ^ 1 for byte in content[half:])]

    return answer


if __name__ == "__main__":
    server = failing(DomainDispatcherApplication(create_backend_app), float(sys.argv[2]))
    run_simple("127.0.0.1", int(sys.argv[1]), server, threaded=True)
