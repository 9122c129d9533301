"""The page at `/`: try the models in a browser. It is a client of the API, and needs nothing else.

The files of `page_assets` are put together once, at the start: one page, one style sheet and one script. Texts of users and
names of models reach the page only as answers of the API, and the scripts show them as text.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from starlette.responses import Response

from bertie.serve.exchange import Call, Endpoint, Handler

STYLES = (
    *("base/report.css", "inspect/page_assets/drawing.css"),
    *(f"serve/page_assets/{name}.css" for name in ("page", "results")),
)
NAMES = ("request", "snippets", "widgets", "masks", "predictions", "vectors", "attention", "examples", "main")
SCRIPTS = (
    *("inspect/page_assets/1_draw.js", "inspect/page_assets/2_attention.js"),
    *(f"serve/page_assets/{name}.js" for name in NAMES),
)
HEADERS = {
    # Scripts, styles and requests: from this server alone. No script may turn a text into HTML.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # the browser keeps the file, and asks whether it has changed
}


def assets(needs_key: bool) -> dict[str, tuple[str, str]]:
    """Return the media type and the content of each file of the page, by its path.

    needs_key: whether requests need a key, so that the page asks for one.
    """
    return {
        "/": ("text/html", _read("serve/page_assets/page.html").replace("{needs_key}", str(needs_key).lower())),
        "/assets/page.css": ("text/css", "".join(map(_read, STYLES))),
        "/assets/page.js": ("text/javascript", "".join(map(_read, SCRIPTS))),
        "/assets/icon.svg": ("image/svg+xml", _read("serve/page_assets/icon.svg")),
    }


def page_endpoints(needs_key: bool) -> list[Endpoint]:
    """Return the endpoints of the page. They need no key: the page has no secrets."""
    return [Endpoint("GET", path, _handler(*file), "", protected=False) for path, file in assets(needs_key).items()]


def _handler(media_type: str, content: str) -> Handler:
    etag = (
        f'"{hashlib.sha256(content.encode()).hexdigest()[:32]}"'  # by it, a browser asks whether the file has changed
    )
    headers = {**HEADERS, "etag": etag}

    async def handle(call: Call, _: None) -> Response:
        if etag in call.request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return handle


def _read(path: str) -> str:
    return resources.files("bertie").joinpath(path).read_text("utf-8")
