"""GPT-2 checkpoints (Radford et al. 2019).

Hugging Face's head for texts is one matrix on the state of the last token: heads of bertie that are such a matrix
(`pooler_act` none) are saved under its name. A model with another head is saved as an encoder with bertie's names for the head.
"""

from __future__ import annotations

from typing import Any

from bertie.checkpoints.families.family import Family
from bertie.checkpoints.families.settings import ACTIVATIONS, Settings, choice
from bertie.model.config import TransformerConfig

LAYER = "h.{n}"
LAYERS = {"tanh": "tanh", "none": "none"}  # of heads: bertie's, or none as in Hugging Face's class
KEYS = {  # bertie's names of keys of config.json, and Hugging Face's
    **{"vocab_size": "vocab_size", "hidden_size": "n_embd", "num_hidden_layers": "n_layer"},
    **{"num_attention_heads": "n_head", "intermediate_size": "n_inner", "max_position_embeddings": "n_positions"},
    **{"hidden_dropout_prob": "resid_pdrop", "attention_probs_dropout_prob": "attn_pdrop"},
    **{"initializer_range": "initializer_range", "layer_norm_eps": "layer_norm_epsilon"},
}
DEFAULTS = {
    **{"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    **{"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
}


def head_layer(values: dict[str, Any]) -> dict[str, Any]:
    """Return whether heads have a pooler: config.json says it, or its class. bertie writes it for a model without one."""
    one_matrix = any("ForSequenceClassification" in name for name in values.get("architectures") or ())
    return {"pooler_act": choice(values, "pooler_act", "none" if one_matrix else "tanh", LAYERS)}


def written_layer(config: TransformerConfig) -> dict[str, Any]:
    """Return the key of config.json that says that heads have no pooler."""
    return {"pooler_act": "none"} if config.pooler_act == "none" else {}


def represents(config: TransformerConfig, shapes: frozenset[str]) -> bool:
    """Return whether the class for heads of these shapes computes the same as bertie's heads."""
    return "text" not in shapes or config.pooler_act == "none"


def read(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the layer of heads, and the size of the feed-forward layer, if config.json omits it."""
    if "intermediate_size" in known:
        return head_layer(values)
    return {"intermediate_size": 4 * known["hidden_size"]} | head_layer(values)


SETTINGS = Settings(
    keys=KEYS,
    defaults=DEFAULTS,
    fixed={"causal": True, "norm_position": "pre", "type_vocab_size": 0},
    supported={
        **{"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    },
    activation="activation_function",
    activations=ACTIVATIONS | {"gelu_tanh": "gelu_new"},
    # The defaults of Hugging Face are ids of GPT-2's own vocabulary.
    write=lambda config: {
        **{"embd_pdrop": config.hidden_dropout_prob, "bos_token_id": None, "eos_token_id": None},
        **written_layer(config),
    },
    free=("pooler_act",),
    suits=lambda config: config.pooler_act in LAYERS,
    reads=("pooler_act",),
    training_only={"embd_pdrop": None},
    aliases={
        **{"hidden_size": "n_embd", "max_position_embeddings": "n_positions"},
        **{"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    },
    without_effect=(
        *("n_ctx", "reorder_and_upcast_attn", "predict_special_tokens"),
        *(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")),
    ),
    read=read,
)

FAMILY = Family(
    model_type="gpt2",
    title="GPT-2",
    base="transformer.",
    encoder={
        "wte": "encoder.embeddings.word",
        "wpe": "encoder.embeddings.position",
        f"{LAYER}.ln_1": "encoder.layers.{n}.attention_norm",
        f"{LAYER}.attn.c_attn": "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.attn.c_proj": "encoder.layers.{n}.attention.out",
        f"{LAYER}.ln_2": "encoder.layers.{n}.norm",
        f"{LAYER}.mlp.c_fc": "encoder.layers.{n}.up",
        f"{LAYER}.mlp.c_proj": "encoder.layers.{n}.down",
        "ln_f": "encoder.final_norm",
    },
    heads={"text": {"score": "out"}},
    transposed=r"\.(attn|mlp)\.c_\w+\.weight$",
    architectures={
        **{frozenset(): "GPT2Model", frozenset({"next"}): "GPT2LMHeadModel"},
        frozenset({"text"}): "GPT2ForSequenceClassification",
    },
    represents=represents,
    without_head="GPT2LMHeadModel",
    settings=SETTINGS,
    ignored=r"\.attn\.(masked_)?bias$",
    tied={"lm_head.weight": "transformer.wte.weight"},
)
