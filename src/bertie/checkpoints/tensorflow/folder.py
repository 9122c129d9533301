"""Folders of Google's models: bert_config.json or albert_config.json, a vocabulary, and a TensorFlow checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from bertie.base import console, storage
from bertie.base.errors import UsageError, UserError, naming
from bertie.checkpoints.families import family_of
from bertie.checkpoints.families.family import to_huggingface
from bertie.checkpoints.huggingface import shapes_of, to_config_json, transformers_heads
from bertie.checkpoints.tensorflow import names
from bertie.checkpoints.tensorflow.names import OBJECT_GRAPH, VALUE
from bertie.checkpoints.tensorflow.tensor_bundle import TensorBundle, open_bundle, write_bundle
from bertie.files.protobuf import Message
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import Tokenizer

CONFIGS = {"bert": "bert_config.json", "albert": "albert_config.json", "electra": "bert_config.json"}
"""Names of the configuration, by `model_type`. Google's ELECTRA has none: users write it."""
PREFIX = "bert_model.ckpt"
LATEST = "checkpoint"  # TensorFlow's text file that names the latest checkpoint of a folder
GENERATOR = re.compile(r"generator(_predictions)?/")
CLASSIFIERS = {"bert": "BertForSequenceClassification", "albert": "AlbertForSequenceClassification"}
"""Hugging Face's class of a fine-tuned classifier."""
LAYER_NORM_EPS = 1e-12  # a constant in Google's code
GELU = {"bert": "gelu", "albert": "gelu_pytorch_tanh", "electra": "gelu"}
"""Meaning of "gelu" in Google's configurations, by Hugging Face's names: the defaults of transformers for these families.

In Google's code of ALBERT (google-research/albert), it is the approximation by tanh, in ELECTRA's code the exact function.
google-research/bert published its models in 2018 with the exact one; the approximation replaced it later."""


def find_checkpoint(source: Path) -> Path | None:
    """Return the prefix of the files of a TensorFlow checkpoint; None if there is none.

    Args:
        source: The prefix, or a folder with a configuration and checkpoints. Of several, the file `checkpoint` names one.

    Raises:
        UsageError: The folder holds several checkpoints and does not say which one counts, or one without its index.
    """
    if Path(f"{source}.index").is_file() and not source.is_dir():
        return source
    if find_config(source) is None:
        return None
    prefixes = sorted(path.with_suffix("") for path in source.glob("*.index"))
    if len(prefixes) > 1:
        chosen = source / (latest(source / LATEST) or LATEST)
        if chosen not in prefixes:
            raise UsageError(
                f"{source} holds {len(prefixes)} TensorFlow checkpoints: name one of them, such as {prefixes[0]}"
            )
        return chosen
    if not prefixes and (data := sorted(source.glob("*.data-*-of-*"))):
        raise UsageError(
            f"{source} holds {data[0].name} of a TensorFlow checkpoint without its .index file: restore it"
        )
    return prefixes[0] if prefixes else None


def find_config(folder: Path) -> Path | None:
    """Return the configuration of Google's model in a folder; None if there is none."""
    return next(
        (path for name in ("bert_config.json", "albert_config.json") if (path := folder / name).is_file()), None
    )


def read_config(prefix: Path) -> tuple[Path, dict[str, Any]]:
    """Read the configuration of a checkpoint.

    Args:
        prefix: As `find_checkpoint` returns it.

    Returns:
        Its path, and its values with the keys of Hugging Face's config.json.

    Raises:
        UsageError: There is no configuration.
        UserError: A file is damaged, or a variable is not known.
    """
    path, values = _config(prefix)
    bundle = open_bundle(prefix)
    model_type, theirs = _variables(bundle, path, values)
    values = values | {"model_type": model_type, "layer_norm_eps": values.get("layer_norm_eps", LAYER_NORM_EPS)}
    if values.get("hidden_act", "gelu") == "gelu":
        values["hidden_act"] = GELU[model_type]
    for entry, (name, _) in theirs.items():
        if (
            name == "classifier.weight" and model_type in CLASSIFIERS
        ):  # Google's only head of this name, of run_classifier.py
            values.setdefault("architectures", [CLASSIFIERS[model_type]])
            outputs = (bundle.entries[entry].shape or (1,))[0]
            if outputs > 1:  # the names of classes are in Google's programs
                values.setdefault("id2label", {str(number): f"LABEL_{number}" for number in range(outputs)})
    return path, values


