"""/v1/attention: the probabilities of the inspector, within limits, from the engines that can show them."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.batches.collate import collate
from bertie.inspect.attention import observed, require_transformer
from bertie.inspect.inspect import Inspection
from bertie.model.encoders.static import StaticConfig, StaticEncoder
from bertie.model.model import Model
from bertie.predict.predictor import Predictor
from bertie.serve import operations
from bertie.serve.service import Service
from bertie.tokenizers import truncation

from .conftest import Server, close, serving, wait_until

Build = Callable[..., Service]
TEXT = "the bobin gat the fatun go"


def by_formula(predictor: Predictor, *texts: str) -> np.ndarray:
    """The probabilities of a text or a pair, float32 [layers, heads, tokens, tokens], from an encoder that is observed."""
    [sequence] = truncation.encode(predictor.tokenizer, *([text] for text in texts))
    layers: list[np.ndarray] = []
    with (
        torch.inference_mode(),
        observed(require_transformer(predictor.model.encoder), lambda _, p: layers.append(p[0].numpy().copy())),
    ):
        predictor.model.encoder(collate([sequence], len(sequence)).tensors())
    return np.stack(layers)


@pytest.mark.parametrize("pair", [None, "kopa ban"])
@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_attention_is_that_of_the_model(
    server: Server, predictors: dict[str, Predictor], pair: str | None, encoding_format: str
) -> None:
    message = {"model": "mlm", "text": TEXT, "encoding_format": encoding_format}
    answer = server.post("/v1/attention", message | ({} if pair is None else {"text_pair": pair}))
    assert answer.status == 200, answer.body
    found = answer.json
    expected = by_formula(predictors["mlm"], TEXT, *([] if pair is None else [pair]))
    if encoding_format == "float":
        values = np.array(found["attention"])
    else:
        values = np.frombuffer(base64.b64decode(found["attention"]), "<f4").reshape(expected.shape)
    close(values, expected)
    size = expected.shape[-1]
    assert (found["layers"], found["heads"], len(found["tokens"])) == (2, 4, size)
    assert found["usage"] == {"prompt_tokens": size, "total_tokens": size, "truncated": 0}
    marks = [i for i, token in enumerate(found["tokens"]) if token in ("[CLS]", "[SEP]")]
    assert found["special"] == marks
    assert len(marks) == (2 if pair is None else 3)
    assert {"tokenize", "queue", "compute"} < {
        part.split(";")[0] for part in answer.headers["server-timing"].split(", ")
    }


@pytest.mark.parametrize("pair", [None, "kopa é ☃"])
def test_unknown_words_are_shown_as_they_are_in_the_text(server: Server, pair: str | None) -> None:
    message = {"model": "mlm", "text": "ban 😀 kopa ☂", **({} if pair is None else {"text_pair": pair})}
    found = server.post("/v1/attention", message).json
    unknown = [at for at, token in enumerate(found["tokens"]) if token == "[UNK]"]
    assert [found["shown"][at] for at in unknown][:2] == ["😀", "☂"]
    assert (found["shown"][unknown[-1]] == "☃") == (pair is not None)
    rest = [at for at in range(len(found["tokens"])) if at not in unknown]
    assert [found["shown"][at] for at in rest] == [found["tokens"][at] for at in rest]


def test_attention_is_that_of_bertie_inspect(server: Server, pretrained: Path, tmp_path: Path) -> None:
    bertie.inspect_model(pretrained, Inspection(sentences=(TEXT,)), tmp_path / "out")
    lines = (tmp_path / "out" / "tables" / "sentence_attention.csv").read_text().splitlines()
    expected = [float(line.rsplit(",", 1)[1]) for line in lines[1:]]
    found = server.post("/v1/attention", {"model": "mlm", "text": TEXT}).json["attention"]
    close(np.array(found).ravel(), expected)


@pytest.mark.parametrize("engine", ["torch", "torch-bf16"])
def test_torch_engines_show_what_they_compute(engine: Any, pretrained: Path, make_service: Build) -> None:
    try:
        predictor = bertie.load(pretrained, threads=1, engine=engine)
    except bertie.UsageError:
        pytest.skip("needs a processor with bf16 instructions")
    expected = by_formula(bertie.load(pretrained, threads=1), TEXT)
    with serving(make_service(others={"one": predictor})) as server:
        answer = server.post("/v1/attention", {"text": TEXT})
        assert answer.status == 200, answer.body
        assert server.get("/v1/models/one").json["engine"] == engine
    np.testing.assert_allclose(np.array(answer.json["attention"]), expected, atol=1e-4 if engine == "torch" else 0.05)


def test_engines_without_attention_say_so(pretrained: Path, make_service: Build) -> None:
    pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")
    predictor = bertie.load(pretrained, threads=1, engine="onnx")
    with serving(make_service(others={"one": predictor})) as server:
        card = server.get("/v1/models/one").json
        assert card["attention_tokens"] is None
        assert "attention" not in card["operations"]
        answer = server.post("/v1/attention", {"text": TEXT})
        assert (answer.status, "--engine plain" in answer.error["message"]) == (422, True)
        assert server.post("/v1/embeddings", {"input": TEXT}).status == 200


def test_encoders_without_attention_say_so(predictors: dict[str, Predictor], make_service: Build) -> None:
    encoder = StaticEncoder(StaticConfig(vocab_size=500, hidden_size=8))
    predictor = replace(predictors["mlm"], model=Model(encoder, {}))
    with serving(make_service(others={"one": predictor})) as server:
        card = server.get("/v1/models/one").json
        assert (card["layers"], card["heads"], card["attention_tokens"]) == (None, None, None)
        assert server.post("/v1/attention", {"text": TEXT}).status == 422


def test_long_texts_are_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.get("/v1/models/mlm").json["attention_tokens"] == 64  # the model reads no more
    assert server.post("/v1/attention", {"model": "mlm", "text": "the " * 62}).status == 200
    for message in ({"text": "the " * 63}, {"text": "the " * 31, "text_pair": "the " * 31}):
        answer = server.post("/v1/attention", {"model": "mlm", **message})
        assert (answer.status, answer.error["param"]) == (413, "text"), answer.body
    monkeypatch.setattr(operations, "MAX_PROBABILITIES", 8 * 10**2 + 9)  # of 2 × 4 heads
    assert server.get("/v1/models/mlm").json["attention_tokens"] == 10
    assert server.post("/v1/attention", {"model": "mlm", "text": "the " * 8}).status == 200
    assert server.post("/v1/attention", {"model": "mlm", "text": "the " * 9}).status == 413
    assert server.post("/v1/attention", {"model": "mlm", "text": "a" * 100_001}).status == 413


@contextmanager
def held(service: Service) -> Iterator[tuple[Server, threading.Event, set[str]]]:
    """Serve, but let attention wait for an event. Yields the names of the threads that compute it, too."""
    lane = service.models["mlm"].lanes["attention"]
    go, threads, compute = threading.Event(), set[str](), lane.compute

    def wait(sequences: list[Any]) -> list[Any]:
        threads.add(threading.current_thread().name)
        assert go.wait(60)
        return compute(sequences)

    lane.compute = wait
    with serving(service) as running:
        try:
            yield running, go, threads
        finally:
            go.set()


def test_answers_of_all_requests_together_are_bounded(make_service: Build) -> None:
    """A text of n characters reserves room for at most 4 n + 4 tokens, so two characters take less than four do."""
    statuses: list[int] = []
    with held(make_service("mlm", buffer_bytes=4 * 8 * 20**2 + 500)) as (server, go, threads):
        first = threading.Thread(target=lambda: statuses.append(server.post("/v1/attention", {"text": "go"}).status))
        first.start()
        wait_until(lambda: bool(threads))
        answer = server.post("/v1/attention", {"text": "gogo"})
        assert answer.status == 429
        assert answer.headers["retry-after"] in ("1", "2")  # at random
        go.set()
        first.join(300)
        assert statuses == [200]
        assert server.post("/v1/attention", {"text": "gogo"}).status == 200
        assert server.service.buffered == 0
