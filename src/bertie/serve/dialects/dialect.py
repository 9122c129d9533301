"""What several dialects have: probes."""

from __future__ import annotations

from starlette.responses import Response

from bertie.serve.exchange import Call, Endpoint
from bertie.serve.limits import Refused


def require_ready(call: Call) -> None:
    """Check, for a probe, whether this process takes requests. Raises Refused with status 503."""
    call.facts["logged"] = False  # probes come every few seconds
    if problems := call.service.ready_problems():
        raise Refused(503, "unhealthy", "; ".join(problems))


async def health(call: Call, _: None) -> Response:
    """Tell whether to send requests to this process."""
    require_ready(call)
    return Response(b"", media_type="text/plain")


HEALTH = Endpoint("GET", "/health", health, "Health", None, protected=False, statuses=(503,))
"""The probe of services whose answer is empty."""
