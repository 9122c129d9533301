"""The dialect of Hugging Face's inference API: answers are those of the model, by huggingface_hub's client and by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from scipy.special import expit, softmax

from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.heads.vector_modules import Normalize
from bertie.predict.predictor import Predictor
from bertie.serve.limits import Front
from bertie.serve.service import Service

from ..conftest import Server, close, serving, unit

Predictors = dict[str, Predictor]
TEXTS = ["kopa", "ban the kopa", ""]
CONTEXT = "the ban of the kopa, and the " * 20


def client(server: Server, model: str) -> InferenceClient:
    return InferenceClient(model=f"{server.url}/hf/models/{model}", token="none")


def test_features_and_similarities_of_the_client(server: Server, predictors: Predictors) -> None:
    hub, model = client(server, "mlm"), predictors["mlm"]
    close(hub.feature_extraction(TEXTS), model.embed(TEXTS))
    close(hub.feature_extraction("kopa"), model.embed(["kopa"]))
    found = hub.feature_extraction(TEXTS, normalize=True, truncate=True, truncation_direction="right", dimensions=32)
    close(found, unit(model.embed(TEXTS)))
    found = hub.sentence_similarity("kopa", TEXTS)
    close(found, model.similarity(["kopa"], TEXTS)[0], 1e-4)
    assert InferenceClient(f"{server.url}/hf", provider="hf-inference", token="none").health_check()


def test_features_obey_the_files_of_the_model(make_service: Callable[..., Service], predictors: Predictors) -> None:
    how = SentenceEmbedding(modules=(Normalize(),), prompts={"query": "ban the "})
    model = replace(predictors["mlm"], text_embedding=how)
    with serving(make_service(others={"it": model}, widths=(8,)), Front(dialect="hf")) as server:
        for base in ("", "/hf", "/hf/"):
            hub = InferenceClient(model=server.url + base, token="none")
            close(hub.feature_extraction(TEXTS, prompt_name="query"), model.embed(TEXTS, prompt_name="query"))
        close(hub.feature_extraction(TEXTS, dimensions=8), unit(model.embed(TEXTS)[:, :8]))
        refused = server.post("/hf/models/it/", {"inputs": "a", "normalize": False})
        assert refused.json["error"].startswith("normalize: the files of it normalize its vectors")


@pytest.mark.parametrize("normalize", [None, False, True])
def test_shorter_features_have_length_1_unless_the_request_says_no(
    make_service: Callable[..., Service], predictors: Predictors, normalize: bool | None
) -> None:
    with serving(make_service("mlm", widths=(8,))) as server:
        found = server.post("/hf", {"inputs": TEXTS, "dimensions": 8, "normalize": normalize}).json
        first = predictors["mlm"].embed(TEXTS)[:, :8]
        close(found, first if normalize is False else unit(first))


def test_classes_of_the_client(server: Server, predictors: Predictors) -> None:
    for name, function in (("classifier", "softmax"), ("labels", "sigmoid")):
        [wanted] = predictors[name].predict(["ban the kopa"])
        expected = sorted(wanted.probabilities.items(), key=lambda each: -each[1])
        for top_k in (None, 1, 2):
            found = client(server, name).text_classification(
                "ban the kopa", top_k=top_k, function_to_apply=cast(Any, function)
            )
            assert [each.label for each in found] == [label for label, _ in expected[:top_k]]
            close([each.score for each in found], [score for _, score in expected[:top_k]])
    pairs = {"inputs": [{"text": "ban", "text_pair": "kopa"}, {"text": "the", "text_pair": "kopa"}]}
    found = server.post("/hf/models/cross-encoder", pairs).json
    wanted = [each.score for each in predictors["cross-encoder"].predict([("ban", "kopa"), ("the", "kopa")])]
    assert [[each["label"] for each in text] for text in found] == [["LABEL_0"], ["LABEL_0"]]
    close([text[0]["score"] for text in found], wanted)


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
    expected = {"none": outputs, "sigmoid": expit(outputs), "softmax": softmax(outputs)}
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
    close([each.score for each in found], [each.score for each in wanted.entities])


def test_settings_of_tags(server: Server, predictors: Predictors, small_texts: list[str]) -> None:
    text = " ".join(small_texts[:10])
    asked = {"ignore_labels": ["O", "X"], "aggregation_strategy": "first"}
    assert server.post("/hf/models/tagger", {"inputs": text, "parameters": asked}).json == []
    task = replace(cast(Any, predictors["tagger"].task), truncation="windows", doc_stride=62 - 46)
    [wanted] = replace(predictors["tagger"], task=task).predict([text])
    found = client(server, "tagger").token_classification(text, stride=46, aggregation_strategy="first")
    assert len(found) == len(wanted.entities) > 0
    close([each.score for each in found], [each.score for each in wanted.entities])


def test_masks_of_the_client(server: Server, predictors: Predictors) -> None:
    hub, model = client(server, "mlm"), predictors["mlm"]
    text = "ban [MASK] kopa"
    found, [wanted] = hub.fill_mask(text, top_k=7), model.fill_mask(text, 7)
    assert [model.tokenizer.vocabulary[each.token] for each in found] == [each.token for each in wanted]
    close([each.score for each in found], [each.probability for each in wanted])
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
        answers = found if isinstance(found, list) else [found]
        return [(each.answer, each.start, each.end, each.score) for each in answers]

    def same(found: Any, wanted: Any) -> None:
        assert [each[:3] for each in found] == [each[:3] for each in wanted]
        close([each[3] for each in found], [each[3] for each in wanted])

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
        close(server.post(f"/hf{path}", given).json, wanted)
