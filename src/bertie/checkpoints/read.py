"""Read a model folder into a checkpoint in memory, check that its files belong together, and copy its weights into a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from bertie.base import console, storage, untrusted
from bertie.base.errors import UsageError, UserError, naming
from bertie.checkpoints.families.family import Family, canonical_names, from_huggingface, untie
from bertie.checkpoints.find import (
    MANIFEST,
    TASK_FILE,
    find_model,
    read_weights,
    require_dtype,
    require_valid,
    weights_files,
)
from bertie.checkpoints.huggingface import PRETRAINED, from_config_json, head_shapes, padding_id
from bertie.checkpoints.tensorflow import folder as google
from bertie.files.model_folder import ModelFolder
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig, build_encoder, spell_entries
from bertie.model.encoders.characters import Characters
from bertie.model.encoders.electra import GENERATOR_HEAD, build_generator, generator_config, generator_sizes
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.head_facts import HeadShape, facts_of
from bertie.model.initialization import no_weights
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import Tokenizer

ABOVE_ENCODER = ("heads.", "reading.", "generator.")  # prefixes of weights that do not belong to the encoder
ADAPTERS = re.compile(
    r"\b(lora|ia3|hada|lokr|oft|boft|vera|fourierft)_|\bprompt_encoder\.|\.base_layer\.|\bmodules_to_save\b|\badapters?\b|\bprefix_tuning\b"
)
"""Parts of names of adapters that are not merged into the weights."""
OF_VOCABULARY: tuple[HeadShape, ...] = ("masked", "permutation", "next")
_unused_allowed = ContextVar("unused_allowed", default=False)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model folder that was read and checked."""

    contents: ModelFolder
    """The folder, with its small files as they were read."""
    family: Family
    config: EncoderConfig
    weights: dict[str, Tensor]
    """Weights under bertie's names. The pooler's names start with `pooler.`."""
    tokenizer: Tokenizer
    labels: tuple[str, ...] = ()
    """Class names of the classification head, if any."""
    task: dict[str, Any] = field(default_factory=dict)
    """Contents of task.json, the task for which the model was fine-tuned. Empty for models of other libraries."""
    generator: TransformerConfig | None = None
    """Configuration of the generator, which a pre-training of ELECTRA saves with the encoder."""
    skipped: Tensor | None = None
    """First rows of the matrix of positions, which no token uses, in families that have such rows."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Contents of config.json, or of Google's file with the keys of config.json."""
    unclear: tuple[HeadShape, ...] = ()
    """Possible shapes of the head of a task, if config.json names no class and the labels do not tell."""
    files: tuple[Path, ...] = ()
    """The files with its weights (`weights_files`)."""

    @property
    def folder(self) -> Path:
        return self.contents.path

    @property
    def problem_type(self) -> str:
        """The outputs of a classifier, as config.json calls them: regression, single_label_classification, … or ""."""
        return str(self.settings.get("problem_type") or "")

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
        lost = []
        for name, ours in self.family.settings.training_only.items():
            value = self.settings.get(name)
            if name in self.settings and value != (self.config.hidden_dropout_prob if ours is None else ours):
                lost.append(f"{name} {str(value)[:20]}")
        if lost:
            console.warn(
                f"{self.folder}/config.json: {', '.join(lost)}: bertie has no separate dropout there, and trains with "
                "hidden_dropout_prob"
            )

    def without_weights(self) -> Checkpoint:
        """Return the checkpoint without its weights."""
        return replace(self, weights={})

    def without_heads(self) -> Checkpoint:
        """Return only the encoder and the pooler, from which another task can start."""
        return self._without(ABOVE_ENCODER)

    def with_head(self, shape: str | None, kind: str) -> Checkpoint:
        """Return the checkpoint with the head of another library, which has the name of its shape, under the name of a task."""
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


@contextmanager
def unused_weights_allowed(allowed: bool = True) -> Iterator[None]:
    """Ignore weights without a place in the model in the block, with a warning, instead of refusing them."""
    token = _unused_allowed.set(allowed or _unused_allowed.get())
    try:
        yield
    finally:
        _unused_allowed.reset(token)


def read_checkpoint(source: str | Path, shape: HeadShape | None = None, mapped: bool = False) -> Checkpoint:
    """Find a model, read and check it.

    Args:
        source: A run, a checkpoint folder, a BERT folder in Hugging Face's format, Google's folder with a TensorFlow
            checkpoint or the prefix of its files, or a hub id.
        shape: Shape of the head, if config.json names no class.
        mapped: As in `read_weights`.

    Raises:
        UsageError: There is no such model.
        UserError: The model is damaged, or is none that bertie reads. Weights without a place in the model are refused, unless
            this happens in `unused_weights_allowed`.
    """
    folder, prefix = find_model(source)
    return read_folder(folder, shape, mapped, prefix)


