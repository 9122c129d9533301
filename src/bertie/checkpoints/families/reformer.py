"""Reformer checkpoints (Kitaev et al. 2020).

The size of hidden states in config.json is the size of a stream, bertie's is the size of both. The head over the vocabulary has a
matrix of its own. transformers has a bias beside it, but does not add it to the logits, and neither does bertie. Its class for
classification has a dense layer that halves the size, which bertie has not: such models are saved as encoders with bertie's
names for the head.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from bertie.base import console
from bertie.base.errors import UsageError
from bertie.checkpoints.families.family import Family, Names, joined
from bertie.checkpoints.families.settings import ACTIVATIONS, Settings
from bertie.model.encoders.reformer_config import ReformerConfig, idle_settings

LAYER = "encoder.layers.{n}"
POSITIONS = "embeddings.position_embeddings"
SAME = (
    *("attn_layers", "hidden_size", "num_attention_heads", "attention_head_size", "vocab_size", "hidden_act"),
    *("max_position_embeddings", "axial_pos_shape", "axial_pos_embds_dim", "num_hashes", "num_buckets", "hash_seed"),
    *("local_attn_chunk_length", "local_num_chunks_before", "local_num_chunks_after"),
    *("lsh_attn_chunk_length", "lsh_num_chunks_before", "lsh_num_chunks_after", "hidden_dropout_prob"),
    *("lsh_attention_probs_dropout_prob", "initializer_range", "layer_norm_eps"),
)
"""Keys that have the same name in bertie."""
KEYS = {name: name for name in SAME if name != "hidden_act"} | {
    **{"intermediate_size": "feed_forward_size", "causal": "is_decoder", "head_dropout_prob": "classifier_dropout"},
    **{"attention_probs_dropout_prob": "local_attention_probs_dropout_prob"},
    # A key of bertie's own: with chunk_size_feed_forward, transformers refuses texts whose length is no multiple of it.
    "feed_forward_chunk": "feed_forward_chunk",
}
CAUSAL = {"ReformerModelWithLMHead": True, "ReformerForMaskedLM": False}
"""Classes of transformers that exist only for causal models, or only for others."""
DEFAULTS = {
    **{"attn_layers": ["local", "lsh"] * 3, "hidden_size": 256, "num_attention_heads": 12, "attention_head_size": 64},
    **{"vocab_size": 320, "is_decoder": False, "feed_forward_size": 512, "lsh_attention_probs_dropout_prob": 0.0},
}


def write_settings(config: ReformerConfig) -> dict[str, Any]:
    """Return the keys whose values differ from bertie's."""
    dropout = config.lsh_dropout
    return {
        **{"hidden_size": config.stream_size, "attention_head_size": config.head_size},
        **{"attn_layers": list(config.attn_layers), "num_hidden_layers": config.num_hidden_layers},
        "axial_pos_embds": config.position_embedding == "axial",
        **{"axial_pos_shape": list(config.axial_pos_shape), "axial_pos_embds_dim": list(config.axial_pos_embds_dim)},
        "num_buckets": None if "lsh" not in config.attn_layers else _one_or_list(config.buckets),
        **{"lsh_attention_probs_dropout_prob": dropout, "tie_word_embeddings": False},
        # Without a seed, transformers would draw new hyperplanes for every text, also in prediction.
        "new_hyperplanes": config.new_hyperplanes,
        # The defaults of transformers are ids of another vocabulary.
        **{"bos_token_id": None, "eos_token_id": None},
    }


