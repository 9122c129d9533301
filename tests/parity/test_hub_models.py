"""The encoders that people use most: tokens, vectors and predictions are those of the library that wrote them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.base.errors import UserError

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytest.importorskip("sentencepiece", reason="needs the package sentencepiece")
from hub_models import TEXTS, build  # noqa: E402 - it imports both
from hub_table import HUB_MODELS, HubModel  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_nearly_all_of_them_load() -> None:
    assert len({model.name for model in HUB_MODELS}) == len(HUB_MODELS) >= 40
    assert sum(bool(model.refused) for model in HUB_MODELS) <= 4


def first_of_its_family(model: HubModel) -> bool:
    families = [re.split("For|Model|LMHead", each.architecture)[0] for each in HUB_MODELS]
    return families.index(families[HUB_MODELS.index(model)]) == HUB_MODELS.index(model)


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
    predictor = bertie.load(folder, threads=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
    assert [ids.tolist() for ids in predictor.tokenizer.encode(list(TEXTS))] == theirs
    inputs = [tokenizer(text, return_tensors="pt") for text in TEXTS]  # one by one: not every tokenizer pads
    encoder = transformers.AutoModel.from_pretrained(folder).float().eval()
    with torch.inference_mode():
        means = [encoder(**each).last_hidden_state[0].mean(0) for each in inputs]
    np.testing.assert_allclose(predictor.embed(TEXTS, pooling="mean"), torch.stack(means), atol=1e-5)
    if compare := HEADS.get(model.architecture.partition("For")[2]):
        network = getattr(transformers, model.architecture).from_pretrained(folder).float().eval()
        with torch.inference_mode():
            compare(predictor, [network(**each) for each in inputs])
    if model.sentences is not None:
        sentences = pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
        vectors = sentences.SentenceTransformer(str(folder), device="cpu").encode(list(TEXTS))
        np.testing.assert_allclose(predictor.embed(TEXTS), vectors, atol=1e-5)


def classes(predictor: Any, outputs: list[Any]) -> None:
    found, logits = predictor.predict(TEXTS), torch.cat([each.logits for each in outputs])
    if logits.shape[1] == 1:
        np.testing.assert_allclose([each.score for each in found], logits[:, 0], atol=1e-5)
    else:
        assert [each.label for each in found] == [predictor.task.labels[i] for i in logits.argmax(1)]
        expected = logits.softmax(-1)
        np.testing.assert_allclose([list(each.probabilities.values()) for each in found], expected, atol=1e-5)


HEADS = {"SequenceClassification": classes}
