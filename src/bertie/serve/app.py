"""The ASGI application: every path with its endpoint, the errors of paths that do not exist, and CORS."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bertie.serve.dialects import claimants, routes
from bertie.serve.dialects.v1 import V1
from bertie.serve.exchange import OTHER, Call, complete, error_response, exchange, json_response
from bertie.serve.front import Front
from bertie.serve.limits import Refused
from bertie.serve.openapi import openapi
from bertie.serve.page import page_routes
from bertie.serve.service import Service


def build_app(service: Service, front: Front) -> Starlette:
    """Return the ASGI application."""
    description = openapi(front.dialect)

    async def describe(call: Any, message: None) -> Response:  # noqa: ARG001
        return json_response(description)

    found = []
    for path, dialect, each in routes(front.dialect):
        endpoint = exchange(
            service, path.replace(":path", ""), each.request, each.handler, each.protected, dialect.form
        )
        found.append(Route(path, endpoint, methods=[each.method]))
    describing = exchange(service, "/openapi.json", None, describe, False, V1.form)
    found.append(Route("/openapi.json", describing, methods=["GET"]))
    found += page_routes(service) if front.page else []

    async def http_error(request: Request, error: Any) -> Response:
        response = _http_error(request.method, request.url.path, error)
        complete(Call(service, request), OTHER, response, "route")
        return response

    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(front.origins),
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
    )
    middleware = [cors] if front.origins else []
    app = Starlette(routes=found, middleware=middleware, exception_handlers={HTTPException: http_error})
    app.router.redirect_slashes = False  # a redirect would name the host that the client names
    return app


def _http_error(method: str, path: str, error: HTTPException) -> Response:
    """Return the error of a path or method that does not exist, in the format of the path's dialect."""
    headers, status = error.headers or {}, error.status_code
    message = "no such path: /openapi.json lists them"
    if names := [f"{each.base}{path} (--dialect {each.name})" for each in claimants(method, path)]:
        message = f"several dialects have this path: use {' or '.join(names)}"
        headers, status = {}, 404  # the page may have the path with another method
    elif status == 405:
        message = f"no such method on this path: use {headers.get('Allow', '').replace(', ', ' or ')}"
    form = next(
        (dialect.form for _, dialect, _ in routes() if dialect.base and path.startswith(f"{dialect.base}/")), V1.form
    )
    response = error_response(Refused(status, "route", message), form)
    for name, value in headers.items():
        response.headers[name] = value
    return response
