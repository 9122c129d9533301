"""The dialect of text-embeddings-inference: its paths, fields, defaults and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.heads.vector_modules import Normalize
from bertie.predict.predictor import Predictor
from bertie.serve.limits import Front
from bertie.serve.service import Service
from bertie.serve.vectors import VOCABULARY

from ..conftest import Answer, Server, close, serving, unit

Predictors = dict[str, Predictor]
TEXTS = ["kopa", "ban the kopa", ""]
MLM = "/tei/models/mlm"
LONG = "b " * 99


def rows(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json


def test_vectors_are_those_of_the_model_with_length_1(server: Server, predictors: Predictors) -> None:
    expected = predictors["mlm"].embed(TEXTS)
    close(rows(server.post(f"{MLM}/embed", {"inputs": TEXTS})), unit(expected))
    one = rows(server.post(f"{MLM}/embed", {"inputs": "kopa", "normalize": False, "truncate": None}))
    close(one, expected[:1])
    short = rows(server.post(f"{MLM}/embed", {"inputs": TEXTS, "dimensions": 9}))
    close(short, unit(expected[:, :9]))


def test_the_default_prompt_of_a_model_is_not_used(
    make_service: Callable[..., Service], predictors: Predictors
) -> None:
    """In text-embeddings-inference, a request without a prompt's name has none."""
    how = SentenceEmbedding(modules=(Normalize(),), prompts={"query": "the ban "}, default_prompt="query")
    model = replace(predictors["mlm"], text_embedding=how)
    with serving(make_service(others={"it": model})) as server:
        for asked, prompt in (({}, ""), ({"prompt_name": "query"}, "the ban ")):
            found = rows(server.post("/tei/embed", {"inputs": TEXTS, **asked}))
            close(found, model.embed(TEXTS, prompt=prompt))
            inputs = {"source_sentence": "kopa", "sentences": TEXTS}
            found = rows(server.post("/tei/similarity", {"inputs": inputs, "parameters": asked}))
            expected = model.embed(["kopa"], prompt=prompt) @ model.embed(TEXTS, prompt=prompt).T
            close(found, expected[0], 1e-4)
            ids = [each["id"] for each in rows(server.post("/tei/tokenize", {"inputs": "kopa", **asked}))[0]]
            assert ids == model.text_sequences(["kopa"], prompt)[0].input_ids.tolist()
        for found, states in zip(
            rows(server.post("/tei/embed_all", {"inputs": TEXTS})), model.hidden_states(TEXTS), strict=True
        ):
            close(found, states[-1])  # no vector of a text: not normalized
        refused = server.post("/tei/embed", {"inputs": "a", "normalize": False})
        assert (refused.status, "normalize:" in refused.json["error"]) == (422, True)


def test_vectors_of_all_tokens(server: Server, predictors: Predictors) -> None:
    found = rows(server.post(f"{MLM}/embed_all", {"inputs": TEXTS}))
    for mine, states in zip(found, predictors["mlm"].hidden_states(TEXTS), strict=True):
        close(mine, states[-1])


def test_vectors_of_too_many_tokens_are_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.serve.vectors.MAX_NUMBERS", 32 * 7)
    assert server.post(f"{MLM}/embed_all", {"inputs": ["", "", ""]}).status == 200
    refused = server.post(f"{MLM}/embed_all", {"inputs": [""] * 4})
    assert (refused.status, "256 numbers in the vectors of all tokens" in refused.json["error"]) == (413, True)
    assert server.service.buffered == 0


def test_token_ids_need_the_vocabulary(server: Server, predictors: Predictors) -> None:
    tokens = server.post(f"{MLM}/tokenize", {"inputs": ["ban thekopa"]})
    ids = [each["id"] for each in rows(tokens)[0]]
    refused = server.post(f"{MLM}/embed", {"inputs": ids})
    assert (refused.status, VOCABULARY in refused.json["error"]) == (422, True)
    found = rows(server.post(f"{MLM}/embed", {"inputs": ids}, **{VOCABULARY: tokens.headers["x-vocabulary"]}))
    close(found, unit(predictors["mlm"].embed(["ban thekopa"])))


