"""HTTP connections with limits that uvicorn lacks: size and time of the header, and time to read the response."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed if its client is too slow, or sends a header that is too large.

    `seconds` applies to the header of a request, and to a pause in which the client does not read the response.
    """

    seconds = 10.0

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._in_header = True
        self._header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_header:
            self._header_bytes += len(data)
            if self._timer is None:  # the first byte of a later request
                self._start_timer()
        super().data_received(data)
        # A body in the same piece of data has ended the header.
        if self._in_header and self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._in_header, self._header_bytes = False, 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_header = True
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer()

    def resume_writing(self) -> None:
        self._stop_timer()
        super().resume_writing()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.seconds, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self.transport.abort()
