"""MPNet checkpoints (Song et al. 2020): BERT's layers without segments, with biases of attention scores by distance."""

from __future__ import annotations

from dataclasses import replace

from bertie.checkpoints.families import bert, roberta
from bertie.checkpoints.families.family import TASK_SHAPES, architectures, joined

LAYER = "encoder.layer.{n}"
BUCKETS = 32  # those that Hugging Face's class uses, whatever config.json says

SETTINGS = replace(
    roberta.SETTINGS,
    keys={name: name for name in bert.KEYS if name != "type_vocab_size"},
    defaults=roberta.DEFAULTS | {"vocab_size": 30527},
    fixed={
        **{"hidden_act": "gelu", "saved_as": "mpnet"},
        **{"type_vocab_size": 0, "relative_bias_buckets": BUCKETS},
    },
    supported={"hidden_act": "gelu", "relative_attention_num_buckets": BUCKETS, "tie_word_embeddings": True},
    suits=lambda _: True,
    write=lambda _: {"hidden_act": "gelu", "relative_attention_num_buckets": BUCKETS},
    read=lambda *_: {},
)

FAMILY = replace(
    roberta.FAMILY,
    model_type="mpnet",
    title="MPNet",
    base="mpnet.",
    encoder={
        **{theirs: ours for theirs, ours in bert.FAMILY.encoder.items() if "attention" not in ours},
        "encoder.relative_attention_bias": "encoder.relative.table",
        joined(f"{LAYER}.attention.attn", "q", "k", "v"): "encoder.layers.{n}.attention.qkv",
        f"{LAYER}.attention.attn.o": "encoder.layers.{n}.attention.out",
        f"{LAYER}.attention.LayerNorm": "encoder.layers.{n}.attention_norm",
    },
    architectures=architectures("MPNet", "masked", *TASK_SHAPES),
    settings=SETTINGS,
    pad_id=1,
    derived=lambda _: {},
    without_derived=lambda config, _: config,
)
