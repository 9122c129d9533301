"""The ASGI application: every path with its endpoint, the errors of paths that do not exist, and CORS."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bertie.serve.dialects import claimants, routes
from bertie.serve.dialects.v1 import V1
from bertie.serve.exchange import OTHER, Call, Endpoint, complete, error_response, exchange, json_response
from bertie.serve.limits import Front, Refused
from bertie.serve.openapi import openapi
from bertie.serve.page import page_endpoints
from bertie.serve.service import Service
from bertie.serve.vectors import VOCABULARY

EXPOSED = ("X-Request-Id", "Retry-After", "Server-Timing", VOCABULARY)
"""Headers of answers that scripts of other pages may read, besides those that they always may."""


def build_app(service: Service, front: Front) -> ASGIApp:
    """Return the ASGI application."""
    tasks = [model.task for model in service.models.values() if model.task is not None]
    description = openapi(front.dialect, front.root_path, tasks)

    async def describe(_: Any, __: None) -> Response:
        return json_response(description)

    describing = Endpoint("GET", "/openapi.json", describe, "This description", protected=False)
    further = [describing, *(page_endpoints(bool(service.keys.digests)) if front.page else ())]
    served = [*routes(front.dialect), *((endpoint.path, V1, endpoint) for endpoint in further)]
    app_routes = [
        Route(path, exchange(service, path.replace(":path", ""), dialect, endpoint), methods=[endpoint.method])
        for path, dialect, endpoint in served
    ]

    async def http_error(request: Request, error: Any) -> Response:
        fit = [route for route in app_routes if route.matches(request.scope)[0] != Match.NONE]
        if error.status_code == 405:  # Starlette names the methods of the first route alone
            error.headers = {"Allow": ", ".join(sorted({method for route in fit for method in route.methods or ()}))}
        response = _http_error(request.method, request.url.path, error)
        complete(Call(service, request), OTHER, response, "route")
        return response

    app = Starlette(routes=app_routes, exception_handlers={HTTPException: http_error})
    app.router.redirect_slashes = False  # a redirect would name the host that the client names
    served_app = _without_last_slash(app)
    if front.root_path:
        served_app = _below(served_app, front.root_path)
    if not front.origins:
        return served_app
    # Browsers let the pages of these origins use it. Such a page may send any header: clients send their own, such as
    # X-Stainless-OS, and the server ignores what it does not know. Cookies are never read.
    allowed = front.origins, ("GET", "POST"), ("*",)
    return CORSMiddleware(served_app, *allowed, expose_headers=EXPOSED, allow_private_network=True)


def _below(app: ASGIApp, root: str) -> ASGIApp:
    """Return the application for a proxy that has it below a path, whether or not the proxy leaves the path out."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == root and scope["method"] == "GET":  # the page has relative links
            await Response(status_code=307, headers={"Location": f"{root}/"})(scope, receive, send)
            return
        await app({**scope, "path": path.removeprefix(root)} if path.startswith(f"{root}/") else scope, receive, send)

    return call


def _without_last_slash(app: ASGIApp) -> ASGIApp:
    """Return the application for paths with a slash at their end, too: clients join base URLs and paths in many ways."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.endswith("/") and path != "/":
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await app(scope, receive, send)

    return call


def _http_error(method: str, path: str, error: HTTPException) -> Response:
    """Return the error of a path or method that does not exist, in the format of the path's dialect."""
    headers, status = error.headers or {}, error.status_code
    message = "no such path: /openapi.json lists them"
    if names := [f"{dialect.base}{path} (--dialect {dialect.name})" for dialect in claimants(method, path)]:
        message = f"several dialects have this path: use {' or '.join(names)}"
        headers, status = {}, 404  # the page may have the path with another method
    elif status == 405:
        message = f"no such method on this path: use {headers.get('Allow', '').replace(', ', ' or ')}"
    form = next(
        (dialect.form for _, dialect, _ in routes() if dialect.base and f"{path}/".startswith(f"{dialect.base}/")),
        V1.form,
    )
    response = error_response(Refused(status, "route", message), form)
    for name, value in headers.items():
        response.headers[name] = value
    return response
