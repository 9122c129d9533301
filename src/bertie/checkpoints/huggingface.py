"""Conversion of weights and configurations between bertie and Hugging Face's BERT checkpoints.

One table of module names serves both directions.
"""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from bertie import config as configuration
from bertie.errors import UsageError, UserError
from bertie.model.encoder import EncoderConfig

# Pairs (bertie, Hugging Face). Query, key and value, which bertie joins, are handled in the functions below.
LAYER_MODULES = [
    ("attention.out", "attention.output.dense"),
    ("attention_norm", "attention.output.LayerNorm"),
    ("up", "intermediate.dense"),
    ("down", "output.dense"),
    ("norm", "output.LayerNorm"),
]
OTHER_MODULES = [
    ("encoder.embeddings.word", "bert.embeddings.word_embeddings"),
    ("encoder.embeddings.position", "bert.embeddings.position_embeddings"),
    ("encoder.embeddings.segment", "bert.embeddings.token_type_embeddings"),
    ("encoder.embeddings.norm", "bert.embeddings.LayerNorm"),
    ("pooler", "bert.pooler.dense"),
    ("heads.mlm.dense", "cls.predictions.transform.dense"),
    ("heads.mlm.norm", "cls.predictions.transform.LayerNorm"),
    ("heads.mlm", "cls.predictions"),
    ("heads.nsp.out", "cls.seq_relationship"),
    ("heads.span.out", "qa_outputs"),
]
QKV = ("query", "key", "value")
CLASSIFIER = "classifier"  # Hugging Face's name of the output layer of several tasks; the architecture tells which one
ARCHITECTURES = {
    frozenset(): "BertModel",
    frozenset({"embed"}): "BertModel",
    frozenset({"mlm"}): "BertForMaskedLM",
    frozenset({"nsp"}): "BertForNextSentencePrediction",
    frozenset({"mlm", "nsp"}): "BertForPreTraining",
    frozenset({"classify"}): "BertForSequenceClassification",
    frozenset({"regress"}): "BertForSequenceClassification",
    frozenset({"choose"}): "BertForMultipleChoice",
    frozenset({"tag"}): "BertForTokenClassification",
    frozenset({"span"}): "BertForQuestionAnswering",
}
CLASSIFIER_KINDS = ("classify", "regress", "choose", "tag")
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}  # bertie -> Hugging Face
READ_ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}  # Hugging Face -> bertie
TIED_OR_DERIVED = re.compile(r"position_ids$|^cls\.predictions\.decoder\.")  # tensors that bertie does not need


def to_huggingface(weights: dict[str, Tensor], heads: frozenset[str]) -> dict[str, Tensor]:
    """Convert the names of a state dict to Hugging Face's.

    Weights without a counterpart in Hugging Face keep bertie's names, which its classes ignore. A bare encoder has no
    `bert.` prefix, as in `Model`.

    Args:
        weights: State dict of a `Model` of bertie.
        heads: Kinds of the heads that Hugging Face has a class for. Empty if it does not represent the model.
    """
    table = _table(weights)
    table |= {f"heads.{kind}.out": CLASSIFIER for kind in CLASSIFIER_KINDS}
    renamed = {}
    for name, tensor in weights.items():
        if name.startswith("reading.") or (name.startswith("heads.") and not heads):
            renamed[name] = tensor.contiguous()
            continue
        module, leaf = re.sub(r"^heads\.\w+\.pooler\.", "pooler.", name).rsplit(".", 1)
        if module.endswith("attention.qkv"):
            layer = module.split(".")[2]
            parts = zip(QKV, tensor.chunk(3), strict=True)
            renamed |= {f"bert.encoder.layer.{layer}.attention.self.{p}.{leaf}": t.contiguous() for p, t in parts}
        else:
            renamed[f"{table.get(module, module)}.{leaf}"] = tensor.contiguous()
    if ARCHITECTURES.get(heads) == "BertModel":
        return {name.removeprefix("bert."): tensor for name, tensor in renamed.items()}
    return renamed


