"""Hidden states, text vectors and word offsets compared with transformers and sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import bertie
from bertie.model.config import TransformerConfig
from bertie.model.heads.layer_selection import Fixed
from bertie.tokenizers.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
TEXTS = ["A café in 東京.", "", "The quick brown fox jumps over the lazy dog 😂", "unbelievable"]


@pytest.fixture(scope="module")
def tiny(tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with four layers and random weights."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    values = {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "vocab_size": tiny_config.vocab_size,
    }
    model = transformers.BertModel(transformers.BertConfig(**values, initializer_range=0.3))
    model.save_pretrained(folder)
    small_tokenizer.save(folder)
    return folder


@pytest.mark.parametrize("which", ["minilm", "tiny"])
def test_vectors_of_every_layer_selection_and_pooling_agree(request: pytest.FixtureRequest, which: str) -> None:
    folder = request.getfixturevalue(which)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = bertie.load(folder, threads=1)
    vectors = {
        (which, how): ours.embed(TEXTS, how, which) for which in get_args(Fixed) for how in ("mean", "cls", "max")
    }
    for number, text in enumerate(TEXTS):
        with torch.inference_mode():
            states = [
                s[0] for s in model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
            ]
        count = model.config.num_hidden_layers
        expected = {
            "embeddings": states[0],
            "second_to_last": states[count - 1],
            "last": states[count],
            "sum_last_4": sum(states[count - 2 :], states[count - 3]),
            "concat_last_4": torch.cat(states[count - 3 :], -1),
            "sum_all": sum(states[2:], states[1]),
        }
        for layers in get_args(Fixed):
            rows = expected[layers].numpy()
            for pooling, wanted in (("mean", rows.mean(0)), ("cls", rows[0]), ("max", rows.max(0))):
                np.testing.assert_allclose(vectors[layers, pooling][number], wanted, atol=2e-5, rtol=1e-5)


def test_word_offsets_agree_with_the_fast_tokenizer_of_transformers(minilm: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    for text, found in zip(TEXTS, bertie.load(minilm, threads=1).word_vectors(TEXTS), strict=True):
        theirs = tokenizer(text)
        numbers = sorted({number for number in theirs.word_ids() if number is not None})
        assert [list(theirs.word_to_chars(number)) for number in numbers] == found.offsets.tolist()


def test_text_vectors_agree_with_sentence_transformers(minilm: Path, shared_data: Path, tmp_path: Path) -> None:
    sentence_transformers: Any = pytest.importorskip(
        "sentence_transformers", reason="needs the package sentence-transformers"
    )
    model = sentence_transformers.SentenceTransformer(str(minilm), device="cpu")
    model.save(str(tmp_path / "saved by version 6"))
    lines = (shared_data / "multilingual" / "blns.txt").read_text(encoding="utf-8").split("\n")[:60]
    texts = [*TEXTS, *lines, "a very long text " * 200]
    expected = model.encode(texts)
    for folder in (minilm, tmp_path / "saved by version 6"):
        np.testing.assert_allclose(bertie.load(folder, threads=1).embed(texts), expected, atol=1e-5)
