"""Model folders, in a format that transformers' `AutoModel….from_pretrained` loads directly."""

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
from bertie.checkpoints.families import family_of
from bertie.checkpoints.families.family import from_huggingface, to_huggingface
from bertie.checkpoints.huggingface import (
    from_config_json,
    head_shapes,
    padding_id,
    shapes_of,
    to_config_json,
    transformers_heads,
)
from bertie.checkpoints.model_card import model_card
from bertie.checkpoints.tensorflow import folder as google
from bertie.errors import UsageError, UserError, nearest
from bertie.model.characters import Characters
from bertie.model.config import TransformerConfig
from bertie.model.electra import GENERATOR_HEAD, build_generator, generator_config, generator_sizes
from bertie.model.encoder import EncoderConfig, build_encoder, spell_entries
from bertie.model.lstm import LstmConfig
from bertie.model.meta import no_weights
from bertie.model.model import Model
from bertie.text.tokenizer import Tokenizer

MANIFEST = "manifest.json"
TASK_FILE = "task.json"
MODEL_FILES = (
    *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt"),
)
TASK_FILES = (TASK_FILE, *sentence_transformers_format.FILES)  # only in folders of fine-tuned models
ABOVE_ENCODER = ("heads.", "reading.", "generator.")  # prefixes of weights that do not belong to the encoder
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # accepted dtypes of weights


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model folder that was read and checked."""

    folder: Path
    config: EncoderConfig
    weights: dict[str, Tensor]
    """Weights under bertie's names. The pooler's names start with `pooler.`."""
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    """Class names of the classification head, if any."""
    task: dict[str, Any]
    """Contents of task.json, the task for which the model was fine-tuned. Empty for models of other libraries."""
    generator: TransformerConfig | None = None
    """Configuration of the generator, which a pre-training of ELECTRA saves with the encoder."""
    problem_type: str = ""
    """What config.json says of the outputs of a classifier: regression, single_label_classification, … Empty: nothing."""

    @property
    def heads(self) -> frozenset[str]:
        """Names of the heads with weights: the kind of the objective or the task, or else the `HeadShape`."""
        return frozenset(name.split(".")[1] for name in self.weights if name.startswith("heads."))

    def without_heads(self) -> Checkpoint:
        """Return only the encoder and the pooler, from which another task can start."""
        return self._without(ABOVE_ENCODER)

    def with_head(self, shape: str | None, kind: str) -> Checkpoint:
        """Return the checkpoint with a head of another library, which has the name of its shape, as that of a task."""
        old = f"heads.{shape}."
        weights = {
            f"heads.{kind}.{name.removeprefix(old)}" if name.startswith(old) else name: tensor
            for name, tensor in self.weights.items()
        }
        return replace(self, weights=weights)

    def without_generator(self) -> Checkpoint:
        """Return the checkpoint without its generator and the masked-LM head, whose size is the generator's."""
        return self._without(("generator.", f"heads.{GENERATOR_HEAD}."))

    def _without(self, prefixes: tuple[str, ...]) -> Checkpoint:
        weights = {name: tensor for name, tensor in self.weights.items() if not name.startswith(prefixes)}
        return replace(self, weights=weights, generator=None)


