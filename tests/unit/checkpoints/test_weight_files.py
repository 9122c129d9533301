from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertie.base.errors import UserError
from bertie.checkpoints.find import read_tensors, read_weights, weights_files, weights_fingerprint
from bertie.checkpoints.read import read_checkpoint
from bertie.files.model_folder import ModelFolder

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "ids": torch.arange(4)}


@pytest.fixture
def model(pretrained: Path, tmp_path: Path) -> Path:
    """A copy of the folder of a pre-trained model, without its weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in pretrained.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def weights(pretrained: Path) -> dict[str, Tensor]:
    return load_file(pretrained / "model.safetensors")


def shard(
    folder: Path, weights: dict[str, Tensor], save: Callable[[dict[str, Tensor], Path], object], name: str
) -> Path:
    """Write weights in two shards. Return the index."""
    stem, suffix = name.split(".")
    names = sorted(weights)
    placed = {key: f"{stem}-0000{1 + (key > names[9])}-of-00002.{suffix}" for key in names}
    for file in {*placed.values()}:
        save({key: weights[key] for key in names if placed[key] == file}, folder / file)
    index = folder / f"{name}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}))
    return index


def pickled(zipped: bool) -> Callable[[Any, Path], object]:
    return lambda tensors, path: torch.save(tensors, path, _use_new_zipfile_serialization=zipped)


FORMATS = {
    "safetensors": lambda folder, w: save_file(w, folder / "model.safetensors"),
    "shards": lambda folder, w: shard(folder, w, save_file, "model.safetensors"),
    "zip": lambda folder, w: pickled(True)(w, folder / "pytorch_model.bin"),
    "legacy": lambda folder, w: pickled(False)(w, folder / "pytorch_model.bin"),
    "nested": lambda folder, w: torch.save({"state_dict": w, "epoch": 3}, folder / "pytorch_model.bin"),
    "pickled shards": lambda folder, w: shard(folder, w, pickled(True), "pytorch_model.bin"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_same_weights(
    model: Path, weights: dict[str, Tensor], pretrained: Path, name: str
) -> None:
    FORMATS[name](model, weights)
    found, expected = read_checkpoint(model), read_checkpoint(pretrained)
    assert found.weights.keys() == expected.weights.keys()
    assert all(torch.equal(tensor, expected.weights[key]) for key, tensor in found.weights.items())
    assert len(weights_fingerprint(weights_files(model))) == (129 if "shards" in name else 64)


def test_the_file_that_transformers_takes_comes_first(model: Path) -> None:
    for number, name in enumerate(("pytorch_model.bin", "model.safetensors", "other.safetensors")):
        (torch.save if number == 0 else save_file)({"a": torch.tensor([float(number)])}, model / name)
        shard(model, {str(i): torch.ones(1) for i in range(20)}, save_file, "model.safetensors")
        if number == 0:
            assert len(read_weights(ModelFolder(model))) == 20  # safetensors in shards before a pickle
        if number == 1:
            assert read_weights(ModelFolder(model))["a"] == 1
    config = json.loads((model / "config.json").read_text())
    for name, expected in {
        "other.safetensors": 2,
        "../x.safetensors": None,
        "weights.bin": None,
        "gone.safetensors": None,
    }.items():
        (model / "config.json").write_text(json.dumps(config | {"transformers_weights": name}))
        if expected:
            assert read_weights(ModelFolder(model))["a"] == expected
        else:
            with pytest.raises(UserError, match=r"transformers_weights|gone|weights\.bin is missing"):
                read_weights(ModelFolder(model))


class Code:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("kind", ["zip", "legacy", "bare"])
def test_code_in_a_pickle_is_never_executed(tmp_path: Path, kind: str) -> None:
    path, trace = tmp_path / "pytorch_model.bin", tmp_path / "executed"
    content = {"a": torch.ones(2), "b": Code(trace)}
    if kind == "bare":
        path.write_bytes(pickle.dumps(content["b"]))
    else:
        pickled(kind == "zip")(content, path)
    with pytest.raises(UserError, match="holds more than tensors") as raised:
        read_weights(ModelFolder(tmp_path))
    assert "\n" not in str(raised.value)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Code(trace)))
    assert trace.exists()


def header(text: str, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text.encode() + body


BAD_SAFETENSORS = {
    "empty": b"",
    "no object": header("[1]"),
    "no JSON": header("{{{"),
    "a tensor beyond the end": header(
        json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}), bytes(8)
    ),
    "an unknown dtype": header(json.dumps({"a": {"dtype": "F9", "shape": [1], "data_offsets": [0, 4]}}), bytes(4)),
    "float8": header(json.dumps({"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}), bytes(4)),
    "NaN": header(json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}), b"\x00\x00\xc0\x7f"),
}


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_damaged_safetensors_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(BAD_SAFETENSORS[name])
    with pytest.raises(UserError) as raised:
        read_tensors(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


BAD_PICKLES: dict[str, Any] = {
    "a list": [1, 2],
    "a number": {"a": 3},
    "no names": {1: torch.ones(1)},
    "sparse": {"a": torch.ones(2).to_sparse()},
    "meta": {"a": torch.ones(2, device="meta")},
    "complex": {"a": torch.ones(2, dtype=torch.complex64)},
    "infinity": {"a": torch.tensor([float("inf")])},
    "empty": {},
}


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", BAD_PICKLES)
def test_other_pickles_are_refused(tmp_path: Path, name: str, zipped: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    pickled(zipped)(BAD_PICKLES[name], path)
    with pytest.raises(UserError) as raised:
        read_tensors(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_pickles_are_refused(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    pickled(zipped)(TENSORS, path)
    content = path.read_bytes()
    assert read_tensors(path).keys() == TENSORS.keys()
    for size in (0, 1, 60, len(content) // 2, len(content) - 5):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match=r"pytorch_model\.bin"):
            read_tensors(path)


def test_tensors_are_no_mappings_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(TENSORS, path)
    tensors = read_tensors(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert all(torch.equal(tensor, TENSORS[name]) for name, tensor in tensors.items())


def test_bad_indices_are_refused(model: Path, weights: dict[str, Tensor], tmp_path: Path) -> None:
    index = shard(model, weights, save_file, "model.safetensors")
    placed = json.loads(index.read_text())["weight_map"]
    some = min(placed)
    save_file({"a": torch.ones(1)}, tmp_path / "outside.safetensors")
    for changed, message in (
        ({}, "weight_map names 'nothing'"),
        ([], "weight_map names 'nothing'"),
        ({some: 3}, "weight_map names '3'"),
        (placed | {some: "../outside.safetensors"}, "in the folder"),
        (placed | {some: str(tmp_path / "outside.safetensors")}, "in the folder"),
        (placed | {some: ".."}, "in the folder"),
        (placed | {some: "gone.safetensors"}, "is missing"),
    ):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(UserError, match=message):
            read_weights(ModelFolder(model))


def test_links_may_lead_to_the_cache_of_the_hub_alone(model: Path, weights: dict[str, Tensor], tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "0123"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    for number, path in enumerate(sorted(model.iterdir())):
        (blobs / str(number)).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    save_file(weights, blobs / "weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/weights")
    assert read_checkpoint(snapshot).heads == {"mlm", "nsp"}
    (model / "model.safetensors").symlink_to(blobs / "weights")
    with pytest.raises(UserError, match=r"is a link to .*outside the folder"):
        read_checkpoint(model)


def test_adapters_and_other_formats_are_refused_with_a_way_out(model: Path, weights: dict[str, Tensor]) -> None:
    (model / "flax_model.msgpack").touch()
    (model / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"model\.safetensors is missing, and bertie does not read flax_model\.msgpack"):
        read_checkpoint(model)
    save_file(weights, model / "model.safetensors")
    assert read_checkpoint(model).heads == {"mlm", "nsp"}  # merged: there are no weights of an adapter
    save_file({"a": torch.ones(1)}, model / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"adapter_config\.json describes an adapter.*merge"):
        read_checkpoint(model)
