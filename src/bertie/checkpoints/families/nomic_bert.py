"""NomicBERT checkpoints as transformers has them (Nussbaum et al. 2024): BERT with rotary positions, SwiGLU and few biases."""

from __future__ import annotations

from typing import Any

from bertie.checkpoints.families import bert
from bertie.checkpoints.families.family import OUT, Family, architectures, joined
from bertie.checkpoints.families.settings import Settings, require, require_head_size, rotary_base

LAYER = "encoder.layers.{n}"
DEFAULTS = {
    **{"vocab_size": 30528, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    **{"intermediate_size": 3072, "max_position_embeddings": 2048},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
BASE = 1000.0
AUTHORS = {  # keys of the authors' own code, which transformers ignores, and the settings that they must agree with
    **{"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"},
    **{"n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rotary_base"},
}
SUPPORTED = {
    **{"hidden_act": "silu", "activation_function": "swiglu", "tie_word_embeddings": True, "prenorm": False},
    **{"rotary_emb_fraction": 1.0, "rotary_scaling_factor": None, "rotary_emb_interleaved": False},
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False),
}


def read(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the base of rotary positions."""
    require_head_size(values, known["hidden_size"], known["num_attention_heads"])
    base = rotary_base(values, BASE)
    used = {"layer_norm_eps": 1e-12, **known, "rotary_base": base}
    require(values, {theirs: used[ours] for theirs, ours in AUTHORS.items()})
    return {"rotary_base": base}


SETTINGS = Settings(
    keys={name: name for name in bert.KEYS} | bert.HEAD,
    defaults=DEFAULTS,
    fixed={
        **{"hidden_act": "swiglu", "mlm_act": "silu", "use_bias": False, "norm_bias": True},
        "position_embedding": "rotary",
    },
    supported=SUPPORTED,
    free=("rotary_base",),
    suits=lambda config: config.type_vocab_size > 0,
    write=lambda config: {
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
    },
    read=read,
    reads=("head_dim", "rope_parameters", "rope_scaling", "rope_theta", *AUTHORS),
)

FAMILY = Family(
    model_type="nomic_bert",
    title="NomicBERT",
    base="nomic_bert.",
    encoder={
        "embeddings.word_embeddings": "encoder.embeddings.word",
        "embeddings.token_type_embeddings": "encoder.embeddings.segment",
        "emb_ln": "encoder.embeddings.norm",
        f"{LAYER}.attn.Wqkv": "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.attn.out_proj": "encoder.layers.{n}.attention.out",
        f"{LAYER}.norm1": "encoder.layers.{n}.attention_norm",
        joined(f"{LAYER}.mlp", "fc12", "fc11"): "encoder.layers.{n}.up",
        f"{LAYER}.mlp.fc2": "encoder.layers.{n}.down",
        f"{LAYER}.norm2": "encoder.layers.{n}.norm",
        "pooler.dense": "pooler",
    },
    heads={
        "masked": {
            "cls.predictions.transform.dense": "dense",
            "cls.predictions.transform.layer_norm": "norm",
            "cls.predictions": "",
        },
        **{"text": OUT, "tokens": OUT},
    },
    architectures=architectures("NomicBert", "masked", "text", "tokens"),
    settings=SETTINGS,
    ignored=r"position_ids$|inv_freq$|^cls\.predictions\.decoder\.",
)
