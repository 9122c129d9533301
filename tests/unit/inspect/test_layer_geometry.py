"""Layers of several models on the same texts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.folder import write_model
from bertie.inspect.heads.layers import LayerComparison, inspect_layers, read_layers
from bertie.inspect.inspect import Inspection, inspect_model
from bertie.inspect.texts import TextFile
from bertie.model.encoder import build_encoder
from bertie.model.encoders.static import StaticConfig
from bertie.model.model import Model
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.tokenizers.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def predictor(pretrained: Path) -> Predictor:
    return load(pretrained)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the fatun gat the bobin .\ngo the\n\na fet in the gatun .\nthe gat go\n" * 4 + "the " * 50 + "\n")
    return path


def texts_of(predictor: Predictor, path: Path) -> TextFile:
    return TextFile(path, predictor.tokenizer, predictor.max_length)


def save(folder: Path, model: Model, tokenizer: Tokenizer) -> Path:
    folder.mkdir(parents=True)
    write_model(folder, model, tokenizer)
    return folder


def changed(predictor: Predictor, folder: Path) -> Path:
    """Write the model with other weights in its last layer."""
    encoder = build_encoder(predictor.model.encoder.config)
    encoder.load_state_dict(predictor.model.encoder.state_dict())
    torch.manual_seed(5)
    for parameter in encoder.layers[-1].parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    return save(folder, Model(encoder, {}), predictor.tokenizer)


def test_a_copy_is_equal_and_a_changed_layer_is_found(predictor: Predictor, text: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(predictor.folder, tmp_path / "copy")
    other = changed(predictor, tmp_path / "other")
    part = inspect_layers(predictor, texts_of(predictor, text), [copy, other])
    anisotropy, cka = (table.rows() for table in part.tables)
    own = predictor.folder.name
    assert [(row["model"], row["layer"]) for row in anisotropy] == [
        (name, layer) for name in (own, "copy", "other") for layer in range(3)
    ]
    assert [row["anisotropy"] for row in anisotropy[:3]] == [row["anisotropy"] for row in anisotropy[3:6]]
    found = {(row["model_b"], row["layer_a"], row["layer_b"]): row["cka_debiased"] for row in cka}
    assert len(found) == 3 * 9
    for layer in range(3):
        assert found["copy", layer, layer] == pytest.approx(1)
        assert found["copy", layer, 2 - layer] == pytest.approx(found[own, layer, 2 - layer])
    assert found["other", 1, 1] == pytest.approx(1)
    assert found["other", 2, 2] < 0.98
    assert part.facts["compared"] == ["copy", "other"]
    assert part.summary[1] == "copy: the same hidden states in all layers"
    assert part.summary[2].startswith("other: differs most in layer 2, CKA 0.")


def test_models_of_another_kind_and_length_are_compared(predictor: Predictor, text: Path, tmp_path: Path) -> None:
    """Static vectors have no attention, and 30 tokens are less than the longest text has."""
    size = predictor.tokenizer.size
    static = build_encoder(StaticConfig(hidden_size=8, vocab_size=size, max_position_embeddings=30))
    folder = save(tmp_path / "static", Model(static, {}), predictor.tokenizer)
    part = inspect_layers(predictor, texts_of(predictor, text), [folder])
    assert part.facts["max_length"] == 30
    anisotropy, cka = (table.rows() for table in part.tables)
    assert [row["layer"] for row in anisotropy] == [0, 1, 2, 0]
    assert len({row["tokens"] for row in anisotropy}) == 1
    assert anisotropy[-1]["self_similarity"] == pytest.approx(1)
    assert len(cka) == 9 + 3
    whole = inspect_layers(predictor, texts_of(predictor, text))
    assert whole.tables[0].rows()[0]["tokens"] == anisotropy[0]["tokens"] + 50


def test_warnings_about_the_texts_come_once(
    predictor: Predictor, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = replace(texts_of(predictor, text), max_length=20)
    layers = LayerComparison(predictor, texts)
    assert capsys.readouterr().err == ""
    read_layers(predictor, replace(texts), layers.states)
    layers.findings()
    assert capsys.readouterr().err == ""
    inspect_model(predictor, Inspection(text=text, loss_tokens=0), tmp_path / "out")
    assert capsys.readouterr().err.count("texts without tokens") == 1


def test_models_that_cannot_be_compared_are_refused(predictor: Predictor, text: Path, tmp_path: Path) -> None:
    texts = texts_of(predictor, text)
    tokenizer = predictor.tokenizer.with_vocabulary(predictor.tokenizer.vocabulary[::-1])
    folder = save(tmp_path / "other", Model(predictor.model.encoder, {}), tokenizer)
    with pytest.raises(UserError, match="have different tokenizers"):
        LayerComparison(predictor, texts, [folder])
    with pytest.raises(UsageError, match="given twice"):
        LayerComparison(predictor, texts, [predictor.folder])
    with pytest.raises(UsageError, match="does not exist"):
        LayerComparison(predictor, texts, [tmp_path / "none"])
    with pytest.raises(UsageError, match="add --text"):
        Inspection(compare=("x",), treebank=text)
    (tmp_path / "long.txt").write_text("the " * 60)
    short = build_encoder(StaticConfig(hidden_size=8, vocab_size=predictor.tokenizer.size, max_position_embeddings=30))
    folder = save(tmp_path / "short", Model(short, {}), predictor.tokenizer)
    with pytest.raises(UserError, match="no text has at most 30 tokens"):
        LayerComparison(predictor, texts_of(predictor, tmp_path / "long.txt"), [folder])
