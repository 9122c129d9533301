"""Ranks and classes in all dialects: those of the model, in the scale of the dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from bertie.predict.predictor import Predictor
from bertie.serve.service import Service

from ..conftest import Server, activated, close, column, serving

TEXTS = ["kopa", "ban the kopa", ""]
RANKS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("/infinity/rerank", "documents", {"raw_scores": True, "top_n": None}, False),
    ("/infinity/rerank", "documents", {"return_documents": True}, True),
    ("/tei/models/NAME/rerank", "texts", {"raw_scores": True, "return_text": True}, False),
    ("/tei/models/NAME/rerank", "texts", {}, True),
    ("/vllm/rerank", "documents", {"return_documents": False, "user": "me", "request_id": "1", "top_n": 0}, False),
    *((f"/vllm/v{number}/rerank", "documents", {"return_documents": True}, False) for number in (1, 2)),
    ("/cohere/v1/rerank", "documents", {}, False),
    *((f"/cohere/v{number}/rerank", "documents", {"return_documents": True}, False) for number in (1, 2)),
]
CLASSES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("/infinity/classify", {"input": TEXTS}, {"raw_scores": True}),
    ("/tei/models/NAME/predict", {"inputs": [[text] for text in TEXTS]}, {"raw_scores": True}),
    ("/vllm/classify", {"input": TEXTS}, {"use_activation": False}),
    ("/vllm/pooling", {"input": TEXTS, "task": "classify"}, {"use_activation": False}),
]


def rows(server: Server, path: str, name: str, message: dict[str, Any]) -> list[Any]:
    """The results of a request to a model, which the path or the message names."""
    answer = server.post(path.replace("NAME", name), message if "NAME" in path else message | {"model": name})
    assert answer.status == 200, answer.body
    found = answer.json
    return found if isinstance(found, list) else found.get("results") or found["data"]


@pytest.mark.parametrize("name", ["mlm", "cross-encoder"])
@pytest.mark.parametrize(("path", "field", "more", "scaled"), RANKS)
def test_ranks(
    server: Server,
    predictors: dict[str, Predictor],
    path: str,
    field: str,
    more: dict[str, Any],
    scaled: bool,
    name: str,
) -> None:
    expected = predictors[name].rerank("ban", TEXTS)
    order = np.argsort(-expected, kind="stable").tolist()
    asked = {"query": "ban", field: TEXTS, **more}
    found = rows(server, path, name, asked)
    assert column(found, "index") == order
    scores = [row["score"] if field == "texts" else row["relevance_score"] for row in found]
    close(scores, (expit(expected) if scaled and name == "cross-encoder" else expected)[order], 1e-4)
    shown = [row.get("document", row.get("text")) for row in found]
    repeated = more.get("return_documents") or more.get("return_text")
    texts = [text["text"] if isinstance(text, dict) else text for text in shown]
    assert texts == ([TEXTS[i] for i in order] if repeated else [None] * 3)
    if field == "documents":
        assert rows(server, path, name, asked | {"top_n": 2}) == found[:2]


@pytest.mark.parametrize("name", ["classifier", "labels"])
@pytest.mark.parametrize(("path", "asked", "raw"), CLASSES)
def test_classes(
    server: Server, predictors: dict[str, Predictor], path: str, asked: dict[str, Any], raw: dict[str, Any], name: str
) -> None:
    expected = [each.probabilities for each in predictors[name].predict(TEXTS)]

    def scores(row: Any, labels: list[str]) -> dict[str, float]:
        if isinstance(row, dict):
            return dict(zip(labels, row.get("probs") or row["data"], strict=True))
        assert column(row, "score") == sorted(column(row, "score"), reverse=True)
        return {each["label"]: each["score"] for each in row}

    found, outputs = rows(server, path, name, asked), rows(server, path, name, asked | raw)
    for row, before, wanted in zip(found, outputs, expected, strict=True):
        assert scores(row, list(wanted)) == pytest.approx(wanted, abs=1e-5)
        output = scores(before, list(wanted))
        close(activated(np.array([output[label] for label in wanted]), name), list(wanted.values()))
        if path == "/vllm/classify":
            assert (row["label"], row["num_classes"]) == (max(wanted, key=wanted.__getitem__), len(wanted))


@pytest.mark.parametrize(
    ("path", "asked", "raw"),
    [
        ("/tei/rerank", {"query": "ban", "texts": TEXTS}, {"raw_scores": True}),
        ("/vllm/score", {"text_1": "ban", "text_2": TEXTS, "use_activation": True}, {"use_activation": False}),
        ("/vllm/score", {"text_1": "ban", "text_2": TEXTS}, {"use_activation": False}),
    ],
)
def test_the_activation_of_a_reranker_may_be_left_out(
    make_service: Callable[..., Service], predictors: dict[str, Predictor], path: str, asked: Any, raw: dict[str, Any]
) -> None:
    plain = predictors["cross-encoder"]
    model = replace(plain, task=replace(plain.task, activation="sigmoid"))  # type: ignore[type-var]
    with serving(make_service(others={"it": model})) as server:
        for message, expected in ((asked, model), (asked | raw, plain)):
            answer = server.post(path, message).json
            found = sorted(answer if isinstance(answer, list) else answer["data"], key=itemgetter("index"))
            close(column(found, "score"), expected.rerank("ban", TEXTS))
