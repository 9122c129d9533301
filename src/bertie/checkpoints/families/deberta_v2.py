"""DeBERTa checkpoints of versions 2 and 3 (He et al. 2021, 2023): BERT's layers with disentangled attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bertie.base.errors import UsageError
from bertie.checkpoints.families import bert
from bertie.checkpoints.families.family import POSITIONS, TASK_HEADS, TASK_SHAPES, Family, Names, architectures, joined
from bertie.checkpoints.families.settings import Settings, choice, require
from bertie.model.config import TransformerConfig

LAYER = "encoder.layer.{n}"
DEFAULTS = {
    **{"vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24},
    **{"intermediate_size": 6144, "max_position_embeddings": 512, "type_vocab_size": 0, "layer_norm_eps": 1e-7},
}
TYPES = {"c2p", "p2c"}
NORMS = {False: "none", True: "layer_norm"}
FREE = ("disentangled_distances", "disentangled_buckets", "disentangled_norm", "position_embedding")
CONVOLUTION = "encoder.conv.conv.weight"
CONV_ACTS = {name: name for name in ("tanh", "gelu", "relu")}
ONLY_TRUE = ("relative_attention", "share_att_key")


def write(config: TransformerConfig) -> dict[str, Any]:
    """Return the keys of attention, positions and heads."""
    return {
        **{"relative_attention": True, "pos_att_type": sorted(TYPES), "share_att_key": True},
        "max_relative_positions": config.disentangled_distances,
        "position_buckets": config.disentangled_buckets or -1,
        "norm_rel_ebd": NORMS[config.disentangled_norm],
        "position_biased_input": config.position_embedding == "learned",
        **{"pooler_hidden_size": config.hidden_size, "pooler_hidden_act": "gelu", "pooler_dropout": 0.0},
        "legacy": True,
        **(
            {"conv_kernel_size": config.conv_kernel_size, "conv_act": config.conv_act}
            if config.conv_kernel_size
            else {}
        ),
    }


def read(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of attention and positions."""
    require(dict.fromkeys(ONLY_TRUE, False) | values, dict.fromkeys(ONLY_TRUE, True))
    types = values.get("pos_att_type") or []
    if {name.strip() for name in (types.lower().split("|") if isinstance(types, str) else types)} != TYPES:
        raise UsageError(f"pos_att_type is {types!r}; bertie supports 'p2c|c2p'")
    width, heads, longest = (known[name] for name in ("hidden_size", "num_attention_heads", "max_position_embeddings"))
    far, buckets = values.get("max_relative_positions", -1), values.get("position_buckets", -1)
    require(values, {"embedding_size": width, "pooler_hidden_size": width, "attention_head_size": width // heads})
    return {
        "disentangled_distances": far if far > 0 else longest,
        "disentangled_buckets": max(buckets, 0),
        "disentangled_norm": choice(values, "norm_rel_ebd", "none", NORMS),
        "position_embedding": "learned" if values.get("position_biased_input", True) else "none",
        **read_convolution(values),
    }


def read_convolution(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the convolution."""
    kernel = values.get("conv_kernel_size", 0)
    if kernel <= 0:
        return {}
    require(values, {"conv_groups": 1})
    return {"conv_kernel_size": kernel, "conv_act": choice(values, "conv_act", "tanh", CONV_ACTS)}


def read_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with the filter of the convolution as a matrix: [D, D, K] as [D, K × D]."""
    return {
        name: tensor.transpose(1, 2).flatten(1) if name.endswith(CONVOLUTION) and tensor.ndim == 3 else tensor
        for name, tensor in weights.items()
    }


def write_weights(config: TransformerConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Reverse `read_weights`."""
    shape = (config.conv_kernel_size, config.hidden_size)
    return {
        name: tensor.unflatten(1, shape).transpose(1, 2).contiguous() if name.endswith(CONVOLUTION) else tensor
        for name, tensor in weights.items()
    }


def without_positions(config: TransformerConfig, weights: dict[str, Tensor]) -> TransformerConfig:
    """Remove a matrix of positions that the model does not use."""
    if config.position_embedding == "none":
        weights.pop(f"{POSITIONS}.weight", None)
    return config


SETTINGS = Settings(
    keys={**{name: name for name in bert.KEYS}, "head_dropout_prob": "cls_dropout"},
    defaults=DEFAULTS,
    training_only={"pooler_dropout": 0.0},
    fixed={"pooler_act": "gelu"},
    supported={"pooler_hidden_act": "gelu", "tie_word_embeddings": True},
    activation="hidden_act",
    free=(*FREE, "conv_kernel_size", "conv_act"),
    suits=lambda config: config.disentangled and config.position_embedding in ("learned", "none"),
    write=write,
    read=read,
    reads=(
        *("relative_attention", "share_att_key", "pos_att_type", "norm_rel_ebd", "position_biased_input"),
        *("max_relative_positions", "position_buckets", "conv_kernel_size", "conv_act", "conv_groups"),
        *("embedding_size", "pooler_hidden_size", "attention_head_size"),
    ),
    without_effect=("legacy",),  # the names of the weights say which masked-LM head they are
)

POOLED: Names = {"pooler.dense": "pooler", "classifier": "out"}

FAMILY = Family(
    model_type="deberta-v2",
    title="DeBERTa",
    base="deberta.",
    encoder={
        **{
            theirs: ours
            for theirs, ours in bert.FAMILY.encoder.items()
            if ".attention." not in ours and theirs != bert.POOLER
        },
        "encoder.rel_embeddings": "encoder.distances.table",
        "encoder.LayerNorm": "encoder.distances.norm",
        "encoder.conv.conv": "encoder.convolution.mix",
        "encoder.conv.LayerNorm": "encoder.convolution.norm",
        joined(f"{LAYER}.attention.self", "query_proj", "key_proj", "value_proj"): "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.attention.output.dense": "encoder.layers.{n}.attention.out",
    },
    heads={
        # The names of new heads of transformers and of the authors, then those of transformers' usual head, which are written.
        "masked": {
            "lm_predictions.lm_head.dense": "dense",
            "lm_predictions.lm_head.LayerNorm": "norm",
            "lm_predictions.lm_head": "",
            "cls.predictions.transform.dense": "dense",
            "cls.predictions.transform.LayerNorm": "norm",
            "cls.predictions": "",
        },
        **TASK_HEADS,
        "text": POOLED,
        "choice": POOLED,
    },
    architectures=architectures("DebertaV2", "masked", *TASK_SHAPES),
    settings=SETTINGS,
    ignored=r"position_ids$|^cls\.predictions\.decoder\.|^mask_predictions\.",
    without_derived=without_positions,
    read=read_weights,
    write=write_weights,
)
