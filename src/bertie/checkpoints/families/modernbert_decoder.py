"""ModernBERT's layers from left to right, as in the decoders of Ettin (Weller et al. 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertie.checkpoints.families import modernbert
from bertie.checkpoints.families.family import LAYER, joined
from bertie.model.config import TransformerConfig

WINDOW = "local_attention"
OWN = 2
"""What config.json adds to `local_attention`: half of it is the number of tokens that a token sees, itself included."""


def write(config: TransformerConfig) -> dict[str, Any]:
    """Return further keys of config.json. The class refuses null for the ids of tokens, and has others than 0 of its own."""
    ids = dict.fromkeys(("bos_token_id", "cls_token_id", "sep_token_id"), 0)
    return modernbert.write(config) | ids | {WINDOW: config.local_attention + OWN}


def read(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of ModernBERT, and the window."""
    return modernbert.read(values, known) | {WINDOW: (values.get(WINDOW) or modernbert.DEFAULTS[WINDOW]) - OWN}


LAYERS = f"layers.{LAYER}.attn"
SETTINGS = replace(
    modernbert.SETTINGS,
    keys={ours: theirs for ours, theirs in modernbert.KEYS.items() if ours != WINDOW},
    fixed=modernbert.FIXED | {"causal": True},
    free=(*modernbert.OTHERS, WINDOW),
    write=write,
    read=read,
    reads=(*modernbert.SETTINGS.reads, WINDOW),
)

FAMILY = replace(
    modernbert.FAMILY,
    model_type="modernbert-decoder",
    title="ModernBERT decoder",
    encoder={
        **{theirs: ours for theirs, ours in modernbert.FAMILY.encoder.items() if "Wqkv" not in str(theirs)},
        joined(LAYERS, "q_proj", "k_proj", "v_proj"): f"encoder.layers.{LAYER}.attention.qkv",
    },
    heads={"next": {"lm_head.dense": "dense", "lm_head.norm": "norm", "decoder": ""}},
    architectures={frozenset(): "ModernBertDecoderModel", frozenset({"next"}): "ModernBertDecoderForCausalLM"},
    settings=SETTINGS,
)
