"""Hub ids: a model is read, or refused, by its id exactly as by its folder, and nothing else is downloaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from tests.parity.test_tokenizer_classes import spm

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.find import find_model_folder
from bertie.checkpoints.folder import write_manifest
from bertie.checkpoints.hub import hub_id
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.tensorflow import folder as google
from bertie.predict.engines import files
from bertie.tokenizers.tokenizer import Tokenizer

TEXTS = ["the covid19x of 1998", "Das ist gut."]
NAME = "some/bert"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLUTTER = (
    *("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "model.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx"),
    *("openvino/openvino_model.xml", "openvino/openvino_model.bin", "coreml/model.mlpackage", "checkpoint-5/model.safetensors"),
    *("checkpoint-5/config.json", "optimizer.pt", "training_args.bin", "model.fp16.safetensors", "eval/results.json"),
)  # fmt: skip
"""Files of repositories that no reader of bertie looks at."""


@dataclass
class Hub:
    """A stand-in of huggingface_hub with one repository, whose cache has the layout of the real one."""

    source: Path
    cache: Path

    @property
    def snapshot(self) -> Path:
        return self.cache / "models--some--bert" / "snapshots" / COMMIT

    def snapshot_download(
        self,
        name: str,
        *,
        allow_patterns: list[str] | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> str:
        assert name == NAME
        assert revision in (None, COMMIT)
        if local_files_only:
            assert self.snapshot.is_dir()
            return str(self.snapshot)
        found = [path.relative_to(self.source).as_posix() for path in self.source.rglob("*") if path.is_file()]
        for number, file in enumerate(sorted(found)):
            if list(filter_repo_objects([file], allow_patterns=allow_patterns)):
                blob, link = self.snapshot.parents[1] / "blobs" / str(number), self.snapshot / file
                blob.parent.mkdir(parents=True, exist_ok=True)
                link.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.source / file, blob)
                link.unlink(missing_ok=True)
                link.symlink_to(blob)
        return str(self.snapshot)

    def model_info(self, name: str) -> SimpleNamespace:
        assert name == NAME
        files = [path.relative_to(self.source).as_posix() for path in self.source.rglob("*") if path.is_file()]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    def downloaded(self) -> set[str]:
        paths = (path.relative_to(self.snapshot).as_posix() for path in self.snapshot.rglob("*") if path.is_file())
        return set(paths)


@pytest.fixture
def hub(tmp_path: Path, pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, with the pre-trained model. Tests change the files of `source`."""
    hub = Hub(tmp_path / "source", tmp_path / "cache")
    shutil.copytree(pretrained, hub.source)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    monkeypatch.setattr("huggingface_hub.model_info", hub.model_info)
    monkeypatch.chdir(tmp_path)
    return hub


def write(path: Path, values: Any) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(values))


def outcome(source: Path | str, hub: Hub) -> dict[str, Any]:
    """What a model is and computes, or why it is refused, without the name of its place."""
    try:
        found = bertie.load(source, threads=1)
    except UserError as error:
        places = (str(hub.source), str(hub.snapshot), NAME)
        text = str(error)
        for place in places:
            text = text.replace(place, "MODEL")
        return {"refused": f"{type(error).__name__}: {text}"}
    ids = [found.tokenizer.tokens(each) for each in found.tokenizer.encode(TEXTS)]
    vectors = found.embed(TEXTS)
    return {"engine": found.engine, "tokens": ids, "max_length": found.max_length, "vectors": vectors.tolist()}


def require_same(hub: Hub) -> dict[str, Any]:
    expected = outcome(hub.source, hub)
    assert outcome(NAME, hub) == expected
    return expected


