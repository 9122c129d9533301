"""`bertie verify --against` for the encoders that people use most: nothing is wrong with those that bertie reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import bertie

pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("sentencepiece", reason="needs the package sentencepiece")
from hub_models import build
from hub_table import HUB_MODELS, HubModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
READ = [model for model in HUB_MODELS if not model.refused]
SCORES = ("LABEL_0",)


@pytest.mark.parametrize("model", READ, ids=lambda model: model.name)
def test_nothing_is_wrong(model: HubModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    build(model, folder)
    found = bertie.verify(folder, "transformers")
    assert found.problem == ""
    assert {"token ids of texts", "last hidden states of texts"} <= {each.what for each in found.comparisons}
    assert all(each.cases or not each.judged for each in found.comparisons)
    if model.sentences is not None or model.labels == SCORES:
        pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
        found = bertie.verify(folder, "sentence-transformers")
        assert found.problem == ""
        assert {each.what for each in found.comparisons} & {"vectors of encode", "scores without an activation"}