def read_folder(
    folder: Path | ModelFolder, shape: HeadShape | None = None, mapped: bool = False, prefix: Path | None = None
) -> Checkpoint:
    """Read a model folder, such as a checkpoint of a run, and check it.

    Args:
        folder: The folder.
        shape: As in `read_checkpoint`.
        mapped: As in `read_weights`.
        prefix: The prefix of the weights, if they are a checkpoint of TensorFlow. None: config.json describes them.

    Raises:
        UserError: As `read_checkpoint`.
    """
    folder = ModelFolder.of(folder)
    verify(folder)
    path, values = google.read_config(prefix) if prefix else (folder / "config.json", folder.json("config.json"))
    family, config, labels = from_config_json(values, str(path))
    task, pad_id, files = folder.json(TASK_FILE), padding_id(family, values), weights_files(prefix or folder)
    source = files[0] if len(files) == 1 else folder.path
    if prefix:
        tensors = google.read_weights(prefix)
        require_valid(source, tensors)
    else:
        tensors = read_weights(folder, mapped)
    tensors = family.read(tensors)
    with naming(source):
        original = canonical_names(family, tensors)
    tensors = {name: tensors[old] for name, old in original.items()}
    wrong = untie(family, tensors, values.get("tie_word_embeddings", True) is not False)
    heads, unclear = head_shapes(family, values, task, tensors, shape)
    skipped = family.skipped(tensors, pad_id)
    weights, unknown = from_huggingface(family, tensors, heads, pad_id)
    unused = sorted(original.get(name, name) for name in unknown)
    if any(ADAPTERS.search(name) for name in unused):
        _refuse_unused(source, family, unused)
    weights = _used(source, weights, heads, wrong)
    config = family.without_derived(config, weights)
    generator = _read_generator(folder, config, values, weights)
    _require_sizes(folder, config, generator, weights)
    tokenizer = Tokenizer.load(folder)
    _require_vocabulary(folder, config, tokenizer)
    if family.positions_after_padding:
        _require_padding(path, pad_id, tokenizer)
    _refuse_unused(source, family, unused)  # last, because what is wrong elsewhere says more
    folder.forget()
    about = (labels, task, generator, skipped, values, unclear, files)
    return Checkpoint(folder, family, config, weights, tokenizer, *about)


def verify(folder: Path | ModelFolder, part: Literal["files", "others"] = "files") -> None:
    """Compare a folder with its manifest. Folders without a manifest pass.

    Args:
        folder: The folder.
        part: files: those that bertie reads. others: those for other programs.

    Raises:
        UserError: A file or the manifest is missing, altered or damaged. The message names it.
    """
    folder, remedy = ModelFolder.of(folder), "restore it, or take another checkpoint"
    if folder.has(MANIFEST):
        try:
            listed = ({"others": {}} | folder.json(MANIFEST))[part]
            untrusted.require_inside(folder.path, listed)
            storage.verify(folder.path, listed, remedy, folder.sha256)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / MANIFEST} is damaged: {remedy}") from error


def _used(path: Path, weights: dict[str, Tensor], heads: dict[str, HeadShape], wrong: str) -> dict[str, Tensor]:
    """Check the weights of a model, and return them without the heads that bertie does not have.

    Args:
        path: Their file.
        weights: The weights under bertie's names.
        heads: The shapes of the heads, by their names.
        wrong: The output matrix of the head that predicts tokens, if it is not the word embeddings.
    """
    for name, tensor in weights.items():
        require_dtype(path, name, tensor)
    poolers = ("pooler.", *(f"heads.{name}.pooler." for name, shape in heads.items() if shape == "pair"))
    lost: list[HeadShape] = []
    if not any(name.startswith(poolers) for name in weights):
        lost.append("pair")  # left over from pre-training, by a class without a pooler
    if wrong:
        problem = f"{path}: the head that predicts tokens has an output matrix of its own or none ({wrong})"
        remedy = "bertie has only heads that share the word embeddings"
        if {*OF_VOCABULARY[:2]}.isdisjoint(heads.values()):
            raise UserError(f"{problem}, and {remedy}")
        console.warn(f"{problem}: this head is not used, because {remedy}")
        lost += OF_VOCABULARY
    gone = tuple(f"heads.{name}." for name, shape in heads.items() if shape in lost)
    return {name: tensor for name, tensor in weights.items() if not name.startswith(gone)}


def _refuse_unused(path: Path, family: Family, names: list[str]) -> None:
    """Raise a UserError if weights have no place in the model, or warn if they are allowed."""
    if not names:
        return
    first = ", ".join(name[:100] for name in names[:3]) + " …" * (len(names) > 3)
    count = console.plural(len(names), "tensor")
    if any(ADAPTERS.search(name) for name in names):
        problem = f"an adapter that is not merged into the weights ({count}: {first})"
        remedy = "merge it with PEFT (model.merge_and_unload().save_pretrained(OUT))"
    else:
        problem, remedy = f"{count} that no {family.title} of bertie has: {first}", "remove them"
    if not _unused_allowed.get():
        allow = "with --allow-unused (load(…, allow_unused=True)) bertie computes without them"
        raise UserError(f"{path} holds {problem}; {remedy}, or {allow}")
    console.warn(f"{path} holds {problem}; they are not used")


