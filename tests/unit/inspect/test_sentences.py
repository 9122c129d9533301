"""Sentences of the page: which are chosen, what is kept of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bertie.base.errors import UsageError
from bertie.inspect.heads import sentences as module
from bertie.inspect.heads.sentences import (
    Arc,
    given_sentences,
    sentence_table,
    sentences_of_text,
    sentences_of_treebank,
    shown_tokens,
)
from bertie.inspect.texts import TextFile
from bertie.model.model import Model
from bertie.predict.predictor import Predictor
from bertie.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from conftest import Plant


@pytest.fixture
def predictor(plant: Plant, word_tokenizer: Tokenizer) -> Predictor:
    """Head 2.1 attends from "dog" to "sees"."""
    model: Model = plant({(1, 0): [("dog", "sees")]})
    return Predictor(Path("planted"), word_tokenizer, model, None, 64)


def test_the_attention_of_every_head_is_kept(predictor: Predictor) -> None:
    short, long = given_sentences(predictor, ["cat sees", "the cats sees the dog"])
    assert short.tokens == ["[CLS]", "cat", "sees", "[SEP]"]
    assert short.special == [0, 3]
    assert short.attention.shape == (2, 3, 4, 4)
    assert long.tokens == ["[CLS]", "the", "cat", "##s", "sees", "the", "dog", "[SEP]"]
    assert long.attention.shape == (2, 3, 8, 8)
    np.testing.assert_allclose(long.attention.sum(-1), 1, rtol=1e-6)
    assert long.attention[1, 0, 6].argmax() == 4
    assert long.attention[1, 0, 6, 4] > 0.9


def test_unknown_text_is_shown_as_it_was_given(predictor: Predictor, tmp_path: Path) -> None:
    text = "the  Zürich cats ☃☃ dog"
    [given] = given_sentences(predictor, [text])
    assert given.text == text
    assert given.tokens == ["[CLS]", "the", "[UNK]", "cat", "##s", "[UNK]", "dog", "[SEP]"]
    assert given.shown == ["[CLS]", "the", "Zürich", "cat", "##s", "☃☃", "dog", "[SEP]"]
    (tmp_path / "a.txt").write_text(f"the dog\n{text}\n")
    assert [
        each.shown for each in sentences_of_text(predictor, TextFile(tmp_path / "a.txt", predictor.tokenizer, 64))
    ] == [given.shown]
    (tmp_path / "a.conllu").write_text(
        _tree("the 2 det", "Zürich 3 nsubj", "sees 0 root", "the 5 det", "dog-☃ 3 obj", "cats 3 x")
    )
    [parsed] = sentences_of_treebank(predictor, tmp_path / "a.conllu")
    assert parsed.text == "the Zürich sees the dog-☃ cats"
    assert parsed.shown == ["[CLS]", "the", "Zürich", "sees", "the", "dog", "-", "☃", "cat", "##s", "[SEP]"]
    assert parsed.tokens[6:8] == ["[UNK]", "[UNK]"]


def test_the_table_has_every_probability(predictor: Predictor) -> None:
    found = given_sentences(predictor, ["cat sees", "the dog"])
    rows = sentence_table(found).rows()
    assert len(rows) == 2 * 3 * (16 + 16)
    for row in rows[::7]:
        sentence = found[row["sentence"] - 1]
        assert row["from_token"] == sentence.tokens[row["from"] - 1]
        assert row["to_token"] == sentence.tokens[row["to"] - 1]
        attention = sentence.attention[row["layer"] - 1, row["head"] - 1, row["from"] - 1, row["to"] - 1]
        assert row["attention"] == pytest.approx(float(attention), rel=1e-6)


def test_unsuitable_sentences_are_refused(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--sentences: '' has no tokens"):
        given_sentences(predictor, ["cat", ""])
    with pytest.raises(UsageError, match=r"the model reads 64 tokens, 'the the .*' has more"):
        given_sentences(predictor, ["the " * 63])
    monkeypatch.setattr(module, "MOST_NUMBERS", 100)
    with pytest.raises(UsageError, match="150 numbers, and the page holds 100"):
        given_sentences(predictor, ["cat sees dog"])


def test_the_first_suitable_texts_of_a_file_are_chosen(predictor: Predictor, tmp_path: Path) -> None:
    texts = ["cat", "the " * 60, *(f"the cat sees the dog {'the ' * n}" for n in range(8))]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = sentences_of_text(predictor, TextFile(path, predictor.tokenizer, 64))
    assert [len(each.tokens) for each in found] == [8, 9, 10, 11, 12, 13]
    assert all(each.arcs == [] for each in found)


def test_sentences_of_a_treebank_are_those_with_the_most_relations(predictor: Predictor, tmp_path: Path) -> None:
    plain = _tree("the 2 det", "cat 3 nsubj", "sees 0 root", "the 5 det", "cats 3 obj", "the 5 x")
    richer = _tree("the 2 det", "cat 3 nsubj", "sees 0 root", "the 5 det", "dog 3 obl", "the 5 y", "cats 3 advcl")
    path = tmp_path / "a.conllu"
    path.write_text(plain + "1\tbroken\n\n" + plain + richer)
    found = sentences_of_treebank(predictor, path)
    assert [len(each.tokens) for each in found] == [10, 9, 9]
    assert found[0].tokens == ["[CLS]", "the", "cat", "sees", "the", "dog", "the", "cat", "##s", "[SEP]"]
    assert found[0].arcs == [
        Arc("det", 1, 2),
        Arc("nsubj", 2, 3),
        Arc("det", 4, 5),
        Arc("obl", 5, 3),
        Arc("y", 6, 5),
        Arc("advcl", 7, 3),
    ]
    assert found[1].arcs[2:] == [Arc("det", 4, 5), Arc("obj", 5, 3), Arc("x", 7, 5)]


def test_tokens_of_byte_level_bpe_are_shown_as_characters() -> None:
    tokenizer = Tokenizer.build_bpe(
        ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "Ġ", "Ã", "©", "Ġa", "Ã©"], [("Ġ", "a"), ("Ã", "©")]
    )
    entries = {entry: number for number, entry in enumerate(tokenizer.vocabulary)}
    ids = np.array([entries[entry] for entry in ("<s>", "Ġa", "Ã©", "Ã")])
    assert shown_tokens(tokenizer, ids) == ["<s>", "▁a", "é", "�"]


def _tree(*words: str) -> str:
    rows = [word.split() for word in words]
    lines = [f"{n}\t{form}\t_\tX\t_\t_\t{head}\t{relation}\t_\t_" for n, (form, head, relation) in enumerate(rows, 1)]
    return "\n".join(lines) + "\n\n"
