"""Layers of several models on the same texts."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from bertie.base.errors import UserError
from bertie.checkpoints.folder import write_model
from bertie.inspect.heads.layers import LayerComparison, read_layers
from bertie.inspect.inspect import Inspection, inspect_model
from bertie.inspect.tables import InputFindings
from bertie.inspect.texts import TextFile
from bertie.model.encoder import Encoder, build_encoder
from bertie.model.encoders.static import StaticConfig
from bertie.model.model import Model
from bertie.predict.predictor import Predictor
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the fatun gat the bobin .\ngo the\n\na fet in the gatun .\nthe gat go\n" * 4 + "the " * 50 + "\n")
    return path


def texts_of(predictor: Predictor, path: Path) -> TextFile:
    return TextFile(path, predictor.tokenizer, predictor.max_length)


def compared(predictor: Predictor, path: Path, *others: Path) -> InputFindings:
    texts = texts_of(predictor, path)
    layers = LayerComparison(predictor, texts, others)
    read_layers(predictor, texts, layers.states)
    return layers.findings()


def save(folder: Path, encoder: Encoder, tokenizer: Tokenizer) -> Path:
    folder.mkdir()
    write_model(folder, Model(encoder, {}), tokenizer)
    return folder


def test_a_copy_is_equal_and_a_changed_layer_is_found(predictor: Predictor, text: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(predictor.folder, tmp_path / "copy")
    encoder = deepcopy(predictor.model.encoder)
    torch.manual_seed(5)
    for parameter in encoder.layers[-1].parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    other = save(tmp_path / "other", encoder, predictor.tokenizer)
    part = compared(predictor, text, copy, other)
    anisotropy, cka = (table.rows() for table in part.tables)
    name = predictor.folder.name
    assert [(row["model"], row["layer"]) for row in anisotropy] == [
        (model, layer) for model in (name, "copy", "other") for layer in range(3)
    ]
    assert [row["anisotropy"] for row in anisotropy[:3]] == [row["anisotropy"] for row in anisotropy[3:6]]
    found = {(row["model_b"], row["layer_a"], row["layer_b"]): row["cka_debiased"] for row in cka}
    assert len(found) == 3 * 9
    for layer in range(3):
        assert found["copy", layer, layer] == pytest.approx(1)
        assert found["copy", layer, 2 - layer] == pytest.approx(found[name, layer, 2 - layer])
    assert found["other", 1, 1] == pytest.approx(1)
    assert found["other", 2, 2] < 0.98
    assert part.facts["compared"] == ["copy", "other"]
    assert part.summary[1] == "copy: the same hidden states in all layers"
    assert part.summary[2].startswith("other: differs most in layer 2, CKA 0.")


def test_models_of_another_kind_and_length_are_compared(predictor: Predictor, text: Path, tmp_path: Path) -> None:
    """Static vectors have no attention, and 30 tokens are less than the longest text has."""
    size = predictor.tokenizer.size
    static = build_encoder(StaticConfig(hidden_size=8, vocab_size=size, max_position_embeddings=30))
    folder = save(tmp_path / "static", static, predictor.tokenizer)
    part = compared(predictor, text, folder)
    assert part.facts["max_length"] == 30
    anisotropy, cka = (table.rows() for table in part.tables)
    assert [row["layer"] for row in anisotropy] == [0, 1, 2, 0]
    assert len({row["tokens"] for row in anisotropy}) == 1
    assert anisotropy[-1]["self_similarity"] == pytest.approx(1)
    assert len(cka) == 9 + 3
    whole = compared(predictor, text)
    assert whole.tables[0].rows()[0]["tokens"] == anisotropy[0]["tokens"] + 50


def test_warnings_about_the_texts_come_once(
    predictor: Predictor, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect_model(predictor, Inspection(text=text, loss_tokens=10), tmp_path / "out")
    assert capsys.readouterr().err.count("texts without tokens") == 1


def test_models_that_cannot_be_compared_are_refused(predictor: Predictor, text: Path, tmp_path: Path) -> None:
    tokenizer = predictor.tokenizer.with_vocabulary(predictor.tokenizer.vocabulary[::-1])
    save(tmp_path / "other", predictor.model.encoder, tokenizer)
    short = build_encoder(StaticConfig(hidden_size=8, vocab_size=predictor.tokenizer.size, max_position_embeddings=30))
    save(tmp_path / "short", short, predictor.tokenizer)
    text.write_text("the " * 60)
    for other, message in (
        (tmp_path / "other", "have different tokenizers"),
        (predictor.folder, "given twice"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "short", "every text has more than 30 tokens"),
    ):
        with pytest.raises(UserError, match=message):
            LayerComparison(predictor, texts_of(predictor, text), [other])
