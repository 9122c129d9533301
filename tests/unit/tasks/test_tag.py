from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertie.errors import UsageError, UserError
from bertie.tasks.data.conll import TaggedSentence
from bertie.tasks.data.rows import valid_examples
from bertie.tasks.entities import entities, entity_scores, names_entities
from bertie.tasks.predictions import TagPrediction
from bertie.tasks.tag import Tag
from bertie.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def uncased(shared_data: Path) -> Tokenizer:
    words = (shared_data / "vocab" / "bert-base-uncased.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return Tokenizer.build(words)


TASK = Tag(labels=("B-X", "I-X", "O"))


def test_the_first_piece_of_each_word_is_read(uncased: Tokenizer) -> None:
    sentence = TaggedSentence(("U.S.", "unaffable", "\x07", "cat"), ("B-X", "O", "I-X", "O"), "here")
    [made] = TASK.encode([sentence], uncased, 64)
    tokens = uncased.tokens(made.input_ids)
    assert tokens == ["[CLS]", "u", ".", "s", ".", "una", "##ffa", "##ble", "[UNK]", "cat", "[SEP]"]
    assert [tokens[i] for i in TASK.head_positions(made)] == ["u", "una", "[UNK]", "cat"]
    assert made.target.tags.tolist() == [0, 2, 1, 2]


@pytest.mark.parametrize("length", [8, 13, 32])
def test_every_word_is_read_once_where_its_context_is_largest(
    shared_data: Path, uncased: Tokenizer, length: int
) -> None:
    sentences = valid_examples(Tag().reader.read(shared_data / "ner" / "emerging.dev.conll"), "wnut")[:60]
    windows = Tag(labels=("O",)).encode(sentences, uncased, length)
    seen: dict[int, list[int]] = {}
    for window in windows:
        assert len(window) <= length
        seen.setdefault(window.example, []).extend(window.target.numbers.tolist())
    assert [sorted(seen[i]) for i in range(len(sentences))] == [list(range(len(s.words))) for s in sentences]


def test_a_training_tag_that_is_none_of_those_given() -> None:
    with pytest.raises(UserError, match=r"here: the tag 'B-A' is none of task\.labels: B-X, I-X, O"):
        TASK.fit([TaggedSentence(("cat", "dog"), ("O", "B-A"), "here")])
    assert TASK.fit([TaggedSentence(("cat", "dog"), ("O", "B-X"), "here")]) == TASK


def test_what_is_cut_has_no_tag(uncased: Tokenizer) -> None:
    sentence = TaggedSentence(("cat",) * 10, ("B-X",) * 10, "here")
    task = Tag(labels=("B-X", "I-X", "O"), truncation="head")
    [made] = task.encode([sentence], uncased, 6)
    assert made.truncated == 6
    [found] = task.decode([np.eye(3, dtype=np.float32)[[0, 0, 1, 0]]], [made], [sentence])
    assert found.tags == ["B-X", "B-X", "I-X", "B-X"] + ["O"] * 6
    assert found.probabilities[4:] == [0.0] * 6
    assert found.probabilities[0] == pytest.approx(np.e / (np.e + 2))


def test_tags_are_those_of_training(uncased: Tokenizer) -> None:
    rows = [TaggedSentence(("a", "b"), ("O", "B-X"), "1"), TaggedSentence(("c",), ("I-X",), "2")]
    fitted = Tag().fit(rows)
    assert fitted.labels == ("B-X", "I-X", "O")
    with pytest.raises(UserError, match="every word has the tag 'O'"):
        Tag().fit([TaggedSentence(("a",), ("O",), "1")])
    with pytest.raises(UserError, match="2: words without tags"):
        Tag().fit([rows[0], TaggedSentence(("a",), None, "2")])
    new = TaggedSentence(("a", "b"), ("B-NEW", "O"), "3")  # is never right, and teaches nothing
    [made] = fitted.encode([new], uncased, 8)
    assert made.target.tags.tolist() == [-1, 2]
    assert fitted.score([TagPrediction([*new.words], ["O", "O"], [1, 1])], [new])["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-P I-P O B-L", [("P", 0, 2), ("L", 3, 4)]),
        ("I-P I-P O I-L I-L", [("P", 0, 2), ("L", 3, 5)]),  # IOB1
        ("I-P B-P I-P", [("P", 0, 1), ("P", 1, 3)]),
        ("B-P I-L", [("P", 0, 1), ("L", 1, 2)]),
        ("B-P B-P", [("P", 0, 1), ("P", 1, 2)]),
        ("B-P E-P S-L I-L", [("P", 0, 2), ("L", 2, 3), ("L", 3, 4)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities(tags: str, found: list[tuple[str, int, int]]) -> None:
    assert list(entities(tags.split())) == found


def test_scores_of_entities() -> None:
    gold = [["B-P", "I-P", "O", "B-L"], ["O", "O"]]
    assert entity_scores(gold, gold) == {"f1": 1.0, "precision": 1.0, "recall": 1.0}
    found = entity_scores(gold, [["B-P", "O", "O", "B-L"], ["B-X", "O"]])
    assert found == {"f1": pytest.approx(2 / 5), "precision": 1 / 3, "recall": 1 / 2}
    assert entity_scores([["O"]], [["O"]])["f1"] == 0
    assert names_entities(["O", "B-PER", "I-PER"])
    assert not names_entities(["NOUN", "O"])
    assert not names_entities(["O"])


def test_tags_that_training_has_not_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    known = TaggedSentence(("a", "b"), ("O", "B-X"), "dev.conll:1")
    TASK.validate([known])
    assert not capsys.readouterr().err
    strange = TaggedSentence(("a", "b", "c"), ("B-NEW", "O", "I-NEW"), "dev.conll:4")
    TASK.validate([known, strange])
    told = "2 words can only be wrong, with tags that training has not: B-NEW, I-NEW (first in dev.conll:4)"
    assert told in capsys.readouterr().err
    with pytest.raises(UserError, match=r"dev.conll:9: 0, 1: none of these tags is known; there are B-X, I-X, O"):
        TASK.validate([TaggedSentence(("a", "b"), ("0", "1"), "dev.conll:9")])


def test_tags_that_are_named_are_some_and_each_once() -> None:
    with pytest.raises(UsageError, match=r"task\.labels names a tag twice: O, O"):
        Tag(labels=("O", "O"))
    with pytest.raises(UsageError, match=r"task\.labels names one tag, 'O'"):
        Tag(labels=("O",)).fit([TaggedSentence(("a",), ("O",), "here")])
