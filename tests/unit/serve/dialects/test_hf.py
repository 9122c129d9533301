"""The dialect of Hugging Face's inference API: answers are those of the model, by huggingface_hub's client and by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from huggingface_hub import InferenceClient

from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.heads.vector_modules import Normalize
from bertie.predict.predictor import Predictor
from bertie.serve.limits import Front
from bertie.serve.operations import serve_model
from bertie.serve.service import Service

from ..conftest import Server, serving

Predictors = dict[str, Predictor]
TEXTS = ["kopa", "ban the kopa", ""]
CONTEXT = "the ban of the kopa, and the " * 20


def client(server: Server, model: str) -> InferenceClient:
    return InferenceClient(model=f"{server.url}/hf/models/{model}", token="none")


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_features_and_similarities_of_the_client(server: Server, predictors: Predictors) -> None:
    hub, model = client(server, "mlm"), predictors["mlm"]
    np.testing.assert_allclose(hub.feature_extraction(TEXTS), model.embed(TEXTS), atol=1e-5)
    np.testing.assert_allclose(hub.feature_extraction("kopa"), model.embed(["kopa"]), atol=1e-5)
    found = hub.feature_extraction(TEXTS, normalize=True, truncate=True, truncation_direction="right", dimensions=32)
    np.testing.assert_allclose(found, unit(model.embed(TEXTS)), atol=1e-5)
    found = hub.sentence_similarity("kopa", TEXTS)
    np.testing.assert_allclose(found, model.similarity(["kopa"], TEXTS)[0], atol=1e-4)
    assert InferenceClient(f"{server.url}/hf", provider="hf-inference", token="none").health_check()


def test_features_obey_the_files_of_the_model(make_service: Callable[..., Service], predictors: Predictors) -> None:
    how = SentenceEmbedding(modules=(Normalize(),), prompts={"query": "ban the "})
    model = replace(predictors["mlm"], text_embedding=how)
    service = replace(make_service("mlm"), models={"it": serve_model("it", model, 10_000, (8,))})
    with serving(service, Front(dialect="hf")) as server:
        for base in ("", "/hf", "/hf/"):
            hub = InferenceClient(model=server.url + base, token="none")
            np.testing.assert_allclose(
                hub.feature_extraction(TEXTS, prompt_name="query"), model.embed(TEXTS, prompt_name="query"), atol=1e-5
            )
        np.testing.assert_allclose(
            hub.feature_extraction(TEXTS, dimensions=8), unit(model.embed(TEXTS)[:, :8]), atol=1e-5
        )
        refused = server.post("/hf/models/it/", {"inputs": "a", "normalize": False})
        assert refused.json["error"].startswith("normalize: the files of it normalize its vectors")
        refused = server.post("/hf/", {"inputs": "a", "prompt_name": "title"})
        assert "there is no prompt 'title'" in refused.json["error"]


@pytest.mark.parametrize("normalize", [None, False, True])
def test_shorter_features_have_length_1_unless_the_request_says_no(
    make_service: Callable[..., Service], predictors: Predictors, normalize: bool | None
) -> None:
    model = predictors["mlm"]
    service = replace(make_service("mlm"), models={"it": serve_model("it", model, 10_000, (8,))})
    with serving(service) as server:
        found = server.post("/hf", {"inputs": TEXTS, "dimensions": 8, "normalize": normalize}).json
        first = model.embed(TEXTS)[:, :8]
        np.testing.assert_allclose(found, first if normalize is False else unit(first), atol=1e-5)


def test_classes_of_the_client(server: Server, predictors: Predictors) -> None:
    for name, function in (("classifier", "softmax"), ("labels", "sigmoid")):
        [wanted] = predictors[name].predict(["ban the kopa"])
        expected = sorted(wanted.probabilities.items(), key=lambda each: -each[1])
        for top_k in (None, 1, 2):
            found = client(server, name).text_classification(
                "ban the kopa", top_k=top_k, function_to_apply=cast(Any, function)
            )
            assert [each.label for each in found] == [label for label, _ in expected[:top_k]]
            np.testing.assert_allclose(
                [each.score for each in found], [score for _, score in expected[:top_k]], atol=1e-5
            )
    pairs = {"inputs": [{"text": "ban", "text_pair": "kopa"}, {"text": "the", "text_pair": "kopa"}]}
    found = server.post("/hf/models/cross-encoder", pairs).json
    wanted = [each.score for each in predictors["cross-encoder"].predict([("ban", "kopa"), ("the", "kopa")])]
    assert [[each["label"] for each in text] for text in found] == [["LABEL_0"], ["LABEL_0"]]
    np.testing.assert_allclose([text[0]["score"] for text in found], wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["classifier", "labels", "cross-encoder"])
def test_scores_after_another_function(name: str, server: Server) -> None:
    def scores(function: str | None) -> dict[str, float]:
        inputs = {"text": "ban", "text_pair": "kopa"} if name == "cross-encoder" else "ban the kopa"
        message = {"inputs": [inputs], "parameters": {"function_to_apply": function}}
        [found] = server.post(f"/hf/models/{name}", message).json
        assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
        return {each["label"]: each["score"] for each in found}

    raw = scores("none")
    outputs = np.array(list(raw.values()))
    expected = {
        "none": outputs,
        "sigmoid": 1 / (1 + np.exp(-outputs)),
        "softmax": np.exp(outputs) / np.exp(outputs).sum(),
    }
    for function, wanted in expected.items():
        assert scores(function) == pytest.approx(dict(zip(raw, wanted.tolist(), strict=True)), abs=1e-5)
    trained = {"classifier": "softmax", "labels": "sigmoid", "cross-encoder": "none"}[name]
    assert scores(trained) == pytest.approx(scores(None), abs=1e-5)


@pytest.mark.parametrize("strategy", [None, "none", "simple", "first", "average", "max"])
def test_tags_of_the_client(server: Server, predictors: Predictors, small_texts: list[str], strategy: Any) -> None:
    text = " ".join(small_texts[:10])
    found = client(server, "tagger").token_classification(text, aggregation_strategy=strategy)
    [wanted] = predictors["tagger"].predict([text], aggregation_strategy=strategy or "simple")
    assert wanted.entities
    kind = "entity" if strategy == "none" else "entity_group"
    assert [(each[kind], each.word, each.start, each.end) for each in found] == [
        (each.label, each.text, each.start, each.end) for each in wanted.entities
    ]
    np.testing.assert_allclose([each.score for each in found], [each.score for each in wanted.entities], atol=1e-5)


def test_settings_of_tags(server: Server, predictors: Predictors, small_texts: list[str]) -> None:
    text = " ".join(small_texts[:10])
    asked = {"ignore_labels": ["O", "X"], "aggregation_strategy": "first"}
    assert server.post("/hf/models/tagger", {"inputs": text, "parameters": asked}).json == []
    task = replace(cast(Any, predictors["tagger"].task), truncation="windows", doc_stride=62 - 46)
    [wanted] = replace(predictors["tagger"], task=task).predict([text])
    found = client(server, "tagger").token_classification(text, stride=46, aggregation_strategy="first")
    assert len(found) == len(wanted.entities) > 0
    np.testing.assert_allclose([each.score for each in found], [each.score for each in wanted.entities], atol=1e-5)


def test_masks_of_the_client(server: Server, predictors: Predictors) -> None:
    hub, model = client(server, "mlm"), predictors["mlm"]
    text = "ban [MASK] kopa"
    found, [wanted] = hub.fill_mask(text, top_k=7), model.fill_mask(text, 7)
    assert [model.tokenizer.vocabulary[each.token] for each in found] == [each.token for each in wanted]
    np.testing.assert_allclose([each.score for each in found], [each.probability for each in wanted], atol=1e-5)
    assert all(each.token_str == each_.token for each, each_ in zip(found, wanted, strict=True))
    assert {each.sequence for each in found if not each.token_str.startswith("##")} <= {
        f"ban {each.token} kopa" for each in wanted
    }
    every = {each.token: each.probability for each in model.fill_mask(text, model.tokenizer.size)[0]}
    entries = [token for token in every if token.isalpha()][-3:]
    found = hub.fill_mask(text, targets=[*entries, f"{entries[0]}{entries[1]}"], top_k=9)
    first = model.tokenizer.vocabulary[model.tokenizer.encode([f"{entries[0]}{entries[1]}"])[0][0]]
    chosen = {model.tokenizer.vocabulary[each.token]: each.score for each in found}
    assert chosen == pytest.approx({token: every[token] for token in {*entries, first}}, abs=1e-6)
    assert list(chosen.values()) == sorted(chosen.values(), reverse=True)
    several = server.post("/hf/models/mlm", {"inputs": [text, "[MASK] the [MASK]"]}).json
    assert [len(several[0]), [len(mask) for mask in several[1]]] == [5, [5, 5]]
    assert "[MASK]" in several[1][0][0]["sequence"]


def test_answers_of_the_client(server: Server, predictors: Predictors) -> None:
    hub, model = client(server, "span"), predictors["span"]
    question = "who is the ban"

    def expected(**changes: Any) -> list[tuple[str, int, int, float]]:
        [found] = replace(model, task=replace(cast(Any, model.task), **changes)).predict([(question, CONTEXT)])
        return [(each.text, each.start, each.end, each.probability) for each in found.guesses]

    def asked(**given: Any) -> list[tuple[str, int, int, float]]:
        found = hub.question_answering(question, CONTEXT, **given)
        return [
            (each.answer, each.start, each.end, each.score) for each in (found if isinstance(found, list) else [found])
        ]

    def same(found: Any, wanted: Any) -> None:
        assert [each[:3] for each in found] == [each[:3] for each in wanted]
        np.testing.assert_allclose([each[3] for each in found], [each[3] for each in wanted], atol=1e-5)

    same(asked(), expected()[:1])
    same(asked(top_k=3), expected()[:3])
    same(asked(top_k=25, max_answer_len=2), expected(n_best_size=25, max_answer_length=2))
    size = len(model.tokenizer.encode([question])[0])
    same(asked(doc_stride=20), expected(doc_stride=64 - 3 - size - 20)[:1])
    same(asked(max_question_len=1, max_seq_len=384), expected(max_query_length=1)[:1])
    same(asked(top_k=20, handle_impossible_answer=True), expected(threshold=0.0)[:20])
    same(asked(handle_impossible_answer=False, align_to_words=False), expected()[:1])
    [(text, start, end, _)] = asked(align_to_words=True)
    assert CONTEXT[start:end] == text
    assert not (CONTEXT[start - 1 : start] + text[0]).isalpha()
    assert not (text[-1] + CONTEXT[end : end + 1]).isalpha()


def test_tasks_are_named_in_the_path_or_follow_from_the_inputs(server: Server, predictors: Predictors) -> None:
    vectors = predictors["classifier"].embed(["kopa"]).tolist()
    same = {"source_sentence": "kopa", "sentences": ["kopa"]}
    for path, given, wanted in (
        ("/models/classifier/pipeline/feature-extraction", {"inputs": "kopa"}, vectors),
        ("/pipeline/feature-extraction/some/classifier", {"inputs": "kopa"}, vectors),
        ("/models/some/classifier", {"inputs": "kopa", "truncate": True}, vectors),
        ("/models/mlm/pipeline/sentence-similarity", {"inputs": same}, [1.0]),
        ("/models/mlm", {"inputs": same, "options": {"wait_for_model": True}, "parameters": None}, [1.0]),
    ):
        np.testing.assert_allclose(server.post(f"/hf{path}", given).json, wanted, atol=1e-5)


REFUSED = [
    ("mlm", {"inputs": "a", "parameters": {"stride": 1}}, 422, "stride: feature-extraction has no such parameter"),
    ("mlm", {"inputs": "a", "parameters": {"top_k": 3}}, 422, "there is no [MASK]"),
    ("mlm", {"inputs": "[MASK]", "parameters": {"top_k": 101}}, 422, "top_k: give at most 100"),
    ("mlm", {"inputs": "[MASK]", "parameters": {"targets": []}}, 422, "parameters.targets: there is no text"),
    ("mlm", {"inputs": "[MASK]", "parameters": {"targets": [" "]}}, 422, "parameters.targets[0]: it has no tokens"),
    ("mlm", {"inputs": "a", "encoding_format": "base64"}, 422, "encoding_format: Invalid enum value 'base64'"),
    ("mlm", {"inputs": "a", "truncation_direction": "left"}, 422, "truncation_direction: Invalid enum value 'left'"),
    ("mlm", {"inputs": "a", "truncate": True, "parameters": {"truncate": True}}, 422, "truncate: it is given twice"),
    ("mlm", {"inputs": []}, 422, "inputs: there is no text"),
    ("mlm", {"inputs": "a " * 99, "truncate": False}, 422, "inputs has 101 tokens"),
    ("mlm", {"inputs": "[MASK] " * 63}, 422, "inputs: the text has 63 tokens"),
    ("tagger", {"inputs": " "}, 422, "inputs: a sentence without words"),
    ("classifier", {"inputs": {"text": "a", "text_pair": "b"}}, 422, "inputs: found two texts, but"),
    ("mlm", {"inputs": {"words": "a"}}, 422, "give a text, texts, or an object with one of source_sentence"),
    ("mlm", {"inputs": {"source_sentence": "a", "sentences": ["a"], "x": "b"}}, 422, "inputs.x: unknown field"),
    ("mlm", {"inputs": {"question": "a", "context": "b"}}, 422, "lacks a task"),
    ("span", {"inputs": {"question": "a", "context": "b"}, "parameters": {"max_seq_len": 9}}, 422, "64 tokens"),
    ("span", {"inputs": {"question": "a", "context": "b"}, "parameters": {"doc_stride": 61}}, 422, "share at most"),
    ("span", {"inputs": {"context": "a", "question": "b" * 100_001}}, 413, "shorten inputs.question"),
    ("mlm", {"inputs": "[MASK]", "parameters": {"targets": ["a"] * 2049}}, 413, "2,049 texts"),
    ("tagger", {"inputs": "a", "parameters": {"ignore_labels": []}}, 422, "add O"),
    ("tagger", {"inputs": "a", "parameters": {"stride": 47}}, 422, "windows of 62 tokens share at most 46"),
    ("tagger", {"inputs": "a", "parameters": {"stride": 1, "aggregation_strategy": "none"}}, 422, "omit one"),
    ("classifier", {"inputs": {"question": "a", "context": "b"}}, 422, "was not fine-tuned for question-answering"),
    ("choice", {"inputs": "a"}, 404, "there is no task 'multiple-choice'"),
]


@pytest.mark.parametrize(("model", "message", "status", "text"), REFUSED)
def test_errors_have_the_form_of_the_api(server: Server, model: str, message: Any, status: int, text: str) -> None:
    answer = server.post(f"/hf/models/{model}", message)
    assert answer.status == status
    assert text in answer.json["error"]
    assert answer.json.keys() == {"error", "error_type"}
