"""Which files of a tokenizer are refused, and that each refusal is one line."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.parity.test_tokenizer_classes import charsmap, field, spm
from tests.unit.text.test_tokenizer import VOCABULARY

from bertie.errors import UserError
from bertie.text.sentencepiece import read_model, require_valid_charsmap
from bertie.text.tokenizer import Tokenizer
from bertie.text.tokenizer_json import MOST_ADDED

CONFIG = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Tokenizer.build(VOCABULARY).save(tmp_path)
    return tmp_path


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class is 'BertJapaneseTokenizer'"),
        ({"tokenizer_class": 3}, "tokenizer_class is 3"),
        ({"tokenizer_class": "9" * 4000}, "tokenizer_class is '99999"),
        ({"truncation_side": ["left"] * 4000}, "truncation_side is ['left', 'left'"),
        ({"truncation_side": "left"}, "truncation_side is 'left'"),
        ({"do_lower_case": "no"}, "do_lower_case is 'no': expected true or false"),
        ({"strip_accents": 1}, "strip_accents is 1"),
        ({"model_max_length": "long"}, "model_max_length is 'long'"),
        ({"vocab": {}}, "vocab is set"),
        ({"fast_tokenizer_files": ["tokenizer.4.0.json"]}, "fast_tokenizer_files"),
        ({"extra_special_tokens": 3}, "extra_special_tokens is 3"),
        ({"extra_special_tokens": [3]}, "3 is no token"),
        ({"added_tokens_decoder": {"x": {"content": "y"}}}, "tokenizer_config.json"),
        ({"added_tokens_decoder": {"1": {"content": "y", "weight": 2}}}, "tokenizer_config.json"),
    ],
)
def test_settings_that_are_not_obeyed_are_named(folder: Path, values: dict[str, Any], message: str) -> None:
    change(folder / "tokenizer_config.json", **values)
    with pytest.raises(UserError) as caught:
        Tokenizer.load(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_truncation_at_the_start_is_named_wherever_it_is_set(folder: Path) -> None:
    change(folder / "tokenizer.json", truncation={"direction": "Left", "max_length": 8})
    with pytest.raises(UserError, match=r"tokenizer\.json: truncation\.direction is 'left'"):
        Tokenizer.load(folder)
    change(folder / "tokenizer_config.json", truncation_side="right")  # transformers takes it from here, if it is here
    Tokenizer.load(folder)


def test_unknown_settings_are_one_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "tokenizer_config.json", wings=2, legs=4, clean_up_tokenization_spaces=True, never_split=None)
    Tokenizer.load(folder)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("unknown settings, which bertie ignores: 'legs', 'wings'")


def test_the_limit_of_the_folder_is_known(folder: Path) -> None:
    assert Tokenizer.load(folder).longest == 512
    change(folder / "tokenizer_config.json", model_max_length=10**30)
    assert Tokenizer.load(folder).longest is None


def test_special_added_tokens_are_saved_under_the_name_that_transformers_4_reads(folder: Path) -> None:
    """It raises AttributeError for a list under extra_special_tokens, the name of transformers 5, which reads both."""
    change(folder / "tokenizer_config.json", extra_special_tokens=["[E1]"])
    Tokenizer.load(folder).save(folder / "saved")
    written = json.loads((folder / "saved" / "tokenizer_config.json").read_text())
    assert written["additional_special_tokens"] == ["[E1]"]
    assert "extra_special_tokens" not in written
    assert Tokenizer.load(folder / "saved").extra == ("[E1]",)


def test_a_pair_has_no_token_types_if_the_model_is_not_told(folder: Path) -> None:
    change(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    tokenizer = Tokenizer.load(folder)
    assert [place.type_id for place in tokenizer.templates.pair] == [0] * 5
    tokenizer.save(folder / "saved")
    assert Tokenizer.load(folder / "saved").templates == tokenizer.templates


def test_special_tokens_that_are_text_stay_text_in_a_copy(folder: Path) -> None:
    added = {str(len(VOCABULARY)): {"content": "[E1]", "special": True}}
    change(folder / "tokenizer_config.json", split_special_tokens=True, added_tokens_decoder=added)
    tokenizer = Tokenizer.load(folder)
    assert len(tokenizer.encode(["[E1]"])[0]) > 1
    tokenizer.save(folder / "saved")
    assert json.loads((folder / "saved" / "tokenizer_config.json").read_text())["split_special_tokens"] is True
    copy = Tokenizer.load(folder / "saved")
    assert copy.encode(["[E1] a"])[0].tolist() == tokenizer.encode(["[E1] a"])[0].tolist()


def gap(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["far"] = 2_000_000_000


def many(content: dict[str, Any]) -> None:
    content["added_tokens"] = [{"id": 0, "content": "a"}] * (MOST_ADDED + 1)


def exploding(content: dict[str, Any]) -> None:
    content["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }


def replaced(content: dict[str, Any]) -> None:
    content["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(x*)*y"}, "content": ""}


def broken_table(content: dict[str, Any]) -> None:
    table = struct.pack("<I", 8) + struct.pack("<2I", 1000 << 10, 0) + b"a\0"
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def random_ids(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["far"] = -1


def dropout(content: dict[str, Any]) -> None:
    content["model"]["dropout"] = 0.5


@pytest.mark.parametrize("damage", [gap, many, exploding, replaced, broken_table, random_ids, dropout])
@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "BertTokenizer"])
def test_a_hostile_tokenizer_json_ends_in_one_line(
    folder: Path, damage: Callable[[dict[str, Any]], None], name: str
) -> None:
    change(folder / "tokenizer_config.json", tokenizer_class=name)
    content = json.loads((folder / "tokenizer.json").read_text())
    damage(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        Tokenizer.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_deep_nesting_ends_in_one_line(folder: Path) -> None:
    for depth in (200, 100_000):
        nested = "[" * depth + "]" * depth
        (folder / "tokenizer.json").write_text(
            f'{{"model": {{"type": "BPE", "vocab": {{"a": 0}}}}, "normalizer": {nested}}}'
        )
        with pytest.raises(UserError, match=r"tokenizer\.json"):
            Tokenizer.load(folder)


def a_model() -> bytes:
    entries = ["<unk>", "<s>", "</s>", *"▁abcdefgh", "▁ab", "cd"]
    return spm([(entry, -float(i)) for i, entry in enumerate(entries)], {"<s>", "</s>"}, charsmap())


def test_a_sentencepiece_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(a_model())
    model = read_model(tmp_path / "spiece.model")
    assert model.pieces[:5] == [("<unk>", 0.0), ("<s>", -1.0), ("</s>", -2.0), ("▁", -3.0), ("a", -4.0)]
    assert model.added == [("<s>", True), ("</s>", True)]
    assert (model.unigram, model.unk_id) == (True, 0)
    require_valid_charsmap(model.charsmap)


@pytest.mark.parametrize(
    ("name", "config", "bpe", "message"),
    [
        ("sentencepiece.bpe.model", {"tokenizer_class": "CamembertTokenizer"}, True, "its model_type is BPE"),
        ("spm.model", {"tokenizer_class": "DebertaV2Tokenizer"}, True, "its model_type is BPE"),
        ("tokenizer.model", {"tokenizer_class": "XLMRobertaTokenizer"}, False, "reads tokenizer.json or sentencepiece.bpe"),
        ("tokenizer.model", {"tokenizer_class": "PreTrainedTokenizerFast"}, True, "reads only tokenizer.json"),
        ("tokenizer.model", {}, False, "no file names its class"),
    ],
)  # fmt: skip
def test_sentencepiece_models_that_no_class_reads_are_refused_with_the_way_out(
    tmp_path: Path, name: str, config: dict[str, str], bpe: bool, message: str
) -> None:
    data = a_model()
    (tmp_path / name).write_bytes(data.replace(field(3, 1) + field(40, 0), field(3, 2) + field(40, 0)) if bpe else data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "save_pretrained" in str(caught.value)


def test_a_line_break_is_a_token_only_in_vocabularies_of_bertie(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *"▁ab\n"]
    (tmp_path / "sentencepiece.bpe.model").write_bytes(spm([(piece, -1.0) for piece in pieces], {"<s>", "</s>"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.line_break_id is None
    assert tokenizer.tokens(tokenizer.encode(["a\nb"])[0]) == ["▁", "a", "▁", "b"]


def test_additional_tokens_of_the_map_are_no_tokens_beside_a_sentencepiece_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers 5 replaces them by those of the model (tests/parity has the same folder with added_tokens.json)."""
    (tmp_path / "sentencepiece.bpe.model").write_bytes(a_model())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["[E1]", "<s>"]}))
    tokenizer = Tokenizer.load(tmp_path)
    assert "[E1]" not in tokenizer.vocabulary
    assert "special_tokens_map.json: additional_special_tokens has '[E1]': text here" in capsys.readouterr().err