def _require_vocabulary(folder: ModelFolder, config: EncoderConfig, tokenizer: Tokenizer) -> None:
    """Check that every entry of the vocabulary has a row in the encoder. Raises UserError."""
    spelled = isinstance(config, LstmConfig) and isinstance(config.input, Characters)
    if tokenizer.size > config.vocab_size or (spelled and tokenizer.size < config.vocab_size):
        less = "only " * (tokenizer.size > config.vocab_size)
        raise UserError(
            f"{folder}: the vocabulary has {tokenizer.size} entries and the model {less}{config.vocab_size}: "
            "restore the files that belong together"
        )


def _require_padding(path: Path, pad_id: int, tokenizer: Tokenizer) -> None:
    """Check that no text holds the padding token of config.json, which has no position of its own. Raises UserError."""
    entry = tokenizer.vocabulary[pad_id] if pad_id < tokenizer.size else ""
    if entry and entry != tokenizer.special.pad and not entry.startswith("[unused"):
        raise UserError(
            f"{path}: pad_token_id {pad_id} is {entry!r:.60} in the vocabulary, not its padding token: wherever it occurs in "
            "a text, the model's positions differ from bertie's; restore the files that belong together"
        )


def _read_generator(
    folder: ModelFolder, config: EncoderConfig, values: dict[str, Any], weights: dict[str, Tensor]
) -> TransformerConfig | None:
    """Return the configuration of the generator; None if there are no weights of one. Raises UserError."""
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
    folder: ModelFolder, config: EncoderConfig, generator: TransformerConfig | None, weights: dict[str, Tensor]
) -> None:
    """Compare the tensors of the encoder and the generator with the sizes in config.json. Raises UserError.

    The check comes before the model is built, because a wrong size could ask for any amount of memory. `load_weights`
    compares the other tensors.
    """
    with no_weights():
        encoder = build_encoder(config)
        model = Model(encoder, {}, generator=build_generator(generator, encoder))
    for name, tensor in model.state_dict().items():
        _require_shape(folder.path, name, tensor, weights.get(name))


def _require_shape(folder: Path, name: str, tensor: Tensor, stored: Tensor | None) -> None:
    """Raise a UserError if a stored tensor has another shape than the model's, or is missing."""
    if stored is None:
        raise UserError(f"{folder} lacks the weights {name}: restore the files that belong together")
    if stored.shape != tensor.shape:
        shapes = f"{name} should be {tuple(tensor.shape)} and is {tuple(stored.shape)}"
        raise UserError(f"{folder}: {shapes}: restore the files that belong together")


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
    for kind, head in model.heads.items():
        usual = PRETRAINED.get(facts_of(head).shape or "text", "") if getattr(head, "own", None) else ""
        if kind not in checkpoint.heads and usual in checkpoint.heads - model.kinds:
            checkpoint = checkpoint.with_head(usual, kind)  # transformers' names of weights do not say the kind
    ours = None if model.generator is None else generator_sizes(model.generator.config)
    theirs = None if checkpoint.generator is None else generator_sizes(checkpoint.generator)
    weights = checkpoint.weights if ours == theirs else checkpoint.without_generator().weights
    initialized, used = set(), set()
    parameters = dict(model.named_parameters()) if move else {}
    for name, tensor in model.state_dict().items():
        source = name if name in weights else name.split(".", 2)[-1]  # heads.X.pooler.w -> pooler.w
        stored = weights.get(source)
        if stored is None or stored.shape != tensor.shape:
            if not name.startswith(ABOVE_ENCODER):
                _require_shape(checkpoint.folder, name, tensor, stored)
            initialized.add(name.rsplit(".", 1)[0])
            continue
        if (parameter := parameters.get(name)) is not None and source not in used and _replaces(tensor, stored):
            parameter.data = stored
        else:
            tensor.copy_(stored)
        used.add(source)
        if move and source == name:  # a pooler may have several places
            del weights[name]
    unused = sorted(checkpoint.weights.keys() - used)
    if layers := [name for name in unused if name.startswith("encoder.")]:
        raise UserError(
            f"{checkpoint.folder}: config.json describes a model without {layers[0]}, which is in the weights"
        )
    spell_entries(model.encoder, checkpoint.tokenizer)
    dropped = {name.split(".")[1] for name in unused if name.startswith("heads.")}
    dropped |= {"generator" for name in unused if name.startswith("generator.")}
    return LoadResult(tuple(sorted(initialized)), tuple(sorted(dropped)))
