"""Which files of a tokenizer are obeyed and which are refused, and that each refusal is one line."""

from __future__ import annotations

import base64
import builtins
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.parity.test_tokenizer_classes import charsmap, field, spm
from tests.unit.tokenizers.test_tokenizer import VOCABULARY

from bertie.base.errors import UsageError, UserError
from bertie.tokenizers.sentencepiece import read_model
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import encode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Tokenizer.build(VOCABULARY).save(tmp_path)
    return tmp_path


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"truncation_side": "Left"}, "truncation_side is 'Left'"),
        ({"truncation_side": ["left"] * 4000}, "truncation_side is ['left', 'left'"),
        ({"do_lower_case": "no"}, "is damaged"),
        ({"model_max_length": "long"}, "model_max_length is 'long'"),
        ({"vocab": {}}, "json: vocab "),
        ({"fast_tokenizer_files": ["tokenizer.4.0.json"]}, "fast_tokenizer_files"),
        ({"extra_special_tokens": 3}, "are damaged"),
        ({"extra_special_tokens": [3]}, "are damaged"),
        ({"added_tokens_decoder": {"x": {"content": "y"}}}, "are damaged"),
    ],
)
def test_settings_that_are_not_obeyed_are_named(folder: Path, values: dict[str, Any], message: str) -> None:
    change(folder / "tokenizer_config.json", **values)
    with pytest.raises(UserError) as caught:
        Tokenizer.load(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_truncation_at_the_start_is_obeyed_wherever_it_is_set(folder: Path) -> None:
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    assert not Tokenizer.load(folder).truncates_left
    truncation = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    change(folder / "tokenizer.json", truncation=truncation)
    assert Tokenizer.load(folder).truncates_left
    change(folder / "tokenizer_config.json", truncation_side="right")  # transformers takes it from here, if it is here
    assert not Tokenizer.load(folder).truncates_left
    change(folder / "tokenizer_config.json", truncation_side="left")
    Tokenizer.load(folder).save(folder / "saved")
    tokenizer = Tokenizer.load(folder / "saved")
    [sequence] = encode(tokenizer, ["a b c d e f"], max_length=5)
    whole = tokenizer.encode(["a b c d e f"])[0]
    assert sequence.input_ids[1:-1].tolist() == whole[-3:].tolist()


def test_a_path_may_be_a_string_and_the_limit_of_the_folder_is_known(folder: Path) -> None:
    assert Tokenizer.load(str(folder)).longest == 512
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


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def test_any_pattern_is_read_and_one_that_never_ends_is_an_error_of_its_text(folder: Path) -> None:
    """The library's engine gives up after some steps and panics: an error that is no Exception."""
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    change(folder / "tokenizer.json", pre_tokenizer=split("[A-Z]+|[a-z]+"), normalizer=None)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.tokens(tokenizer.encode(["cat,un"])[0]) == ["cat", ",", "un"]
    change(folder / "tokenizer.json", pre_tokenizer=split("(a+)+$"))
    tokenizer = Tokenizer.load(folder)
    with pytest.raises(UserError, match=r"cannot read a text: .*retry-limit"):
        tokenizer.encode(["a" * 40 + "b"])
    assert len(tokenizer.encode(["the cat"])[0]) == 1


def gap(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["far"] = 2_000_000_000


def negative(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["far"] = -1


def nested(content: dict[str, Any]) -> None:
    content["normalizer"] = json.loads("[" * 200 + "]" * 200)


def other_model(content: dict[str, Any]) -> None:
    content["model"] = {"type": "BPE", "vocab": content["model"]["vocab"], "merges": [], "dropout": 0.5}


@pytest.mark.parametrize("damage", [gap, negative, nested, other_model])
@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "BertTokenizer"])
def test_a_damaged_tokenizer_json_ends_in_one_line(
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


def test_a_damaged_table_of_characters_is_an_error_of_its_text(folder: Path) -> None:
    table = struct.pack("<I", 8) + struct.pack("<2I", 1000 << 10, 0) + b"a\0"
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    change(folder / "tokenizer.json", normalizer=normalizer)
    with pytest.raises(UserError, match="index out of bounds"):
        Tokenizer.load(folder).encode(["the cat"])


def test_a_special_token_that_the_vocabulary_lacks_is_refused(folder: Path) -> None:
    cls = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    tokens = {"[CLS]": {"id": "[CLS]", "ids": [100_000], "tokens": ["[CLS]"]}}
    post = {"type": "TemplateProcessing", "single": [cls, texts[0]], "pair": [cls, *texts], "special_tokens": tokens}
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    change(folder / "tokenizer.json", post_processor=post)
    with pytest.raises(UserError, match="adds the token 100000"):
        Tokenizer.load(folder)


def a_model() -> bytes:
    entries = ["<unk>", "<s>", "</s>", *"▁abcdefgh", "▁ab", "cd"]
    return spm([(entry, -float(i)) for i, entry in enumerate(entries)], {"<s>", "</s>"}, charsmap())


def test_a_sentencepiece_model_is_read(tmp_path: Path) -> None:
    model = read_model(tmp_path / "a.model", a_model())
    assert model.pieces[:5] == [("<unk>", 0.0), ("<s>", -1.0), ("</s>", -2.0), ("▁", -3.0), ("a", -4.0)]
    assert model.added == [("<s>", True), ("</s>", True)]
    assert model.charsmap == charsmap()


@pytest.mark.parametrize(
    ("name", "config", "bpe", "message"),
    [
        ("sentencepiece.bpe.model", {"tokenizer_class": "XLMRobertaTokenizer"}, True, "not a unigram model"),
        ("tokenizer.model", {"tokenizer_class": "XLMRobertaTokenizer"}, False, "reads tokenizer.json or sentencepiece.bpe"),
        ("tokenizer.model", {"tokenizer_class": "PreTrainedTokenizerFast"}, True, "reads only tokenizer.json"),
        ("tokenizer.model", {}, False, "no tokenizer_class"),
    ],
)  # fmt: skip
def test_sentencepiece_models_that_no_class_reads_are_refused(
    tmp_path: Path, name: str, config: dict[str, str], bpe: bool, message: str
) -> None:
    data = a_model()
    (tmp_path / name).write_bytes(data.replace(field(3, 1) + field(40, 0), field(3, 2) + field(40, 0)) if bpe else data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert name in str(caught.value)


@pytest.mark.parametrize("content", [b"", a_model()[:40], a_model()[:-3], b"\x0a\x00", b"\xff" * 99])
def test_a_damaged_sentencepiece_model_ends_in_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError, match=r"a\.model is "):
        read_model(tmp_path / "a.model", content)


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
    assert (
        "special_tokens_map.json: additional_special_tokens has '[E1]', which is text here" in capsys.readouterr().err
    )


def test_another_class_names_the_extra_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spiece.model").write_bytes(a_model())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "AlbertTokenizer"}))

    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name}", name=name)

    monkeypatch.setattr("bertie.tokenizers.transformers_tokenizer.importlib.import_module", missing)
    with pytest.raises(UsageError, match=r"AlbertTokenizer is read by transformers, .*\[tokenizers\]"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "name", ["BertJapaneseTokenizer", "PhobertTokenizer", "BertweetTokenizer", "AutoModel", "9" * 4000]
)
def test_classes_of_python_alone_are_refused_by_name(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="needs the package transformers")
    change(folder / "tokenizer_config.json", tokenizer_class=name)
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("asks whether to run code"))
    with pytest.raises(UserError, match=f"tokenizer class is '{name[:60]}'") as caught:
        Tokenizer.load(folder)
    assert len(str(caught.value)) < 500