def test_albert_keeps_the_special_tokens_around_texts_of_its_tokenizer_json(tmp_path: Path) -> None:
    """Another cls_token beside an old tokenizer.json: transformers takes the post-processor of the file."""
    (tmp_path / "spiece.model").write_bytes(a_model())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "AlbertTokenizer"}))
    first = Tokenizer.load(tmp_path)
    first.save(tmp_path)
    (tmp_path / "special_tokens_map.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "AlbertTokenizer", "cls_token": "[MASK]"})
    )
    second = Tokenizer.load(tmp_path)
    assert second.special.cls == "[MASK]"
    assert second.templates == first.templates
    (tmp_path / "tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path).templates.single[0].id != first.templates.single[0].id


def test_googles_albert_calls_its_model_otherwise(tmp_path: Path) -> None:
    for name in ("google", "huggingface"):
        (tmp_path / name).mkdir()
    (tmp_path / "google" / "30k-clean.model").write_bytes(a_model())
    (tmp_path / "huggingface" / "spiece.model").write_bytes(a_model())
    (tmp_path / "huggingface" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "AlbertTokenizer"}))
    google, huggingface = (Tokenizer.load(tmp_path / name) for name in ("google", "huggingface"))
    assert google.fingerprint == huggingface.fingerprint
    assert google.decode(google.encode(["ab CD"])[0]) == "ab cd"


def test_damaged_sentencepiece_models_end_in_one_line_and_never_crash_the_library(tmp_path: Path) -> None:
    """Every truncation, and many flipped bits: an error, or a tokenizer that reads text."""
    data, rng = a_model(), np.random.default_rng(0)
    small = data[: data.rindex(b"nmt_nfkc") - 4]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLNetTokenizer"}))
    damaged = [small[:end] for end in range(0, len(small), 7)] + [
        data[:end] for end in range(len(small), len(data), 997)
    ]
    for _ in range(150):
        flipped = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            flipped[place] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    refused: list[str] = []
    for content in damaged:
        (tmp_path / "spiece.model").write_bytes(content)
        try:
            Tokenizer.load(tmp_path).encode(["ab cd ﬁ ef"])
        except UserError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert not [line for line in refused if "\n" in line]
