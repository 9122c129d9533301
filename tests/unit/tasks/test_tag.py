from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.left_out import valid_examples
from bertie.examples.tagged import TaggedSentence
from bertie.tasks.predictions import TagPrediction
from bertie.tasks.tag import Tag
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def uncased(shared_data: Path) -> Tokenizer:
    words = (shared_data / "vocab" / "bert-base-uncased.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return Tokenizer.build(words)


TASK = Tag(labels=("B-X", "I-X", "O"))


def test_head_reads_the_first_subword_of_each_word(uncased: Tokenizer) -> None:
    sentence = TaggedSentence(("U.S.", "unaffable", "\x07", "cat"), ("B-X", "O", "I-X", "O"), "here")
    [sequence] = TASK.encode([sentence], uncased, 64)
    tokens = uncased.tokens(sequence.input_ids)
    assert tokens == ["[CLS]", "u", ".", "s", ".", "una", "##ffa", "##ble", "[UNK]", "cat", "[SEP]"]
    assert [tokens[i] for i in TASK.head_positions(sequence, "first")] == ["u", "una", "[UNK]", "cat"]
    assert sequence.target.tags.tolist() == [0, 2, 1, 2]


def test_every_word_is_predicted_in_exactly_one_window(shared_data: Path, uncased: Tokenizer) -> None:
    sentences = valid_examples(Tag().reader.read(shared_data / "ner" / "emerging.dev.conll"), "wnut")[:60]
    windows = Tag(labels=("O",)).encode(sentences, uncased, 13)
    seen: dict[int, list[int]] = {}
    for window in windows:
        assert len(window) <= 13
        seen.setdefault(window.example, []).extend(window.target.tokens.words.tolist())
    assert [sorted(seen[i]) for i in range(len(sentences))] == [list(range(len(s.words))) for s in sentences]


def test_fit_refuses_a_tag_that_is_not_in_labels() -> None:
    with pytest.raises(UserError, match=r"here, word 2: the tag 'B-A' is not in task\.labels: B-X, I-X, O"):
        TASK.fit([TaggedSentence(("cat", "dog"), ("O", "B-A"), "here")])
    fitted = TASK.fit([TaggedSentence(("cat", "dog"), ("O", "B-X"), "here")])
    assert (fitted.labels, fitted.scheme, fitted.sorted_labels) == (TASK.labels, "bio", False)


def test_truncated_words_get_the_tag_o(uncased: Tokenizer) -> None:
    sentence = TaggedSentence(("cat",) * 10, ("B-X",) * 10, "here")
    task = Tag(labels=("B-X", "I-X", "O"), truncation="head")
    [sequence] = task.encode([sentence], uncased, 6)
    assert sequence.truncated == 6
    [found] = task.decode([np.eye(3, dtype=np.float32)[[0, 0, 1, 0]]], [sequence], [sentence])
    assert found.tags == ["B-X", "B-X", "I-X", "B-X"] + ["O"] * 6
    assert found.probabilities[4:] == [0.0] * 6
    assert found.probabilities[0] == pytest.approx(np.e / (np.e + 2))


def test_fit_collects_the_training_tags(uncased: Tokenizer) -> None:
    rows = [TaggedSentence(("a", "b"), ("O", "B-X"), "1"), TaggedSentence(("c",), ("I-X",), "2")]
    fitted = Tag().fit(rows)
    assert fitted.labels == ("B-X", "I-X", "O")
    with pytest.raises(UserError, match="every word has the tag 'O'"):
        Tag().fit([TaggedSentence(("a",), ("O",), "1")])
    with pytest.raises(UserError, match="2: words without tags"):
        Tag().fit([rows[0], TaggedSentence(("a",), None, "2")])
    new = TaggedSentence(("a", "b"), ("B-NEW", "O"), "3")  # an unknown tag has no target and counts as an error
    [sequence] = fitted.encode([new], uncased, 8)
    assert sequence.target.tags.tolist() == [-1, 2]
    assert fitted.score([TagPrediction([*new.words], ["O", "O"], [1, 1])], [new])["accuracy"] == 0.5


def test_validate_warns_of_tags_that_are_not_in_training(capsys: pytest.CaptureFixture[str]) -> None:
    known = TaggedSentence(("a", "b"), ("O", "B-X"), "dev.conll:1")
    TASK.validate([known])
    assert not capsys.readouterr().err
    unknown = TaggedSentence(("a", "b", "c"), ("B-NEW", "O", "I-NEW"), "dev.conll:4")
    TASK.validate([known, unknown])
    warning = "tags that do not occur in the training examples count as errors: B-NEW, I-NEW (2 words, first dev.conll:4, word 1)"
    assert warning in capsys.readouterr().err
    with pytest.raises(
        UserError, match=r"dev.conll:9, word 1: none of the tags 0, 1 is known; the tags are B-X, I-X, O"
    ):
        TASK.validate([TaggedSentence(("a", "b"), ("0", "1"), "dev.conll:9")])


def test_labels_must_be_several_and_distinct() -> None:
    with pytest.raises(UsageError, match=r"task\.labels names a label twice: O, O"):
        Tag(labels=("O", "O"))
    with pytest.raises(UsageError, match=r"task\.labels names one tag, 'O'"):
        Tag(labels=("O",)).fit([TaggedSentence(("a",), ("O",), "here")])
