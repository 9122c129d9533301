"""config.json of a model folder: its family, its encoder, its heads and its class names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from bertie.base import config as configuration
from bertie.base import console
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.families import FAMILIES, family_of
from bertie.checkpoints.families.family import TASK_SHAPES, Family
from bertie.checkpoints.families.settings import EMPTY, READ, WITHOUT_EFFECT, require_empty
from bertie.model.encoder import EncoderConfig
from bertie.model.head_facts import HeadFacts, HeadShape, facts_of
from bertie.model.heads.text_pooling import resolve_pooling
from bertie.model.model import Model

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
PRETRAINED: dict[HeadShape, str] = {
    "masked": "mlm",
    "next": "clm",
    "pair": "nsp",
    "permutation": "plm",
    "replaced": "rtd",
}
"""bertie's names of heads that Hugging Face's pre-trained models have. The name of a task's head is in task.json."""
TAG = re.compile(r"O$|[BIESLUM][-_]\w")
UNIVERSAL = re.compile("ADJ|ADP|ADV|AUX|CCONJ|CONJ|DET|INTJ|NOUN|NUM|PART|PRON|PROPN|PUNCT|SCONJ|SYM|VERB|X")
UNNAMED = re.compile(r"LABEL_\d+$")
TAGGING = ("ner", "pos", "chunking")


def transformers_heads(model: Model, family: Family | None = None) -> dict[str, HeadFacts] | None:
    """Return the heads with weights that read the encoder, by kind; None if no class of transformers has all of them.

    Such a class must also compute what the heads read. family: the family of the class, by default the usual one.
    """
    every = {kind: facts_of(model.heads[kind]) for kind in sorted(model.encoder_heads)}
    heads = {kind: facts for kind, facts in every.items() if facts.shape != "vectors"}
    shapes = frozenset(facts.shape for facts in heads.values())
    config = model.encoder.config
    family = family or family_of(config)
    known = shapes in family.architectures and len(shapes) == len(heads)
    known = known and family.represents(config, frozenset(shape for shape in shapes if shape is not None))
    return heads if known and not own_features(model) else None


def own_features(model: Model) -> str:
    """Return what the heads read, if no class of transformers computes it, for messages: 'pooling "esim"'. Empty: one does."""
    reading = model.reading
    if reading is None or reading.only_pooled == resolve_pooling("model", model.encoder.config):
        return ""
    layers = f'layers "{reading.layers}"' if reading.layers != "last" else ""
    lstm = "a BiLSTM" if reading.lstm is not None else ""
    return ", ".join(part for part in (layers, lstm, f'pooling "{reading.pooling}"') if part)


def shapes_of(model: Model, family: Family | None = None) -> dict[str, HeadShape]:
    """Return the shapes of the heads that `transformers_heads` returns, by kind; {} if it returns None."""
    heads = transformers_heads(model, family) or {}
    return {kind: facts.shape for kind, facts in heads.items() if facts.shape is not None}


def classes_of(config: EncoderConfig, shapes: Collection[HeadShape]) -> list[str]:
    """Return the classes of transformers for an encoder with one head of these shapes."""
    classes = family_of(config).architectures
    return [classes[frozenset({shape})] for shape in shapes if frozenset({shape}) in classes]


def default_names(model: Model, heads: dict[str, HeadFacts]) -> tuple[str, ...]:
    """Return transformers' names of the outputs of a head without class names: without names, it builds two outputs."""
    for kind, facts in heads.items():
        out = getattr(model.heads[kind], "out", None)
        if facts.shape in ("text", "tokens") and facts.problem_type != "regression" and out is not None:
            return tuple(f"LABEL_{number}" for number in range(len(out.weight)))
    return ()


