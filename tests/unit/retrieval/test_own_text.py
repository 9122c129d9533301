"""Pairs from nothing but text: no query contains its positive, equal passages are one text, the same bytes twice."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from tests.unit.retrieval.test_mine import rows

from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.retrieval.own_text import PairOptions, own_pairs
from bertie.tasks.embed import Embed
from bertie.tasks.scoring import labeled_examples
from bertie.tokenizers.tokenizer import Tokenizer

HANDBOOK = """# Refunds

You can return a product within thirty days. We refund the whole price to your account. Shipping is not refunded.
Contact the shop if a refund is late.

# Opening hours

The shop opens at nine in the morning. It closes at six in the evening. On Sundays it stays closed all day long.
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "handbook.md").write_text(HANDBOOK, encoding="utf-8")
    return tmp_path / "text"


def test_headings_held_out_sentences_and_salient_words(text: Path, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = own_pairs(text, small_tokenizer, tmp_path / "a.jsonl", PairOptions(tokens=600))
    pairs = rows(tmp_path / "a.jsonl")
    assert found["passages"] == 2
    assert found["pairs"] == {"heading": 2, "span": 2, "terms": 4}
    positives = defaultdict[str, set[str]](set)
    for pair in pairs:
        positives[pair["kind"]].add(pair["positive"])
        assert pair["query"] not in pair["positive"]
    assert positives["heading"] == positives["span"] == positives["terms"]
    assert [pair["query"] for pair in pairs if pair["kind"] == "heading"] == ["Refunds", "Opening hours"]
    for pair in pairs:
        if pair["kind"] == "span":
            assert pair["query"] in HANDBOOK.replace("\n", " ")
        if pair["kind"] == "terms":
            assert {*pair["query"].split()} <= {*re.findall(r"\w+", HANDBOOK.lower())} - {"the", "is", "at", "a", "if"}
    own_pairs([text], small_tokenizer, tmp_path / "b.jsonl", PairOptions(tokens=600))
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert len(labeled_examples(Embed().reader, tmp_path / "a.jsonl")) == len(pairs)


def test_kinds_can_be_left_out(text: Path, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = own_pairs(text, small_tokenizer, tmp_path / "a.jsonl", PairOptions(tokens=600, spans=0, terms=0))
    assert found["pairs"] == {"heading": 2}


def test_bad_input(text: Path, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give a new file X"):
        own_pairs(text, small_tokenizer, tmp_path / "a.txt")
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(UserError, match="the documents have no text"):
        own_pairs(tmp_path / "empty.txt", small_tokenizer, tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()


def test_the_command(text: Path, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "pairs.jsonl"
    assert (
        main(["pairs", str(text), "--tokenizer", str(pretrained), "--out", str(out), "--tokens", "600", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["pairs"]["heading"] == 2
