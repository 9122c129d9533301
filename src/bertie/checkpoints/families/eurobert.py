"""EuroBERT checkpoints (Boizard et al. 2025): Llama's layers without causality; RMSNorm, grouped queries, rotary positions,
SwiGLU, no biases. The masked-LM head is a matrix of its own.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from bertie.checkpoints.families.family import Family, architectures, joined
from bertie.checkpoints.families.settings import Settings, choice, require_head_size, rotary_base
from bertie.model.config import ClassifierPooling, TransformerConfig

LAYER = "layers.{n}"
KEYS = {  # bertie's names of keys of config.json, and Hugging Face's
    **{name: name for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
    **{name: name for name in ("intermediate_size", "max_position_embeddings", "initializer_range")},
    **{"num_key_value_heads": "num_key_value_heads", "layer_norm_eps": "rms_norm_eps"},
    # Hugging Face's class has only dropout of attention weights, and ignores the other.
    **{"attention_probs_dropout_prob": "attention_dropout", "hidden_dropout_prob": "hidden_dropout_prob"},
}
DEFAULTS = {
    **{"vocab_size": 128256, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    **{"num_attention_heads": 12, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5},
    **{"attention_dropout": 0.0, "hidden_dropout_prob": 0.0},
}
BASE = 10_000.0
POOLING: dict[ClassifierPooling, str] = {"token": "bos", "mean": "mean", "late": "late"}
SUPPORTED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
PARTS = ("q_proj", "k_proj", "v_proj")
_PART = re.compile(rf"(.*self_attn\.)({'|'.join(PARTS)})\.weight$")


def write_settings(config: TransformerConfig) -> dict[str, Any]:
    """Return further keys."""
    return {
        **SUPPORTED,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "classifier_pooling": POOLING[config.classifier_pooling],
        **dict.fromkeys(("bos_token_id", "eos_token_id")),  # not those of its own vocabulary
    }


def read_settings(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the base of rotary positions and the pooling."""
    require_head_size(values, known["hidden_size"], known["num_attention_heads"])
    pooling = choice(values, "classifier_pooling", "late", POOLING)
    return {"rotary_base": rotary_base(values, BASE), "classifier_pooling": pooling}


def read(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with queries, keys and values as one, which may have other numbers of heads.

    Damaged ones remain, so that a later check names them.
    """
    joined_weights = dict(weights)
    for start in {matrices[1] for name in weights if (matrices := _PART.match(name))}:
        parts = [weights.get(f"{start}{part}.weight") for part in PARTS]
        matrices = [part for part in parts if part is not None and part.ndim == 2 and part.is_floating_point()]
        if len(matrices) == len(PARTS) and len({(part.shape[1], part.dtype) for part in matrices}) == 1:
            joined_weights[f"{start}qkv.weight"] = torch.cat(matrices)
            for part in PARTS:
                del joined_weights[f"{start}{part}.weight"]
    return joined_weights


def write(config: TransformerConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Reverse `read`."""
    size = config.hidden_size // config.num_attention_heads
    heads = (config.num_attention_heads, config.key_value_heads, config.key_value_heads)
    split_weights: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        start, joined_name, _ = name.rpartition("qkv.weight") if name.endswith("self_attn.qkv.weight") else ("", "", "")
        parts = tensor.split([size * count for count in heads]) if joined_name else (tensor,)
        names = [f"{start}{part}.weight" for part in PARTS] if joined_name else [name]
        split_weights |= {name: part.contiguous() for name, part in zip(names, parts, strict=True)}
    return split_weights


SETTINGS = Settings(
    keys=KEYS,
    defaults=DEFAULTS,
    fixed={
        **{"position_embedding": "rotary", "norm_position": "pre", "norm": "rms", "use_bias": False},
        **{"hidden_act": "swiglu", "pooler_act": "gelu", "type_vocab_size": 0},
        **{"mlm_transform": False, "mlm_matrix": "own"},
    },
    supported=SUPPORTED,
    free=("rotary_base", "classifier_pooling"),
    write=write_settings,
    read=read_settings,
    reads=("head_dim", "rope_parameters", "rope_scaling", "rope_theta", "classifier_pooling"),
    without_effect=("pretraining_tp",),
)

FAMILY = Family(
    model_type="eurobert",
    title="EuroBERT",
    base="model.",
    encoder={
        "embed_tokens": "encoder.embeddings.word",
        f"{LAYER}.input_layernorm": "encoder.layers.{n}.attention_norm",
        f"{LAYER}.self_attn.qkv": "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.self_attn.o_proj": "encoder.layers.{n}.attention.out",
        f"{LAYER}.post_attention_layernorm": "encoder.layers.{n}.norm",
        joined(f"{LAYER}.mlp", "gate_proj", "up_proj"): "encoder.layers.{n}.up",
        f"{LAYER}.mlp.down_proj": "encoder.layers.{n}.down",
        "norm": "encoder.final_norm",
    },
    heads={
        "masked": {"lm_head": "out"},
        "text": {"dense": "pooler", "classifier": "out"},
        "tokens": {"classifier": "out"},
    },
    architectures=architectures("EuroBert", "masked", "text", "tokens"),
    settings=SETTINGS,
    read=read,
    write=write,
)
