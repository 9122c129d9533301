"""GPT-2 checkpoints (Radford et al. 2019).

Hugging Face's classes with other heads than the language model's have another structure than bertie's: a model with
such a head is saved as an encoder with bertie's names for the head.
"""

from __future__ import annotations

from typing import Any

from bertie.checkpoints.families.family import Family, Module
from bertie.checkpoints.families.settings import ACTIVATIONS, Settings
from bertie.errors import UsageError

LAYER = "transformer.h.{n}"
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


def read(_: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the size of the feed-forward layer, if config.json omits it."""
    if "intermediate_size" in known:
        return {}
    if type(known["hidden_size"]) is not int:
        raise UsageError(f"n_embd is {known['hidden_size']!r}: it must be a number")
    return {"intermediate_size": 4 * known["hidden_size"]}


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
    write=lambda config: {"embd_pdrop": config.hidden_dropout_prob, "bos_token_id": None, "eos_token_id": None},
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
    without_head="GPT2LMHeadModel",
    settings=SETTINGS,
    ignored=r"\.attn\.(masked_)?bias$",
    tied={"lm_head.weight": "transformer.wte.weight"},
)
