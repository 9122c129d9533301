"""The settings of the server, and the error that a refused request gets. The command line reads it without the extra `serve`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from random import randrange
from typing import Annotated, Literal

from bertie.base.config import Positive, Range, check_ranges
from bertie.base.errors import UsageError, UserError

_Seconds = Annotated[float, Range(0, 86_400)]
_SomeSeconds = Annotated[float, Range(0, 86_400, above=True)]
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "not_found_error",
    "overloaded_error",
    "timeout_error",
    "server_error",
]


@dataclass(frozen=True)
class Limits:
    """The limits of one request, and of the waiting work. A request beyond a limit is refused, never slowed down."""

    max_bytes: Positive = 16 * 2**20
    """Maximum number of bytes in the body of a request (else status 413)."""
    max_items: Positive = 2048
    """Maximum number of texts in a request (else 413)."""
    max_characters: Positive = 4_000_000
    """Maximum number of characters in all texts of a request (else 413)."""
    max_text_characters: Positive = 100_000
    """Maximum number of characters in one text (else 413). Limits the time for tokenizing it."""
    queue_tokens: Positive = 1_048_576
    """Maximum number of tokens that wait or are computed for one model. A request that does not fit gets status 429,
    and so does one that would be computed only after half of `timeout`, unless nothing waits. One with more tokens gets
    413."""
    buffer_bytes: Positive = 256 * 2**20
    """Maximum number of bytes in the bodies of all requests that have no answer yet, in the attention and cosines that
    they ask for, and in large answers that clients have not read yet (else 429, or 413 if one request alone needs
    more)."""
    batch_tokens: Annotated[int, Range(0, 1_048_576)] = 0
    """Tokens in a batch. 0: 4,096 on a CPU, where larger batches are hardly faster and delay others; 16,384 on a GPU."""
    max_wait_ms: _Seconds = 0.0
    """How long a batch that is not full waits for more sequences. 0: never, because packed batches need not be full."""
    timeout: _SomeSeconds = 30.0
    """Seconds until a request without an answer gets status 504, and its sequences leave the queue. The client then has the
    same time to take an answer. A request whose tokens alone would take more than four fifths of it, by prediction, gets
    413 before any work."""
    latency_target: _Seconds = 0.0
    """Seconds in which an admitted request should be answered. One that would take longer, by the predicted time of what
    waits and of its own tokens, gets status 429. One that takes longer even alone is computed only if the server is idle, after
    all others. 0: requests wait up to half of `timeout`, which gives the highest throughput."""
    read_timeout: _SomeSeconds = 10.0
    """Seconds in which a client must send the header of a request, then the body."""
    hang_timeout: _SomeSeconds = 60.0
    """Seconds after which a batch that is still being computed counts as hanging: /livez and /readyz fail."""
    max_connections: Annotated[int, Range(1, 100_000)] = 1024
    """Maximum number of open connections (else 503)."""
    drain_timeout: _Seconds = 30.0
    """Seconds after SIGTERM in which admitted requests are completed."""
    drain_delay: _Seconds = 0.0
    """Seconds after SIGTERM in which requests are still accepted, while /readyz fails: time for a load balancer to notice."""

    def __post_init__(self) -> None:
        check_ranges("", self)
        if self.latency_target >= self.timeout:
            problem = f"a request times out after {self.timeout:g} s"
            raise UsageError(f"--latency-target {self.latency_target:g}: {problem}: give less, or raise --timeout")


class Refused(Exception):  # noqa: N818 - not every refusal is an error of the server
    """A request that gets an error response.

    Args:
        status: HTTP status.
        message: What is wrong, where, and what to do.
        param: The field that is wrong, such as "input[3]".
        retry_after: Seconds after which the client may try again.
        reason: A word for metrics and logs.
    """

    def __init__(
        self, status: int, reason: str, message: str, param: str | None = None, retry_after: int | None = None
    ):
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.param, self.retry_after = param, retry_after

    @property
    def type(self) -> ErrorType:
        """The type of the error, with the names of OpenAI's API where it has one."""
        types: dict[int, ErrorType] = {
            **{401: "authentication_error", 404: "not_found_error", 500: "server_error"},
            **dict.fromkeys((408, 504), "timeout_error"),
            **dict.fromkeys((429, 503), "overloaded_error"),
        }
        return types.get(self.status, "invalid_request_error")


def unfit(param: str, problem: str, reason: str = "validation") -> Refused:
    """Return the refusal of a field, such as "input[3]"."""
    return Refused(422, reason, f"{param}: {problem}", param)


@contextmanager
def refusing(param: str) -> Iterator[None]:
    """Raise Refused in place of a UserError: a field does not fit."""
    try:
        yield
    except UserError as error:
        raise Refused(422, "input", str(error), param) from None


def try_later(status: int, reason: str, problem: str, seconds: float) -> Refused:
    """Return the refusal of a request that may be sent again after some seconds at the earliest.

    Clients that were refused together would return together, and be refused again. So each is told a random time, which is
    up to twice as long.
    """
    least = max(ceil(seconds), 1)
    wait = least + randrange(least + 1)
    return Refused(status, reason, f"{problem}: try again in {wait} s", retry_after=wait)


def too_large(what: str, size: int, limit: int, remedy: str, flag: str = "", param: str | None = None) -> Refused:
    """Return the refusal of a request that exceeds a limit.

    Args:
        what: "bytes in the body", "texts", …
        size: How many there are.
        limit: How many there may be.
        remedy: What the client can do, as a command.
        flag: The flag with which the operator sets the limit. Empty: there is none.
        param: The field.
    """
    operator = f" (its operator sets {flag})" if flag else ""
    message = f"{size:,} {what}, and this server accepts at most {limit:,}{operator}: {remedy}"
    return Refused(413, f"too_many_{what.split()[0]}", message, param)


DialectName = Literal["tei", "infinity", "vllm", "hf", "cohere", "ollama"]
"""The dialects beside bertie's own."""


@dataclass(frozen=True)
class Front:
    """The offers of the server besides its models, and the web pages that may use it."""

    origins: tuple[str, ...] = ()
    """The web pages that browsers let use it."""
    page: bool = True
    """Whether it has a page of its own."""
    dialect: DialectName | None = None
    """The dialect that has the paths without a base that several claim."""
    root_path: str = ""
    """Path under which a proxy serves the server, such as "/bert". Empty: none."""
