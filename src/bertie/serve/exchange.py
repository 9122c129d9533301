"""One request and its response: key, body, errors, headers, log and metrics. A dialect does what happens in between."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import NoneType
from typing import Any, TypeVar, get_type_hints

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bertie.base.errors import UserError, shorten
from bertie.serve.limits import Refused, too_large, try_later
from bertie.serve.logs import places
from bertie.serve.service import ClientGone, Service

R = TypeVar("R")
LARGE = 64 * 1024  # bytes of a response that do not count as memory
BUG = "an error in the server: its log shows the place under this X-Request-Id"
OTHER = "other"  # in place of a path that does not exist, for metrics
CLIENT_GONE = 499  # in logs and metrics, as nginx counts it
NULL_FIELD = re.compile(r"got `null` - at `\$\.\w+`$")
MAX_MESSAGE, MAX_PARAM = 500, 100  # characters: a message may quote the request
_encode = msgspec.json.Encoder().encode
# Of ids. Fresh random bytes for each would cost a system call.
_PROCESS, _numbers = secrets.token_hex(10), itertools.count(1)


@dataclass(eq=False)
class Call:
    """The progress of one request."""

    service: Service
    """The service."""
    request: Request
    """The request."""
    id: str = field(default_factory=lambda: f"{_PROCESS}{next(_numbers):012x}")
    """Its id, in the header X-Request-Id and in the log."""
    started: float = field(default_factory=time.monotonic)
    """When its header was complete."""
    received: float = 0.0
    """When its body was complete."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds in each stage."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts for the log: model, texts, tokens."""
    reserve: Callable[[int], None] = lambda _: None
    """Counts bytes that the request keeps in memory until its response is complete. Raises Refused, with status 429."""
    status: int = 200
    """Status of the response to a request that is not refused."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of this response."""
    size: int = 0
    """Results in the response: a large one is encoded in another thread."""

    @property
    def remaining(self) -> float:
        """Seconds until the request times out."""
        return self.service.limits.timeout - (time.monotonic() - self.started)

    @property
    def spent(self) -> float:
        """Seconds since its body was complete: the time that counts for the target. A slow client is none of the server's."""
        return time.monotonic() - self.received

    async def offload(self, size: int, work: Callable[..., R], *arguments: Any) -> R:
        """Return the result of some work for the response, as `Service.offload`."""
        self.size = max(self.size, size)
        return await self.service.offload(size, work, *arguments)

    async def gone(self) -> None:
        """Wait until the client goes away."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


Handler = Callable[[Call, Any], Awaitable[Any]]
ErrorForm = Callable[[Refused], Any]
"""Returns the message of a refusal, in the form that a client expects. May change its status to the one that it expects."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of a dialect."""

    method: str
    path: str
    """Below the base of the dialect."""
    handler: Handler
    """Its signature has the types of the messages in the body and in the response."""
    summary: str
    bare: bool = True
    """Whether it may also be served without the base."""
    protected: bool = True
    """Whether it needs a key, if the server has keys."""
    statuses: tuple[int, ...] = ()
    """Statuses of errors, besides the usual ones of an endpoint with a body."""

    @cached_property
    def request(self) -> Any:
        """Type of the message in the body; None: no body."""
        return self._types[1]

    @cached_property
    def response(self) -> Any:
        """Type of the message in the response; None: none, as of plain text."""
        return self._types[2]

    @cached_property
    def _types(self) -> list[Any]:
        types = get_type_hints(self.handler, include_extras=True).values()
        return [None if kind in (NoneType, Response) else kind for kind in types]


@dataclass(frozen=True)
class Dialect:
    """The endpoints and errors of one kind of clients."""

    name: str
    """Name for --dialect."""
    base: str
    """The prefix of its paths, for a client's base URL. Empty: bertie's own API, which has the paths that it names."""
    endpoints: tuple[Endpoint, ...]
    """Its endpoints."""
    form: ErrorForm
    """The form of its errors."""
    error: type
    """Type of the message that `form` returns."""


def exchange(service: Service, name: str, dialect: Dialect, asked: Endpoint) -> Callable[..., Any]:
    """Return Starlette's endpoint of a dialect's. name: its path, for the log and for metrics."""
    refusal = partial(error_response, form=dialect.form)
    decoder = msgspec.json.Decoder(asked.request) if asked.request is not None else None

    async def endpoint(request: Request) -> Response | LargeResponse:
        call = Call(service, request)
        reason = ""
        try:
            if asked.protected and not service.keys.allow(request.headers.get("authorization", "")):
                raise Refused(401, "key", "give a valid key: Authorization: Bearer KEY")
            with service.buffer() as call.reserve:
                message = await _read(call, decoder) if decoder is not None else None
                result = await asked.handler(call, message)
                if not isinstance(result, Response):
                    size = max(call.size, call.facts.get("texts", 0))
                    result = await service.offload(size, json_response, result, call.status, call.headers)
                response = result
        except Refused as refused:
            reason, response = refused.reason, refusal(refused)
        except UserError as error:  # an input that does not fit; its message may quote a text, so it is not logged
            reason, response = "input", refusal(Refused(422, "input", str(error)))
        except asyncio.CancelledError:  # the server stops, and the time to drain is over
            reason = "draining"
            response = refusal(try_later(503, reason, "the server has stopped", 1))
        except (ClientGone, ClientDisconnect):
            reason, response = "client_gone", Response(status_code=CLIENT_GONE)
        except Exception as error:
            reason, response = "bug", refusal(Refused(500, "bug", BUG))
            service.log.event("bug", "error", id=call.id, error=type(error).__qualname__, where=places(error)[-8:])
        complete(call, name, response, reason)
        return response if len(response.body) < LARGE else LargeResponse(response, service)

    return endpoint