def pickled(folder: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    return tensors


def in_shards(folder: Path, index: str, save: Callable[[dict[str, torch.Tensor], Path], object], *names: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    placed = {tensor: names[number % len(names)] for number, tensor in enumerate(tensors)}
    for name in names:
        save({tensor: tensors[tensor] for tensor, file in placed.items() if file == name}, folder / name)
    write(folder / index, {"weight_map": placed})


def sentence_transformers(folder: Path, *modules: tuple[str, str]) -> None:
    entries = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in modules]
    write(folder / "modules.json", entries)
    write(folder / "config_sentence_transformers.json", {"prompts": {"q": "query: "}, "default_prompt_name": "q"})
    for kind, path in modules:
        if kind == "Pooling":
            write(folder / path / "config.json", {"pooling_mode": "cls", "embedding_dimension": 32})
        if kind == "Dense":
            activation = "torch.nn.modules.activation.Tanh"
            sizes = {"in_features": 32, "out_features": 8, "bias": False, "activation_function": activation}
            write(folder / path / "config.json", sizes)
            torch.save({"linear.weight": torch.randn(8, 32)}, folder / path / "pytorch_model.bin")


def test_only_what_is_read_is_downloaded(hub: Hub) -> None:
    read = {path.name for path in hub.source.iterdir()}
    for name in (*CLUTTER, "pytorch_model.bin", "pytorch_model-00001-of-00002.bin"):
        (hub.source / name).parent.mkdir(parents=True, exist_ok=True)
        (hub.source / name).write_text("{}")
    assert "vectors" in require_same(hub)
    assert hub.downloaded() == read
    assert hub_id(read_checkpoint(NAME).folder) == NAME
    assert bertie.verify(NAME).facts == bertie.verify(hub.snapshot).facts


@pytest.mark.parametrize(
    ("name", "kind"), [("30k-clean.model", "AlbertTokenizer"), ("tokenizer.model", "XLMRobertaTokenizer")]
)
def test_sentencepiece_models_are_downloaded(hub: Hub, name: str, kind: str) -> None:
    roles = "<unk> <pad> [CLS] [SEP] [MASK]"
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        (hub.source / file).unlink()
    pieces = [*roles.split(), *"▁abcdefghijklmnopqrstuvwxyzDI.0123456789"]
    (hub.source / name).write_bytes(spm([(piece, -1.0) for piece in pieces], set(roles.split())))
    write(hub.source / "tokenizer_config.json", {"tokenizer_class": kind})
    found = require_same(hub)
    assert ("refused" in found) == (name == "tokenizer.model")
    assert name in hub.downloaded()


@pytest.mark.parametrize(
    ("index", "save", "ending"),
    [("model.safetensors.index.json", save_file, "safetensors"), ("pytorch_model.bin.index.json", torch.save, "bin")],
)
def test_shards_are_downloaded_by_the_names_in_their_index(
    hub: Hub, index: str, save: Callable[[dict[str, torch.Tensor], Path], object], ending: str
) -> None:
    in_shards(hub.source, index, save, f"part-[1].{ending}", f"part-2.{ending}")
    (hub.source / f"part-1.{ending}").touch()
    assert "vectors" in require_same(hub)
    assert f"part-1.{ending}" not in hub.downloaded()


def test_weights_with_a_name_of_their_own_are_downloaded(hub: Hub) -> None:
    config = json.loads((hub.source / "config.json").read_text())
    shutil.copy(hub.source / "model.safetensors", hub.source / "second.safetensors")
    write(hub.source / "config.json", config | {"transformers_weights": "second.safetensors"})
    assert "vectors" in require_same(hub)
    assert "model.safetensors" not in hub.downloaded()
    write(hub.source / "config.json", config | {"transformers_weights": "third.safetensors"})
    assert "third.safetensors" in require_same(hub)["refused"]


def test_each_module_has_weights_in_a_format_of_its_own(hub: Hub) -> None:
    sentence_transformers(hub.source, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "dense"))
    write(hub.source / "sentence_roberta_config.json", {"max_seq_length": 7})
    found = require_same(hub)
    assert (len(found["vectors"][0]), found["max_length"]) == (8, 7)
    assert "pytorch_model.bin" not in hub.downloaded()


def test_an_encoder_in_a_folder_of_its_own_is_downloaded(hub: Hub) -> None:
    inner = hub.source / "0_Transformer"
    inner.mkdir()
    for path in [path for path in hub.source.iterdir() if path.is_file()]:
        path.rename(inner / path.name)
    pickled(inner)
    sentence_transformers(hub.source, ("Transformer", "0_Transformer"), ("Pooling", "1_Pooling"))
    write(hub.source / "config.json", {"__version__": {"sentence_transformers": "2.0.0"}})
    (hub.source / "model.safetensors").touch()
    assert "vectors" in require_same(hub)
    assert "model.safetensors" not in hub.downloaded()


def test_a_converted_model_keeps_its_engine(hub: Hub) -> None:
    own = (files.ACTIVATIONS, "onnx/model.onnx", "onnx/model.onnx_data")
    save_file({"0.qkv.range": torch.zeros(2)}, hub.source / files.ACTIVATIONS)
    for name in (*own[1:], "onnx/other.onnx"):
        (hub.source / name).parent.mkdir(exist_ok=True)
        (hub.source / name).write_text(name)
    files.write(files.Exported(hub.source, "torch", files=own))
    assert require_same(hub)["engine"] == "torch"
    assert set(own) < hub.downloaded()
    assert "onnx/other.onnx" not in hub.downloaded()
    (hub.source / own[2]).write_text("altered")
    assert "onnx/model.onnx_data" in require_same(hub)["refused"]


def test_checksums_are_compared(hub: Hub) -> None:
    write_manifest(hub.source)
    assert "vectors" in require_same(hub)
    with open(hub.source / "vocab.txt", "a") as file:
        file.write("more\n")
    assert "vocab.txt" in require_same(hub)["refused"]


