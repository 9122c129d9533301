"""`bertie predict` on rows that cannot be read. The model is replaced by a stand-in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.commands import predict
from bertie.tasks import Classify
from bertie.tasks.predictions import ClassPrediction

Found = list[ClassPrediction | UserError]
GOOD, BAD = ClassPrediction("x", {"x": 1.0}), UserError("a.txt:1: not UTF-8 text")


def run(monkeypatch: pytest.MonkeyPatch, found: Found) -> dict[str, Any]:
    class Model:
        def predict_file(self, path: Path, strategy: None) -> Iterator[ClassPrediction | UserError]:  # noqa: ARG002
            return iter(found)

    monkeypatch.setattr(predict, "load", lambda *_, **__: Model())
    monkeypatch.setattr(predict, "shared", lambda model, _: model)
    return predict.run(predict.Args("run", [], Classify(), input=Path("a.txt")))


def test_predict_counts_rows_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [GOOD, BAD]) == {"examples": 2, "errors": 1}
    assert "1 of 2 examples have an" in capsys.readouterr().err


def test_predict_fails_if_no_row_can_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"a\.txt: none of 1,300 examples has a prediction"):
        run(monkeypatch, [BAD] * 1300)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"error": str(BAD)}] * 1300


def test_the_texts_can_be_the_parts_of_one_example(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        def predict_stream(self, inputs: list[Any], strategy: None) -> Iterator[ClassPrediction]:  # noqa: ARG002
            assert inputs == [["who?", "Keats."]]
            return iter([GOOD])

    monkeypatch.setattr(predict, "load", lambda *_, **__: Model())
    monkeypatch.setattr(predict, "shared", lambda model, _: model)
    assert predict.run(predict.Args("run", ["who?", "Keats."], Classify(), one_example=True))["examples"] == 1
    with pytest.raises(UsageError, match="--one-example applies only to texts"):
        predict.run(predict.Args("run", [], Classify(), one_example=True, input=Path("a.txt")))


def test_predict_fails_on_an_empty_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"a\.txt: no examples in it"):
        run(monkeypatch, [])
