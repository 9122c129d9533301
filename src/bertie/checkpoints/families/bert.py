"""BERT checkpoints (Devlin et al. 2018)."""

from __future__ import annotations

from bertie.checkpoints.families.family import TASK_SHAPES, Family, Module, architectures, joined
from bertie.checkpoints.families.settings import Settings

LAYER = "bert.encoder.layer.{n}"
POOLER = Module("pooler", "bert.pooler.dense")
KEYS = (  # keys of config.json that have bertie's names
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("initializer_range", "layer_norm_eps"),
)
HEAD = {"head_dropout_prob": "classifier_dropout"}
DEFAULTS = {
    **{"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "intermediate_size": 3072,
}

SETTINGS = Settings(
    keys={**{name: name for name in KEYS}, **HEAD},
    defaults=DEFAULTS,
    supported={"position_embedding_type": "absolute"},
    activation="hidden_act",
    suits=lambda config: config.type_vocab_size > 0,
    write=lambda _: {"position_embedding_type": "absolute"},
)

FAMILY = Family(
    model_type="bert",
    title="BERT",
    base="bert.",
    encoder=(
        Module("encoder.embeddings.word", "bert.embeddings.word_embeddings"),
        Module("encoder.embeddings.position", "bert.embeddings.position_embeddings"),
        Module("encoder.embeddings.segment", "bert.embeddings.token_type_embeddings"),
        Module("encoder.embeddings.norm", "bert.embeddings.LayerNorm"),
        Module("encoder.layers.{n}.attention.qkv", joined(f"{LAYER}.attention.self", "query", "key", "value")),
        Module("encoder.layers.{n}.attention.out", f"{LAYER}.attention.output.dense"),
        Module("encoder.layers.{n}.attention_norm", f"{LAYER}.attention.output.LayerNorm"),
        Module("encoder.layers.{n}.up", f"{LAYER}.intermediate.dense"),
        Module("encoder.layers.{n}.down", f"{LAYER}.output.dense"),
        Module("encoder.layers.{n}.norm", f"{LAYER}.output.LayerNorm"),
        POOLER,
    ),
    heads={
        "masked": (
            Module("dense", "cls.predictions.transform.dense"),
            Module("norm", "cls.predictions.transform.LayerNorm"),
            Module("", "cls.predictions"),
        ),
        "pair": (Module("out", "cls.seq_relationship"),),
        **dict.fromkeys(("text", "choice", "tokens"), (Module("out", "classifier"),)),
        "start_end": (Module("out", "qa_outputs"),),
    },
    architectures=architectures("Bert", "masked", *TASK_SHAPES)
    | {
        frozenset({"pair"}): "BertForNextSentencePrediction",
        frozenset({"masked", "pair"}): "BertForPreTraining",
    },
    settings=SETTINGS,
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)