def to_config_json(
    config: EncoderConfig,
    heads: Collection[HeadFacts],
    labels: tuple[str, ...],
    pad_id: int | None,
    family: Family | None = None,
) -> dict[str, Any]:
    """Return the contents of config.json.

    Args:
        config: Configuration of the encoder.
        heads: The heads that Hugging Face has a class for. Empty if it does not represent the model.
        labels: Class names, if any.
        pad_id: Vocabulary id of the padding token. None: the tokenizer has none, and the family needs none.
        family: The family in whose format the encoder is saved; None: the usual one.
    """
    family = family or family_of(config)
    architecture = family.architectures[frozenset(head.shape for head in heads if head.shape is not None)]
    values = family.settings.to_config(config) | {"architectures": [architecture], "model_type": family.model_type}
    values |= {"dtype": "float32"} | ({} if pad_id is None else {"pad_token_id": pad_id})
    if family.pad_id not in (None, pad_id):
        raise UserError(f"{family.title} needs the padding token {family.pad_id}, and the tokenizer has {pad_id}")
    if family.positions_after_padding and pad_id is not None:
        values["max_position_embeddings"] += pad_id + 1
    for head in heads:
        if head.problem_type:
            values["problem_type"] = head.problem_type
        if head.problem_type == "regression":
            labels = labels or ("LABEL_0",)  # else transformers builds two outputs
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    return values


def from_config_json(values: dict[str, Any], where: str) -> tuple[Family, EncoderConfig, tuple[str, ...]]:
    """Read config.json. Every key is obeyed, refused, or known to be without effect; a warning names the others.

    Args:
        values: Contents of the file.
        where: Name of the file, for messages.

    Returns:
        The family, the configuration of the encoder, and the class names, if any.

    Raises:
        UserError: The file does not describe a model that bertie supports.
    """
    architectures = values.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise UserError(f"{where}: architectures is {str(architectures)[:60]}: it must be a list of names")
    family = _family(values, architectures, where)
    try:
        require_empty({name: value for name, value in values.items() if name not in family.settings.known})
        settings: dict[str, Any] = {"kind": "transformer"} | family.settings.from_config(values)
        if family.positions_after_padding:
            settings["max_position_embeddings"] -= padding_id(family, values) + 1
        config = configuration.build(EncoderConfig, settings, "")
        labels = class_names(values)
    except (AttributeError, TypeError, ValueError, ArithmeticError, LookupError, UsageError) as error:
        raise UserError(f"{where}: not a {family.model_type} configuration: {str(error)[:300]}") from error
    if not labels and (lost := [name for name in values.get("label2id") or () if not re.fullmatch(r"LABEL_\d+", name)]):
        console.warn(
            f"{where}: label2id names {', '.join(map(str, lost))[:100]}, but id2label names no class: bertie calls them LABEL_0, "
            "LABEL_1, …, as transformers does (to use the names, write id2label)",
            once=True,
        )
    if len(set(labels)) < len(labels):
        raise UserError(f"{where}: two classes of id2label have the same name: {', '.join(labels)[:200]}")
    if unknown := sorted(values.keys() - family.settings.known - {*READ, *WITHOUT_EFFECT, *EMPTY}):
        names = ", ".join(key[:40] for key in unknown[:10]) + f" and {len(unknown) - 10} others" * (len(unknown) > 10)
        have = "it has" if len(unknown) == 1 else "they have"
        console.warn(f"{where}: bertie does not know {names}: if {have} an effect, it is lost", once=True)
    return family, config, labels


def _family(values: dict[str, Any], architectures: list[str], where: str) -> Family:
    """Return the family of a config.json. Old files name no model_type: the class tells, and BERT's had none."""
    classes = {name: family for family in FAMILIES.values() for name in family.architectures.values()}
    usual = next((classes[name].model_type for name in architectures if name in classes), "bert")
    model_type = values.get("model_type", usual)
    family = FAMILIES.get(str(model_type))
    if family is None:
        known = ", ".join(FAMILIES)
        code = ", with code of its own (auto_map), which bertie does not run" if values.get("auto_map") else ""
        raise UserError(f"{where}: model_type is {str(model_type)[:60]!r}{code}; bertie reads {known}")
    return family


def class_names(values: dict[str, Any]) -> tuple[str, ...]:
    """Return the class names in config.json, with transformers' names in gaps; () if it has none.

    Raises:
        UsageError, ValueError, TypeError, AttributeError: They are malformed, or contradict problem_type.
    """
    names = values.get("id2label") or {}
    if not isinstance(names, dict):
        raise UsageError(f'id2label is {str(names)[:60]}: it must map numbers to names: {{"0": "negative", …}}')
    named = {int(key): str(name) for key, name in names.items()}
    kind, count = values.get("problem_type"), len(named) or values.get("num_labels", 2)
    if kind not in (None, "", *PROBLEM_TYPES):
        raise UsageError(f"problem_type is {str(kind)[:60]!r}: it must be one of {', '.join(PROBLEM_TYPES)}")
    if kind == "single_label_classification" and count == 1:
        raise UsageError(f"problem_type is {kind!r} with one label: it must be 'regression'")
    return tuple(named.get(number, f"LABEL_{number}") for number in range(max(named, default=-1) + 1))


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


