"""Model folders, in a format that transformers' `AutoModel….from_pretrained` loads directly."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from bertie import console, storage
from bertie.checkpoints import sentence_transformers_format, sentence_transformers_reader
from bertie.checkpoints.families import family_named, family_of
from bertie.checkpoints.families.family import to_huggingface
from bertie.checkpoints.find import MODEL_FILES, TASK_FILE, TASK_FILES, find_model_folder
from bertie.checkpoints.huggingface import (
    default_names,
    from_config_json,
    shapes_of,
    to_config_json,
    transformers_heads,
)
from bertie.checkpoints.model_card import model_card
from bertie.checkpoints.named_weights import named_weights
from bertie.checkpoints.tensorflow import folder as google
from bertie.checkpoints.weight_files import require_inside, weights_files
from bertie.errors import UsageError, UserError
from bertie.model.characters import Characters
from bertie.model.config import TransformerConfig
from bertie.model.electra import GENERATOR_HEAD, build_generator, generator_config, generator_sizes
from bertie.model.encoder import EncoderConfig, build_encoder, spell_entries
from bertie.model.head_facts import HeadShape
from bertie.model.lstm import LstmConfig
from bertie.model.meta import no_weights
from bertie.model.model import Model
from bertie.text.tokenizer import Tokenizer

MANIFEST = "manifest.json"
ABOVE_ENCODER = ("heads.", "reading.", "generator.")  # prefixes of weights that do not belong to the encoder


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
    model_type: str = ""
    """Name of its family."""
    skipped: Tensor | None = None
    """First rows of the matrix of positions, which no token uses, in families that have such rows."""
    training_only: dict[str, Any] = field(default_factory=dict)
    """Dropout probabilities in config.json that bertie has not, by their keys."""
    unclear: tuple[HeadShape, ...] = ()
    """What the head of a task could be, if config.json names no class and the labels do not tell."""
    files: tuple[Path, ...] = ()
    """The files with its weights (`weights_files`)."""

    @property
    def where(self) -> Path:
        """The file with its weights, or the folder if they are in several, for messages."""
        return self.files[0] if len(self.files) == 1 else self.folder

    @property
    def heads(self) -> frozenset[str]:
        """Names of the heads with weights: the kind of the objective or the task, or else the `HeadShape`."""
        return frozenset(name.split(".")[1] for name in self.weights if name.startswith("heads."))

    def warn_of_training(self) -> None:
        """Warn of dropout probabilities in config.json that training does not obey."""
        family = family_named(self.model_type)
        lost = []
        for name, value in self.training_only.items():
            ours = family.settings.training_only[name] if family else None
            if value != (self.config.hidden_dropout_prob if ours is None else ours):
                lost.append(f"{name} {str(value)[:20]}")
        if lost:
            console.warn(
                f"{self.folder}/config.json: {', '.join(lost)}: bertie has no such dropout of its own, and trains with "
                "hidden_dropout_prob"
            )

    def without_weights(self) -> Checkpoint:
        """Return only what the files say beside the weights."""
        return replace(self, weights={})

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
    folder: Path,
    model: Model,
    tokenizer: Tokenizer,
    task: dict[str, Any] | None = None,
    about: str = "",
    source: Checkpoint | None = None,
) -> None:
    """Write config.json, model.safetensors, the tokenizer's files and the model card.

    The checkpoint is complete only after `write_manifest`.

    Args:
        folder: Existing folder.
        model: Model to write.
        tokenizer: Its tokenizer.
        task: Contents of task.json, with "labels" and "max_length" if the task has them. None for a pre-trained model.
        about: Section of the model card, in Markdown.
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
    storage.write_atomic(folder / "README.md", model_card(model, labels, about))
    if task:
        storage.write_json(folder / TASK_FILE, task)
    how = source and sentence_transformers_reader.read(source.folder, model.encoder.config.hidden_size)
    if (how := how or sentence_transformers_format.embedding_of(model)) is not None:
        length = (task or {}).get("max_length", model.encoder.config.max_position_embeddings)
        sentence_transformers_format.write(folder, model.encoder.config, how, length)
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


