"""The endpoints: each answers as the offline call on the same model does."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from operator import itemgetter

import numpy as np
import openai
import pytest
from tokenizers import Regex, pre_tokenizers

from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.heads.vector_modules import Normalize
from bertie.predict.predictor import Predictor
from bertie.serve import service
from bertie.serve.operations import ServedModel
from bertie.serve.service import Service
from bertie.serve.vectors import VOCABULARY
from bertie.tasks.aggregation import Strategy
from bertie.tokenizers.special_tokens import added_tokens, copy_engine

from .conftest import Answer, Server, close, column, serving

Predictors = dict[str, Predictor]


PAIR = {"model": "mlm", "truncate": False}
RELATION = {"text": "go kopa", "e1_start": 0, "e1_end": 2, "e2_start": 3, "e2_end": 7}
STRATEGY = {"inputs": ["a"], "aggregation_strategy": "first"}
LONG = ["a", "b " * 99]


def embeddings(answer: Answer) -> np.ndarray:
    assert answer.status == 200, answer.body
    assert [each["index"] for each in answer.json["data"]] == list(range(len(answer.json["data"])))
    return np.array([each["embedding"] for each in answer.json["data"]], np.float32)


def scores(answer: Answer) -> list[float]:
    """The scores of documents, in their order."""
    return column(sorted(answer.json["results"], key=itemgetter("index")), "relevance_score")


def test_embeddings_equal_those_of_the_model(server: Server, predictors: Predictors, small_texts: list[str]) -> None:
    texts = [*small_texts[:20], ""]
    answer = server.post("/v1/embeddings", {"input": texts, "model": "mlm"})
    close(embeddings(answer), predictors["mlm"].embed(texts))
    tokens = sum(min(len(ids) + 2, 64) for ids in predictors["mlm"].tokenizer.encode(texts))
    assert answer.json["usage"]["prompt_tokens"] == tokens
    assert answer.json["usage"]["truncated"] > 0
    assert (answer.json["object"], answer.json["data"][0]["object"]) == ("list", "embedding")


def test_settings_of_sentence_transformers_are_obeyed(
    make_service: Callable[..., Service], predictors: Predictors
) -> None:
    prompts = {"include_prompt": False, "prompts": {"query": "the ban ", "other": "x"}, "default_prompt": "other"}
    how = SentenceEmbedding(("mean", "cls"), (Normalize(),), similarity="euclidean", dimensions=9, **prompts)
    model = replace(predictors["mlm"], text_embedding=how)
    texts = ["kopa", "ban the kopa", ""]
    with serving(make_service(others={"it": model})) as server:
        for name in (None, "query", "document"):
            asked = {"prompt_name": name} if name else {}
            found = embeddings(server.post("/v1/embeddings", {"input": texts, **asked}))
            close(found, model.embed(texts, prompt_name=name))
            answer = server.post("/v1/similarity", {"texts": texts, **asked})
            expected = model.similarity(texts, prompt_name=name)
            close(answer.json["similarities"], expected, 1e-3)
        answer = server.post("/v1/rerank", {"query": "kopa", "documents": texts})
        close(scores(answer), model.rerank("kopa", texts), 1e-3)
        assert server.get("/v1/models").json["data"][0]["vector_width"] == 9
        for given in ({"input": "a", "prompt_name": "title"}, {"input": [5], "prompt_name": "query"}):
            answer = server.post("/v1/embeddings", given, **server.knowing_ids)
            assert (answer.status, answer.error["param"]) == (422, "prompt_name")


def test_embeddings_of_one_text_and_of_token_ids(server: Server, predictors: Predictors) -> None:
    model = predictors["mlm"]
    expected = model.embed(["ban the ", "kopa"])
    ids = [list(map(int, each)) for each in model.tokenizer.encode(["ban the ", "kopa"])]
    special = [[model.tokenizer.cls_id, *each, model.tokenizer.sep_id] for each in ids]
    for given, wanted in (
        ("kopa", expected[1:]),
        (["kopa"], expected[1:]),
        (ids[0], expected[:1]),
        (ids, expected),
        (special, expected),
    ):
        message = {"input": given, "model": "mlm", "dimensions": 32, "user": "me"}
        answer = server.post("/v1/embeddings", message, **{VOCABULARY: model.tokenizer.fingerprint})
        close(embeddings(answer), wanted)


def test_token_ids_of_another_vocabulary_are_refused(server: Server, predictors: Predictors) -> None:
    """The tokenizers of OpenAI's models have ids that this vocabulary has too, for other words."""
    for headers in ({}, {VOCABULARY: predictors["relation"].tokenizer.fingerprint}):
        for ids in ([5, 7], [[5, 7], [9]]):
            answer = server.post("/v1/embeddings", {"input": ids, "model": "mlm"}, **headers)
            assert (answer.status, answer.error["param"], answer.error["code"]) == (422, "input", "vocabulary")
            assert "OpenAIEmbeddings(check_embedding_ctx_length=False)" in answer.error["message"]


