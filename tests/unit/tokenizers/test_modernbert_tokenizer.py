"""The tokenizer of the published ModernBERT models: byte-level BPE that normalizes, with user tokens for runs of spaces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.corpus.test_bpe import TEXTS, TRICKY, UNICODE, trained
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

import bertie
from bertie.corpus import word_counts
from bertie.tokenizers.bpe_backend import ROBERTA_ORDER
from bertie.tokenizers.tokenizer import ByteLevel, Tokenizer
from bertie.tokenizers.word_cache import WordCache

ROLES = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
EARLIER_KEYS = {
    **{"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "global_attn_every_n_layers": 3},
    **{"position_embedding_type": "absolute", "deterministic_flash_attn": False, "torch_dtype": "float32"},
}
DECOMPOSED = ["cafe\u0301 au  lait", "a\u0300\u0301 \u1100\u1161", "x \u0301y", "\u212b   |||EMAIL|||  e\u0301"]


def write(folder: Path, normalizer: object = normalizers.NFC(), **processing: object) -> Path:
    """Write a small tokenizer with the parts of the published one, or with another `post_processor` in its file."""
    trained_on_text = trained().backend.engine
    model = json.loads(trained_on_text.to_str())["model"]
    ids = {entry: i for i, entry in enumerate(entry for entry in model["vocab"] if entry not in ROBERTA_ORDER)}
    engine = tokenizers.Tokenizer(models.BPE(ids, [tuple(pair) for pair in model["merges"]]))
    engine.normalizer = normalizer
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_tokens([AddedToken("|||EMAIL|||"), *(AddedToken(" " * count) for count in range(5, 1, -1))])
    special = [AddedToken(token, normalized=False, lstrip=token == "[MASK]") for token in ROLES.values()]
    engine.add_special_tokens(special)
    engine.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, engine.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    engine.add_tokens([f"[unused{i}]" for i in range(4)])
    folder.mkdir(exist_ok=True)
    content = json.loads(engine.to_str()) | processing
    (folder / "tokenizer.json").write_text(json.dumps(content))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, **ROLES}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("modernbert") / "published")


def test_ids_equal_those_of_transformers_also_when_saved(published: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    ours = Tokenizer.load(published)
    ours.save(tmp_path / "saved")
    texts = [text for text in [*TRICKY, *DECOMPOSED, *TEXTS[:3]] if "[MASK]" not in text]
    for folder in (published, tmp_path / "saved"):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert [i.tolist() for i in ours.encode(texts)] == theirs(texts, add_special_tokens=False)["input_ids"]
        pair = [ours.cls_id, *ours.encode(["the cat"])[0], ours.sep_id, *ours.encode(["it sat"])[0], ours.sep_id]
        assert theirs("the cat", "it sat")["input_ids"] == pair
        for role, token in ROLES.items():
            assert getattr(theirs, f"{role}_id") == getattr(ours, f"{role[:-6]}_id") == ours.vocabulary.index(token)
    assert not (tmp_path / "saved" / "vocab.json").exists()  # transformers would build another tokenizer from it
    assert Tokenizer.load(tmp_path / "saved").fingerprint == ours.fingerprint
    assert ours.templates.separators == 1


ROBERTA_WITH_SPACES = {"type": "RobertaProcessing", "trim_offsets": False, "add_prefix_space": False}


@pytest.mark.parametrize("kind", ["none", "roberta"])
def test_other_tokenizers_with_nfc_keep_it_when_saved(kind: str, published: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    known = Tokenizer.load(published)
    marks = {"cls": ["[CLS]", known.cls_id], "sep": ["[SEP]", known.sep_id]}
    written = None if kind == "none" else ROBERTA_WITH_SPACES | marks
    ours = Tokenizer.load(write(tmp_path / "given", post_processor=written))
    ours.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [i.tolist() for i in ours.encode(DECOMPOSED)] == theirs(DECOMPOSED, add_special_tokens=False)["input_ids"]
    [encoding] = ours.encode_with_offsets(["the cat"])
    assert encoding.offsets == [(0, 3), (4, 7)]


def test_normalization_counts_as_a_rule(published: Path, tmp_path: Path) -> None:
    assert Tokenizer.load(published).fingerprint != Tokenizer.load(write(tmp_path, None)).fingerprint
    assert Tokenizer.load(write(tmp_path, normalizers.NFKC())).algorithm == "other"


@pytest.fixture(scope="module")
def tokenizer(published: Path) -> Tokenizer:
    return Tokenizer.load(published)


@settings(deadline=None)
@given(texts=st.lists(UNICODE, max_size=5))
def test_decoding_cache_and_word_counts_see_the_normalized_text(tokenizer: Tokenizer, texts: list[str]) -> None:
    texts = [*texts, *DECOMPOSED]
    encodings = tokenizer.encode_with_offsets(texts)
    ids, offsets, _ = WordCache(tokenizer).encode_offsets(texts)
    assert ids.tolist() == [i for encoding in encodings for i in encoding.ids]
    assert offsets.tolist() == [list(pair) for encoding in encodings for pair in encoding.offsets]
    normalized = [normalizers.NFC().normalize_str(text) for text in texts]
    assert [tokenizer.decode(encoding.ids) for encoding in encodings] == normalized
    assert isinstance(tokenizer.normalization, ByteLevel)
    found = word_counts.count_words(texts, tokenizer.normalization).counts
    assert found == word_counts.count_words(normalized, ByteLevel()).counts


def test_a_run_of_spaces_starts_a_word(tokenizer: Tokenizer) -> None:
    [ids] = tokenizer.encode(["the catxq   sat"])
    tokens = tokenizer.tokens(ids)
    starts = tokenizer.word_starts(ids, np.array([0]))
    assert [token for token, start in zip(tokens, starts, strict=True) if start][1:] == ["Ġcat", "   "]


def test_masks_of_a_published_model_are_filled_as_by_transformers(published: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    names = Tokenizer.load(published)
    config = transformers.ModernBertConfig(
        vocab_size=names.size, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
        pad_token_id=names.pad_id, cls_token_id=names.cls_id, sep_token_id=names.sep_id,
        bos_token_id=names.cls_id, eos_token_id=names.sep_id,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.ModernBertForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path / "model")
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    for name in ("rope_parameters", "layer_types", "dtype"):  # the published file is of an earlier version
        del written[name]
    (tmp_path / "model" / "config.json").write_text(json.dumps(written | EARLIER_KEYS))
    read = transformers.AutoTokenizer.from_pretrained(published)
    read.save_pretrained(tmp_path / "model")
    text = "un cafe\u0301 au [MASK]."
    batch = read(text, return_tensors="pt")
    place = batch["input_ids"][0].tolist().index(names.mask_id)
    with torch.no_grad():
        expected = theirs(input_ids=batch["input_ids"]).logits[0, place].softmax(-1)
    [found] = bertie.load(tmp_path / "model").fill_mask(text, top_k=names.size)
    in_order = {entry: float(probability) for entry, probability in zip(names.vocabulary, expected, strict=True)}
    assert {each.token: each.probability for each in found} == pytest.approx(in_order, abs=1e-6)