def read_checkpoint(source: str | Path, shape: HeadShape | None = None) -> Checkpoint:
    """Read a model and check it.

    Args:
        source: A run, a checkpoint folder, a BERT folder in Hugging Face's format, Google's folder with a TensorFlow
            checkpoint or the prefix of its files, or a hub id.
        shape: What the head computes, if config.json names no class.

    Raises:
        UsageError: There is no such model.
        UserError: The model is damaged, or is none that bertie reads. Weights without a place in the model are refused, unless
            this happens in `unused_weights_allowed`.
    """
    place = find_model_folder(source)
    folder = place if place.is_dir() else place.parent
    verify(folder)
    require_inside(folder, (*MODEL_FILES, *TASK_FILES))
    path = folder / "config.json"
    path, values = (path, storage.read_json(path)) if place.is_dir() else google.read_config(place)
    family, config, labels = from_config_json(values, str(path))
    task = storage.read_json(folder / TASK_FILE) if (folder / TASK_FILE).is_file() else {}
    found = named_weights(place, family, values, task, shape)
    weights = found.weights
    config = family.without_derived(config, weights)
    generator = _read_generator(folder, config, values, weights)
    tokenizer = Tokenizer.load(folder)
    _require_vocabulary(folder, config, weights, tokenizer)
    _require_sizes(folder, config, generator, task, weights)
    found.unused.refuse()  # last, because what is wrong elsewhere says more
    problem_type = str(values.get("problem_type") or "")
    return Checkpoint(
        folder,
        config,
        weights,
        tokenizer,
        labels,
        task,
        generator,
        problem_type,
        family.model_type,
        found.skipped,
        {name: values[name] for name in family.settings.training_only if name in values},
        found.unclear,
        weights_files(place),
    )


def _require_vocabulary(folder: Path, config: EncoderConfig, weights: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    """Compare the number of entries of the vocabulary and of the encoder. Raises UserError, also if there is no encoder."""
    spelled = isinstance(config, LstmConfig) and isinstance(config.input, Characters)
    words = weights.get("encoder.embeddings." + ("characters.symbols" if spelled else "word.weight"))
    if words is None:
        raise UserError(f"{folder} is damaged: it holds no word embeddings")
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


def _replaces(tensor: Tensor, other: Tensor) -> bool:
    """Whether another tensor can take the place of one: it is of the same kind, and alone in its memory."""
    return (
        (tensor.dtype, tensor.device) == (other.dtype, other.device)
        and other.is_contiguous()
        and other.untyped_storage().nbytes() == other.nbytes
    )


@dataclass(frozen=True)
class LoadResult:
    """Outcome of `load_weights`."""

    initialized: tuple[str, ...]
    """Modules of the model without weights in the checkpoint. They keep their initial weights."""
    dropped: tuple[str, ...]
    """Heads of the checkpoint that the model does not have, and "generator" if its generator is another one."""


def load_weights(model: Model, checkpoint: Checkpoint, move: bool = False) -> LoadResult:
    """Copy the weights of a checkpoint into a model, by name, and set the spelling of its entries if it reads characters.

    Heads that the checkpoint lacks keep their initial weights. A head with another number of outputs belongs to another
    task: it is not loaded, and the result names it. So is a generator of another size, with its head.

    Args:
        model: The model.
        checkpoint: The checkpoint.
        move: Take the tensors out of the checkpoint instead of copying them, so that they need no memory twice.

    Raises:
        UserError: The checkpoint's encoder does not fit the model.
    """
    own = None if model.generator is None else generator_sizes(model.generator.config)
    theirs = None if checkpoint.generator is None else generator_sizes(checkpoint.generator)
    weights = checkpoint.weights if own == theirs else checkpoint.without_generator().weights
    initialized, used = set(), set()
    parameters = dict(model.named_parameters()) if move else {}
    for name, tensor in model.state_dict().items():
        source = name if name in weights else name.split(".", 2)[-1]  # heads.X.pooler.w -> pooler.w
        found = weights.get(source)
        is_head = name.startswith(ABOVE_ENCODER)
        if found is not None and found.shape == tensor.shape:
            if (parameter := parameters.get(name)) is not None and source not in used and _replaces(tensor, found):
                parameter.data = found
            else:
                tensor.copy_(found)
            used.add(source)
            if move and source == name:  # a pooler may have several places
                del weights[name]
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
