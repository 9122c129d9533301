"""The words of raw texts and their tokens, where tokens do not end with words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bertie.examples.tag_form import TagForm
from bertie.examples.tagged import TaggedSentence, sentence_of_text
from bertie.tasks import Tag
from bertie.tasks.tag_tokens import continued, tokenize
from bertie.tokenizers.bpe_backend import BYTE_CHARACTERS, ROBERTA_ORDER
from bertie.tokenizers.tokenizer import Tokenizer

LABELS = ("B-LOC", "I-LOC", "O")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes, and pieces of punctuation."""
    return Tokenizer.build_bpe([*ROBERTA_ORDER, *BYTE_CHARACTERS, ".)", "Ġ("], [(".", ")"), ("Ġ", "(")])


def tagged(text: str, *tags: str) -> TaggedSentence:
    found = sentence_of_text(text, "train.jsonl:1")
    return TaggedSentence(found.words, tags, found.source, found.text, found.places)


def test_a_token_belongs_to_the_word_in_which_it_begins(tokenizer: Tokenizer) -> None:
    [found] = tokenize(tokenizer, [sentence_of_text("\n (Us.) a", "here")], "words", in_place=True)
    assert tokenizer.tokens(found.ids.tolist()) == ["Ċ", "Ġ(", "U", "s", ".)", "Ġ", "a"]
    assert found.words.tolist() == [0, 0, 1, 1, 2, 4, 4]  # "(", "Us", ".", ")", "a"
    assert found.first.tolist() == [False, True, True, False, True, True, False]
    assert found.shared == ((2, 3),)
    assert found.covered == (3,)


def test_a_covered_word_has_the_tag_of_the_word_before(
    tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Tag(labels=LABELS, in_place=True)
    for tags, straddling in ((("O", "B-LOC", "I-LOC", "I-LOC", "O"), False), (("O", "B-LOC", "I-LOC", "O", "O"), True)):
        example = tagged("(Us.) a", *tags)
        [sequence] = task.encode([example], tokenizer, 64)
        said = capsys.readouterr().err
        assert ("straddle the end of a span: 1, the first in train.jsonl:1, word 3" in said) == straddling
        gold = sequence.target.tags
        assert [LABELS[tag] for tag in gold] == ["O", "B-LOC", "I-LOC", "O"]
        outputs: Any = [np.eye(3, dtype=np.float32)[gold] * 9]
        [found] = task.decode(outputs, [sequence], [example])
        assert found.tags == ["O", "B-LOC", "I-LOC", "I-LOC", "O"]
        assert [entity.text for entity in found.entities or ()] == ["Us.)"]


def test_words_of_a_list_have_a_blank_before(tokenizer: Tokenizer) -> None:
    [listed] = tokenize(tokenizer, [TaggedSentence(("(", "a"), None, "here")], "words", in_place=True)
    assert tokenizer.tokens(listed.ids.tolist()) == ["Ġ(", "Ġ", "a"]
    [empty] = tokenize(tokenizer, [sentence_of_text(" \n", "here")], "words", in_place=True)
    assert len(empty.ids) == 0


def test_only_the_first_word_of_a_token_begins_an_entity() -> None:
    bio, iobes = TagForm("bio"), TagForm("iobes")
    assert [continued(bio, tag, LABELS) for tag in ("B-LOC", "I-LOC", "O")] == ["I-LOC", "I-LOC", "O"]
    assert continued(bio, "B-PER", LABELS) == "B-PER"  # I-PER is no label
    assert continued(iobes, "S-LOC", LABELS) == "S-LOC"
    assert continued(None, "NOUN", LABELS) == "NOUN"
