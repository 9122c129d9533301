"""config.json of a model folder: its family, its encoder and its class names."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bertie import config as configuration
from bertie.checkpoints.families import FAMILIES, family_named, family_of
from bertie.checkpoints.families.family import Family
from bertie.errors import UsageError, UserError
from bertie.model.encoder import EncoderConfig
from bertie.model.heads import ConditionalSpanHead
from bertie.model.model import Model
from bertie.model.text_pooling import resolve_pooling

CLASSIFIERS = ("classify", "regress", "choose", "tag")
"""Kinds of heads whose output layers have the same name in Hugging Face's classes."""


def loads_in_transformers(model: Model) -> bool:
    """Return whether a class of transformers represents the whole model: what its heads read, and the heads."""
    reading = model.reading
    own_mean = reading is not None and reading.only_mean and resolve_pooling("model", model.encoder.config) == "mean"
    known = not any(isinstance(head, ConditionalSpanHead) for head in model.heads.values())
    return (reading is None or own_mean) and known


def to_config_json(
    config: EncoderConfig, heads: frozenset[str], labels: tuple[str, ...], pad_id: int
) -> dict[str, Any]:
    """Return the contents of config.json.

    Args:
        config: Configuration of the encoder.
        heads: Kinds of the heads that Hugging Face has a class for. Empty if it does not represent the model.
        labels: Class names, if any.
        pad_id: Vocabulary id of the padding token.
    """
    family = family_of(config)
    architecture = family.architectures.get(heads, family.architectures[frozenset()])
    values = family.to_config(config) | {"architectures": [architecture], "model_type": family.model_type}
    values |= {"dtype": "float32", "pad_token_id": pad_id}
    if family.positions_after_padding:
        values["max_position_embeddings"] += pad_id + 1
    if heads == {"regress"}:
        values |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    return values


def from_config_json(values: dict[str, Any], where: str) -> tuple[Family, EncoderConfig, tuple[str, ...]]:
    """Read config.json. Unknown keys are ignored.

    Args:
        values: Contents of the file.
        where: Name of the file, for messages.

    Returns:
        The family, the configuration of the encoder, and the class names, if any.

    Raises:
        UserError: The file does not describe a model that bertie supports.
    """
    model_type = values.get("model_type", "bert")
    family = family_named(model_type) if isinstance(model_type, str) else None
    if family is None:
        known = ", ".join(family.model_type for family in FAMILIES)
        raise UserError(f"{where}: model_type is {model_type!r}; bertie reads {known}")
    architectures = values.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise UserError(f"{where}: architectures is {str(architectures)[:60]}: it must be a list of names")
    try:
        settings: dict[str, Any] = {"kind": "transformer"} | family.from_config(values)
        if family.positions_after_padding:
            settings["max_position_embeddings"] -= padding_id(family, values) + 1
        config = configuration.build(EncoderConfig, settings, "")
        id2label = values.get("id2label") or {}
        labels = tuple(str(id2label[key]) for key in sorted(id2label, key=int))
    except (TypeError, ValueError, IndexError, UsageError) as error:
        raise UserError(f"{where}: not a {family.model_type} configuration: {error}") from error
    if len(set(labels)) < len(labels):
        raise UserError(f"{where}: two classes of id2label have the same name: {', '.join(labels)}")
    return family, config, labels


def padding_id(family: Family, values: dict[str, Any]) -> int:
    """Return the vocabulary id of the padding token.

    Args:
        family: The family.
        values: Contents of config.json.

    Raises:
        UsageError: The positions of the family start after this id, and it is not a number.
    """
    pad_id = values.get("pad_token_id", 1 if family.positions_after_padding else 0)
    if family.positions_after_padding and (type(pad_id) is not int or pad_id < 0):
        raise UsageError(f"pad_token_id is {pad_id!r}: positions start after it, so it must be a number from 0")
    return pad_id


def head_kinds(
    family: Family, values: dict[str, Any], weights: dict[str, Tensor], task: dict[str, Any]
) -> frozenset[str]:
    """Return the kinds of the heads that a checkpoint may have.

    Args:
        family: Its family.
        values: Contents of config.json.
        weights: Tensors by Hugging Face's names.
        task: Contents of task.json; empty if there is none.
    """
    architecture = (values.get("architectures") or [""])[0]
    others = frozenset(family.heads) - frozenset(CLASSIFIERS)
    if family.one_head:
        named = [kinds for kinds, name in family.architectures.items() if name == architecture]
        others &= frozenset().union(*named)
    if task.get("kind"):
        return others | {str(task["kind"])}
    for kind in ("choose", "tag"):
        if architecture == family.architectures.get(frozenset({kind})):
            return others | {kind}
    if family.one_head and others:
        return others
    outputs = [f"{row.theirs}.bias" for row in family.heads.get("regress", ()) if row.ours == "heads.regress.out"]
    bias = next((weights[name] for name in outputs if name in weights), None)
    return others | {"regress" if bias is not None and bias.shape == (1,) else "classify"}