def test_tokens_of_texts(server: Server, predictors: Predictors) -> None:
    model, texts = predictors["mlm"], ["ban thekopa", "", "kopa " * 99]
    answer = server.post("/v1/tokenize", {"texts": texts, "model": "mlm"})
    assert answer.headers[VOCABULARY.lower()] == answer.json["vocabulary"] == model.tokenizer.fingerprint
    assert answer.json["model"] == "mlm"
    plain = server.post("/v1/tokenize", {"texts": texts, "model": "mlm", "special_tokens": False}).json["results"]
    for text, found, inside in zip(texts, answer.json["results"], plain, strict=True):
        [wanted] = model.tokenizer.encode_with_offsets([text])
        assert inside["ids"] == wanted.ids
        assert inside["tokens"] == wanted.tokens
        assert inside["offsets"] == [list(pair) for pair in wanted.offsets]
        assert found["ids"] == [model.tokenizer.cls_id, *wanted.ids, model.tokenizer.sep_id]
        assert found["tokens"] == ["[CLS]", *wanted.tokens, "[SEP]"]
        assert found["offsets"] == [None, *inside["offsets"], None]
    short = answer.json["results"][0]["ids"]
    headers = {VOCABULARY: answer.json["vocabulary"]}
    again = server.post("/v1/embeddings", {"input": short, "model": "mlm"}, **headers)
    close(embeddings(again), model.embed(texts[:1]))


def test_texts_are_tokenized_as_for_a_vector(make_service: Callable[..., Service], predictors: Predictors) -> None:
    """After the prompt, and in lowercase if the model's files say so."""
    how = SentenceEmbedding(lowercase=True, prompts={"query": "BAN the "})
    model = replace(predictors["mlm"], text_embedding=how)
    with serving(make_service(others={"it": model})) as server:
        answer = server.post("/v1/tokenize", {"texts": ["KOPA"], "prompt_name": "query"}).json
        [wanted] = model.text_sequences(["KOPA"], "BAN the ")
        assert answer["results"][0]["ids"] == wanted.input_ids.tolist()
        assert answer["results"][0]["offsets"][-2][1] == len("BAN the KOPA")
        assert answer["vocabulary"] == model.text_tokenizer.fingerprint
        headers = {VOCABULARY: answer["vocabulary"]}
        ids = server.post("/v1/tokenize", {"texts": ["KOPA"]}).json["results"][0]["ids"]
        found = embeddings(server.post("/v1/embeddings", {"input": ids}, **headers))
        close(found, model.embed(["KOPA"]))
        refused = server.post("/v1/tokenize", {"texts": ["KOPA"], "prompt_name": "title"})
        assert (refused.status, refused.error["param"]) == (422, "prompt_name")


def test_documents_that_are_tokenized_in_parts_have_their_own_prompt(
    make_service: Callable[..., Service], predictors: Predictors, small_texts: list[str]
) -> None:
    how = SentenceEmbedding(prompts={"query": "the ban kopa ban the ", "document": ""})
    model = replace(predictors["mlm"], text_embedding=how)
    texts = small_texts[:300]
    assert sum(map(len, texts)) > 2 * 32_768
    with serving(make_service(others={"it": model})) as server:
        answer = server.post("/v1/rerank", {"query": "kopa", "documents": texts})
        close(scores(answer), model.rerank("kopa", texts), 1e-3)


def test_base64_embeddings_are_little_endian_floats(server: Server, predictors: Predictors) -> None:
    answer = server.post("/v1/embeddings", {"input": "kopa", "model": "mlm", "encoding_format": "base64"})
    found = np.frombuffer(base64.b64decode(answer.json["data"][0]["embedding"]), "<f4")
    close(found, predictors["mlm"].embed(["kopa"])[0])


