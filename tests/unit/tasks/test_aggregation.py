"""Entities of a text: from outputs of the head by hand, and their characters in any text."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.base.errors import UsageError
from bertie.examples.reader import Reader
from bertie.examples.sentences import TaggedSentences
from bertie.examples.tagged import TaggedSentence
from bertie.tasks.aggregation import Strategy, with_aggregation
from bertie.tasks.classify import Classify
from bertie.tasks.predictions import TagPrediction
from bertie.tasks.tag import Tag
from bertie.tokenizers.tokenizer import Tokenizer

LABELS = ("O", "B-PER", "I-PER", "B-LOC")
TASK = Tag(labels=LABELS, scheme="bio")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefnp.,-", "##a", "##b", "##n", "an", "##na"]
TOKENIZER = Tokenizer.build(PIECES)


def predict(
    text: str | list[str], strategy: Strategy, logits: list[list[float]], max_length: int = 64
) -> TagPrediction:
    """Predict from the logits of all subwords of a text, those of special tokens left out."""
    task = with_aggregation(TASK, strategy)
    examples = list(Reader(TaggedSentences()).values([text]))
    sequences = task.encode(examples, TOKENIZER, max_length)
    assert len(sequences) == 1
    positions = task.head_positions(sequences[0], "first")
    [found] = task.decode([np.array(logits, np.float32)[positions - 1]], sequences, examples)
    return found


def row(**shares: float) -> list[float]:
    """Logits of a token from the probabilities of its tags; the others share the rest."""
    left = (1 - sum(shares.values())) / (len(LABELS) - len(shares))
    return [float(np.log(shares.get(label.replace("-", "_"), left))) for label in LABELS]


def shown(found: TagPrediction) -> list[tuple[str, int, int, str, float]]:
    return [(each.text, each.start, each.end, each.label, round(each.score, 3)) for each in found.entities or []]


TEXT = "anna nab, p."
LOGITS = [
    row(B_PER=0.6),  # an
    row(O=0.9),  # ##na
    row(I_PER=0.7),  # n
    row(B_LOC=0.5, O=0.3),  # ##a
    row(I_PER=0.6),  # ##b
    row(O=0.8),  # ,
    row(B_LOC=0.9),  # p
    row(O=0.7),  # .
]
P = ("p", 10, 11, "LOC", 0.9)


@pytest.mark.parametrize(
    ("strategy", "tags", "found"),
    [
        ("first", "B-PER I-PER O B-LOC O", [("anna nab", 0, 8, "PER", 0.65), P]),
        ("max", "O I-PER O B-LOC O", [("nab", 5, 8, "PER", 0.7), P]),
        ("average", "O I-PER O B-LOC O", [("nab", 5, 8, "PER", 0.467), P]),
        (
            "simple",
            "B-PER I-PER O B-LOC O",
            [("an", 0, 2, "PER", 0.6), ("n", 5, 6, "PER", 0.7), ("a", 6, 7, "LOC", 0.5), ("b", 7, 8, "PER", 0.6), P],
        ),
        (
            "none",
            "B-PER I-PER O B-LOC O",
            [
                ("an", 0, 2, "B-PER", 0.6),
                ("n", 5, 6, "I-PER", 0.7),
                ("a", 6, 7, "B-LOC", 0.5),
                ("b", 7, 8, "I-PER", 0.6),
                ("p", 10, 11, "B-LOC", 0.9),
            ],
        ),
    ],
)
def test_strategies_by_hand(strategy: Strategy, tags: str, found: list[tuple[str, int, int, str, float]]) -> None:
    assert TOKENIZER.tokens(TOKENIZER.encode([TEXT])[0]) == ["an", "##na", "n", "##a", "##b", ",", "p", "."]
    prediction = predict(TEXT, strategy, LOGITS)
    assert prediction.tokens == ["anna", "nab", ",", "p", "."]
    assert prediction.tags == tags.split()
    assert shown(prediction) == found


def test_characters_of_a_list_of_words_are_those_of_words_joined_by_blanks() -> None:
    words = ["anna", "nab,", "p."]
    found = predict(words, "first", LOGITS)
    assert found.tokens == words
    assert shown(found) == [("anna nab,", 0, 9, "PER", 0.65), ("p.", 10, 12, "LOC", 0.9)]


def test_tags_that_mark_no_entities_give_none() -> None:
    task = Tag(labels=("DET", "NOUN"), scheme="none")
    examples = list(Reader(TaggedSentences()).values(["an a"]))
    sequences = task.encode(examples, TOKENIZER, 16)
    [found] = task.decode([np.eye(2, dtype=np.float32)], sequences, examples)
    assert (found.tags, found.entities) == (["DET", "NOUN"], None)
    with pytest.raises(
        UsageError, match="aggregation_strategy simple joins entities, and the tags mark none: DET, NOUN"
    ):
        with_aggregation(task, "simple")
    with pytest.raises(UsageError, match="aggregation_strategy is for the task tag, and the task is classify"):
        with_aggregation(Classify(), "first")
    with pytest.raises(UsageError, match="aggregation_strategy"):
        with_aggregation(task, "last")  # pyright: ignore[reportArgumentType]
    assert with_aggregation(task, None) is task


ALPHABET = st.one_of(
    st.sampled_from(
        "anbp.,- \r\n\t\u200b\u200d\ufeff\u0301\u0308\u00e9\ufb01\ufb03\u4eac\U0001f389\U0001f469\ufe0f\u0e33"
    ),
    st.characters(exclude_categories=["Cs"]),
)


def with_outputs(task: Tag, examples: list[TaggedSentence], max_length: int) -> list[TagPrediction]:
    """Predict the gold tag of each word for all its subwords."""
    sequences = task.encode(examples, TOKENIZER, max_length)
    index = {label: number for number, label in enumerate(LABELS)}
    outputs = [
        np.eye(len(LABELS), dtype=np.float32)[
            [index[(examples[each.example].tags or ())[w]] for w in each.target.tokens.words]
        ]
        * 9
        for each in sequences
    ]
    return task.decode(outputs, sequences, examples)


@settings(max_examples=60, deadline=None)
@given(st.text(ALPHABET, min_size=1, max_size=60), st.integers(0, 1 << 30), st.sampled_from([5, 7, 64]))
def test_the_characters_of_an_entity_are_what_was_tagged(text: str, seed: int, max_length: int) -> None:
    """In every text, also where its words are read in several windows."""
    random.seed(seed)
    [sentence] = Reader(TaggedSentences()).values([{"text": f"a{text}"}])
    tags, kinds = [], iter(lambda: random.choice(["O", "B-PER", "B-LOC", "I-PER"]), None)
    for _ in sentence.words:
        tag = next(kinds)
        tags.append("B-PER" if tag == "I-PER" and (not tags or not tags[-1].endswith("PER")) else tag)
    example = replace(sentence, tags=tuple(tags))
    expected, places = [], sentence.places
    for i, tag in enumerate(tags):
        if tag.startswith("B"):
            last = (
                next((j for j in range(i + 1, len(tags)) if tags[j] != "I-PER"), len(tags)) if tag == "B-PER" else i + 1
            )
            expected.append((places[i][0], places[last - 1][1], tag[2:]))
    for strategy in ("first", "average", "max"):
        [found] = with_outputs(with_strategy(strategy), [example], max_length)
        assert [(each.start, each.end, each.label) for each in found.entities or []] == expected
        assert all(each.text == sentence.text[each.start : each.end] for each in found.entities or [] if sentence.text)
    for strategy in ("none", "simple"):
        [found] = with_outputs(with_strategy(strategy), [example], max_length)
        ends = [(each.start, each.end) for each in found.entities or []]
        assert all(any(a <= start <= end <= b for a, b in places) or strategy == "simple" for start, end in ends)
        assert ends == sorted(ends)


def with_strategy(strategy: Strategy) -> Tag:
    return TASK.with_aggregation(strategy)
