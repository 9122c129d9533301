"""Start the server, and stop it without losing a request."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress

import uvicorn

from bertie.base import console
from bertie.base.errors import UserError
from bertie.serve.app import build_app
from bertie.serve.connection import MAX_FRAMES, BoundedConnection
from bertie.serve.limits import Front
from bertie.serve.service import Service

KEEP_ALIVE = 65  # seconds that an idle connection stays open: longer than the 60 s of common load balancers
# Seconds. With Python's 5 ms, event loop and worker would wait for each other after every operation.
SWITCH_INTERVAL = 0.0005


def serve(service: Service, listener: socket.socket, front: Front) -> None:
    """Serve until SIGTERM or SIGINT. Must be called in the main thread.

    If the worker still computes after the drain timeout or a second signal, the process later ends at once with status 0:
    functions that were registered with `atexit` before do not run.

    Args:
        service: The service.
        listener: The socket from `listen`.
        front: Its page, dialect and origins.
    """
    _allow_connections(service.limits.max_connections)
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.freeze()  # what is loaded stays: the garbage collector need not look at it
    server = start_server(service, front)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        ended = runner.run(_serve(service, listener, server))
    if not ended:
        atexit.register(_exit_at_once)


def _exit_at_once() -> None:
    """End the process. A thread that computes while the interpreter ends would abort it."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)


async def _serve(service: Service, listener: socket.socket, server: uvicorn.Server) -> bool:
    """Serve until a signal. Returns whether the worker has ended."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop, hurry, server)
    service.start()
    running = asyncio.ensure_future(server._serve(sockets=[listener]))  # `serve` would replace the signal handlers
    host, port = listener.getsockname()[:2]
    service.log.event("started", host=host, port=port, models=list(service.models))
    await asyncio.wait({running, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    service.draining = True
    service.log.event("draining", tokens=sum(model.share.tokens for model in service.models.values()))
    with suppress(TimeoutError):
        await asyncio.wait_for(hurry.wait(), service.limits.drain_delay)
    server.should_exit = True
    end = time.monotonic() + service.limits.drain_timeout
    await running
    ended = await asyncio.to_thread(service.stop, 1.0)
    while not (ended or hurry.is_set() or time.monotonic() >= end):
        ended = await asyncio.to_thread(service.stop, 0.2)
    service.log.event("stopped", "info" if ended else "error", worker_ended=ended)
    service.log.close()
    return ended


def start_server(service: Service, front: Front) -> uvicorn.Server:
    """Return uvicorn's server, not yet running."""

    class Connection(BoundedConnection):
        sending_seconds, taking_seconds = service.limits.read_timeout, service.limits.timeout
        most_bytes = max(MAX_FRAMES * service.limits.max_bytes, 2**20)

    config = uvicorn.Config(
        build_app(service, front),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=service.limits.max_connections,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(service.limits.drain_timeout)),
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # it would report every malformed request
    return uvicorn.Server(config)


def _on_signal(stop: asyncio.Event, hurry: asyncio.Event, server: uvicorn.Server) -> None:
    if stop.is_set():  # the second signal: do not wait for requests
        server.force_exit = True
        hurry.set()
    stop.set()


def listen(host: str, port: int) -> socket.socket:
    """Open the address.

    Raises:
        UserError: It cannot be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        both = host == "::" and socket.has_dualstack_ipv6()  # IPv4 and IPv6
        listener = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}:{port}: {reason}: choose another --host or --port") from error
    listener.setblocking(False)
    return listener


def _allow_connections(count: int) -> None:
    """Raise the limit of open files, which is 1,024 on many systems, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256  # for models, logs, and connections that are refused
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def announce(service: Service, host: str, port: int, front: Front) -> None:
    """Say for people where the server listens."""
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}{front.root_path}"
    for model in service.models.values():
        facts = f"{', '.join(model.operations)}; {model.predictor.max_length} tokens; engine {model.predictor.engine}"
        console.info(f"{model.name}: {facts}")
    if front.page:
        console.info(f"{place}/ is a page to try the models")
    console.info(f"{place}/openapi.json describes the API; Ctrl-C stops")
