"""Byte-level BPE: training, ids equal to those of transformers, offsets, and files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie import extend_tokenizer, train_tokenizer
from bertie.base.errors import UserError
from bertie.corpus import bpe, word_counts
from bertie.tasks import word_alignment
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import ByteLevel, Tokenizer
from bertie.tokenizers.truncation import TokenizedText
from bertie.tokenizers.word_cache import WordCache

TEXTS = [
    f"The cat number {i} sat on the mat.  It wasn't {i * i} years old!\n\nÜber 3 Städte: 東京, café 😀 (we'll see)."
    for i in range(60)
]
TRICKY = [
    "",
    " ",
    "  the   cat \n\n sat\ton\r\nthe mat ",
    "Das wasn't über 1234567 Städte 😀👩‍👩‍👧 東京都 e\u0301 é \u00a0x\u2028y \x1c\x00",
    "<mask> is <s> text </s> [MASK]",
    "the CAT's we'll I'VE",
]
UNICODE = st.text(
    st.one_of(
        st.sampled_from("aB é\u0301\u00a0\u2028\x1c\x85\t\r\n'.s<>中😀"), st.characters(exclude_categories=["Cs"])
    )
)


def trained(size: int = 420) -> Tokenizer:
    counts = word_counts.count_words(TEXTS, ByteLevel()).counts
    return Tokenizer.build_bpe(*bpe.train(counts, vocab_size=size))


@pytest.fixture(scope="module")
def roberta() -> Tokenizer:
    return trained()


@pytest.fixture(scope="module")
def gpt2_folder(roberta: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vocab.json and merges.txt as GPT-2 has them: <|endoftext|> is the last entry."""
    folder = tmp_path_factory.mktemp("gpt2")
    entries = [*roberta.vocabulary[5:], "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({entry: i for i, entry in enumerate(entries)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in roberta.merges))
    return folder


def test_new_vocabulary_starts_with_robertas_special_tokens_and_the_bytes(roberta: Tokenizer) -> None:
    assert roberta.vocabulary[:6] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "!"]
    assert len(roberta.vocabulary) > 300
    assert [roberta.cls_id, roberta.pad_id, roberta.sep_id, roberta.unk_id, roberta.mask_id] == [0, 1, 2, 3, 4]
    assert roberta.tokens(roberta.encode([" the cat"])[0]) == ["Ġthe", "Ġcat"]


@settings(deadline=None)
@given(UNICODE)
def test_decoding_gives_the_text_back(text: str) -> None:
    assert ROUND_TRIP.decode(ROUND_TRIP.encode([text])[0]) == text


@settings(deadline=None)
@given(st.lists(UNICODE, max_size=5))
def test_cache_and_word_counts_see_the_words_of_the_tokenizer(texts: list[str]) -> None:
    cache = WordCache(ROUND_TRIP)
    encodings = ROUND_TRIP.encode_with_offsets(texts)
    ids, offsets, counts = cache.encode_offsets(texts)
    assert ids.tolist() == [i for encoding in encodings for i in encoding.ids] == cache.encode(texts)[0].tolist()
    assert offsets.tolist() == [list(pair) for encoding in encodings for pair in encoding.offsets]
    assert counts.tolist() == [len(encoding) for encoding in encodings]
    expected = sorted(
        text[start:end] for text in texts for _, (start, end) in ByteLevel().splitter().pre_tokenize_str(text)
    )
    assert sorted(word_counts.count_words(texts, ByteLevel()).counts.elements()) == expected


ROUND_TRIP = trained()


def test_offsets_leave_out_the_space_before_a_word(roberta: Tokenizer, gpt2_folder: Path, tmp_path: Path) -> None:
    Tokenizer.load(gpt2_folder).save(tmp_path / "gpt2")  # with tokenizer.json
    for tokenizer in (roberta, Tokenizer.load(gpt2_folder), Tokenizer.load(tmp_path / "gpt2")):
        for text, expected in (("the cat  sat", [(0, 3), (4, 7)]), (" the cat", [(1, 4), (5, 8)])):
            [encoding] = tokenizer.encode_with_offsets([text])
            assert encoding.offsets[:2] == expected
            assert encoding.word_ids[:2] == [0, 1]
            assert WordCache(tokenizer).encode_offsets([text])[1].tolist() == [list(pair) for pair in encoding.offsets]