def test_the_client_of_openai_works(server: Server, predictors: Predictors) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    found = client.embeddings.create(input=["kopa", "ban the"], model="mlm")
    close([each.embedding for each in found.data], predictors["mlm"].embed(["kopa", "ban the"]))
    assert {each.id for each in client.models.list().data} == set(predictors)
    with pytest.raises(openai.UnprocessableEntityError, match="width 32"):
        client.embeddings.create(input="kopa", model="mlm", dimensions=16)
    with pytest.raises(openai.NotFoundError, match="no model has this name"):
        client.embeddings.create(input="kopa", model="text-embedding-3-small")
    client.close()


def test_similarity(server: Server, predictors: Predictors, small_texts: list[str]) -> None:
    texts, others = small_texts[:3], small_texts[5:7]
    for extra, expected in (
        ({"others": others}, predictors["mlm"].similarity(texts, others)),
        ({}, predictors["mlm"].similarity(texts)),
    ):
        answer = server.post("/v1/similarity", {"model": "mlm", "texts": texts, **extra})
        close(answer.json["similarities"], expected)


@pytest.mark.parametrize("name", ["mlm", "cross-encoder"])
def test_rerank(name: str, server: Server, predictors: Predictors, small_texts: list[str]) -> None:
    query, documents = small_texts[0][:30], [text[:40] for text in small_texts[:9]]
    expected = predictors[name].rerank(query, documents)
    order = np.argsort(-expected)
    message = {"model": name, "query": query, "documents": [documents[0], *({"text": text} for text in documents[1:])]}
    found = server.post("/v1/rerank", {**message, "top_n": 4}).json["results"]
    assert [each["index"] for each in found] == order[:4].tolist()
    close([each["relevance_score"] for each in found], expected[order[:4]])
    assert "document" not in found[0]
    found = server.post("/v1/rerank", {**message, "return_documents": True}).json["results"]
    assert [each["document"]["text"] for each in found] == [documents[i] for i in order]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("classifier", ["ban the kopa", {"text": "", "label": None, "weight": 0.5, "of": {"a": [{"b": 1}]}}]),
        ("labels", ["ban the kopa", {"text": "go"}]),
        ("cross-encoder", [["ban", "the"], {"sentence1": "kopa", "sentence2": "ban"}]),
        ("span", [["who", "ban the kopa"], {"question": "the", "context": "ban " * 200, "answers": {"text": ["ban"]}}]),
        ("relation", ["<e1>ban</e1> the <e2>kopa</e2>", RELATION]),
        ("tagger", [["ban", "the", "kopa"], "ban the", {"tokens": ["kopa"]}]),
        ("tagger", [{"text": "ban the", "entities": [[0, 3, "X"]]}, {"text": "ban", "spans": [{"start": 9, "id": 1}]}]),
    ],
)
def test_predictions(name: str, inputs: list[object], server: Server, predictors: Predictors) -> None:
    answer = server.post("/v1/predict", {"model": name, "inputs": inputs})
    assert answer.status == 200, answer.body
    expected = [asdict(each) for each in predictors[name].predict(inputs)]
    assert answer.json["task"] == getattr(predictors[name].task, "kind", None)
    compare(answer.json["predictions"], expected)


@pytest.mark.parametrize("strategy", ["simple", "none", "max"])
def test_entities_by_strategy(
    strategy: Strategy, server: Server, predictors: Predictors, small_texts: list[str]
) -> None:
    texts = [f"{text[:60]}, \U0001f600 gatun!" for text in small_texts[:12]]
    answer = server.post("/v1/predict", {"model": "tagger", "inputs": texts, "aggregation_strategy": strategy})
    expected = [asdict(each) for each in predictors["tagger"].predict(texts, strategy)]
    assert any(each["entities"] for each in expected)
    compare(answer.json["predictions"], expected)


def test_a_tokenizer_that_panics_is_an_error_of_its_request_and_the_next_one_is_answered(
    make_service: Callable[..., Service], predictors: Predictors
) -> None:
    """The library's engine for regular expressions gives up after some steps, with an error that is no Exception."""
    tokenizer = predictors["mlm"].tokenizer
    engine = copy_engine(tokenizer.backend.engine, added_tokens(tokenizer.backend.engine))
    engine.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    panicking = replace(tokenizer, backend=replace(tokenizer.backend, engine=engine))
    with serving(make_service(others={"mlm": replace(predictors["mlm"], tokenizer=panicking)})) as server:
        refused = server.post("/v1/embeddings", {"input": "a" * 40 + "b", "model": "mlm"})
        assert (refused.status, "cannot read a text" in refused.error["message"]) == (422, True)
        assert server.post("/v1/embeddings", {"input": "ban", "model": "mlm"}).status == 200


