from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.errors import UserError
from bertie.model.config import TransformerConfig
from bertie.model.pooling import Pooling


def folder(at: Path, pooling: Any, kinds: tuple[str, ...] = ("Transformer", "Pooling")) -> Path:
    """A folder as version 6 of sentence-transformers writes it."""
    (at / "1_Pooling").mkdir()
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [{"path": paths.get(kind, f"2_{kind}"), "type": f"sentence_transformers.base.{kind}"} for kind in kinds]
    (at / "modules.json").write_text(json.dumps(listed))
    (at / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return at


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_written_files_are_read_back(tmp_path: Path, tiny_config: TransformerConfig, pooling: Pooling) -> None:
    how = SentenceEmbedding(pooling, normalize=pooling == "cls")
    sentence_transformers_format.write(tmp_path, tiny_config, how, 48)
    assert sentence_transformers_format.read(tmp_path) == how
    assert sentence_transformers_format.max_sequence_length(tmp_path) == 48


def test_a_real_folder_is_read(minilm: Path) -> None:
    assert sentence_transformers_format.read(minilm) == SentenceEmbedding("mean", normalize=True)
    assert sentence_transformers_format.max_sequence_length(minilm) == 256


def test_a_folder_without_the_files_gives_none(tmp_path: Path) -> None:
    assert sentence_transformers_format.read(tmp_path) is None
    assert sentence_transformers_format.max_sequence_length(tmp_path) is None


def test_the_format_of_version_6_is_read(tmp_path: Path) -> None:
    config = {"embedding_dimension": 384, "pooling_mode": "cls", "include_prompt": True}
    at = folder(tmp_path, config, ("Transformer", "Pooling", "Normalize"))
    assert sentence_transformers_format.read(at) == SentenceEmbedding("cls", normalize=True)
    (at / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}')
    assert sentence_transformers_format.max_sequence_length(at) is None
    (at / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    assert sentence_transformers_format.max_sequence_length(at) == 128


@pytest.mark.parametrize(
    ("pooling", "kinds", "message"),
    [
        ({"pooling_mode": "mean"}, ("Transformer", "Pooling", "Dense"), "Transformer → Pooling → Dense"),
        ({"pooling_mode": ["mean", "max"]}, ("Transformer", "Pooling"), "pooling mean and max"),
        ({"pooling_mode_lasttoken": True}, ("Transformer", "Pooling"), "pooling lasttoken"),
        ({"pooling_mode_mean_tokens": False}, ("Transformer", "Pooling"), "pooling none"),
        ({}, (), "asks for nothing"),
    ],
)
def test_unsupported_modules_are_refused(tmp_path: Path, pooling: Any, kinds: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=f"{message}.*name a pooling"):
        sentence_transformers_format.read(folder(tmp_path, pooling, kinds))


@pytest.mark.parametrize("length", [0, "256", 2.5, True])
def test_an_invalid_length_is_refused(tmp_path: Path, length: Any) -> None:
    at = folder(tmp_path, {"pooling_mode": "mean"})
    (at / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    with pytest.raises(UserError, match="max_seq_length is"):
        sentence_transformers_format.max_sequence_length(at)