def test_offsets_where_the_tokenizer_puts_a_space_before_the_text(gpt2_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(gpt2_folder, tmp_path / "spaced")
    (tmp_path / "spaced" / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    [encoding] = Tokenizer.load(tmp_path / "spaced").encode_with_offsets(["the cat"])
    assert encoding.tokens == ["Ġthe", "Ġcat"]
    assert encoding.offsets == [(0, 3), (4, 7)]


def test_ids_equal_those_of_transformers(roberta: Tokenizer, gpt2_folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    roberta.save(tmp_path / "roberta")
    gpt2 = Tokenizer.load(gpt2_folder)
    gpt2.save(tmp_path / "gpt2")
    plain = [text for text in [*TRICKY, *TEXTS[:3]] if "<mask>" not in text]
    for tokenizer, name, fast in (
        (roberta, "roberta", transformers.RobertaTokenizerFast),
        (gpt2, "gpt2", transformers.GPT2TokenizerFast),
    ):
        for load in (transformers.AutoTokenizer, fast):
            theirs = load.from_pretrained(tmp_path / name)
            assert [i.tolist() for i in tokenizer.encode(plain)] == theirs(plain, add_special_tokens=False)["input_ids"]
            assert theirs.cls_token_id == tokenizer.cls_id
            assert theirs.pad_token_id == tokenizer.pad_id
    pair = truncation.encode(roberta, [" the cat"], ["it sat"])[0]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "roberta")
    assert pair.input_ids.tolist() == theirs(" the cat", "it sat")["input_ids"]
    assert theirs("the cat <mask>", add_special_tokens=False)["input_ids"][-1] == roberta.mask_id
    with_spaces = transformers.AutoTokenizer.from_pretrained(tmp_path / "roberta", add_prefix_space=True)
    words = ["the", "cat", "wasn't", "😀"]
    expected = with_spaces(words, is_split_into_words=True, add_special_tokens=False)
    [found] = roberta.encode_words([words])
    assert found.ids == expected["input_ids"]
    assert found.word_ids == expected.word_ids()


def test_special_tokens_in_a_text_are_text(roberta: Tokenizer) -> None:
    [ids] = roberta.encode(["<mask> <s>"])
    assert not set(ids.tolist()) & set(roberta.special_ids.tolist())


def test_saved_tokenizer_loads_from_either_file(roberta: Tokenizer, gpt2_folder: Path, tmp_path: Path) -> None:
    for number, tokenizer in enumerate((roberta, Tokenizer.load(gpt2_folder))):
        folder = tmp_path / str(number)
        tokenizer.save(folder)
        assert Tokenizer.load(folder).fingerprint == tokenizer.fingerprint
        (folder / "tokenizer.json").unlink()
        assert Tokenizer.load(folder).fingerprint == tokenizer.fingerprint


def test_end_of_text_serves_for_every_role_but_the_mask(gpt2_folder: Path) -> None:
    tokenizer = Tokenizer.load(gpt2_folder)
    assert tokenizer.cls_id == tokenizer.sep_id == tokenizer.pad_id == tokenizer.size - 1
    assert tokenizer.special.mask is None
    assert tokenizer.templates.separators == 1
    with pytest.raises(UserError, match="no mask token"):
        _ = tokenizer.mask_id


def test_missing_merges_are_an_error_and_other_kinds_of_bpe_are_read(
    roberta: Tokenizer, gpt2_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(gpt2_folder / "vocab.json", tmp_path)
    with pytest.raises(UserError, match=r"no such file: .*merges\.txt"):
        Tokenizer.load(tmp_path)
    content = json.loads(roberta.backend.engine.to_str()) | {"normalizer": {"type": "NFKC"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    other = Tokenizer.load(tmp_path)
    assert other.algorithm == "other"
    assert other.tokens(other.encode(["ﬁ the"])[0])[-1] == "Ġthe"


def test_a_damaged_tokenizer_json_is_an_error(tmp_path: Path) -> None:
    for content in ("[" * 100_000, "{", "[]", '{"model": 3}', '{"model": {"type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(UserError, match=r"tokenizer\.json"):
            Tokenizer.load(tmp_path)


def test_word_starts(roberta: Tokenizer) -> None:
    [ids] = roberta.encode(["the catxq sat"])
    starts = roberta.word_starts(ids, np.array([0]))
    assert [token for token, start in zip(roberta.tokens(ids), starts, strict=True) if start][1:] == ["Ġcat", "Ġsat"]
    assert starts[0]


def test_pair_is_robertas_and_fits_the_length(roberta: Tokenizer) -> None:
    parts = [TokenizedText(ids, None) for ids in roberta.encode(["the cat sat on the mat", "it was the cat"])]
    for length in (5, 8, 9):
        [sequence] = truncation.to_sequences(roberta, parts, length)
        assert len(sequence) == length
        assert np.flatnonzero(sequence.input_ids == roberta.sep_id).size == 3
        assert not sequence.token_type_ids.any()
    for window in truncation.to_sequences(roberta, parts, 9, "windows", 2):
        assert len(window) <= 9


def test_words_of_raw_text_leave_out_white_space(roberta: Tokenizer) -> None:
    [(pieces, places)] = word_alignment.split_and_tokenize(roberta, ["the  cat\n\nwasn't"])
    assert ["the  cat\n\nwasn't"[a:b] for a, b in places.tolist()] == ["the", "cat", "wasn", "'t"]
    assert pieces.offsets is not None
    assert set(pieces.offsets[:, 0].tolist()) == {0, 1, 2, 3}


def test_same_text_gives_the_same_bytes(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("\n".join(TEXTS[number::4]))
    for out, files in (("a", [0, 1, 2, 3]), ("b", [3, 1, 0, 2])):
        texts = [tmp_path / f"{number}.txt" for number in files]
        train_tokenizer(texts, tmp_path / out, algorithm="bpe", vocab_size=300, user_tokens=["<url>"], unused=1)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {"vocab.json", "merges.txt", "tokenizer.json"} <= set(names)
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert Tokenizer.load(tmp_path / "a").user_tokens == ["<url>"]


def test_extension_refuses_bpe(roberta: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXTS[0])
    with pytest.raises(UserError, match="byte-level BPE"):
        extend_tokenizer(roberta, tmp_path / "text.txt", tmp_path / "out")
