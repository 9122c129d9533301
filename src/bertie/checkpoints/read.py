"""Read a model folder: whose files belong together, and whose weights have the sizes that its settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from bertie import storage, untrusted
from bertie.checkpoints.checkpoint import Checkpoint, shape_error
from bertie.checkpoints.find import TASK_FILE, find_model_folder
from bertie.checkpoints.folder import verify
from bertie.checkpoints.huggingface import from_config_json, padding_id
from bertie.checkpoints.mapped import Mapped
from bertie.checkpoints.named_weights import named_weights
from bertie.checkpoints.tensorflow import folder as google
from bertie.checkpoints.weight_files import weights_files
from bertie.errors import UsageError, UserError
from bertie.model.characters import Characters
from bertie.model.config import TransformerConfig
from bertie.model.electra import build_generator, generator_config
from bertie.model.encoder import EncoderConfig, build_encoder
from bertie.model.head_facts import HeadShape
from bertie.model.initialization import no_weights
from bertie.model.lstm import LstmConfig
from bertie.model.model import Model
from bertie.text.tokenizer import Tokenizer


def read_checkpoint(source: str | Path, shape: HeadShape | None = None, mapped: Mapped | None = None) -> Checkpoint:
    """Read a model and check it.

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
    place = find_model_folder(source)
    folder = place if place.is_dir() else place.parent
    untrusted.require_inside(folder)
    verify(folder)
    path = folder / "config.json"
    path, values = (path, storage.read_json(path)) if place.is_dir() else google.read_config(place)
    family, config, labels = from_config_json(values, str(path))
    task = storage.read_json(folder / TASK_FILE) if (folder / TASK_FILE).is_file() else {}
    found = named_weights(place, family, values, task, shape, mapped)
    weights = found.weights
    config = family.without_derived(config, weights)
    generator = _read_generator(folder, config, values, weights)
    tokenizer = Tokenizer.load(folder)
    _require_vocabulary(folder, config, weights, tokenizer)
    if family.positions_after_padding:
        _require_padding(path, padding_id(family, values), tokenizer)
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
        values,
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


def _require_padding(path: Path, pad_id: int, tokenizer: Tokenizer) -> None:
    """Check that no text holds the padding token of config.json, which has no position of its own. Raises UserError."""
    entry = tokenizer.vocabulary[pad_id] if pad_id < tokenizer.size else ""
    if entry and entry != tokenizer.special.pad and not entry.startswith("[unused"):
        raise UserError(
            f"{path}: pad_token_id {pad_id} is {entry!r:.60} in the vocabulary, and not its padding token: where it stands in a "
            "text, the model has another position than bertie computes; restore the files that belong together"
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
            raise shape_error(folder, name, size, found)
