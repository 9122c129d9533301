"""GPT-2 checkpoints (Radford et al. 2019).

Hugging Face's classes with other heads than the language model's have another structure than bertie's: a model with
such a head is saved as an encoder with bertie's names for the head.
"""

from __future__ import annotations

from typing import Any

from bertie.checkpoints.families import bert
from bertie.checkpoints.families.family import Family, Module
from bertie.checkpoints.families.settings import has_defaults, read_activation, read_keys, require
from bertie.errors import UsageError
from bertie.model.config import TransformerConfig

LAYER = "transformer.h.{n}"
ACTIVATIONS = bert.ACTIVATIONS | {"gelu_tanh": "gelu_new"}
KEYS = {  # bertie's names of keys of config.json, and Hugging Face's
    **{"vocab_size": "vocab_size", "hidden_size": "n_embd", "num_hidden_layers": "n_layer"},
    **{"num_attention_heads": "n_head", "intermediate_size": "n_inner", "max_position_embeddings": "n_positions"},
    **{"hidden_dropout_prob": "resid_pdrop", "attention_probs_dropout_prob": "attn_pdrop"},
    **{"initializer_range": "initializer_range", "layer_norm_eps": "layer_norm_epsilon"},
}
DEFAULTS = {
    **{"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    **{"layer_norm_epsilon": 1e-5},
}


def fits(config: TransformerConfig) -> bool:
    """Return whether the classes of GPT-2 represent an encoder: left-to-right, pre-norm, without segments."""
    return (
        has_defaults(config, (*KEYS, "hidden_act", "causal", "norm_position", "type_vocab_size"))
        and (config.causal, config.norm_position, config.type_vocab_size) == (True, "pre", 0)
        and config.hidden_act in ACTIVATIONS
    )


def to_config(config: TransformerConfig) -> dict[str, Any]:
    values = {theirs: getattr(config, ours) for ours, theirs in KEYS.items()}
    return values | {
        "activation_function": ACTIVATIONS[config.hidden_act],
        "embd_pdrop": config.hidden_dropout_prob,
        "bos_token_id": None,  # the defaults of Hugging Face are ids of GPT-2's own vocabulary
        "eos_token_id": None,
    }


def from_config(values: dict[str, Any]) -> dict[str, Any]:
    require(values, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    require(values, tie_word_embeddings=True)
    known = read_keys(values, KEYS, DEFAULTS)
    if "intermediate_size" not in known:
        if type(known["hidden_size"]) is not int:
            raise UsageError(f"n_embd is {known['hidden_size']!r}: it must be a number")
        known["intermediate_size"] = 4 * known["hidden_size"]
    activation = values.get("activation_function", "gelu_new")
    known["hidden_act"] = read_activation(activation, "activation_function", bert.READ_ACTIVATIONS)
    return known | {"causal": True, "norm_position": "pre", "type_vocab_size": 0}


FAMILY = Family(
    model_type="gpt2",
    title="GPT-2",
    base="transformer.",
    encoder=(
        Module("encoder.embeddings.word", "transformer.wte"),
        Module("encoder.embeddings.position", "transformer.wpe"),
        Module("encoder.layers.{n}.attention_norm", f"{LAYER}.ln_1"),
        Module("encoder.layers.{n}.attention.qkv", f"{LAYER}.attn.c_attn", transposed=True),
        Module("encoder.layers.{n}.attention.out", f"{LAYER}.attn.c_proj", transposed=True),
        Module("encoder.layers.{n}.norm", f"{LAYER}.ln_2"),
        Module("encoder.layers.{n}.up", f"{LAYER}.mlp.c_fc", transposed=True),
        Module("encoder.layers.{n}.down", f"{LAYER}.mlp.c_proj", transposed=True),
        Module("encoder.final_norm", "transformer.ln_f"),
    ),
    architectures={frozenset(): "GPT2Model", frozenset({"next"}): "GPT2LMHeadModel"},
    fits=fits,
    to_config=to_config,
    from_config=from_config,
    ignored=r"position_ids$|^lm_head\.|\.attn\.(masked_)?bias$",
)
