"""The errors of infinity and vLLM: OpenAI's, with the status as their code."""

from __future__ import annotations

from msgspec import Struct

from bertie.serve.limits import ErrorType, Refused


class CodedError(Struct):
    """Why a request was refused."""

    message: str
    type: ErrorType
    param: str | None
    """The field that is wrong."""
    code: int
    """The status."""


class CodedErrorResponse(Struct):
    """The response to a request that was refused."""

    error: CodedError


def coded_form(refused: Refused) -> CodedErrorResponse:
    """Return the message of an error."""
    return CodedErrorResponse(CodedError(refused.message, refused.type, refused.param, refused.status))