@dataclass
class LargeResponse:
    """A response whose bytes count as memory of the server until the client has read most of them.

    While clients do not read, the server refuses new requests, with status 429.
    """

    response: Response
    service: Service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the response, as an ASGI application."""
        start = {"status": self.response.status_code, "headers": self.response.raw_headers}
        body = self.response.body
        self.service.buffered += len(body)
        try:
            await send({"type": "http.response.start", **start})
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})  # waits until the connection has room
        finally:
            self.service.buffered -= len(body)


def json_response(message: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a message as a response."""
    return Response(_encode(message), status, headers, "application/json")


def error_response(refused: Refused, form: ErrorForm) -> Response:
    """Return a refusal as a response."""
    refused.param = refused.param and shorten(refused.param, MAX_PARAM)
    refused.message = shorten(refused.message, MAX_MESSAGE)
    message = form(refused)
    response = json_response(message, refused.status)
    if refused.retry_after is not None:
        response.headers["retry-after"] = str(refused.retry_after)
    if refused.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def _read(call: Call, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Read and decode the body. Raises Refused."""
    content_type = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":  # other types could come from any web page, without CORS
        raise Refused(415, "content_type", "send JSON, with the header Content-Type: application/json")
    if call.request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "content_encoding", "the body is compressed: send it without Content-Encoding")
    try:
        async with asyncio.timeout(call.service.limits.read_timeout):
            body = await _read_body(call)
    except TimeoutError:
        seconds = call.service.limits.read_timeout
        raise Refused(
            408, "slow_body", f"the body did not arrive within {seconds:g} s: send it again, faster"
        ) from None
    call.received = time.monotonic()
    # A body can hold a million lists, and the garbage collector would look at all of them again and again.
    gc.disable()
    try:
        return _decode(decoder, body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        half = " (perhaps half a surrogate pair)" if b"\\ud" in body.lower() else ""
        raise Refused(400, "json", f"the body is not valid JSON: {error}{half}") from None
    finally:
        gc.enable()


def invalid(error: msgspec.ValidationError) -> Refused:
    """Return the refusal of a message that does not fit its type."""
    message, _, path = str(error).partition(" - at `$")
    # Without a path, the message quotes the field: "Object missing required field `input`".
    field = path.rstrip("`").lstrip(".") or (message.split("`")[-2] if "field `" in message else "")
    message = "unknown field" if message.startswith("Object contains unknown") else message
    remedy = "; /openapi.json lists the values" if message.startswith("Invalid enum value") else ""
    return Refused(422, "validation", f"{field}: {message}{remedy}" if field else message, field or None)


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Decode a message. A field that may be omitted may be null, too: many clients send all fields."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if not NULL_FIELD.search(str(error)):
            raise
        optional = {field.encode_name for field in msgspec.structs.fields(decoder.type) if not field.required}
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        kept = {name: value for name, value in fields.items() if name not in optional or bytes(value) != b"null"}
        return decoder.decode(_encode(kept))


async def _read_body(call: Call) -> bytes:
    limit, size = call.service.limits.max_bytes, int(call.request.headers.get("content-length", "0"))
    body, more = bytearray(), True
    while more and size <= limit:
        message = await call.request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part, more = message.get("body", b""), message.get("more_body", False)
        call.reserve(len(part))
        body += part
        size = len(body)
    if size > limit:
        raise too_large("bytes in the body", size, limit, "split the request", "--max-bytes")
    return bytes(body)


def complete(call: Call, name: str, response: Response, reason: str) -> None:
    """Add headers, count and log."""
    seconds = time.monotonic() - call.started
    response.headers["x-request-id"] = call.id
    timing = {**call.stages, "total": seconds}
    response.headers["server-timing"] = ", ".join(f"{stage};dur={1000 * spent:.3f}" for stage, spent in timing.items())
    service, status = call.service, response.status_code
    service.metrics.request(name, status, seconds, call.stages, reason)
    if service.log.requests and call.facts.pop("logged", True):
        stages = {f"{stage}_ms": round(1000 * duration, 3) for stage, duration in call.stages.items()}
        client = call.request.client
        facts = {"id": call.id, "client": client.host if client else None, "method": call.request.method}
        facts |= {"path": name, "status": status, **call.facts, **({"reason": reason} if reason else {})}
        facts |= {**stages, "total_ms": round(1000 * seconds, 3)}
        service.log.event("request", "error" if status == 500 else "info", **facts)
