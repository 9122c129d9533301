"""Tokenizers that would take unbounded time or memory, or break while a text is read, are refused with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.parity.test_tokenizer_classes import field
from tests.unit.text.test_tokenizer import VOCABULARY

from bertie.errors import UserError
from bertie.text import sentencepiece, tokenizer_json
from bertie.text.sentencepiece import read_model
from bertie.text.tokenizer import Tokenizer

CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
TEXTS = ({"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Tokenizer.build(VOCABULARY).save(tmp_path)
    change(tmp_path, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    return tmp_path


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))


def replace(count: int, text: str = "e", content: str = "ee") -> dict[str, Any]:
    part = {"type": "Replace", "pattern": {"String": text}, "content": content}
    return {"type": "Sequence", "normalizers": [part] * count}


def template(count: int, ids: list[int], kind: int = 0) -> dict[str, Any]:
    cls = {"SpecialToken": {"id": "[CLS]", "type_id": kind}}
    tokens = {"[CLS]": {"id": "[CLS]", "ids": ids, "tokens": ["[CLS]"] * len(ids)}}
    return {
        "type": "TemplateProcessing",
        "single": [cls] * count + [TEXTS[0]],
        "pair": [cls, *TEXTS],
        "special_tokens": tokens,
    }


def pattern(written: Any) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": written}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"normalizer": replace(30)}, "normalizer makes a text more than 300 times as long"),
        ({"normalizer": replace(1, "", "x" * 300)}, "normalizer makes a text"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 1000}}, "normalizer makes a text"),
        ({"decoder": replace(30) | {"decoders": replace(30)["normalizers"]}}, "decoder makes a text"),
        ({"normalizer": replace(1000, "e", "e")}, "normalizer has more than 500 parts"),
        ({"post_processor": template(1000, [2])}, "post_processor has more than 500 parts"),
        ({"post_processor": template(1, [2] * 1000)}, "post_processor has more than 500 parts"),
        ({"post_processor": template(1, [2] * 200)}, "adds 200 special tokens"),
        ({"post_processor": template(1, [100_000])}, "up to the id 100000"),
        ({"post_processor": template(1, [2], 5000)}, "token type 5000"),
        ({"pre_tokenizer": pattern(["a"])}, "pre_tokenizer has the pattern"),
        ({"pre_tokenizer": pattern({"a": 1})}, "pre_tokenizer has the pattern"),
        (
            {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "NO"}},
            "unk_token is 'NO', which the vocabulary lacks",
        ),
    ],
)
def test_what_would_grow_or_break_is_refused(folder: Path, values: dict[str, Any], message: str) -> None:
    change(folder, "tokenizer.json", **values)
    with pytest.raises(UserError) as caught:
        Tokenizer.load(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)


def test_replacements_of_known_tokenizers_are_read(folder: Path) -> None:
    change(folder, "tokenizer.json", normalizer=replace(20, "``", '"'), post_processor=template(2, [2]))
    assert Tokenizer.load(folder).templates.lengths_around == (2, 0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": {f"q{i}": f"q{i}" for i in range(30)}}),
        ("tokenizer_config.json", {"extra_special_tokens": [f"q{i}" for i in range(30)]}),
        ("tokenizer_config.json", {f"q{i}_token": f"q{i}" for i in range(30)}),
        ("special_tokens_map.json", {f"q{i}_token": f"q{i}" for i in range(30)}),
        ("added_tokens.json", {f"q{i}": 100 + i for i in range(30)}),
        ("tokenizer_config.json", {"added_tokens_decoder": {str(100 + i): {"content": f"q{i}"} for i in range(30)}}),
    ],
)
def test_the_number_of_added_tokens_is_bounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, values: dict[str, Any]
) -> None:
    change(folder, name, **values)
    monkeypatch.setattr(tokenizer_json, "MOST_ADDED", 20)
    with pytest.raises(UserError, match="at most 20 are read"):
        Tokenizer.load(folder)
    monkeypatch.setattr(tokenizer_json, "MOST_ADDED", 100)
    monkeypatch.setattr(tokenizer_json, "MOST_ADDED_CHARACTERS", 60)
    with pytest.raises(UserError, match="at most 60 are read"):
        Tokenizer.load(folder)


def test_pieces_are_not_empty_and_not_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "spm.model"
    path.write_bytes(field(1, b"") * 100)
    with pytest.raises(UserError, match="piece 0 is empty"):
        read_model(path)
    monkeypatch.setattr(sentencepiece, "MOST_PIECES", 5)
    path.write_bytes(b"".join(field(1, field(1, b"%d" % i)) for i in range(9)))
    with pytest.raises(UserError, match="more than 5 pieces"):
        read_model(path)


def test_a_replacement_of_a_table_is_short() -> None:
    with pytest.raises(UserError, match="more than 200 bytes"):
        sentencepiece.require_valid_charsmap(b"\4\0\0\0" + bytes(4) + b"x" * 1000 + b"\0")