def compare(found: object, wanted: object) -> None:
    """Compare JSON values, with a tolerance for numbers."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict)
        assert found.keys() == wanted.keys()
        found, wanted = list(found.values()), [wanted[name] for name in found]
    if isinstance(wanted, list):
        assert isinstance(found, list)
        for mine, other in zip(found, wanted, strict=True):
            compare(mine, other)
    else:
        assert found == pytest.approx(wanted, abs=1e-4) if isinstance(wanted, float) else found == wanted


def test_the_event_loop_does_not_wait_for_the_words_of_many_masks(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, threads = ServedModel.reading, set[str]()

    def reading(model: ServedModel, token: str) -> str:
        threads.add(threading.current_thread().name)
        return real(model, token)

    monkeypatch.setattr(ServedModel, "reading", reading)
    answer = server.post("/v1/fill-mask", {"model": "mlm", "inputs": ["[MASK] " * 40]})
    assert [len(mask) for mask in answer.json["results"][0]] == [5] * 40
    assert {name.partition("_")[0] for name in threads} == {"tokenizer"}


def test_fill_mask(server: Server, predictors: Predictors) -> None:
    texts = ["ban [MASK] kopa [MASK]", "[MASK]"]
    answer = server.post("/v1/fill-mask", {"model": "mlm", "inputs": texts, "top_k": 3})
    expected = [[[asdict(guess) for guess in mask] for mask in predictors["mlm"].fill_mask(text, 3)] for text in texts]
    results = answer.json["results"]
    candidates = [guess for masks in results for mask in masks for guess in mask]
    for guess in candidates:
        token = guess["token"]
        assert guess.pop("text") == (token[2:] if token.startswith("##") else f" {token}")
    assert {guess["token"].startswith("##") for guess in candidates} == {True, False}
    compare(results, expected)


def test_models_and_metrics_describe_the_server(server: Server, predictors: Predictors) -> None:
    cards = {card["id"]: card for card in server.get("/v1/models").json["data"]}
    assert cards.keys() == predictors.keys()
    assert cards["classifier"]["labels"] == ["bad", "good"]
    assert cards["mlm"]["operations"] == ["embeddings", "similarity", "rerank", "tokenize", "fill-mask", "attention"]
    assert cards["tagger"] == server.get("/v1/models/tagger").json
    assert server.get("/v1/models/unknown").status == 404
    server.post("/v1/embeddings", {"input": ["a", "b"], "model": "tagger"})
    lines = dict(line.rsplit(" ", 1) for line in server.get("/metrics").body.decode().splitlines() if line[0] != "#")
    assert float(lines['bertie_sequences_total{model="tagger"}']) >= 2
    assert lines['bertie_queue_tokens{model="tagger"}'] == "0.0"
    assert lines["bertie_ready"] == "1.0"
    assert server.get("/livez").json == server.get("/readyz").json == {"status": "ok", "reasons": []}


def test_every_answer_has_an_id_and_the_time_of_each_stage(server: Server) -> None:
    headers = server.post("/v1/embeddings", {"input": "a", "model": "mlm"}).headers
    times = dict(part.split(";dur=") for part in headers["server-timing"].split(", "))
    assert list(times) == ["tokenize", "queue", "compute", "total"]
    assert 0 < sum(float(times[name]) for name in list(times)[:3]) <= float(times["total"])
    assert len(headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("path", "message", "status", "param"),
    [
        ("embeddings", {"input": "a"}, 422, "model"),
        ("embeddings", {"input": "a", "model": "x"}, 404, "model"),
        ("embeddings", {"input": [], "model": "mlm"}, 422, "input"),
        ("embeddings", {"input": ["a", 1], "model": "mlm"}, 422, "input"),
        ("embeddings", {"input": [[1], [1, 500]], "model": "mlm"}, 422, "input[1]"),
        ("embeddings", {"model": "mlm"}, 422, "input"),
        ("embeddings", {"input": "a", "dims": 3}, 422, "dims"),
        ("embeddings", {"input": "a", "model": "mlm", "dimensions": 16}, 422, "dimensions"),
        ("embeddings", {"input": "a", "model": "mlm", "encoding_format": "hex"}, 422, "encoding_format"),
        ("embeddings", {"input": ["a", "b " * 99], "model": "mlm", "truncate": False}, 422, "input[1]"),
        ("embeddings", b"[" * 100_000, 422, None),
        ("embeddings", b'{"input": ' + b"[" * 100_000, 422, "input[0][0]"),
        ("embeddings", b"{", 400, None),
        ("similarity", {**PAIR, "texts": ["a"], "others": LONG}, 422, "others[1]"),
        ("rerank", {**PAIR, "query": LONG[1], "documents": ["a"]}, 422, "query"),
        ("rerank", {"query": "a", "documents": ["b"], "label": "x", "model": "classifier"}, 422, "label"),
        ("predict", {"inputs": ["a"], "model": "mlm"}, 422, "model"),
        ("predict", {"inputs": ["a", ["b", "c"]], "model": "classifier"}, 422, "inputs[1]"),
        ("predict", {"inputs": [{"wrong": "a"}], "model": "classifier"}, 422, "inputs[0]"),
        ("predict", {"inputs": [["a", "b"], {"a": "b"}], "model": "cross-encoder"}, 422, "inputs[1]"),
        ("predict", {"inputs": ["<e1>a</e1>"], "model": "relation"}, 422, "inputs[0]"),
        ("predict", {**STRATEGY, "model": "classifier"}, 422, "aggregation_strategy"),
        ("predict", {"inputs": ["a", " "], "model": "tagger"}, 422, "inputs[1]"),
        ("predict", {"inputs": ["a"], "model": "cross-encoder"}, 422, "inputs[0]"),
        ("fill-mask", {"inputs": ["[MASK]", "a"], "model": "mlm"}, 422, "inputs[1]"),
        ("fill-mask", {"inputs": ["[MASK] " * 100], "model": "mlm"}, 422, "inputs[0]"),
        ("fill-mask", {"inputs": ["[MASK]" * 60] * 40, "top_k": 100, "model": "mlm"}, 413, "inputs"),
        ("fill-mask", {"inputs": ["[MASK]"], "model": "classifier"}, 422, "model"),
    ],
)
def test_wrong_requests_are_refused(path: str, message: object, status: int, param: str | None, server: Server) -> None:
    answer = server.post(f"/v1/{path}", message, **server.knowing_ids)
    assert (answer.status, answer.error["param"]) == (status, param), answer.body
    assert "--" not in answer.error["message"], "a client cannot set the flags of the server"


def test_one_model_needs_no_name(make_service: Callable[..., Service]) -> None:
    with serving(make_service("mlm")) as server:
        assert server.post("/v1/embeddings", {"input": "a"}).json["model"] == "mlm"


def test_answers_of_unknown_paths_have_an_id_too(server: Server) -> None:
    for answer in (server.get("/nope"), server.request("PUT", "/v1/predict", b"", {})):
        assert answer.headers["x-request-id"]
        assert "total;dur=" in answer.headers["server-timing"]
    lines = server.get("/metrics").body.decode()
    assert 'endpoint="other"' in lines


def test_unknown_paths_and_methods(server: Server) -> None:
    assert server.get("/v1/nothing").error["type"] == "not_found_error"
    assert server.get("/v1/embeddings").headers["allow"] == "POST"
    assert server.post("/v1/models", {}).status == 405
    for header, value in (("Content-Type", "text/plain"), ("Content-Encoding", "gzip")):
        assert server.post("/v1/embeddings", {"input": "a", "model": "mlm"}, **{header: value}).status == 415


def test_large_requests(
    server: Server, predictors: Predictors, small_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tokenized in several parts, and decoded in another thread."""
    monkeypatch.setattr(service, "AT_ONCE", 8192)
    texts = small_texts[:100]
    assert sum(map(len, texts)) > 2 * service.AT_ONCE
    answer = server.post("/v1/embeddings", {"input": texts, "model": "mlm"})
    close(embeddings(answer), predictors["mlm"].embed(texts))
    found = server.post("/v1/predict", {"inputs": texts, "model": "classifier"}).json["predictions"]
    compare(found, [asdict(each) for each in predictors["classifier"].predict(texts)])
    pairs = [["who", text] for text in texts]
    found = server.post("/v1/predict", {"inputs": pairs, "model": "span"}).json["predictions"]
    compare(found, [asdict(each) for each in predictors["span"].predict(pairs)])


def test_fields_that_may_be_omitted_may_be_null(server: Server) -> None:
    given = {"input": "a", "model": "mlm", "encoding_format": None, "dimensions": None, "user": None, "truncate": None}
    plain = {"input": "a", "model": "mlm"}
    assert server.post("/v1/embeddings", given).json == server.post("/v1/embeddings", plain).json
    refused = server.post("/v1/embeddings", {"input": None, "model": "mlm", "user": None})
    assert (refused.status, refused.error["param"]) == (422, "input")
