"""The encoders that people use most: tokens, vectors and predictions are those of the libraries that wrote them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bertie
from bertie.base.errors import UserError
from bertie.predict.convert.verify import Library

pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("sentencepiece", reason="needs the package sentencepiece")
from hub_models import build
from hub_table import HUB_MODELS, HubModel

LIMIT = 1e-5
"""Largest difference of a number, relative to the largest one."""


def test_nearly_all_of_them_load() -> None:
    assert len({model.name for model in HUB_MODELS}) == len(HUB_MODELS) >= 40
    assert sum(bool(model.refused) for model in HUB_MODELS) <= 4


def first_of_its_family(model: HubModel) -> bool:
    families = [re.split("For|Model|LMHead", each.architecture)[0] for each in HUB_MODELS]
    return families.index(families[HUB_MODELS.index(model)]) == HUB_MODELS.index(model)


def require_equal(folder: Path, library: Library, *parts: str) -> None:
    """Require that everything is compared and equal, the parts among it."""
    found = bertie.verify(folder, library, threads=1)
    assert found.problem == ""
    judged = [each for each in found.comparisons if each.judged]
    assert all(each.cases and each.difference <= LIMIT for each in judged)
    assert {*parts} <= {each.what for each in judged}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=model.name, marks=[] if first_of_its_family(model) else pytest.mark.slow)
        for model in HUB_MODELS
    ],
)
def test_a_checkpoint_of_the_hub_is_read_right_or_refused(model: HubModel, tmp_path: Path) -> None:
    folder = tmp_path / model.name.rpartition("/")[2]
    build(model, folder)
    if model.refused:
        with pytest.raises(UserError, match=re.escape(model.refused)):
            bertie.load(folder, threads=1)
        return
    scores = model.labels == ("LABEL_0",)
    classes = model.architecture.endswith("ForSequenceClassification")
    head = ("outputs of the head (regression)" if scores else "outputs of the head (classification)",) * classes
    require_equal(folder, "transformers", "token ids of texts", "last hidden states of texts", *head)
    if model.sentences is not None or scores:
        pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
        require_equal(
            folder, "sentence-transformers", "scores without an activation" if scores else "vectors of encode"
        )
