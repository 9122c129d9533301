"""Names and numbers in Hugging Face's BERT checkpoints, and ours: one table, read in both directions."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from bertie import config as configuration
from bertie.errors import UsageError, UserError
from bertie.model.config import BertConfig

# (ours, theirs); {} is a layer's number. qkv and pooler, which are not one to one, are below.
LAYER = [
    ("attention.out", "attention.output.dense"),
    ("attention_norm", "attention.output.LayerNorm"),
    ("up", "intermediate.dense"),
    ("down", "output.dense"),
    ("norm", "output.LayerNorm"),
]
REST = [
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
CLASSIFIER = "classifier"  # what theirs call the added layer of several tasks: the architecture tells which
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
CLASSIFYING = ("classify", "regress", "choose", "tag")
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
READ_ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
TIED_OR_DERIVED = re.compile(r"position_ids$|^cls\.predictions\.decoder\.")


def to_huggingface(weights: dict[str, Tensor], heads: frozenset[str]) -> dict[str, Tensor]:
    """Our state dict under their names; a bare encoder goes without the `bert.` prefix, as BertModel does.

    What has no name of theirs keeps ours; their classes pass over it. heads: none where what the heads read is none of theirs.
    """
    table = _table(weights)
    table |= {f"heads.{kind}.out": CLASSIFIER for kind in CLASSIFYING}
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
    """Their tensors under our names (the pooler as `pooler.*`), and the names that mean nothing to a BERT.

    classifier: the task that a `classifier` among them is for.
    Accepted: `gamma`/`beta`, a missing `bert.`, prefixes left by torch.compile and DataParallel.
    """
    cleaned = {_clean(name): tensor for name, tensor in weights.items()}
    layers = {int(found[1]) for name in cleaned if (found := re.match(r"bert\.encoder\.layer\.(\d+)\.", name))}
    renamed: dict[str, Tensor] = {}
    for layer in layers:
        for leaf in ("weight", "bias"):
            parts = [f"bert.encoder.layer.{layer}.attention.self.{p}.{leaf}" for p in QKV]
            found = [cleaned[part] for part in parts if part in cleaned]
            # Single numbers cannot be joined, and integers would become floats like their neighbours.
            fit = [tensor for tensor in found if tensor.ndim and tensor.is_floating_point()]
            if len(fit) == 3 and len({tensor.shape for tensor in fit}) == 1:
                renamed[f"encoder.layers.{layer}.attention.qkv.{leaf}"] = torch.cat([cleaned.pop(p) for p in parts])
    names = {theirs: ours for ours, theirs in _table([f"encoder.layers.{layer}." for layer in layers]).items()}
    for layer in layers:  # of what was not joined, so that whoever checks it can name it
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
    table = dict(REST)
    for n in layers:
        table |= {f"encoder.layers.{n}.{ours}": f"bert.encoder.layer.{n}.{theirs}" for ours, theirs in LAYER}
    return table


def _clean(name: str) -> str:
    name = re.sub(r"^(_orig_mod\.|module\.)+", "", name)
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return f"bert.{name}" if re.match(r"(embeddings|encoder|pooler)\.", name) else name


def to_config_json(config: BertConfig, heads: frozenset[str], labels: tuple[str, ...], pad_id: int) -> dict[str, Any]:
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
    """The task that the `classifier` among the weights is for, as config.json says."""
    named = values.get("architectures") or [""]
    for kind in CLASSIFYING[2:]:
        if named[0] == ARCHITECTURES[frozenset({kind})]:
            return kind
    found = weights.get(f"{CLASSIFIER}.bias")
    return "regress" if found is not None and found.shape == (1,) else "classify"


def from_config_json(values: dict[str, Any], where: str) -> tuple[BertConfig, tuple[str, ...]]:
    """The configuration and the class labels, if any. Keys we do not know are ignored. Errors: UserError."""
    for key, expected in (("model_type", "bert"), ("position_embedding_type", "absolute")):
        if values.get(key, expected) != expected:
            raise UserError(f"{where}: {key} is {values[key]!r}; bertie reads BERT checkpoints ({expected!r})")
    named = values.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise UserError(f"{where}: architectures is {str(named)[:60]}: it must be a list of names")
    names = {field.name for field in fields(BertConfig)}
    known = {name: value for name, value in values.items() if name in names and value is not None}
    activation = str(known.get("hidden_act", "gelu"))
    if activation not in READ_ACTIVATIONS:
        raise UserError(f"{where}: hidden_act {activation!r} is none of {', '.join(READ_ACTIVATIONS)}")
    try:
        config = configuration.build(BertConfig, known | {"hidden_act": READ_ACTIVATIONS[activation]}, "")
        labels = values.get("id2label") or {}
        named = tuple(str(labels[key]) for key in sorted(labels, key=int))
    except (TypeError, ValueError, IndexError, UsageError) as error:
        raise UserError(f"{where}: not a BERT configuration: {error}") from error
    if len(set(named)) < len(named):
        raise UserError(f"{where}: two classes of id2label have one name: {', '.join(named)}")
    return config, named
