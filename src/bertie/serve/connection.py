"""HTTP connections with limits that uvicorn lacks: size and time of the header, and time to read the response."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024
# Bytes of a request, as a multiple of the largest body: small chunks cost several bytes for each of a body.
MAX_FRAMES = 16
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
PROBES = (b"/livez", b"/readyz")
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed if its client is too slow, or sends a header that is too large.

    `seconds` is the time for the header of a request, for the rest of a body after the answer (so that a client which sends
    too much can read why it is refused), and for a pause in which the client does not read.
    """

    seconds = 10.0
    most_bytes = 64 * 2**20
    """Bytes of the body of a request as it is sent, after which the connection ends."""
    most_connections = 1024
    """Open connections from which on requests are refused, except those to `PROBES`."""
    refuse: Callable[..., Any]
    """The ASGI application that refuses them."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._in_header = True
        self._header_bytes = self._body_bytes = 0
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._reading = self._timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reading = _cancel(self._reading)
        self._writing = _cancel(self._writing)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_header:
            self._header_bytes += len(data)
            if self._reading is None:  # the first byte of a later request
                self._reading = self._timer()
            # Clients that offer HTTP/2 get HTTP/1.1. The parser would take what follows for the other protocol.
            head, end, rest = data.partition(b"\r\n\r\n")
            data = UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest
        else:
            self._body_bytes += len(data)
            if self._body_bytes > self.most_bytes:
                self.transport.abort()
                return
        super().data_received(data)
        # A body in the same piece of data has ended the header.
        if self._in_header and self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_header:  # else it follows a chunked body: a trailer, which nobody needs
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_header, self._header_bytes, self._body_bytes = False, 0, 0
        self._reading = _cancel(self._reading)
        app = self.app
        # Many connections are no reason to restart the process.
        if len(self.connections) >= self.most_connections and self.url not in PROBES:
            self.app = self.refuse
        super().on_headers_complete()
        self.app = app

    def on_message_complete(self) -> None:
        self._in_header = True
        self._reading = _cancel(self._reading)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self._in_header and self._reading is None:
            self._reading = self._timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self._timer()

    def resume_writing(self) -> None:
        self._writing = _cancel(self._writing)
        super().resume_writing()

    def _timer(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.seconds, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
