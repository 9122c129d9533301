"""What a request may say of vectors and scores besides the texts: widths, kinds of input, how documents were scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.predict.predictor import Predictor
from bertie.serve.service import Service
from bertie.serve.vectors import shorter_widths
from bertie.tasks import Classify

from .conftest import Server, close, serving, unit

TEXTS = ["kopa", "ban the kopa", ""]
PROMPTS = {"query": "the ", "passage": "ban ", "clustering": "kopa "}


@pytest.fixture(scope="module")
def models(predictors: dict[str, Predictor]) -> dict[str, Predictor]:
    trained = Classify(labels=("LABEL_0", "LABEL_1"))
    classifier = replace(predictors["classifier"], task=trained)
    return {
        "plain": predictors["mlm"],
        "prompts": replace(predictors["mlm"], text_embedding=SentenceEmbedding(prompts=PROMPTS, similarity="dot")),
        "classifier": classifier,
        "sentiment": replace(classifier, task=replace(trained, labels=("negative", "positive"))),
        "cross-encoder": predictors["cross-encoder"],
    }


@pytest.fixture(scope="module")
def served(make_service: Callable[..., Service], models: dict[str, Predictor]) -> Iterator[Server]:
    with serving(make_service(others=models, widths=(8, 24))) as server:
        yield server


def test_shorter_vectors_have_length_1(served: Server, models: dict[str, Predictor]) -> None:
    whole = models["plain"].embed(TEXTS)
    for width in (8, 24, 32, None):
        answer = served.post("/v1/embeddings", {"input": TEXTS, "model": "plain", "dimensions": width})
        found = np.array([each["embedding"] for each in answer.json["data"]])
        close(found, whole if width in (32, None) else unit(whole[:, :width]))
    answer = served.post("/v1/embeddings", {"input": TEXTS, "model": "plain", "dimensions": 16})
    assert (answer.status, "give 8, 24 or 32" in answer.error["message"]) == (422, True)


def test_config_json_or_the_operator_names_widths(predictors: dict[str, Predictor], tmp_path: Path) -> None:
    model = replace(predictors["mlm"], folder=tmp_path)
    for values, widths in (
        ({}, []),
        ({"matryoshka_dimensions": [16, 8, 32, 99]}, [16, 8]),
        ({"is_matryoshka": True}, list(range(1, 32))),
        ({"is_matryoshka": True, "matryoshka_dimensions": [16]}, [16]),
    ):
        (tmp_path / "config.json").write_text(json.dumps(values))
        assert list(shorter_widths(model)) == widths
        assert shorter_widths(model, (4,)) == (4,)
    (tmp_path / "config.json").write_text('{"matryoshka_dimensions": ["8"]}')
    with pytest.raises(UserError, match="expected a list of widths"):
        shorter_widths(model)
    with pytest.raises(UsageError, match=r"--dimensions 32: the vectors of .* have width 32: give 1 to 31"):
        shorter_widths(model, (8, 32))


def test_the_kind_of_input_chooses_the_prompt(served: Server, models: dict[str, Predictor]) -> None:
    for kind, prompt in (
        ("query", "query"),
        ("search_query", "query"),
        ("document", "passage"),
        ("search_document", "passage"),
        ("clustering", "clustering"),
        (None, None),
    ):
        answer = served.post("/v1/embeddings", {"input": TEXTS, "model": "prompts", "input_type": kind})
        found = [each["embedding"] for each in answer.json["data"]]
        close(found, models["prompts"].embed(TEXTS, prompt_name=prompt))
    plain = served.post("/v1/embeddings", {"input": TEXTS, "model": "plain"}).json["data"]
    for kind in ("query", "search_document", "classification"):
        message = {"input": TEXTS, "model": "plain", "input_type": kind}
        assert served.post("/v1/embeddings", message).json["data"] == plain
    for given in (
        {"model": "prompts", "input_type": "classification"},
        {"model": "plain", "input_type": "image"},
        {"model": "prompts", "input_type": "query", "prompt_name": "query"},
        {"model": "plain", "input_type": "query", "input": [5]},
    ):
        answer = served.post("/v1/embeddings", {"input": "a", **given})
        assert (answer.status, answer.error["param"]) == (422, "input_type")


def test_reranking_says_how_it_scored(served: Server, models: dict[str, Predictor]) -> None:
    for name, method, label in (
        ("plain", "cosine", ""),
        ("prompts", "dot", ""),
        ("cross-encoder", "cross-encoder", ""),
        ("classifier", "cross-encoder", ""),
        ("sentiment", "cosine", ""),
        ("sentiment", "cross-encoder", "positive"),
    ):
        given = {"query": "kopa", "documents": TEXTS, "model": name, "label": label}
        answer = served.post("/v1/rerank", given)
        assert answer.json["method"] == method
        scores = {each["index"]: each["relevance_score"] for each in answer.json["results"]}
        close([scores[i] for i in range(3)], models[name].rerank("kopa", TEXTS, label=label), 1e-4)