def write_model(
    folder: Path, model: Model, tokenizer: Tokenizer, task: dict[str, Any] | None = None, about: str = ""
) -> None:
    """Write config.json, model.safetensors, the tokenizer's files and the model card.

    The checkpoint is complete only after `write_manifest`.

    Args:
        folder: Existing folder.
        model: Model to write.
        tokenizer: Its tokenizer.
        task: Contents of task.json, with "labels" and "max_length" if the task has them. None for a pre-trained model.
        about: Section of the model card, in Markdown.
    """
    labels = tuple((task or {}).get("labels", ()))
    family = family_of(model.encoder.config)
    heads = transformers_heads(model) or {}
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    weights = to_huggingface(family, state | family.derived(model.encoder.config), shapes_of(model), tokenizer.pad_id)
    save_tensors(family.write(model.encoder.config, weights), folder / "model.safetensors")
    tokenizer.save(folder, model.encoder.config.max_position_embeddings)
    if model.encoder.config.type_vocab_size < 2:
        # So that AutoTokenizer returns no segment ids, which the classes of models without segments do not take.
        path = folder / "tokenizer_config.json"
        storage.write_json(path, storage.read_json(path) | {"model_input_names": ["input_ids", "attention_mask"]})
    storage.write_atomic(folder / "README.md", model_card(model, labels, about))
    if task:
        storage.write_json(folder / TASK_FILE, task)
    if (how := sentence_transformers_format.embedding_of(model)) is not None:
        length = (task or {}).get("max_length", model.encoder.config.max_position_embeddings)
        sentence_transformers_format.write(folder, model.encoder.config, how, length)
    values = to_config_json(model.encoder.config, heads.values(), labels, tokenizer.pad_id)
    if model.generator is not None:
        values["generator"] = generator_sizes(model.generator.config)
    storage.write_json(folder / "config.json", values)  # last, because `find_model_folder` recognizes a model by it


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a safetensors file, atomically. Raises UserError if the file cannot be written."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        save_file(tensors, temporary, metadata={"format": "pt"})
        temporary.chmod(0o666 & ~storage.umask())  # safetensors writes files that only their owner can read
        storage.fsync(temporary)
        os.replace(temporary, path)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"cannot write {path}: {error}") from error


def write_manifest(folder: Path) -> None:
    """Write the manifest: sizes and checksums of the model's files and of training_state/. It completes a checkpoint."""
    state = sorted((folder / "training_state").glob("*"))
    files = [path for name in (*MODEL_FILES, *TASK_FILES) if (path := folder / name).is_file()] + state
    for path in files:
        storage.fsync(path)
    storage.write_json(folder / MANIFEST, {"format": 1, "files": storage.checksums(folder, files)})