def read_weights(prefix: Path) -> dict[str, Tensor]:
    """Read the weights of a checkpoint under Hugging Face's names. Variables of the optimizer are left out.

    Args:
        prefix: As `find_checkpoint` returns it.

    Raises:
        UsageError: There is no configuration.
        UserError: A file is damaged, or a variable is not known.
    """
    bundle = open_bundle(prefix)
    _, theirs = _variables(bundle, *_config(prefix))
    if left_out := [entry for entry in bundle.entries if GENERATOR.match(entry)]:
        console.warn(f"{prefix}: ELECTRA's generator is left out: {console.plural(len(left_out), 'variable')}")
    return {name: _oriented(name, bundle.read(entry), transposed) for entry, (name, transposed) in theirs.items()}


def _config(prefix: Path) -> tuple[Path, dict[str, Any]]:
    path = find_config(prefix.parent)
    if path is None:
        raise UsageError(f"{prefix.parent} holds no bert_config.json, which describes the model {prefix.name}: add it")
    return path, storage.read_json(path)


def _variables(bundle: TensorBundle, path: Path, values: dict[str, Any]) -> tuple[str, dict[str, tuple[str, bool]]]:
    """Return the `model_type`, and Hugging Face's name of each entry with whether its matrix is transposed."""
    layers = values.get("num_hidden_layers", 12)
    if type(layers) is not int:
        raise UserError(f"{path}: num_hidden_layers is {repr(layers)[:60]}: it must be a number")
    with naming(f"{bundle.prefix}.index"):
        known = _known_names(bundle, layers)
        model_type = names.model_type_of(known.values())
        if values.get("model_type", model_type) != model_type:
            raise UserError(
                f"its variables belong to {model_type}, but {path.name} names {repr(values['model_type'])[:60]}"
            )
        return model_type, _their_names(model_type, known)


def write_model(folder: Path, model: Model, tokenizer: Tokenizer, labels: tuple[str, ...]) -> None:
    """Write a model as a checkpoint of TensorFlow 1 with its configuration. The tokenizer's files are not written.

    The configuration has the keys of Hugging Face's config.json, which are Google's with further ones.

    Args:
        folder: Existing folder.
        model: Model to write.
        tokenizer: Its tokenizer.
        labels: Class names, if any.

    Raises:
        UsageError: Google's code has no such model. Nothing is written.
    """
    config = model.encoder.config
    family, heads = family_of(config), transformers_heads(model)
    kind = family.model_type
    if kind not in names.ROWS or heads is None or tokenizer.algorithm != "wordpiece":
        what = f"models of the family {family.title} with these heads and a {tokenizer.algorithm} vocabulary"
        raise UsageError(f"Google's code does not have {what}: use --to hf")
    values = to_config_json(config, heads.values(), labels, tokenizer.pad_id)
    if values["hidden_act"] not in (GELU[kind], "relu") or values["layer_norm_eps"] != LAYER_NORM_EPS:
        fixed = f"hidden_act {GELU[kind]} or relu, and layer_norm_eps {LAYER_NORM_EPS}"
        raise UsageError(f"Google's code has a fixed {fixed}, and the model has other values: use --to hf")
    if values["hidden_act"] == GELU[kind]:
        values["hidden_act"] = "gelu"
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    weights = to_huggingface(family, state, shapes_of(model), tokenizer.pad_id)
    base = "" if heads else family.base
    renamed = {names.to_google(kind, base + name): tensor for name, tensor in weights.items()}

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for (name, transposed), tensor in sorted(renamed.items()):
            yield name, tensor.t() if transposed else tensor

    write_bundle(folder / PREFIX, tensors())
    latest = f'model_checkpoint_path: "{PREFIX}"\nall_model_checkpoint_paths: "{PREFIX}"\n'
    storage.write_atomic(folder / LATEST, latest)
    storage.write_json(folder / CONFIGS[kind], values)


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder that `write_model` wrote and that hold the model."""
    named = [folder / name for name in dict.fromkeys(CONFIGS.values())]
    return [path for path in named if path.is_file()] + sorted(folder.glob(f"{PREFIX}.*"))


def latest(path: Path) -> str:
    """Return the name of the latest checkpoint that a file `checkpoint` names; "" if it names none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            match = re.search(r'^model_checkpoint_path: *"([^"\n]*)"', file.read(1 << 16), re.MULTILINE)
    except OSError:
        return ""
    return match[1].rpartition("/")[2] if match else ""


