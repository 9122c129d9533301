"""config.json of a model folder: its family, its encoder, its heads and its class names."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bertie import config as configuration
from bertie.checkpoints.families import FAMILIES, family_named, family_of
from bertie.checkpoints.families.family import Family
from bertie.errors import UsageError, UserError
from bertie.model.encoder import EncoderConfig
from bertie.model.head_facts import HeadFacts, HeadShape, facts_of
from bertie.model.model import Model
from bertie.model.text_pooling import resolve_pooling

PRETRAINED: dict[HeadShape, str] = {"masked": "mlm", "pair": "nsp", "permutation": "plm", "replaced": "rtd"}
"""bertie's names of heads that Hugging Face's pre-trained models have. The name of a task's head is in task.json."""


def transformers_heads(model: Model) -> dict[str, HeadFacts] | None:
    """Return the heads with weights that read the encoder, by kind; None if no class of transformers has all of them.

    Such a class must also compute what the heads read.
    """
    every = {kind: facts_of(model.heads[kind]) for kind in sorted(model.encoder_heads)}
    heads = {kind: facts for kind, facts in every.items() if facts.shape != "vectors"}
    shapes = frozenset(facts.shape for facts in heads.values())
    reading = model.reading
    own_mean = reading is not None and reading.only_mean and resolve_pooling("model", model.encoder.config) == "mean"
    known = shapes in family_of(model.encoder.config).architectures and len(shapes) == len(heads)
    return heads if known and (reading is None or own_mean) else None


def shapes_of(model: Model) -> dict[str, HeadShape]:
    """Return the shapes of the heads that `transformers_heads` returns, by kind; {} if it returns None."""
    heads = transformers_heads(model) or {}
    return {kind: facts.shape for kind, facts in heads.items() if facts.shape is not None}


def to_config_json(
    config: EncoderConfig, heads: Collection[HeadFacts], labels: tuple[str, ...], pad_id: int
) -> dict[str, Any]:
    """Return the contents of config.json.

    Args:
        config: Configuration of the encoder.
        heads: The heads that Hugging Face has a class for. Empty if it does not represent the model.
        labels: Class names, if any.
        pad_id: Vocabulary id of the padding token.
    """
    family = family_of(config)
    architecture = family.architectures[frozenset(head.shape for head in heads if head.shape is not None)]
    values = family.settings.to_config(config) | {"architectures": [architecture], "model_type": family.model_type}
    values |= {"dtype": "float32", "pad_token_id": pad_id}
    if family.pad_id not in (None, pad_id):
        raise UserError(f"{family.title} needs the padding token {family.pad_id}, and the tokenizer has {pad_id}")
    if family.positions_after_padding:
        values["max_position_embeddings"] += pad_id + 1
    for head in heads:
        if head.problem_type:
            values["problem_type"] = head.problem_type
        if head.problem_type == "regression":
            labels = ("LABEL_0",)  # else transformers builds two outputs
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
        settings: dict[str, Any] = {"kind": "transformer"} | family.settings.from_config(values)
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
    if family.pad_id not in (None, pad_id):
        raise UsageError(f"pad_token_id is {pad_id!r}; bertie supports {family.pad_id} in a {family.model_type}")
    return pad_id


def head_shapes(family: Family, values: dict[str, Any], task: dict[str, Any]) -> dict[str, HeadShape]:
    """Return the shapes of the heads that a checkpoint may have, by the names of their weights in bertie.

    A task's head has the name of the task. If task.json does not say it, its name is its shape.

    Args:
        family: Its family.
        values: Contents of config.json.
        task: Contents of task.json; empty if there is none.
    """
    architecture = (values.get("architectures") or [""])[0]
    named = next((shapes for shapes, name in family.architectures.items() if name == architecture), frozenset())
    if task.get("kind"):
        return {str(task["kind"]): shape for shape in family.heads if shape in named}
    found: dict[str, HeadShape] = {}
    taken: set[object] = set()
    for shape in sorted(family.heads, key=lambda shape: shape not in named):  # others may be there under other names
        theirs = {row.theirs for row in family.heads[shape]}
        if taken.isdisjoint(theirs):
            taken |= theirs
            found[PRETRAINED.get(shape, shape)] = shape
    return found
