"""The OpenAPI description: schemathesis invents requests from it, and the server must answer as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from bertie.serve.dialects import DIALECTS, routes
from bertie.serve.openapi import openapi

from .conftest import Server

# Each endpoint once. Those whose requests name no model are called below the base with the model.
PATHS = {f"{dialect.base}{each.path}".replace(":path", "") for _, dialect, each in routes() if dialect.base}
NAMED = {path for path in PATHS if "{model}" in path}
OPERATIONS = [
    (f"{dialect.base}{each.path}".replace(":path", "").rstrip("/"), each.method)
    for dialect in DIALECTS
    for each in dialect.endpoints
    if not dialect.base or f"{dialect.base}/models/{{model}}{each.path}".rstrip("/") not in NAMED
]
CLASSIFY = ("/v1/predict", "/tei/models/{model}/predict", "/infinity/classify", "/vllm/classify")
MODELS: dict[str, str] = dict.fromkeys(CLASSIFY, "classifier")
UNNAMED = NAMED | {path for path, _ in OPERATIONS if path.startswith("/hf")}
"""Paths of messages that name no model: their path does, or the server has one model."""
RARELY_ACCEPTED = {"images", "max_tokens", "output_dimension"}
"""Fields of which few values are accepted, so that requests with them would all be refused."""
RARELY_RIGHT = (
    *("/v1/models/{model}", "/v1/fill-mask", "/v1/search", "/tei/models/{model}", "/hf", "/vllm/score"),
    "/vllm/v1/score",
)
quick = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
load_all_checks()


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.fixture(autouse=True)
def _nothing_is_left(server: Server) -> Iterator[None]:
    yield
    assert server.service.buffered == 0
    assert {model.share.tokens for model in server.service.models.values()} == {0}


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_valid_requests_are_answered_as_described(path: str, method: str, schema: Any) -> None:
    """422 is for what no schema can say: a text without a mask, two texts where the model expects one, one of two fields that
    belong together, a field for another kind of model. 413: as the limits."""
    operation = schema[path][method]
    statuses: set[int] = set()

    @quick
    @given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def check(case: Case) -> None:
        name = MODELS.get(path, "mlm")
        if "model" in case.path_parameters:
            case.path_parameters["model"] = name
        if "task" in case.path_parameters:
            case.path_parameters["task"] = f"feature-extraction/{name}"
        if isinstance(case.body, dict) and path not in UNNAMED:
            case.body["model"] = name
            case.body |= dict.fromkeys(RARELY_ACCEPTED & case.body.keys())
        response = case.call()
        statuses.add(response.status_code)
        case.validate_response(response, excluded_checks=[positive_data_acceptance])

    check()
    assert statuses <= {200, 422} | ({404} if method == "GET" else set()) | ({413} if "attention" in path else set())
    assert 200 in statuses or path in RARELY_RIGHT


@pytest.mark.parametrize(("path", "method"), [each for each in OPERATIONS if each[1] == "POST"])
def test_invalid_requests_are_refused_as_described(path: str, method: str, schema: Any) -> None:
    @quick
    @given(schema[path][method].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def check(case: Case) -> None:
        response = case.call()
        assert 400 <= response.status_code < 500
        case.validate_response(response)

    check()


def test_the_description_names_all_errors() -> None:
    described = json.loads(json.dumps(openapi()))
    statuses = described["paths"]["/v1/embeddings"]["post"]["responses"].keys()
    assert statuses == {"200", "400", "401", "404", "405", "408", "413", "415", "422", "429", "500", "503", "504"}
