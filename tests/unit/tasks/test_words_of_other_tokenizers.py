"""Words and special tokens of tokenizers that are not like BERT's: no words at all, text that is not split, <cls> at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.batches.collate import collate
from bertie.examples.squad import Answer, Question
from bertie.examples.tagged import TaggedSentence
from bertie.inspect.heads.layers import Sample
from bertie.inspect.words import encode_words, words_of
from bertie.objectives.masking import select
from bertie.objectives.objective import Labeling
from bertie.tasks import word_alignment
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import encode

ROLES = {"cls_token": "<cls>", "sep_token": "<sep>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
SENTENCE = TaggedSentence(("the", "cats", "sat"), ("A", "B", "A"), "1")
WINDOW = 8


def load(folder: Path, pieces: str, split: Any = None, normalizer: Any = None, **config: str) -> Tokenizer:
    """Write a unigram tokenizer of the library and read it."""
    entries = [*ROLES.values(), *pieces.split()]
    engine = Engine(models.Unigram([(entry, -float(i)) for i, entry in enumerate(entries)], unk_id=3))
    if split is not None:
        engine.pre_tokenizer = split
    if normalizer is not None:
        engine.normalizer = normalizer
    engine.decoder = decoders.Metaspace()
    engine.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**ROLES, **config}))
    return Tokenizer.load(folder)


@pytest.fixture
def wordless(tmp_path: Path) -> Tokenizer:
    return load(tmp_path, "t h e c a s th at cat")


@pytest.fixture
def xlnet(tmp_path: Path) -> Tokenizer:
    return load(tmp_path, "▁ ▁the ▁cat s ▁sat", pre_tokenizers.Metaspace(), tokenizer_class="XLNetTokenizer")


def test_what_needs_words_refuses_a_tokenizer_without_them(wordless: Tokenizer) -> None:
    assert not wordless.backend.word_mark
    [sequence] = encode(wordless, ["thecat"])
    given = Labeling(wordless, np.random.default_rng(0))
    needs = {
        "a tag": lambda: Tag(labels=("A", "B")).encode([SENTENCE], wordless, WINDOW),
        "a vector": lambda: word_alignment.split_and_tokenize(wordless, ["thecat"]),
        "a likelihood": lambda: word_alignment.word_numbers(wordless, wordless.encode_with_offsets(["thecat"])[0]),
        "the comparison of layers": lambda: Sample.draw([[sequence]], wordless, WINDOW, 0),
        "masking": lambda: select("words", collate([sequence], WINDOW), given, 0.5, 4),
    }
    for name, call in needs.items():
        with pytest.raises(UserError, match=f"{name}.* needs words"):
            call()


@pytest.mark.parametrize("way", ["first", "normalizer"])
def test_words_are_those_of_the_entries_where_the_text_is_not_split(tmp_path: Path, way: str) -> None:
    """As in Llama's tokenizers: blanks become "▁", and the model reads the text as a whole."""
    blanks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ways = {"first": {"split": pre_tokenizers.Metaspace(split=False)}, "normalizer": {"normalizer": blanks}}
    tokenizer = load(tmp_path, "▁ ▁the ▁cat s 東 京", **ways[way])
    text = "the cats 東京 the"
    [encoding] = tokenizer.encode_with_offsets([text])
    assert set(encoding.word_ids) == {0}
    assert word_alignment.word_numbers(tokenizer, encoding).tolist() == [0, 1, 1, 2, 3, 4, 5]
    [(pieces, places)] = word_alignment.split_and_tokenize(tokenizer, [text])
    assert [text[start:end] for start, end in places.tolist()] == ["the", "cats", "東", "京", "the"]
    assert pieces.offsets is not None
    assert pieces.offsets.tolist() == [[0, 1], [1, 1], [1, 2], [2, 1], [3, 1], [4, 1]]


def test_tags_belong_to_the_words_if_the_sequence_begins_with_text(xlnet: Tokenizer) -> None:
    [window] = Tag(labels=("A", "B")).encode([SENTENCE], xlnet, WINDOW)
    assert xlnet.tokens(window.input_ids) == ["▁the", "▁cat", "s", "▁sat", "<sep>", "<cls>"]
    assert window.target.positions.tolist() == [0, 1, 3]
    assert window.target.tokens.words.tolist() == [0, 1, 2]
    assert window.target.tags.tolist() == [0, 1, 0]
    [sequence] = encode_words(xlnet, [SENTENCE.words], WINDOW).sequences
    assert words_of(sequence).tolist() == [0, 1, 1, 2, -1, -1]


def test_answers_are_in_the_context_if_the_sequence_begins_with_text(xlnet: Tokenizer) -> None:
    task = Span(threshold=0.0, max_answer_length=2)
    asked = [Question("1", "the cats", "sat the cats", (Answer("cats", 8),), "1"), Question("2", "sat", "the", (), "2")]
    first, second = task.encode(asked, xlnet, 12)
    tokens = ["▁the", "▁cat", "s", "<sep>", "▁sat", "▁the", "▁cat", "s", "<sep>", "<cls>"]
    assert xlnet.tokens(first.input_ids) == tokens
    assert (first.target.first, first.target.last, first.target.answer) == (4, 8, (6, 7))
    assert second.target.answer == (len(second) - 1, len(second) - 1)

    def logits(start: int, end: int, sequence: Sequence) -> np.ndarray:
        scores = np.zeros((len(sequence), 2), np.float32)
        scores[start, 0] = scores[end, 1] = 5
        return scores

    found = task.decode([logits(6, 7, first), logits(-1, -1, second)], [first, second], asked)
    assert [each.answer for each in found] == ["cats", ""]
