"""Entities of raw texts, as transformers' pipeline finds them with each aggregation strategy."""

from __future__ import annotations

from typing import Any

import pytest
import test_families as families
import torch

import bertie
from bertie.predict.predictor import Predictor
from bertie.tasks.aggregation import Strategy
from bertie.tokenizers.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the package transformers")

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BERT = families.Case("Bert", families.SIZES, families.HEADS_OF_BERT, (), segments=2)


@pytest.fixture(scope="module")
def pair(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictor, Any]:
    """A model with random weights in bertie, and the pipeline of transformers."""
    folder = tmp_path_factory.mktemp("tagger") / "model"
    names = dict(enumerate(LABELS))
    model = BERT.model("TokenClassification", id2label=names, label2id={name: n for n, name in names.items()})
    torch.nn.init.normal_(model.classifier.weight, std=2.0)
    families.saved(model, folder, small_tokenizer)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return bertie.load(folder), lambda text, strategy: transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy=strategy
    )(text)


@pytest.mark.parametrize("strategy", ["first", "average", "max", "simple", "none"])
def test_entities_are_those_of_the_pipeline(
    strategy: Strategy, pair: tuple[Predictor, Any], small_texts: list[str]
) -> None:
    predictor, pipeline = pair
    texts = [
        f"{text[:60]}. ({text[60:90]}), {text[90:110]}-{text[110:130]}!\r\n\u00a0 {text[130:150]}"
        for text in small_texts[:12]
    ]
    found = predictor.predict(texts, strategy)
    kinds = set()
    for text, prediction in zip(texts, found, strict=True):
        expected = pipeline(text, strategy)
        label = "entity" if strategy == "none" else "entity_group"
        ours = [(each.start, each.end, each.label) for each in prediction.entities]
        assert ours == [(each["start"], each["end"], each[label]) for each in expected]
        scores = [float(each["score"]) for each in expected]
        assert [each.score for each in prediction.entities] == pytest.approx(scores, abs=1e-5)
        assert all(text[each.start : each.end] == each.text for each in prediction.entities)
        kinds |= {each.label for each in prediction.entities}
    assert len(kinds) > 1


def test_a_decomposed_accent_does_not_join_words(pair: tuple[Predictor, Any], small_texts: list[str]) -> None:
    """The pipeline takes a token that is shorter than its text for the rest of a word."""
    first, second, *_ = small_texts[0].split()
    text = f"{first} {second[0]}\u0301{second[1:]}"
    [found] = pair[0].predict([text])
    assert found.tokens == text.split()