def _known_names(bundle: TensorBundle, layers: int) -> dict[str, str]:
    """Return the names that the variables of a model have in TensorFlow 1, by the names of their entries."""
    named, slots = _object_graph(bundle) if OBJECT_GRAPH in bundle.entries else ({}, set())
    known = {}
    for entry in bundle.entries:
        if entry in slots or GENERATOR.match(entry) or names.is_skipped(entry):
            continue
        second = entry.removesuffix(VALUE)
        known[entry] = entry if second == entry else names.first_name(second, named.get(entry, ""), layers)
    if any(name.startswith(names.HEAD_POOLER) for name in known.values()):
        unused = [entry for entry, name in known.items() if name.startswith(names.POOLER)]
        if unused:
            console.warn(f"{bundle.prefix}: the encoder's pooler is left out: the head has one of its own")
        known = {entry: name for entry, name in known.items() if entry not in unused}
    return known


def _object_graph(bundle: TensorBundle) -> tuple[dict[str, str], set[str]]:
    """Return the names of variables in the object graph, by their entries, and the entries of the optimizer."""
    names_in_graph: dict[str, str] = {}
    slots: set[str] = set()
    objects = [Message(part) for part in Message(b"".join(bundle.strings(OBJECT_GRAPH)[:1])).parts(1)]
    numbers = {Message(slot).integer(3) for node in objects for slot in node.parts(3)}
    for number, node in enumerate(objects):
        for attribute in map(Message, node.parts(2)):
            name, entry = (b"".join(attribute.parts(field)).decode(errors="replace") for field in (2, 3))
            names_in_graph[entry] = name
            if number in numbers:
                slots.add(entry)
    return names_in_graph, slots


def _their_names(model_type: str, known: dict[str, str]) -> dict[str, tuple[str, bool]]:
    """Return Hugging Face's name of each entry, and whether its matrix is transposed. Raises UserError."""
    theirs: dict[str, tuple[str, bool]] = {}
    entries: dict[str, str] = {}
    for entry, name in known.items():
        translated = names.to_huggingface(model_type, name)
        if translated is None:
            title = {"bert": "BERT", "albert": "ALBERT", "electra": "ELECTRA"}[model_type]
            raise UserError(f"bertie does not know the variable {entry[:200]!r} in Google's {title}")
        if translated[0] in entries:
            raise UserError(
                f"{entry[:200]!r} and {entries[translated[0]][:200]!r} are the same weight, {translated[0]}"
            )
        theirs[entry], entries[translated[0]] = translated, entry
    return theirs


def _oriented(name: str, tensor: Tensor, transposed: bool) -> Tensor:
    """Return a weight as Hugging Face stores it. TensorFlow 2 keeps the heads of attention in a dimension of their own."""
    if ".attention." in name and transposed and tensor.ndim == 3:
        tensor = tensor.flatten(0, 1) if ".output." in name else tensor.flatten(1)
    elif re.search(r"\.attention\.self\.\w+\.bias$", name) and tensor.ndim == 2:
        tensor = tensor.flatten()
    return tensor.t().contiguous() if transposed and tensor.ndim == 2 else tensor
