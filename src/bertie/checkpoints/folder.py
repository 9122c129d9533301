"""Write model folders, in a format that transformers' `AutoModel….from_pretrained` loads directly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from bertie import storage
from bertie.checkpoints import sentence_transformers_format, sentence_transformers_reader
from bertie.checkpoints.checkpoint import Checkpoint
from bertie.checkpoints.families import family_named, family_of
from bertie.checkpoints.families.family import to_huggingface
from bertie.checkpoints.find import MODEL_FILES, TASK_FILE, TASK_FILES
from bertie.checkpoints.huggingface import (
    default_names,
    shapes_of,
    to_config_json,
    transformers_heads,
)
from bertie.checkpoints.model_card import About, write_card
from bertie.errors import UserError
from bertie.model.electra import generator_sizes
from bertie.model.model import Model
from bertie.text.tokenizer import Tokenizer

MANIFEST = "manifest.json"


def write_model(
    folder: Path,
    model: Model,
    tokenizer: Tokenizer,
    task: dict[str, Any] | None = None,
    about: About = About(),
    source: Checkpoint | None = None,
) -> None:
    """Write config.json, model.safetensors, the tokenizer's files and the model card.

    The checkpoint is complete only after `write_manifest`.

    Args:
        folder: Existing folder.
        model: Model to write.
        tokenizer: Its tokenizer.
        task: Contents of task.json, with "labels" and "max_length" if the task has them. None for a pre-trained model.
        about: What the model card says.
        source: The checkpoint that the model was read from. Its format, its class names and what no token uses are kept.
    """
    labels = tuple((task or {}).get("labels", ())) or (source.labels if source else ())
    family = family_of(model.encoder.config)
    if source and (own := family_named(source.model_type)) is not None and own.settings.fits(model.encoder.config):
        family = own
    heads = transformers_heads(model, family) or {}
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    weights = to_huggingface(
        family, state | family.derived(model.encoder.config), shapes_of(model, family), tokenizer.pad_id
    )
    if source and source.skipped is not None and len(source.skipped) == tokenizer.pad_id + 1:
        weights |= family.with_skipped(weights, source.skipped)
    save_tensors(family.write(model.encoder.config, weights), folder / "model.safetensors")
    tokenizer.save(folder, model.encoder.config.max_position_embeddings)
    if model.encoder.config.type_vocab_size < 2:
        # So that AutoTokenizer returns no segment ids, which the classes of models without segments do not take.
        path = folder / "tokenizer_config.json"
        storage.write_json(path, storage.read_json(path) | {"model_input_names": ["input_ids", "attention_mask"]})
    if task:
        storage.write_json(folder / TASK_FILE, task)
    how = source and sentence_transformers_reader.read(source.folder, model.encoder.config.hidden_size)
    if (how := how or sentence_transformers_format.embedding_of(model)) is not None:
        length = (task or {}).get("max_length", model.encoder.config.max_position_embeddings)
        sentence_transformers_format.write(folder, model.encoder.config, how, length)
    write_card(folder, model, labels, about)
    labels = labels or default_names(model, heads)
    values = to_config_json(model.encoder.config, heads.values(), labels, tokenizer.pad_id, family)
    if source and family.model_type == source.model_type:
        values |= source.training_only
    if source and heads and source.problem_type:
        values = {"problem_type": source.problem_type} | values
    if model.generator is not None:
        values["generator"] = generator_sizes(model.generator.config)
    if source:
        values |= _score_settings(source)
    storage.write_json(folder / "config.json", values)  # last, because `find_model_folder` recognizes a model by it


def _score_settings(source: Checkpoint) -> dict[str, Any]:
    """Return the keys of config.json from which all versions of sentence-transformers read the activation of scores."""
    out = source.weights.get("heads.text.out.weight")
    name = None if out is None else sentence_transformers_reader.score_activation(source.folder, len(out))
    if name is None:
        return {}
    activation = sentence_transformers_format.SCORE_ACTIVATIONS[name]
    return {"sentence_transformers": {"activation_fn": activation}, "sbert_ce_default_activation_function": activation}


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
    found = sorted(folder.glob(f"{sentence_transformers_format.IN_MODULES}/*"))
    names = dict.fromkeys((*MODEL_FILES, *TASK_FILES, *(path.relative_to(folder).as_posix() for path in found)))
    files = [path for name in names if (path := folder / name).is_file()] + state
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
