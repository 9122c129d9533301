"""What bertie says of a place that is no model folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bertie.checkpoints.find import find_model_folder
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.weight_files import weights_file
from bertie.errors import UsageError, UserError
from bertie.text.tokenizer import Tokenizer


@pytest.fixture
def folder(pretrained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pretrained, tmp_path / "above" / "model"))


def said(place: str | Path) -> str:
    with pytest.raises(UserError) as raised:
        find_model_folder(place)
    return str(raised.value)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("https://huggingface.co/google-bert/bert-base-uncased", "hub id, google-bert/bert-base-uncased"),
        ("https://huggingface.co/google-bert/bert-base-uncased/tree/main", "hub id, google-bert/bert-base-uncased"),
        ("http://hf.co/bert-base-uncased/tree/main", "hub id, bert-base-uncased"),
        ("huggingface.co/bert-base-uncased", "hub id, bert-base-uncased"),
        ("https://huggingface.co/google/bert?library=transformers#card", "hub id, google/bert"),
        ("hf://google/bert@main", "hub id, google/bert"),
        ("https://huggingface.co/datasets/squad", "is a data set, not a model"),
        ("https://huggingface.co/spaces/a/b", "is a space, not a model"),
        ("https://huggingface.co/models?search=bert", "is an address of no model"),
        ("https://huggingface.co", "is an address of no model"),
        ("s3://bucket/model", "download the model's folder, and give its path"),
        ("file:///srv/a%20model", "give the path, /srv/a model"),
        ("a\0b", "embedded null byte: give a run"),
        ("https://example.org/model", "download the model's folder, and give its path"),
        ("", "the name of the model is empty: give a run"),
    ],
)
def test_an_address_or_an_empty_name(address: str, words: str) -> None:
    assert words in said(address)


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 256, "a/" * 2045])
def test_a_name_that_no_file_can_have(name: str) -> None:
    assert said(name) == f"{name[:100]}…: File name too long: give a run, a checkpoint folder or a hub id"


def test_a_file(folder: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        assert said(folder / name) == f"{folder / name} is a file: give its folder, {folder}"
    words = {
        "mlm.zip": "is an archive: extract it",
        "mlm.tar.gz": "is an archive: extract it",
        "x.gguf": "bertie does not read .gguf files: give the checkpoint that it was made from",
        "M.ONNX": "bertie does not read .onnx files",
        "best.pt": "rename it to pytorch_model.bin",
        "text.txt": "is a file: give a run, a checkpoint folder or a hub id",
    }
    for name, what in words.items():
        (tmp_path / name).touch()
        assert what in said(tmp_path / name)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").touch()
    assert said(folder / "onnx" / "model.onnx").endswith(f"is a file: give its folder, {folder}")
    for name in ("bert_config.json", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        (tmp_path / name).write_text("{}")
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        assert said(tmp_path / name).endswith(f"TensorFlow checkpoint: give {tmp_path / 'bert_model.ckpt'}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m.gguf", "give the checkpoint that it was made from"),
        ("rust_model.ot", "give the checkpoint that it was made from"),
        ("onnx/model.onnx", "give the checkpoint that it was made from"),
        ("tf_model-00001-of-00002.h5", "from_tf=True"),
        ("flax_model.msgpack", "from_flax=True"),
    ],
)
def test_weights_of_another_program(name: str, words: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    with pytest.raises(UserError) as raised:
        read_checkpoint(folder)
    assert str(raised.value).startswith(f"{folder / name}: bertie does not read {Path(name).suffix} files: ")
    assert words in str(raised.value)
    (folder / "config.json").unlink()
    assert said(folder) == str(raised.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("M.GGUF", "M.GGUF: bertie does not read .gguf files"),
        ("x.mlpackage/Manifest.json", "x.mlpackage: bertie does not read .mlpackage files"),
        ("model-00001-of-00002.safetensors", "and model.safetensors.index.json, which lists the parts, is missing"),
        ("pytorch_model-00001-of-00002.bin", "and pytorch_model.bin.index.json, which lists the parts, is missing"),
        ("model.fp16.safetensors", "is a variant of the weights, which bertie does not choose itself: rename it"),
        ("pytorch_model.fp16.bin", "rename it to pytorch_model.bin"),
        ("pytorch_model.pt", "pytorch_model.pt is a file of torch: if it holds weights"),
        ("pytorch_model_fsdp_0/x.distcp", "pytorch_model_fsdp_0 holds weights in the parts of FSDP"),
        ("global_step10/mp_rank_00_model_states.pt", "global_step10 holds weights in the parts of DeepSpeed"),
        ("m.zip", "m.zip is an archive: extract it"),
        ("optimizer.pt", ""),
    ],
)
def test_weights_that_are_not_read_are_named(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    if words:
        assert words in said(tmp_path)
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(UserError) as raised:
            weights_file(tmp_path)
        assert words in str(raised.value)
    else:
        assert said(tmp_path).startswith(f"{tmp_path} holds no config.json: ")


def test_the_checkpoint_of_a_trainer_is_its_best_or_its_latest(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            (folder / name).touch()
    words = f"{tmp_path} holds no config.json; 3 models are below it, such as {tmp_path}/checkpoint-"
    assert said(tmp_path) == f"{words}100"
    state = tmp_path / "checkpoint-100" / "trainer_state.json"
    for best, suggested in (("out/checkpoint-9", 9), ("out/checkpoint-50", 100), (None, 100)):
        state.write_text(json.dumps({"best_model_checkpoint": best}))
        assert said(tmp_path) == f"{words}{suggested}"


def test_a_folder_above_a_model_or_of_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    for above in (tmp_path, folder.parent):
        assert said(above) == f"{above} holds no config.json; the model is below it: {folder}"
    shutil.copytree(folder, folder.parent / "a second")
    assert said(tmp_path).endswith(f"2 models are below it, such as {folder.parent / 'a second'}")
    (tmp_path / "tokenizer").mkdir()
    Tokenizer.load(folder).save(tmp_path / "tokenizer", 20)
    assert "holds no config.json, but a tokenizer" in said(tmp_path / "tokenizer")
    (tmp_path / "empty").mkdir()
    assert said(tmp_path / "empty").startswith(f"{tmp_path / 'empty'} holds no config.json: give a run")


def modules(folder: Path, *modules: tuple[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    entries = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(entries))


def test_folders_of_modules(folder: Path, tmp_path: Path) -> None:
    modules(folder, ("Transformer", ""), ("Pooling", "1_Pooling"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    assert (
        said(folder / "1_Pooling") == f"{folder / '1_Pooling'} is a module of the model in {folder}: give that folder"
    )
    assert find_model_folder(folder) == folder
    modules(tmp_path / "static", ("StaticEmbedding", ""), ("Normalize", "1_Normalize"))
    shutil.copy(folder / "model.safetensors", tmp_path / "static")
    assert "modules.json asks for StaticEmbedding → Normalize, which is not supported" in said(tmp_path / "static")
    modules(tmp_path / "router", ("Router", ""))
    assert "modules.json asks for Router, which is not supported" in said(tmp_path / "router")
    modules(tmp_path / "old", ("Transformer", "0_Transformer"), ("Pooling", "1_Pooling"))
    assert said(tmp_path / "old").startswith(f"{tmp_path / 'old' / '0_Transformer' / 'config.json'} is missing")


def test_a_folder_without_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    words = {
        tmp_path / "none": "none does not exist: give the folder of a tokenizer or a model",
        folder / "config.json": "config.json is a file: give the folder of a tokenizer or a model",
        tmp_path: "and it has none of tokenizer.json, vocab.txt, vocab.json, spiece.model",
    }
    for place, what in words.items():
        with pytest.raises(UsageError) as raised:
            Tokenizer.load(place)
        assert what in str(raised.value)
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(UsageError, match=r"reads tokenizer.json or vocab.txt"):
        Tokenizer.load(folder)
