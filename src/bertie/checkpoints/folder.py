"""A model as a folder that `AutoModel….from_pretrained` loads as it is."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertie import storage
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.huggingface import (
    classifier_kind,
    from_config_json,
    from_huggingface,
    to_config_json,
    to_huggingface,
)
from bertie.checkpoints.model_card import model_card
from bertie.errors import UsageError, UserError
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.text.tokenizer import Tokenizer

MANIFEST = "manifest.json"
TASK_FILE = "task.json"
MODEL_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)
TASK_FILES = (TASK_FILE, *sentence_transformers_format.FILES)  # of those that are fine-tuned for something
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # that weights are read from


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model folder, read and checked. weights: under our names, the pooler as `pooler.*`; labels: of its classifier.

    task: what its task.json says that it was fine-tuned for; empty for what others made.
    """

    folder: Path
    config: BertConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    task: dict[str, Any]

    @property
    def heads(self) -> frozenset[str]:
        """The heads whose weights it carries, by the kind of objective or task."""
        return frozenset(name.split(".")[1] for name in self.weights if name.startswith("heads."))

    def without_heads(self) -> Checkpoint:
        """The encoder and the pooler: what another task starts from."""
        kept = {n: tensor for n, tensor in self.weights.items() if not n.startswith(("heads.", "reading."))}
        return replace(self, weights=kept)


def write_model(
    folder: Path, model: BertModel, tokenizer: Tokenizer, task: dict[str, Any] | None = None, about: str = ""
) -> None:
    """Write config.json, model.safetensors, the tokenizer's files and the model card into an existing folder.

    The folder is no checkpoint before `seal`. task: what it was fine-tuned for, with its "labels" and "max_length" where it
    has them; about: what the model card says of how it was made, in Markdown.
    """
    heads = frozenset(model.heads)
    labels = tuple((task or {}).get("labels", ()))
    theirs = heads if model.loads_in_transformers else frozenset()
    weights = to_huggingface({name: tensor.cpu() for name, tensor in model.state_dict().items()}, theirs)
    save_tensors(weights, folder / "model.safetensors")
    tokenizer.save(folder, model.encoder.config.max_position_embeddings)
    storage.write_atomic(folder / "README.md", model_card(model, heads, labels, about))
    if task:
        storage.write_json(folder / TASK_FILE, task)
    if task and task["kind"] == "embed":
        sentence_transformers_format.write(folder, model.encoder.config, task)
    # Last, because this is the file that makes a folder a model for `locate`.
    storage.write_json(folder / "config.json", to_config_json(model.encoder.config, theirs, labels, tokenizer.pad_id))


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Whole or not at all, as `storage.write_atomic`. Errors: UserError where the disk is full, or takes no writing."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        save_file(tensors, temporary, metadata={"format": "pt"})
        temporary.chmod(0o666 & ~storage.umask())  # safetensors lets nobody else read what it writes
        storage.fsync(temporary)
        os.replace(temporary, path)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"cannot write {path}: {error}") from error


def write_manifest(folder: Path) -> None:
    """Write the manifest: size and sha256 of the model's files and of training_state/. Without it a folder is not complete."""
    state = sorted((folder / "training_state").glob("*"))
    files = [path for name in (*MODEL_FILES, *TASK_FILES) if (path := folder / name).is_file()] + state
    for path in files:
        storage.fsync(path)
    storage.write_json(folder / MANIFEST, {"format": 1, "files": storage.checksums(folder, files)})


def verify(folder: Path) -> None:
    """Compare a folder of ours with its manifest; other folders pass. Errors: UserError naming the file."""
    if (folder / MANIFEST).is_file():
        manifest, remedy = storage.read_json(folder / MANIFEST), "restore it, or take another checkpoint"
        try:
            storage.verify(folder, manifest["files"], remedy)
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{folder / MANIFEST} is damaged: {remedy}") from error


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Read a run, a checkpoint folder, any BERT folder of Hugging Face's, or a hub id. Errors: UsageError, UserError."""
    folder = find_model_folder(source)
    verify(folder)
    values = storage.read_json(folder / "config.json")
    config, labels = from_config_json(values, str(folder / "config.json"))
    task = storage.read_json(folder / TASK_FILE) if (folder / TASK_FILE).is_file() else {}
    tensors = read_tensors(folder / "model.safetensors")
    weights, _ = from_huggingface(tensors, str(task.get("kind") or classifier_kind(values, tensors)))
    tokenizer = Tokenizer.load(folder)
    words = weights.get("encoder.embeddings.word.weight")
    if words is None:
        raise UserError(f"{folder}/model.safetensors holds no BERT encoder")
    for name, tensor in weights.items():
        if not tensor.ndim:
            raise UserError(f"{folder}/model.safetensors is damaged: {name} is a single number")
        _require_dtype(folder / "model.safetensors", name, tensor)
    if tokenizer.size > len(words):
        raise UserError(f"{folder}: the vocabulary has {tokenizer.size} entries and the model only {len(words)}")
    _require_sizes(folder, config, task, weights)
    return Checkpoint(folder, config, weights, tokenizer, labels, task)