def head_shapes(
    family: Family,
    values: dict[str, Any],
    task: dict[str, Any],
    weights: Mapping[str, Tensor],
    wanted: HeadShape | None = None,
) -> tuple[dict[str, HeadShape], tuple[HeadShape, ...]]:
    """Return the shapes of the heads that a checkpoint may have, by the names of their weights in bertie.

    A task's head has the name of the task. If task.json does not say it, its name is its shape.

    Args:
        family: Its family.
        values: Contents of config.json.
        task: Contents of task.json; empty if there is none.
        weights: Tensors under the names of Hugging Face's class with a head.
        wanted: What the head of a task computes, if nothing else says it.

    Returns:
        The shapes; and what the head of a task could be, if the files do not say it.
    """
    architecture = (values.get("architectures") or [""])[0]
    named: frozenset[str] = next(
        (shapes for shapes, name in family.architectures.items() if name == architecture), frozenset()
    )
    if task.get("kind"):  # a folder of another program, to which a task.json was added, may name no class
        head: list[HeadShape] = [shape for shape in family.heads if shape in named]
        head = head or list(_possible(family, values, weights)[:1])
        return {str(task["kind"]): shape for shape in head}, ()
    possible = () if named & {*TASK_SHAPES} else _possible(family, values, weights)
    if wanted in possible:
        possible = (wanted,)
    first = {*named, *possible[:1]}
    possible_heads: dict[str, HeadShape] = {}
    taken: set[object] = set()
    for shape in sorted(family.heads, key=lambda shape: shape not in first):  # others may be there under other names
        theirs = family.heads[shape].keys()
        if taken.isdisjoint(theirs):
            taken |= theirs
            possible_heads[PRETRAINED.get(shape, shape)] = shape
    return possible_heads, possible if len(possible) > 1 else ()


def _possible(family: Family, values: dict[str, Any], weights: Mapping[str, Tensor]) -> tuple[HeadShape, ...]:
    """Return what the head of a task can be, from the modules that are there and from the labels in config.json."""
    modules = {name.rpartition(".")[0] for name in weights}
    present: list[HeadShape] = [shape for shape in TASK_SHAPES if _present(family, shape, modules)]
    if len(present) < 2:
        return tuple(present)
    [out] = [theirs for theirs, ours in family.heads[present[0]].items() if ours == "out"]
    outputs = len(weights[f"{out}.weight"]) if f"{out}.weight" in weights else 0
    labels = values.get("id2label")
    names = [str(name) for name in labels.values()] if isinstance(labels, dict) else []
    count = len(names) or values.get("num_labels", values.get("_num_labels", 2))
    task = str(values.get("finetuning_task") or "").lower()
    if outputs == 1:
        kept: tuple[HeadShape, ...] = ("text",) if count == 1 or values.get("problem_type") else ("choice",)
    elif (
        task in TAGGING
        or any(TAG.match(name) for name in names)
        or (names and all(UNIVERSAL.fullmatch(name) for name in names))
    ):
        kept = ("tokens",)
    elif task or values.get("problem_type") or (names and not all(UNNAMED.match(name) for name in names)):
        kept = ("text",)
    else:
        kept = ("text", "tokens")
    return tuple(shape for shape in present if shape in kept) or tuple(present)


def _present(family: Family, shape: HeadShape, modules: set[str]) -> bool:
    """Whether the output layer of a head is there, and its pooler, if the class has one."""
    rows = {row.ours: row.theirs[0] for row in family.modules({shape: shape}, ())}
    needed = [rows.get(f"heads.{shape}.out")]
    if shape in ("text", "choice") and "pooler" in rows:
        needed.append(rows["pooler"])
    return modules.issuperset(needed)
