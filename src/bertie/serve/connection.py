"""HTTP connections with limits that uvicorn lacks: size and time of the header, and the time to take the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024
# Bytes of a request, as a multiple of the largest body: small chunks cost several bytes for each of a body.
MAX_FRAMES = 16
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed if its client is too slow, or sends a header that is too large.

    Clients that offer another protocol, such as HTTP/2, get HTTP/1.1. The parser ends the message after the header of such
    a request and would take what follows for the other protocol. So a new parser reads the header again, without the offer.
    """

    sending_seconds = 10.0
    """Time for the header of a request, and for the rest of a body after the answer, so that a client which sends too much can
    read why it is refused."""
    taking_seconds = 30.0
    """Time to take an answer."""
    most_bytes = 64 * 2**20
    """Bytes of the body of a request as it is sent, after which the connection ends."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._in_header = True
        self._header_bytes = self._body_bytes = 0
        self._offers = False  # the parser is at the end of a header that offers another protocol
        self._sending: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._sending = self._timer(self.sending_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sending, self._taking = _cancel(self._sending), _cancel(self._taking)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_header:
            self._header_bytes += len(data)
            self._sending = self._sending or self._timer(self.sending_seconds)  # the first byte of a later request
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

    def on_headers_complete(self) -> None:
        self._offers = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offers:
            self._in_header, self._header_bytes, self._body_bytes = False, 0, 0
            self._sending = _cancel(self._sending)
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offers:
            self._in_header = True
            self._sending = _cancel(self._sending)
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self._in_header:
            self._sending = self._sending or self._timer(self.sending_seconds)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self._timer(self.taking_seconds)

    def resume_writing(self) -> None:
        self._taking = _cancel(self._taking)
        super().resume_writing()

    def _timer(self, seconds: float) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