def _require_sizes(folder: Path, config: BertConfig, task: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Compare the largest tensors with config.json and task.json, before memory is taken for a model as large as those say.

    The rest `load_weights` compares. Errors: UserError.
    """
    width = config.hidden_size
    rows = {"word": config.vocab_size, "position": config.max_position_embeddings, "segment": config.type_vocab_size}
    sizes = {f"encoder.embeddings.{name}.weight": (count, width) for name, count in rows.items()}
    for layer in range(config.num_hidden_layers):
        sizes[f"encoder.layers.{layer}.attention.qkv.weight"] = (3 * width, width)
        sizes[f"encoder.layers.{layer}.up.weight"] = (config.intermediate_size, width)
    lstm = task.get("lstm_hidden_size")
    if type(lstm) is int and lstm > 0:  # whoever builds it says what is wrong with others
        sizes["reading.lstm.weight_hh_l0"] = (4 * lstm, lstm)
    for name, size in sizes.items():
        if (found := weights.get(name)) is None or found.shape != size:
            raise _misfit(folder, name, size, found)


def _misfit(folder: Path, name: str, size: tuple[int, ...], found: Tensor | None) -> UserError:
    have = "nothing" if found is None else f"shape {tuple(found.shape)}"
    return UserError(f"{folder}: {name} should be {size}, the checkpoint has {have}")


def find_model_folder(source: str | Path) -> Path:
    """The folder that holds config.json: `source` itself, a run's newest checkpoint, or the hub's copy of an id."""
    folder = Path(source)
    if (folder / "config.json").is_file():
        return folder
    if steps := list_checkpoints(folder):
        return steps[-1]
    if (folder / "model.safetensors").is_file():
        beside = "holds no config.json beside its model.safetensors"
        raise UsageError(f"{source} {beside}: restore it, or take another checkpoint")
    if folder.exists() or str(source).count("/") > 1 or str(source).startswith((".", "/", "~")):
        begun = "is a run without a checkpoint yet" if (folder / "config.toml").is_file() else "holds no config.json"
        what = begun if folder.exists() else "does not exist"
        raise UsageError(f"{source} {what}: give a run, a checkpoint folder or a hub id")
    return _from_hub(str(source))


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; what a user put beside them under other names is not one."""
    found = [path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


def _from_hub(name: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=[*MODEL_FILES, *TASK_FILES]))
    except Exception as error:  # the hub's client raises its own, its HTTP library's and the system's errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"{name} is no folder here, and the hub did not give it: {reason}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Errors: UserError where the file is missing, cut, or holds what is no number, or numbers of another kind."""
    if not path.is_file():
        split = " in one file, not in several" if path.with_name(f"{path.name}.index.json").is_file() else ""
        raise UserError(f"{path} is missing (bertie reads safetensors only{split}, never pickled weights)")
    try:
        tensors = load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.is_complex():  # whole numbers may be positions, which are passed over
            _require_dtype(path, name, tensor)
        if not torch.isfinite(tensor).all():
            raise UserError(f"{path} is damaged: {name} holds what is no number (NaN or infinity)")
    return tensors


def _require_dtype(path: Path, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in DTYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{path}: {name} is {kind}, which weights here are not: give float32, float16 or bfloat16")


@dataclass(frozen=True)
class LoadResult:
    """What `load_weights` did: modules that had no weights in the checkpoint, heads of it that found no place."""

    initialized: tuple[str, ...]
    dropped: tuple[str, ...]


def load_weights(model: BertModel, checkpoint: Checkpoint) -> LoadResult:
    """Copy what fits by name; heads that the checkpoint lacks keep their initial weights. Errors: UserError.

    A head with another number of outputs counts as another task's: it is dropped and said so.
    """
    wanted = model.state_dict()
    fresh, used = set(), set()
    for name, tensor in wanted.items():
        source = name if name in checkpoint.weights else name.split(".", 2)[-1]  # heads.X.pooler.w -> pooler.w
        found = checkpoint.weights.get(source)
        is_head = name.startswith(("heads.", "reading."))
        if found is not None and found.shape == tensor.shape:
            tensor.copy_(found)
            used.add(source)
        elif is_head:
            fresh.add(name.rsplit(".", 1)[0])
        else:
            raise _misfit(checkpoint.folder, name, tuple(tensor.shape), found)
    spare = sorted(checkpoint.weights.keys() - used)
    if layers := [name for name in spare if name.startswith("encoder.")]:
        raise UserError(
            f"{checkpoint.folder}: config.json describes a model without {layers[0]}, which is in the weights"
        )
    heads = {name.split(".")[1] for name in spare if name.startswith("heads.")}
    return LoadResult(tuple(sorted(fresh)), tuple(sorted(heads)))