def test_a_checkpoint_of_tensorflow_is_downloaded(hub: Hub) -> None:
    model, tokenizer = bertie.load(hub.source, threads=1).model, Tokenizer.load(hub.source)
    for name in ("config.json", "model.safetensors"):
        (hub.source / name).unlink()
    google.write_model(hub.source, model, tokenizer, ())
    assert "vectors" in require_same(hub)
    for path in list(hub.source.glob(f"{google.PREFIX}.*")):
        shutil.copy(path, path.with_name(f"{path.name.replace('bert_model', 'older')}"))
    assert "vectors" in require_same(hub)
    assert not any(name.startswith("older") and "data" in name for name in hub.downloaded())
    (hub.source / google.LATEST).unlink()
    shutil.rmtree(hub.cache)
    assert "2 TensorFlow checkpoints" in require_same(hub)["refused"]


def below(hub: Hub, name: str) -> None:
    """Move the model into a folder of the repository."""
    moved = list(hub.source.iterdir())
    (hub.source / name).mkdir(parents=True)
    for path in moved:
        path.rename(hub.source / name / path.name)


def test_the_newest_checkpoint_of_a_run_is_downloaded(hub: Hub) -> None:
    sentence_transformers(hub.source, ("Transformer", ""), ("Pooling", "1_Pooling"))
    pickled(hub.source)
    below(hub, "checkpoints/step-00000010")
    shutil.copytree(hub.source / "checkpoints/step-00000010", hub.source / "checkpoints/step-00000009")
    (hub.source / "config.toml").write_text('[layout]\nkind = "pairs"\nmax_length = 24\n')
    assert require_same(hub)["max_length"] == 24
    assert not any("step-00000009" in name for name in hub.downloaded())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.model_info", None)  # without a connection, the download counts
        assert require_same(hub)["max_length"] == 24


def test_a_model_in_a_folder_of_a_repository_is_named(hub: Hub) -> None:
    below(hub, "model")
    assert "MODEL holds no config.json, but MODEL/model does: give a run" in require_same(hub)["refused"]
    assert hub.downloaded() == set()


def test_an_adapter_is_refused_without_its_base_model(hub: Hub) -> None:
    write(hub.source / "adapter_config.json", {})
    (hub.source / "adapter_model.safetensors").touch()
    assert "merge it with PEFT" in require_same(hub)["refused"]
    assert "model.safetensors" not in hub.downloaded()
    (hub.source / "config.json").unlink()
    shutil.rmtree(hub.cache)
    assert "merge it with PEFT" in require_same(hub)["refused"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: write(folder / "modules.json", {}),
        lambda folder: write(folder / "manifest.json", {"files": {"/etc/passwd": {}}}),
        lambda folder: write(folder / "config.json", {"transformers_weights": "../x.safetensors"}),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: [path.unlink() for path in folder.iterdir()] + [(folder / "m.gguf").touch()],
        lambda folder: in_shards(folder, "model.safetensors.index.json", save_file, "a") or (folder / "a").unlink(),
    ],
)
def test_what_is_wrong_is_refused_with_the_same_words(hub: Hub, damage: Callable[[Path], object]) -> None:
    damage(hub.source)
    assert require_same(hub)["refused"]


def test_a_failed_download_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, **_: object) -> str:
        raise OSError(f"no route to {name}\nand more")

    monkeypatch.setattr("huggingface_hub.model_info", refuse)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(
        UsageError, match=r"some/bert is not a folder, and the download .* failed: no route to some/bert$"
    ):
        read_checkpoint(NAME)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("", "is empty: give a run, a checkpoint folder or a hub id"),
        ("https://huggingface.co/google-bert/bert-base-uncased", "is an address: give"),
        ("x" * 5000, "File name too long: give"),
        ("./none", "does not exist: give"),
        ("model/config.json", "is a file: give the folder"),
        (".", "holds no config.json, but model does: give"),
        ("empty", "holds no config.json: give"),
        ("model/1_Pooling", "is a module of the model in model: give that folder"),
        ("static", "modules.json asks for StaticEmbedding → Normalize, which is not supported"),
        ("old", "0_Transformer/config.json"),
    ],
)
def test_a_place_without_a_model(
    place: str, words: str, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pretrained, tmp_path / "model")
    sentence_transformers(tmp_path / "model", ("Transformer", ""), ("Pooling", "1_Pooling"))
    sentence_transformers(tmp_path / "static", ("StaticEmbedding", ""), ("Normalize", "1_Normalize"))
    sentence_transformers(tmp_path / "old", ("Transformer", "0_Transformer"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as raised:
        find_model_folder(place)
    assert words in str(raised.value)
