from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import bertie
from bertie.base.errors import UserError
from bertie.checkpoints.families import FAMILIES
from bertie.checkpoints.huggingface import head_shapes
from bertie.checkpoints.read import read_checkpoint, unused_weights_allowed
from bertie.cli import main
from bertie.tasks import Tag


@pytest.fixture
def model(pretrained: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in pretrained.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def change(folder: Path, tensors: dict[str, Tensor], **values: Any) -> Path:
    """Add tensors and keys of config.json. A key with the value None is removed."""
    weights = load_file(folder / "model.safetensors") | tensors
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def test_weights_without_a_place_are_named_and_refused(
    model: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(model, {f"bert.surprise.{n}.weight": torch.zeros(1) for n in range(5)})
    with pytest.raises(
        UserError, match=r"5 tensors that no BERT of bertie has: bert\.surprise\.0\.weight, .*2\.weight …"
    ):
        read_checkpoint(model)
    with pytest.raises(UserError, match="--allow-unused"):
        bertie.load(model)
    loaded = bertie.load(model, allow_unused=True)
    assert "they are not used" in capsys.readouterr().err
    assert (loaded.embed(["a text"]) == bertie.load(pretrained).embed(["a text"])).all()
    with pytest.raises(UserError):
        bertie.load(model)  # the permission ends with the call
    assert main(["embed", str(model), "a", "--out", str(model / "x.npy")]) == 1
    assert main(["embed", str(model), "a", "--out", str(model / "x.npy"), "--allow-unused"]) == 0


@pytest.mark.parametrize("name", ["lora_A.default.weight", "base_layer.weight", "ia3_l.default"])
def test_an_adapter_that_is_not_merged_is_named(model: Path, name: str) -> None:
    change(model, {f"bert.encoder.layer.0.attention.self.query.{name}": torch.zeros(32, 32)})
    with pytest.raises(UserError, match="holds an adapter that is not merged"):
        read_checkpoint(model)


def test_buffers_and_heads_of_pretraining_are_silent(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    buffers = {
        "bert.embeddings.position_ids": torch.arange(64)[None],
        "bert.embeddings.token_type_ids": torch.zeros(1, 64),
    }
    words = load_file(model / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    change(model, {**buffers, "cls.predictions.decoder.weight": words}, architectures=["BertModel"])
    assert read_checkpoint(model).heads == {"mlm", "nsp"}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("case", ["another matrix", "no matrix"])
def test_a_head_with_an_output_matrix_of_its_own_is_not_used(
    model: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    own = {"cls.predictions.decoder.weight": torch.ones(500, 32)} if case == "another matrix" else {}
    change(model, own, tie_word_embeddings=False)
    assert read_checkpoint(model).heads == {"nsp"}
    assert "decoder.weight): this head is not used" in capsys.readouterr().err


def test_an_encoder_without_a_head_has_nothing_to_tie(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = load_file(model / "model.safetensors")
    save_file({name: t for name, t in weights.items() if not name.startswith("cls.")}, model / "model.safetensors")
    change(model, {}, tie_word_embeddings=False)
    assert read_checkpoint(model).heads == frozenset()
    assert capsys.readouterr().err == ""


def classifier(outputs: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"classifier.weight": torch.randn(outputs, 32), "classifier.bias": torch.zeros(outputs)}


def named(*names: str) -> dict[str, str]:
    return {str(number): name for number, name in enumerate(names)}


CERTAIN = {
    "tags": ({"id2label": named("O", "B-PER", "I-PER")}, 3, "tag"),
    "parts of speech": ({"id2label": named("NOUN", "VERB", "X")}, 3, "tag"),
    "finetuning_task": ({"finetuning_task": "ner"}, 2, "tag"),
    "names": ({"id2label": named("good", "bad")}, 2, "classify"),
    "GLUE": ({"finetuning_task": "mrpc"}, 2, "classify"),
    "several labels": ({"problem_type": "multi_label_classification", "id2label": named("a", "b")}, 2, "multi_label"),
    "a number": ({"id2label": named("LABEL_0")}, 1, "regress"),
    "num_labels": ({"num_labels": 1}, 1, "regress"),
    "one output of two": ({}, 1, "choose"),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_the_head_of_a_model_without_a_class_is_found(model: Path, name: str) -> None:
    values, outputs, kind = CERTAIN[name]
    loaded = bertie.load(change(model, classifier(outputs), architectures=None, **values))
    assert loaded.task is not None
    assert loaded.task.kind == kind
    assert loaded.model.heads[kind].out.weight.equal(classifier(outputs)["classifier.weight"])


def test_a_head_that_could_be_several_is_asked_about(model: Path) -> None:
    change(model, classifier(3), architectures=None, id2label=named("LABEL_0", "LABEL_1", "LABEL_2"))
    with pytest.raises(UserError, match='add "BertForSequenceClassification" or "BertForTokenClassification" to it'):
        bertie.load(model)
    loaded = bertie.load(model, task=Tag(labels=("x", "y", "z")))
    assert loaded.task is not None
    assert loaded.task.kind == "tag"
    assert read_checkpoint(model).without_heads().heads == frozenset()


def test_a_tagger_has_no_pooler(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    save_file({name: t for name, t in weights.items() if "pooler" not in name}, model / "model.safetensors")
    loaded = bertie.load(
        change(model, classifier(3), architectures=None, id2label=named("LABEL_0", "LABEL_1", "LABEL_2"))
    )
    assert loaded.task is not None
    assert loaded.task.kind == "tag"


def test_a_task_of_bertie_says_its_shape() -> None:
    values = {"architectures": ["BertForTokenClassification"]}
    assert head_shapes(FAMILIES["bert"], values, {"kind": "tag"}, {}) == ({"tag": "tokens"}, ())


def test_the_permission_is_nested(model: Path) -> None:
    change(model, {"bert.surprise.weight": torch.zeros(1)})
    with unused_weights_allowed():
        bertie.load(model)