def from_huggingface(weights: dict[str, Tensor], classifier: str = "classify") -> tuple[dict[str, Tensor], list[str]]:
    """Convert Hugging Face's weights to bertie's names.

    It also accepts layer norms with `gamma` and `beta`, a missing `bert.` prefix, and the prefixes of torch.compile and
    DataParallel.

    Args:
        weights: Tensors by Hugging Face's names.
        classifier: Kind of the task to which an output layer named `classifier` belongs.

    Returns:
        The weights, with the pooler as `pooler.*`, and the names that do not belong to a BERT.
    """
    cleaned = {_clean(name): tensor for name, tensor in weights.items()}
    layers = {int(found[1]) for name in cleaned if (found := re.match(r"bert\.encoder\.layer\.(\d+)\.", name))}
    renamed: dict[str, Tensor] = {}
    for layer in layers:
        for leaf in ("weight", "bias"):
            parts = [f"bert.encoder.layer.{layer}.attention.self.{p}.{leaf}" for p in QKV]
            found = [cleaned[part] for part in parts if part in cleaned]
            # Scalars cannot be concatenated, and concatenation would silently convert integers to floats.
            joinable = [tensor for tensor in found if tensor.ndim and tensor.is_floating_point()]
            if len(joinable) == 3 and len({tensor.shape for tensor in joinable}) == 1:
                renamed[f"encoder.layers.{layer}.attention.qkv.{leaf}"] = torch.cat([cleaned.pop(p) for p in parts])
    names = {theirs: ours for ours, theirs in _table([f"encoder.layers.{layer}." for layer in layers]).items()}
    for layer in layers:  # names of tensors that were not joined, for the error message of a later check
        names |= {
            f"bert.encoder.layer.{layer}.attention.self.{p}": f"encoder.layers.{layer}.attention.{p}" for p in QKV
        }
    names[CLASSIFIER] = f"heads.{classifier}.out"
    unknown = []
    for name, tensor in cleaned.items():
        module, _, leaf = name.rpartition(".")
        if module in names or name.startswith(("heads.", "reading.")):
            renamed[f"{names.get(module, module)}.{leaf}"] = tensor
        elif not TIED_OR_DERIVED.search(name):
            unknown.append(name)
    return renamed, unknown


def _table(names: Any) -> dict[str, str]:
    layers = {name.split(".")[2] for name in names if name.startswith("encoder.layers.")}
    table = dict(OTHER_MODULES)
    for n in layers:
        table |= {f"encoder.layers.{n}.{ours}": f"bert.encoder.layer.{n}.{theirs}" for ours, theirs in LAYER_MODULES}
    return table


def _clean(name: str) -> str:
    name = re.sub(r"^(_orig_mod\.|module\.)+", "", name)
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return f"bert.{name}" if re.match(r"(embeddings|encoder|pooler)\.", name) else name


def to_config_json(
    config: EncoderConfig, heads: frozenset[str], labels: tuple[str, ...], pad_id: int
) -> dict[str, Any]:
    """Return the contents of Hugging Face's config.json.

    Args:
        config: Configuration of the encoder.
        heads: Kinds of the heads, as for `to_huggingface`.
        labels: Class names, if any.
        pad_id: Vocabulary id of [PAD].
    """
    values = asdict(config) | {"hidden_act": ACTIVATIONS[config.hidden_act]}
    values |= {"architectures": [ARCHITECTURES.get(heads, "BertModel")], "model_type": "bert", "dtype": "float32"}
    values |= {"pad_token_id": pad_id, "position_embedding_type": "absolute", "classifier_dropout": None}
    if heads == {"regress"}:
        values |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    return values


def classifier_kind(values: dict[str, Any], weights: dict[str, Tensor]) -> str:
    """Return the kind of the task to which the output layer `classifier` belongs.

    Args:
        values: Contents of config.json.
        weights: Tensors by Hugging Face's names.
    """
    architectures = values.get("architectures") or [""]
    for kind in CLASSIFIER_KINDS[2:]:
        if architectures[0] == ARCHITECTURES[frozenset({kind})]:
            return kind
    bias = weights.get(f"{CLASSIFIER}.bias")
    return "regress" if bias is not None and bias.shape == (1,) else "classify"


def from_config_json(values: dict[str, Any], where: str) -> tuple[EncoderConfig, tuple[str, ...]]:
    """Convert Hugging Face's config.json. Unknown keys are ignored.

    Args:
        values: Contents of the file.
        where: Name of the file, for messages.

    Returns:
        The configuration, and the class names, if any.

    Raises:
        UserError: The file does not describe a BERT that bertie supports.
    """
    for key, expected in (("model_type", "bert"), ("position_embedding_type", "absolute")):
        if values.get(key, expected) != expected:
            raise UserError(f"{where}: {key} is {values[key]!r}; bertie reads BERT checkpoints ({expected!r})")
    architectures = values.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise UserError(f"{where}: architectures is {str(architectures)[:60]}: it must be a list of names")
    names = {field.name for field in fields(EncoderConfig)}
    known = {name: value for name, value in values.items() if name in names and value is not None}
    activation = str(known.get("hidden_act", "gelu"))
    if activation not in READ_ACTIVATIONS:
        raise UserError(
            f"{where}: hidden_act {activation!r} is not supported: give one of {', '.join(READ_ACTIVATIONS)}"
        )
    try:
        config = configuration.build(EncoderConfig, known | {"hidden_act": READ_ACTIVATIONS[activation]}, "")
        id2label = values.get("id2label") or {}
        labels = tuple(str(id2label[key]) for key in sorted(id2label, key=int))
    except (TypeError, ValueError, IndexError, UsageError) as error:
        raise UserError(f"{where}: not a BERT configuration: {error}") from error
    if len(set(labels)) < len(labels):
        raise UserError(f"{where}: two classes of id2label have the same name: {', '.join(labels)}")
    return config, labels
