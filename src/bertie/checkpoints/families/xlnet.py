"""XLNet checkpoints (Yang et al. 2019).

Hugging Face's attention has parameters of shape [D, N, H] instead of linear layers. `read` and `write` convert them.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from bertie.checkpoints.families.family import TASK_HEADS, Family, Names, architectures, joined
from bertie.checkpoints.families.settings import Settings, choice, require
from bertie.model.encoders.xlnet import XlnetConfig

LAYER = "layer.{n}"
KEYS = {  # bertie's names of keys of config.json, and Hugging Face's
    **{"vocab_size": "vocab_size", "hidden_size": "d_model", "num_hidden_layers": "n_layer"},
    **{"num_attention_heads": "n_head", "intermediate_size": "d_inner", "hidden_dropout_prob": "dropout"},
    **{"initializer_range": "initializer_range", "layer_norm_eps": "layer_norm_eps", "pooled_token": "summary_type"},
    # Hugging Face's class has neither a limit of the length nor another dropout of attention weights, and ignores these.
    **{"max_position_embeddings": "max_sequence_length", "attention_probs_dropout_prob": "attention_dropout"},
    "head_dropout_prob": "summary_last_dropout",
}
DEFAULTS = {
    **{"vocab_size": 32000, "d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096},
    **{"summary_type": "last", "summary_last_dropout": 0.1},
}
SUMMARY = {"summary_use_proj": True, "summary_activation": "tanh"}  # pooler
BIASES = {"r_w_bias": "content_bias", "r_r_bias": "position_bias", "r_s_bias": "segment_bias"}
_PARAMETER = re.compile(r"(.*rel_attn\.)(q|k|v|r|o|seg_embed|r_[wrs]_bias)(\.weight)?$")


def read_settings(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Check the pooled token. Without a dropout probability of its own, attention has the other one."""
    choice(values, "summary_type", "last", {"first": "first", "last": "last"})
    require(values, {"d_head": known["hidden_size"] // known["num_attention_heads"]})
    return {"attention_probs_dropout_prob": values["dropout"], **known} if "dropout" in values else {}


SETTINGS = Settings(
    encoder=XlnetConfig,
    keys=KEYS,
    defaults=DEFAULTS,
    fixed={"kind": "xlnet"},
    supported={
        **{"attn_type": "bi", "bi_data": False, "clamp_len": -1, "same_length": False},
        **SUMMARY,
    },
    activation="ff_activation",
    # The defaults of Hugging Face are ids of XLNet's own vocabulary.
    write=lambda _: SUMMARY | {"bos_token_id": None, "eos_token_id": None},
    reads=("d_head",),
    aliases={
        **{"hidden_size": "d_model", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        "n_token": "vocab_size",
    },
    without_effect=(
        *("mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "untie_r", "start_n_top", "end_n_top", "init"),
        *("init_range", "init_std", "dropatt", "use_mems"),
    ),
    read=read_settings,
)


def read(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return Hugging Face's tensors with linear layers and embeddings as matrices, and biases as vectors.

    Tensors with another number of dimensions are damaged. They remain, so that a later check names them.
    """
    converted = {}
    for name, tensor in weights.items():
        match = _PARAMETER.match(name)
        if name.endswith("mask_emb") and tensor.ndim == 3:
            converted[f"{name}.weight"] = tensor.flatten(0, 1)
        elif match and match[2] in BIASES and tensor.ndim == 2:
            converted[match[1] + BIASES[match[2]]] = tensor.flatten()
        elif match and tensor.ndim == 3:
            matrix = tensor.flatten(1)
            converted[f"{name}.weight"] = matrix.t().contiguous() if match[2] in ("q", "k", "v", "r") else matrix
        else:
            converted[name] = tensor
    return converted


def write(config: XlnetConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Reverse `read`."""
    heads, theirs = config.num_attention_heads, {ours: name for name, ours in BIASES.items()}
    converted = {}
    for name, tensor in weights.items():
        match = _PARAMETER.match(name)
        base, _, leaf = name.rpartition(".")
        if name.endswith("mask_emb.weight"):
            converted[base] = tensor[None]
        elif leaf in theirs and base.endswith("rel_attn"):
            converted[f"{base}.{theirs[leaf]}"] = tensor.unflatten(0, (heads, -1))
        elif match:
            matrix = tensor.t() if match[2] in ("q", "k", "v", "r") else tensor
            converted[base] = matrix.contiguous().unflatten(1, (heads, -1))
        else:
            converted[name] = tensor
    return converted


POOLED: Names = {"sequence_summary.summary": "pooler", "logits_proj": "out"}

FAMILY = Family(
    model_type="xlnet",
    title="XLNet",
    base="transformer.",
    encoder={
        "word_embedding": "encoder.embeddings.word",
        "mask_emb": "encoder.embeddings.mask",
        joined(f"{LAYER}.rel_attn", "q", "k", "v"): "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.rel_attn.r": "encoder.layers.{n}.attention.distance",
        f"{LAYER}.rel_attn.seg_embed": "encoder.layers.{n}.attention.segment",
        f"{LAYER}.rel_attn.o": "encoder.layers.{n}.attention.out",
        f"{LAYER}.rel_attn": "encoder.layers.{n}.attention",  # its biases
        f"{LAYER}.rel_attn.layer_norm": "encoder.layers.{n}.attention_norm",
        f"{LAYER}.ff.layer_1": "encoder.layers.{n}.up",
        f"{LAYER}.ff.layer_2": "encoder.layers.{n}.down",
        f"{LAYER}.ff.layer_norm": "encoder.layers.{n}.norm",
    },
    heads={
        "permutation": {"lm_loss": ""},
        **TASK_HEADS,
        "text": POOLED,
        "choice": POOLED,
    },
    architectures=architectures("XLNet", "text", "choice", "tokens")
    | {frozenset({"permutation"}): "XLNetLMHeadModel", frozenset({"start_end"}): "XLNetForQuestionAnsweringSimple"},
    settings=SETTINGS,
    reads_last_place=True,
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
    read=read,
    write=write,
)
