"""Heads that find the antecedent of a mention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from bertie.batches.collate import collate
from bertie.inspect.attention import observed, read_attention, require_transformer
from bertie.inspect.heads.coreference import Coreference
from bertie.inspect.mention_windows import RULES, encode_mentions
from bertie.inspect.mentions import AntecedentQuestion, Mention, MentionText
from bertie.inspect.tables import Table
from bertie.model.model import Model
from bertie.predict.load import load
from bertie.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from conftest import Plant


def run(
    model: Model, tokenizer: Tokenizer, blocks: list[list[MentionText]], max_length: int = 64
) -> tuple[Table, Table]:
    analysis = Coreference(require_transformer(model.encoder))
    for block in blocks:
        windows = encode_mentions(tokenizer, block, max_length)
        read_attention(model, windows.sequences, analysis.add(windows))
    best, heads = analysis.tables()
    assert (best.name, heads.name) == ("coreference_best", "coreference")
    return best, heads


def rows(table: Table, **wanted: object) -> list[dict[str, Any]]:
    content = table.plain()
    found = (dict(zip(content, each, strict=True)) for each in zip(*content.values(), strict=True))
    return [values for values in found if all(values[name] == value for name, value in wanted.items())]


def text_of(words: str, heads: list[int], mention: int, antecedent: int) -> MentionText:
    forms = tuple(words.split())
    mentions = tuple(Mention(head, head, "pronoun" if forms[head] in ("she", "he") else "other") for head in heads)
    candidates = tuple(number for number in range(len(heads)) if number != mention)
    right = tuple(number == antecedent for number in candidates)
    return MentionText(forms, mentions, (AntecedentQuestion(mention, candidates, right, closed=True),), "test")


TEXTS = [
    text_of("anna sees paul now . she likes the dog", [0, 2, 5], 2, 0),
    text_of("paul likes anna . now he sees the cats", [0, 2, 5], 2, 0),
    text_of("now she likes paul . anna sees the dog", [1, 3, 5], 0, 2),
    text_of("anna likes the cats . the dogs sees anna", [3, 6, 8], 2, 1),
]


def test_a_planted_head_is_found(plant: Plant, word_tokenizer: Tokenizer) -> None:
    model = plant({(1, 0): [("she", "anna"), ("he", "paul")], (0, 2): [("anna", "dog"), ("she", "paul")]})
    best, heads = run(model, word_tokenizer, [TEXTS[:2], [], TEXTS[2:]])
    (pronouns,) = rows(best, mention_type="pronoun")
    assert (pronouns["layer"], pronouns["head"], pronouns["mentions"], pronouns["accuracy"]) == (2, 1, 3, 1)
    assert (pronouns["low"], pronouns["high"]) == (1, 1)
    assert (pronouns["rule"], pronouns["baseline"]) == ("nearest mention", 0)
    (other,) = rows(best, mention_type="other")
    assert (other["layer"], other["head"], other["accuracy"], other["mentions"]) == (1, 3, 1, 1)
    assert other["low"] is None
    (feminine,) = rows(heads, mention_type="feminine pronoun", layer=2, head=1)
    assert (feminine["mentions"], feminine["accuracy"], feminine["method"]) == (2, 1, "attention")
    (wrong,) = rows(heads, mention_type="feminine pronoun", layer=1, head=3)
    assert wrong["accuracy"] == 0
    assert len(rows(heads, mention_type="all")) == 2 * 3 + len(RULES)
    assert {each["method"] for each in rows(heads, layer=None)} == set(RULES)


@pytest.mark.parametrize("max_length", [64, 14])
def test_accuracies_match_a_slow_loop(pretrained: Path, max_length: int) -> None:
    predictor = load(pretrained)
    rng = np.random.default_rng(5)
    forms = ["the", "fatun", "gat", "bobingat", ".", "shet", "fet"]
    texts = []
    for number in range(12):
        length = int(rng.integers(8, 18))
        heads = sorted(rng.choice(length, 5, replace=False).tolist())
        entity = rng.integers(0, 2, 5)
        mentions = tuple(Mention(head, head, "nominal" if number % 2 else "proper noun") for head in heads)
        questions = [
            AntecedentQuestion(m, tuple(range(m)), tuple(bool(entity[c] == entity[m]) for c in range(m)), closed=False)
            for m in range(1, 5)
            if entity[m] in entity[:m]
        ]
        texts.append(MentionText(tuple(rng.choice(forms, length).tolist()), mentions, tuple(questions), "test"))
    _, heads = run(predictor.model, predictor.tokenizer, [texts[:5], texts[5:]], max_length)
    windows = encode_mentions(predictor.tokenizer, texts, max_length)
    right: dict[tuple[str, int, int], list[bool]] = {}
    encoder = require_transformer(predictor.model.encoder)
    for question in windows.questions:
        sequence = windows.sequences[question.window]
        assert sequence.offsets is not None
        of = sequence.offsets[:, 0]
        seen: list[torch.Tensor] = []
        with torch.no_grad(), observed(encoder, lambda _, p, seen=seen: seen.append(p[0].clone())):
            encoder(collate([sequence], len(sequence)).tensors(predictor.model.device))
        for layer, probabilities in enumerate(seen, 1):
            for head, tokens in enumerate(probabilities.double().numpy(), 1):
                attention = [tokens[of == question.word][:, of == word].sum(1).mean() for word in question.candidates]
                for name in question.groups:
                    right.setdefault((name, layer, head), []).append(question.right[int(np.argmax(attention))])
    assert {name for name, _, _ in right} == {"all", "nominal", "proper noun"}
    assert (windows.outside > 0) == (max_length == 14)
    for (name, layer, head), values in right.items():
        (found,) = rows(heads, mention_type=name, layer=layer, head=head)
        assert (found["mentions"], found["accuracy"]) == (len(values), pytest.approx(np.mean(values)))
        assert found["low"] <= found["accuracy"] <= found["high"]
    for number, rule in enumerate(RULES):
        (found,) = rows(heads, mention_type="all", method=rule)
        assert found["accuracy"] == pytest.approx(
            np.mean([question.baselines[number] for question in windows.questions])
        )


def test_without_questions_the_tables_are_empty(plant: Plant, word_tokenizer: Tokenizer) -> None:
    nothing = MentionText(("anna", "sees"), (Mention(0, 0),), (), "test")
    best, heads = run(plant({}), word_tokenizer, [[nothing], []])
    assert set(map(len, best.plain().values())) == set(map(len, heads.plain().values())) == {0}