def verify(folder: Path) -> None:
    """Compare a folder with its manifest. Folders without a manifest pass.

    Raises:
        UserError: A file or the manifest is missing, altered or damaged. The message names it.
    """
    if (folder / MANIFEST).is_file():
        manifest, remedy = storage.read_json(folder / MANIFEST), "restore it, or take another checkpoint"
        try:
            storage.verify(folder, manifest["files"], remedy)
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{folder / MANIFEST} is damaged: {remedy}") from error


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Read a model and check it.

    Args:
        source: A run, a checkpoint folder, a BERT folder in Hugging Face's format, Google's folder with a TensorFlow
            checkpoint or the prefix of its files, or a hub id.

    Raises:
        UsageError: There is no such model.
        UserError: The model is damaged, or is none that bertie reads.
    """
    folder = find_model_folder(source)
    if (folder / "config.json").is_file():
        verify(folder)
        path, where = folder / "config.json", folder / "model.safetensors"
        values, tensors = storage.read_json(path), read_tensors(where)
    else:
        where, folder = Path(f"{folder}.index"), folder.parent
        verify(folder)
        path, values, tensors = google.read_model(where.with_suffix(""))
        _require_finite(where, tensors)
    family, config, labels = from_config_json(values, str(path))
    task = storage.read_json(folder / TASK_FILE) if (folder / TASK_FILE).is_file() else {}
    heads = head_shapes(family, values, task)
    weights, _ = from_huggingface(family, family.read(tensors), heads, padding_id(family, values))
    config = family.without_derived(config, weights)
    generator = _read_generator(folder, config, values, weights)
    tokenizer = Tokenizer.load(folder)
    for name, tensor in weights.items():
        if not tensor.ndim:
            raise UserError(f"{where} is damaged: {name} is a single number")
        _require_dtype(where, name, tensor)
    if not any(name.startswith("encoder.embeddings.") for name in weights):
        raise UserError(
            f'{where} holds no encoder of the model_type "{family.model_type}", as {path.name} describes '
            "it: restore the files that belong together"
        )
    _require_vocabulary(folder, config, weights, tokenizer)
    _require_sizes(folder, config, generator, task, weights)
    return Checkpoint(
        folder, config, weights, tokenizer, labels, task, generator, str(values.get("problem_type") or "")
    )


def _require_vocabulary(folder: Path, config: EncoderConfig, weights: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    """Compare the number of entries of the vocabulary and of the encoder. Raises UserError, also if there is no encoder."""
    spelled = isinstance(config, LstmConfig) and isinstance(config.input, Characters)
    words = weights.get("encoder.embeddings." + ("characters.symbols" if spelled else "word.weight"))
    if words is None:
        raise UserError(f"{folder}/model.safetensors is damaged: it holds no word embeddings")
    entries = config.vocab_size if spelled else len(words)
    if tokenizer.size > entries or (spelled and tokenizer.size < entries):
        less = "only " * (tokenizer.size > entries)
        raise UserError(
            f"{folder}: the vocabulary has {tokenizer.size} entries and the model {less}{entries}: "
            "restore the files that belong together"
        )


def _read_generator(
    folder: Path, config: EncoderConfig, values: dict[str, Any], weights: dict[str, Tensor]
) -> TransformerConfig | None:
    """Return the configuration of the generator; None if there are no weights of one.

    Args:
        folder: Folder of the model, for messages.
        config: Configuration of the encoder.
        values: Contents of config.json.
        weights: Weights under bertie's names.

    Raises:
        UserError: config.json does not describe the generator of these weights.
    """
    if not any(name.startswith("generator.") for name in weights):
        return None
    sizes = values.get("generator")
    if not isinstance(sizes, dict) or not isinstance(config, TransformerConfig):
        raise UserError(f"{folder}/config.json does not describe the generator that is in the weights")
    try:
        return generator_config(config, sizes)
    except UsageError as error:
        raise UserError(f"{folder}/config.json: {error}") from error


def _require_sizes(
    folder: Path,
    config: EncoderConfig,
    generator: TransformerConfig | None,
    task: dict[str, Any],
    weights: dict[str, Tensor],
) -> None:
    """Compare the tensors of the encoder, the generator and the BiLSTM with the sizes in config.json and task.json.

    The check comes before the model is built, because a wrong size could ask for any amount of memory. `load_weights`
    compares the other tensors. Raises UserError.
    """
    with no_weights():
        encoder = build_encoder(config)
        model = Model(encoder, {}, generator=build_generator(generator, encoder))
    sizes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    lstm = task.get("lstm_hidden_size")
    if type(lstm) is int and lstm > 0:  # other values are reported when the model is built
        sizes["reading.lstm.ahead.0.weight_hh_l0"] = (4 * lstm, lstm)
    for name, size in sizes.items():
        if (found := weights.get(name)) is None or found.shape != size:
            raise _shape_error(folder, name, size, found)


def _shape_error(folder: Path, name: str, size: tuple[int, ...], found: Tensor | None) -> UserError:
    actual = "nothing" if found is None else f"shape {tuple(found.shape)}"
    return UserError(f"{folder}: {name} should be {size}, the checkpoint has {actual}")


def find_model_folder(source: str | Path) -> Path:
    """Return the folder with config.json: `source` itself, a run's newest checkpoint, or a downloaded hub model; for a
    TensorFlow checkpoint the prefix of its files, which is no folder.

    Raises:
        UsageError: There is no such folder, or the download failed.
    """
    folder = Path(source)
    if (folder / "config.json").is_file():
        return folder
    if steps := list_checkpoints(folder):
        return steps[-1]
    if (checkpoint := google.find_checkpoint(folder)) is not None:
        return checkpoint
    if (folder / "model.safetensors").is_file():
        problem = "holds no config.json beside its model.safetensors"
        raise UsageError(f"{source} {problem}: restore it, or take another checkpoint")
    remedy = ": give a run, a checkpoint folder or a hub id"
    if folder.exists():
        is_run = (folder / "config.toml").is_file()
        raise UsageError(
            f"{source} {'is a run without a checkpoint yet' if is_run else 'holds no config.json'}{remedy}"
        )
    beside = folder.parent.is_dir() and "/" in str(source)
    if beside or str(source).count("/") > 1 or str(source).startswith((".", "/", "~")):
        near = nearest(folder.name, [path.name for path in folder.parent.glob("*/")])
        raise UsageError(f"{source} does not exist" + (f": did you mean {folder.parent / near}?" if near else remedy))
    return _from_hub(str(source))


def list_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first. Folders with other names than step-NNNNNNNN do not count."""
    found = [path for path in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


def _from_hub(name: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=[*MODEL_FILES, *TASK_FILES]))
    except Exception as error:  # the hub's client raises errors of its own, of its HTTP library and of the system
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"{name} is not a folder, and the download from the hub failed: {reason}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file.

    Raises:
        UserError: The file is missing or damaged, or a tensor has non-finite values or an unsupported dtype.
    """
    if not path.is_file():
        split = " in one file, not in several" if path.with_name(f"{path.name}.index.json").is_file() else ""
        raise UserError(f"{path} is missing (bertie reads safetensors only{split}, never pickled weights)")
    try:
        tensors = load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    _require_finite(path, tensors)
    return tensors


def _require_finite(path: Path, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.is_complex():  # integers may be position ids, which are ignored
            _require_dtype(path, name, tensor)
        if not torch.isfinite(tensor).all():
            raise UserError(f"{path} is damaged: {name} holds NaN or infinity")


def _require_dtype(path: Path, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in DTYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{path}: {name} is {kind}, which is not supported: give float32, float16 or bfloat16")


@dataclass(frozen=True)
class LoadResult:
    """Outcome of `load_weights`."""

    initialized: tuple[str, ...]
    """Modules of the model without weights in the checkpoint. They keep their initial weights."""
    dropped: tuple[str, ...]
    """Heads of the checkpoint that the model does not have, and "generator" if its generator is another one."""


def load_weights(model: Model, checkpoint: Checkpoint) -> LoadResult:
    """Copy the weights of a checkpoint into a model, by name, and set the spelling of its entries if it reads characters.

    Heads that the checkpoint lacks keep their initial weights. A head with another number of outputs belongs to another
    task: it is not loaded, and the result names it. So is a generator of another size, with its head.

    Raises:
        UserError: The checkpoint's encoder does not fit the model.
    """
    own = None if model.generator is None else generator_sizes(model.generator.config)
    theirs = None if checkpoint.generator is None else generator_sizes(checkpoint.generator)
    weights = checkpoint.weights if own == theirs else checkpoint.without_generator().weights
    initialized, used = set(), set()
    for name, tensor in model.state_dict().items():
        source = name if name in weights else name.split(".", 2)[-1]  # heads.X.pooler.w -> pooler.w
        found = weights.get(source)
        is_head = name.startswith(ABOVE_ENCODER)
        if found is not None and found.shape == tensor.shape:
            tensor.copy_(found)
            used.add(source)
        elif is_head:
            initialized.add(name.rsplit(".", 1)[0])
        else:
            raise _shape_error(checkpoint.folder, name, tuple(tensor.shape), found)
    unused = sorted(checkpoint.weights.keys() - used)
    if layers := [name for name in unused if name.startswith("encoder.")]:
        raise UserError(
            f"{checkpoint.folder}: config.json describes a model without {layers[0]}, which is in the weights"
        )
    spell_entries(model.encoder, checkpoint.tokenizer)
    dropped = {name.split(".")[1] for name in unused if name.startswith("heads.")}
    dropped |= {"generator" for name in unused if name.startswith("generator.")}
    return LoadResult(tuple(sorted(initialized)), tuple(sorted(dropped)))
