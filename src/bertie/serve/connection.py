"""HTTP connections with limits that uvicorn lacks: size and time of the header, and time to read the response."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024
# Bytes of a request, as a multiple of the largest body: small chunks cost several bytes for each of a body.
MAX_FRAMES = 16
PROBES = (b"/livez", b"/readyz")
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed if its client is too slow, or sends a header that is too large.

    `seconds` is the time for the header of a request, for the rest of a body after the answer (so that a client which sends
    too much can read why it is refused), and for a pause in which the client takes no byte of an answer.

    Clients that offer another protocol, such as HTTP/2, get HTTP/1.1. The parser ends the message after the header of such
    a request and would take what follows for the other protocol. So a new parser reads the header again, without the offer.
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
        self._offers = False  # the parser is at the end of a header that offers another protocol
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
        else:
            self._body_bytes += len(data)
            if self._body_bytes > self.most_bytes:
                self.transport.abort()
                return
        self._unset_keepalive_if_required()
        self._parse(data)
        # A body in the same piece of data has ended the header.
        if self._in_header and self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                if not self._offers:  # CONNECT, which has its answer
                    return
                data = self._plain_header() + rest
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def _plain_header(self) -> bytes:
        """Return the header that was read, without an offer of another protocol, and let a new parser read it."""
        kept = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"http2-settings")]
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in kept]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self._offers = False
        return b"\r\n".join([*lines, b"", b""])

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_header:  # else it follows a chunked body: a trailer, which nobody needs
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._offers = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._offers:
            return
        self._in_header, self._header_bytes, self._body_bytes = False, 0, 0
        self._reading = _cancel(self._reading)
        app = self.app
        # Many connections are no reason to restart the process.
        if len(self.connections) >= self.most_connections and self.url not in PROBES:
            self.app = self.refuse
        super().on_headers_complete()
        self.app = app

    def on_message_complete(self) -> None:
        if self._offers:
            return
        self._in_header = True
        self._reading = _cancel(self._reading)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self._in_header and self._reading is None:
            self._reading = self._timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader(self._unread())

    def resume_writing(self) -> None:
        self._writing = _cancel(self._writing)
        super().resume_writing()

    def _await_reader(self, unread: int) -> None:
        """Close the connection after a pause in which the client takes nothing. unread: bytes that it has not taken yet."""

        def check() -> None:
            if (now := self._unread()) >= unread:
                self.transport.abort()
            else:
                self._await_reader(now)

        self._writing = self.loop.call_later(self.seconds, check)

    def _unread(self) -> int:
        """Return the bytes of answers that the client's system has not taken yet: here, and in the buffer of this system."""
        waiting = self.transport.get_write_buffer_size()
        socket = self.transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):  # not all systems tell
            waiting += struct.unpack("i", fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
        return waiting

    def _timer(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self.seconds, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
