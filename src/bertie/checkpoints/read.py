"""Read a model folder: whose files belong together, and whose weights have the names and sizes that its settings say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from bertie.base import console, storage, untrusted
from bertie.base.errors import UsageError, UserError, naming
from bertie.checkpoints.checkpoint import Checkpoint, shape_error
from bertie.checkpoints.families.family import Family, canonical_names, from_huggingface, untie
from bertie.checkpoints.find import MANIFEST, TASK_FILE, find_model
from bertie.checkpoints.huggingface import from_config_json, head_shapes, padding_id
from bertie.checkpoints.tensorflow import folder as google
from bertie.checkpoints.weight_files import read_weights, require_dtype, weights_file, weights_files
from bertie.files.model_folder import ModelFolder
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig, build_encoder
from bertie.model.encoders.characters import Characters
from bertie.model.encoders.electra import build_generator, generator_config
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.head_facts import HeadShape
from bertie.model.initialization import no_weights
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import Tokenizer

ADAPTERS = re.compile(
    r"\b(lora|ia3|hada|lokr|oft|boft|vera|fourierft)_|\bprompt_encoder\.|\.base_layer\.|\bmodules_to_save\b|\badapters?\b|\bprefix_tuning\b"
)
"""Parts of names of adapters that are not merged into the weights."""
OF_VOCABULARY: tuple[HeadShape, ...] = ("masked", "permutation", "next")
_unused_allowed = ContextVar("unused_allowed", default=False)


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
        shape: What the head computes, if config.json names no class.
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
    task, pad_id = folder.json(TASK_FILE), padding_id(family, values)
    files = weights_files(prefix or folder)
    source = files[0] if prefix else weights_file(folder)
    tensors = family.read(google.read_weights(prefix) if prefix else read_weights(folder, mapped))
    with naming(source):
        original = canonical_names(family, tensors)
    tensors = {name: tensors[own] for name, own in original.items()}
    wrong = untie(family, tensors, values.get("tie_word_embeddings", True) is not False)
    heads, unclear = head_shapes(family, values, task, tensors, shape)
    skipped = family.skipped(tensors, pad_id)
    weights, unknown = from_huggingface(family, tensors, heads, pad_id)
    unused = sorted(original.get(name, name) for name in unknown)
    if any(ADAPTERS.search(name) for name in unused):
        _refuse_unused(source, family, unused)
    weights = _used(source, family, weights, heads, wrong)
    config = family.without_derived(config, weights)
    generator = _read_generator(folder, config, values, weights)
    tokenizer = Tokenizer.load(folder)
    _require_vocabulary(folder, config, weights, tokenizer)
    if family.positions_after_padding:
        _require_padding(path, pad_id, tokenizer)
    _require_sizes(folder, config, generator, task, weights)
    _refuse_unused(source, family, unused)  # last, because what is wrong elsewhere says more
    folder.forget()
    problem, kind = str(values.get("problem_type") or ""), family.model_type
    about = (folder.path, config, weights, tokenizer, labels, task, generator, problem, kind, skipped, values, unclear)
    return Checkpoint(*about, files, folder)


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


def _used(
    path: Path, family: Family, weights: dict[str, Tensor], heads: dict[str, HeadShape], wrong: str
) -> dict[str, Tensor]:
    """Check the weights of a model, and return them without the heads that bertie does not have.

    Args:
        path: Their file.
        family: The family of the model.
        weights: The weights under bertie's names.
        heads: The shapes of the heads, by their names.
        wrong: The output matrix of the head that predicts tokens, if it is not the word embeddings.
    """
    for name, tensor in weights.items():
        require_dtype(path, name, tensor)
    poolers = ("pooler.", *(f"heads.{name}.pooler." for name, shape in heads.items() if shape == "pair"))
    lost: list[HeadShape] = []
    if not any(
        name.startswith(poolers) for name in weights
    ):  # left over from pre-training, by a class without a pooler
        lost.append("pair")
    if wrong:
        problem = f"{path}: the head that predicts tokens has an output matrix of its own or none ({wrong})"
        remedy = "bertie has only heads that share the word embeddings"
        if {*OF_VOCABULARY[:2]}.isdisjoint(heads.values()):
            raise UserError(f"{problem}, and {remedy}")
        console.warn(f"{problem}: this head is not used, because {remedy}")
        lost += OF_VOCABULARY
    gone = tuple(f"heads.{name}." for name, shape in heads.items() if shape in lost)
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(gone)}
    if not any(name.startswith("encoder.embeddings.") for name in weights):
        raise UserError(
            f'{path} holds no encoder of the model_type "{family.model_type}", as its configuration says: restore the '
            "files that belong together"
        )
    return weights


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


def _require_vocabulary(
    folder: ModelFolder, config: EncoderConfig, weights: dict[str, Tensor], tokenizer: Tokenizer
) -> None:
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


def _require_padding(path: Path, pad_id: int, tokenizer: Tokenizer) -> None:
    """Check that no text holds the padding token of config.json, which has no position of its own. Raises UserError."""
    entry = tokenizer.vocabulary[pad_id] if pad_id < tokenizer.size else ""
    if entry and entry != tokenizer.special.pad and not entry.startswith("[unused"):
        raise UserError(
            f"{path}: pad_token_id {pad_id} is {entry!r:.60} in the vocabulary, and not its padding token: where it stands in a "
            "text, the model has another position than bertie computes; restore the files that belong together"
        )


def _read_generator(
    folder: ModelFolder, config: EncoderConfig, values: dict[str, Any], weights: dict[str, Tensor]
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
    folder: ModelFolder,
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
            raise shape_error(folder.path, name, size, found)