def read_settings(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the size of both streams, the positions and the buckets.

    Raises:
        UsageError: The number of buckets is missing: transformers derives it from the first text that the model reads. Or the
            class contradicts is_decoder.
    """
    size, layers, buckets = known["hidden_size"], known["attn_layers"], known.get("num_buckets", [])
    if values.get("num_hidden_layers", len(layers)) != len(layers):
        raise UsageError(f"num_hidden_layers is {values['num_hidden_layers']!r}, and attn_layers has {len(layers)}")
    buckets = [buckets] if type(buckets) is int else buckets
    if buckets is None or ("lsh" in layers and not buckets):
        raise UsageError(
            f"num_buckets is {str(buckets or None)[:60]}, and transformers derives it from the first text that the model reads, "
            "so the results depend on that: give a number or a list of factors"
        )
    axial = values.get("axial_pos_embds", True)
    for name in values.get("architectures") or ():
        if (causal := CAUSAL.get(name)) is not None and causal != known["causal"]:
            raise UsageError(
                f"architectures is {name} and is_decoder is {str(known['causal']).lower()}, which transformers refuses, too: set "
                f"is_decoder to {str(causal).lower()} if the model was trained so"
            )
    position = "axial" if axial else "learned"
    return {
        "hidden_size": 2 * size,
        "position_embedding": position,
        "num_buckets": buckets,
        "hash_seed": values.get("hash_seed") or 0,
        "new_hyperplanes": values.get("new_hyperplanes", values.get("hash_seed") is None),
        **idle_settings([str(kind) for kind in layers], position),
    }


def _one_or_list(factors: tuple[int, ...]) -> int | list[int]:
    return factors[0] if len(factors) == 1 else list(factors)


SETTINGS = Settings(
    encoder=ReformerConfig,
    keys=KEYS,
    defaults=DEFAULTS,
    fixed={"kind": "reformer"},
    supported={"tie_word_embeddings": False, "sinusoidal_pos_embds": False},
    activation="hidden_act",
    activations=ACTIVATIONS,
    free=("position_embedding", "new_hyperplanes"),
    write=write_settings,
    read=read_settings,
    reads=("axial_pos_embds", "num_hidden_layers", "new_hyperplanes"),
    without_effect=("axial_norm_std", "chunk_size_lm_head"),
)


def read(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return Hugging Face's tensors, with axial positions as matrices, under the names of embeddings.

    Tensors with another number of dimensions are damaged. They remain, so that a later check names them.
    """
    if any(name.endswith("lm_head.bias") and tensor.any() for name, tensor in weights.items()):
        console.warn(
            "lm_head.bias is not 0: transformers 5 does not add it to the logits of a Reformer, and neither does bertie",
            once=True,
        )
    return {
        f"{name}.weight" if (axial := _is_axis(name)) else name: tensor.flatten(0, 1)
        if axial and tensor.ndim == 3
        else tensor
        for name, tensor in weights.items()
    }


def write(config: ReformerConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Reverse `read`."""
    converted = {}
    for name, tensor in weights.items():
        base = name.removesuffix(".weight")
        if _is_axis(base):
            converted[base] = tensor[:, None] if base.endswith(".0") else tensor[None]
        else:
            converted[name] = tensor
        if name.endswith("lm_head.decoder.weight"):
            converted[name.replace("decoder.weight", "bias")] = torch.zeros(config.vocab_size, dtype=tensor.dtype)
    return converted


def _is_axis(name: str) -> bool:
    return re.search(r"position_embeddings\.weights\.[01]$", name) is not None


VOCABULARY: Names = {"lm_head.decoder": "decoder"}

FAMILY = Family(
    model_type="reformer",
    title="Reformer",
    base="reformer.",
    encoder={
        "embeddings.word_embeddings": "encoder.embeddings.word",
        f"{POSITIONS}.embedding": "encoder.embeddings.position",
        f"{POSITIONS}.weights.0": "encoder.embeddings.position.axes.0",
        f"{POSITIONS}.weights.1": "encoder.embeddings.position.axes.1",
        f"{LAYER}.attention.layer_norm": "encoder.layers.{n}.attention.norm",
        joined(f"{LAYER}.attention.self_attention", "query", "key", "value"): "encoder.layers.{n}.attention.qkv",
        joined(f"{LAYER}.attention.self_attention", "query_key", "value"): "encoder.layers.{n}.attention.qk_v",
        f"{LAYER}.attention.output.dense": "encoder.layers.{n}.attention.out",
        f"{LAYER}.feed_forward.layer_norm": "encoder.layers.{n}.feed_forward.norm",
        f"{LAYER}.feed_forward.dense.dense": "encoder.layers.{n}.feed_forward.up",
        f"{LAYER}.feed_forward.output.dense": "encoder.layers.{n}.feed_forward.down",
        "encoder.layer_norm": "encoder.final_norm",
    },
    heads={"masked": VOCABULARY, "next": VOCABULARY, "start_end": {"qa_outputs": "out"}},
    architectures={
        frozenset(): "ReformerModel",
        frozenset({"masked"}): "ReformerForMaskedLM",
        frozenset({"next"}): "ReformerModelWithLMHead",
        frozenset({"start_end"}): "ReformerForQuestionAnswering",
    },
    settings=SETTINGS,
    ignored=r"(mask_value_float(16|32)|lm_head\.(decoder\.)?bias)$",
    read=read,
    write=write,
)
