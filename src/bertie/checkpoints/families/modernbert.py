"""ModernBERT checkpoints (Warner et al. 2024): rotary positions, GeGLU, norms without biases, local and global layers."""

from __future__ import annotations

from typing import Any

from bertie.base.errors import UsageError
from bertie.checkpoints.families.family import TASK_SHAPES, Family, Names, architectures
from bertie.checkpoints.families.settings import Settings, choice, require
from bertie.model.config import ClassifierPooling, TransformerConfig

LAYER = "layers.{n}"
LOCAL, GLOBAL = "sliding_attention", "full_attention"
KEYS = {  # bertie's names of keys of config.json, and Hugging Face's
    **{name: name for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
    **{name: name for name in ("intermediate_size", "max_position_embeddings", "initializer_range")},
    **{"layer_norm_eps": "norm_eps", "local_attention": "local_attention"},
    **{"hidden_dropout_prob": "embedding_dropout", "attention_probs_dropout_prob": "attention_dropout"},
    "head_dropout_prob": "classifier_dropout",
}
DEFAULTS = {
    **{"vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22},
    **{"num_attention_heads": 12, "max_position_embeddings": 8192, "norm_eps": 1e-5, "local_attention": 128},
    **{"embedding_dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.0},
}
FIXED = {  # settings of bertie that the architecture has
    **{"position_embedding": "rotary", "norm_position": "modern", "use_bias": False, "hidden_act": "geglu"},
    **{"pooler_act": "gelu", "type_vocab_size": 0},
}
POOLING: dict[ClassifierPooling, str] = {"token": "cls", "mean": "mean"}
OTHERS = ("global_attention_every", "rotary_base", "local_rotary_base", "classifier_pooling")
SUPPORTED = {
    **dict.fromkeys(("hidden_activation", "classifier_activation"), "gelu"),
    **dict.fromkeys(("decoder_bias",), True),
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
}


def write(config: TransformerConfig) -> dict[str, Any]:
    """Return further keys of config.json, also those that versions of transformers before 5 read."""
    layers = range(config.num_hidden_layers)
    bases = {LOCAL: config.local_rotary_base, GLOBAL: config.rotary_base}
    return {
        **SUPPORTED,
        "classifier_pooling": POOLING[config.classifier_pooling],
        "mlp_dropout": config.hidden_dropout_prob,
        "layer_types": [GLOBAL if config.window(layer) is None else LOCAL for layer in layers],
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": base} for name, base in bases.items()},
        "global_attn_every_n_layers": config.global_attention_every,
        "global_rope_theta": config.rotary_base,
        "local_rope_theta": config.local_rotary_base,
        # Not those of its own vocabulary.
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    }


def read(values: dict[str, Any], _: dict[str, Any]) -> dict[str, Any]:
    """Return the places of global layers, the pooling and the bases of rotary positions."""
    known: dict[str, Any] = {"global_attention_every": _global_every(values)}
    if (half := values.get("sliding_window")) is not None and values.get("local_attention", 128) != 2 * half:
        raise UsageError(f"sliding_window is {half!r}, and local_attention is not twice as large: make them agree")
    known["classifier_pooling"] = choice(values, "classifier_pooling", "cls", POOLING)
    for ours, kind, old, default in (
        ("rotary_base", GLOBAL, "global_rope_theta", 160_000.0),
        ("local_rotary_base", LOCAL, "local_rope_theta", 10_000.0),
    ):
        rope = (values.get("rope_parameters") or {}).get(kind) or {}
        require(
            {f"rope_parameters.{key}": value for key, value in rope.items()}, {"rope_parameters.rope_type": "default"}
        )
        known[ours] = float(rope.get("rope_theta") or values.get(old) or default)
    return known


def _global_every(values: dict[str, Any]) -> int:
    """Return the distance of global layers.

    Raises:
        UsageError: They do not have equal distances, or the first layer is local.
    """
    kinds = values.get("layer_types")
    if not kinds:
        return values.get("global_attn_every_n_layers", 3)
    every = next((layer for layer in range(1, len(kinds)) if kinds[layer] == GLOBAL), len(kinds))
    if kinds != [LOCAL if layer % every else GLOBAL for layer in range(len(kinds))]:
        raise UsageError("layer_types must have global layers at equal distances, beginning with the first layer")
    return every


TOKENS: Names = {"head.dense": "dense", "head.norm": "norm", "classifier": "out"}
POOLED: Names = TOKENS | {"head.dense": "pooler"}

SETTINGS = Settings(
    keys=KEYS,
    defaults=DEFAULTS,
    fixed=FIXED,
    supported=SUPPORTED,
    free=OTHERS,
    training_only={"mlp_dropout": None, "attention_dropout": None},  # the latter after attention, too
    suits=lambda config: config.local_attention > 0,  # the class always has local layers
    write=write,
    reads=(
        *("layer_types", "global_attn_every_n_layers", "classifier_pooling", "rope_parameters"),
        *("global_rope_theta", "local_rope_theta", "sliding_window"),
    ),
    without_effect=(
        *("initializer_cutoff_factor", "deterministic_flash_attn"),
        *("sparse_prediction", "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad"),
        "position_embedding_type",  # also "absolute" in the published models
    ),
    read=read,
)

FAMILY = Family(
    model_type="modernbert",
    title="ModernBERT",
    base="model.",
    encoder={
        "embeddings.tok_embeddings": "encoder.embeddings.word",
        "embeddings.norm": "encoder.embeddings.norm",
        f"{LAYER}.attn_norm": "encoder.layers.{n}.attention_norm",
        f"{LAYER}.attn.Wqkv": "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.attn.Wo": "encoder.layers.{n}.attention.out",
        f"{LAYER}.mlp_norm": "encoder.layers.{n}.norm",
        f"{LAYER}.mlp.Wi": "encoder.layers.{n}.up",
        f"{LAYER}.mlp.Wo": "encoder.layers.{n}.down",
        "final_norm": "encoder.final_norm",
    },
    heads={
        "text": POOLED,
        "choice": POOLED,
        "tokens": TOKENS,
        "start_end": TOKENS,
        "masked": {"head.dense": "dense", "head.norm": "norm", "decoder": ""},
    },
    architectures=architectures("ModernBert", "masked", *TASK_SHAPES),
    settings=SETTINGS,
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
)