def test_tokens(server: Server, predictors: Predictors) -> None:
    tokenizer = predictors["mlm"].tokenizer
    [wanted] = tokenizer.encode_with_offsets(["ban thekopa"])
    [found] = rows(server.post(f"{MLM}/tokenize", {"inputs": "ban thekopa"}))
    assert found[0] == {"id": tokenizer.cls_id, "text": "[CLS]", "special": True, "start": None, "stop": None}
    inside = [
        {"id": i, "text": "ban thekopa"[start:stop], "special": False, "start": start, "stop": stop}
        for i, (start, stop) in zip(wanted.ids, wanted.offsets, strict=True)
    ]
    assert found[1:-1] == inside
    assert rows(server.post(f"{MLM}/tokenize", {"inputs": ["ban thekopa"], "add_special_tokens": False})) == [inside]


def test_a_pair_has_one_score(server: Server, predictors: Predictors) -> None:
    [number] = predictors["cross-encoder"].predict([("ban", "kopa")])
    path = "/tei/models/cross-encoder/predict"
    raw = rows(server.post(path, {"inputs": ["ban", "kopa"], "raw_scores": True}))
    assert raw == [{"label": "LABEL_0", "score": pytest.approx(number.score, abs=1e-5)}]
    [scaled] = rows(server.post(path, {"inputs": ["ban", "kopa"]}))
    assert scaled["score"] == pytest.approx(1 / (1 + np.exp(-number.score)), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "path", "message", "kind"),
    [
        ("mlm", "embed", {"inputs": TEXTS, "normalize": False}, "embedding"),
        ("classifier", "predict", {"inputs": [["kopa"], ["ban"]], "raw_scores": True}, "classifier"),
        ("cross-encoder", "rerank", {"query": "ban", "texts": TEXTS}, "reranker"),
        ("tagger", "embed", {"inputs": "kopa"}, "embedding"),
    ],
)
def test_the_base_does_what_the_kind_of_the_model_asks_for(
    name: str, path: str, message: dict[str, Any], kind: str, server: Server
) -> None:
    expected = rows(server.post(f"/tei/models/{name}/{path}", message))
    assert rows(server.post(f"/tei/models/{name}", message)) == expected
    assert rows(server.post(f"/tei/models/{name}/", message)) == expected
    info = rows(server.get(f"/tei/models/{name}/info"))
    assert list(info["model_type"]) == [kind]
    assert (info["model_id"], info["max_input_length"], info["model_dtype"]) == (name, 64, "float32")
    if name == "classifier":
        assert info["model_type"][kind]["id2label"] == {"0": "bad", "1": "good"}
        refused = server.post("/tei/models/classifier", {"inputs": "a", "normalize": True})
        assert (refused.status, "normalize:" in refused.json["error"]) == (422, True)


def test_one_model_needs_no_name(make_service: Callable[..., Service], predictors: Predictors) -> None:
    """The client of huggingface_hub, with /tei as its base URL."""
    with serving(make_service("mlm"), Front(dialect="tei")) as server:
        for base in (f"{server.url}/tei", f"{server.url}/tei/", server.url):
            client = huggingface_hub.InferenceClient(base)
            expected = unit(predictors["mlm"].embed(["kopa"]))
            close(client.feature_extraction("kopa"), expected)
        for path in ("/tei/embed", "/embed"):
            close(rows(server.post(path, {"inputs": "kopa"})), expected)
        assert server.get("/tei/info").json == server.get("/tei/models/mlm/info").json
        assert b"bertie_ready 1.0" in server.get("/tei/metrics").body


def test_too_long_texts_may_be_truncated(server: Server, predictors: Predictors) -> None:
    found = rows(server.post(f"{MLM}/embed", {"inputs": LONG, "truncate": True, "truncation_direction": "Right"}))
    close(found, unit(predictors["mlm"].embed([LONG])))
