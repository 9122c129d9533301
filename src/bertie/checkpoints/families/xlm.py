"""XLM checkpoints (Lample and Conneau 2019): BERT's layers without segments, with or without language embeddings.

The masked-LM head is the output matrix with a bias. Hugging Face's heads for sequences have another structure than
bertie's: a model with such a head is saved as an encoder with bertie's names for the head.
"""

from __future__ import annotations

from typing import Any

from bertie.base.errors import UsageError
from bertie.checkpoints.families.family import Family, architectures, joined
from bertie.checkpoints.families.settings import Settings, sinusoidal_table, without_sinusoidal_table
from bertie.model.config import TransformerConfig

KEYS = {  # bertie's names of keys of config.json, and Hugging Face's
    **{"vocab_size": "vocab_size", "hidden_size": "emb_dim", "num_hidden_layers": "n_layers"},
    **{"num_attention_heads": "n_heads", "max_position_embeddings": "max_position_embeddings"},
    **{"hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"},
    **{"initializer_range": "init_std", "layer_norm_eps": "layer_norm_eps", "causal": "causal"},
}


def suits(config: TransformerConfig) -> bool:
    """Return whether the class represents an encoder."""
    return (
        config.hidden_act in ("gelu", "relu")
        and config.position_embedding in ("learned", "sinusoidal")
        and config.intermediate_size == 4 * config.hidden_size
        and len(config.languages) != 1  # the class ignores a single language
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    """Return the keys of activation, positions and languages."""
    names = dict(enumerate(config.languages))
    numbered = {
        "id2lang": {str(number): name for number, name in names.items()},
        "lang2id": {name: number for number, name in names.items()},
        "lang_id": config.language_id,
    }
    return (numbered if names else {}) | {
        "gelu_activation": config.hidden_act == "gelu",
        "sinusoidal_embeddings": config.position_embedding == "sinusoidal",
        "n_langs": len(names) or 1,
        "use_lang_emb": config.language_embeddings,
    }


def read(values: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return activation, positions and languages."""
    return {
        "intermediate_size": 4 * known["hidden_size"],
        "hidden_act": "gelu" if values.get("gelu_activation", True) else "relu",
        "position_embedding": "sinusoidal" if values.get("sinusoidal_embeddings") else "learned",
        **_languages(values),
    }


def _languages(values: dict[str, Any]) -> dict[str, Any]:
    """Return the languages of a model with language embeddings. Languages without a name get their number."""
    count, names, language = values.get("n_langs", 1), values.get("id2lang") or {}, values.get("lang_id", 0)
    if count < 2 or not values.get("use_lang_emb", True):  # the class has language embeddings for two or more
        return {}
    if not 0 <= language < count:
        raise UsageError(f"lang_id is {language!r}, and there are {count} languages")
    languages = tuple(str(names.get(str(number), number)) for number in range(count))
    return {"language_embeddings": True, "languages": languages, "language": languages[language] if language else ""}


SETTINGS = Settings(
    keys=KEYS,
    defaults={"vocab_size": 30145, "emb_dim": 2048, "n_layers": 12, "n_heads": 16},
    fixed={"type_vocab_size": 0, "mlm_transform": False},  # the masked-LM head distinguishes it from RoBERTa
    supported={"asm": False, "is_encoder": True},
    free=(
        *("hidden_act", "position_embedding", "intermediate_size"),
        *("language_embeddings", "languages", "language"),
    ),
    suits=suits,
    write=write,
    reads=(*("gelu_activation", "sinusoidal_embeddings", "n_langs", "use_lang_emb", "id2lang", "lang2id", "lang_id"),),
    aliases={
        **{"hidden_size": "emb_dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        **{"n_words": "vocab_size", "pad_index": "pad_token_id"},
    },
    without_effect=(
        *(
            "embed_init_std",
            "unk_index",
            "mask_index",
            "bos_index",
            "eos_index",
            "start_n_top",
            "end_n_top",
            "max_vocab",
        ),
        *("min_count", "same_enc_dec", "share_inout_emb", "accumulate_gradients", "bptt", "clip_grad_norm", "fp16"),
        *(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")),
    ),
    read=read,
)

FAMILY = Family(
    model_type="xlm",
    title="XLM",
    base="transformer.",
    encoder={
        "embeddings": "encoder.embeddings.word",
        "position_embeddings": "encoder.embeddings.position",
        "lang_embeddings": "encoder.embeddings.language",
        "layer_norm_emb": "encoder.embeddings.norm",
        joined("attentions.{n}", "q_lin", "k_lin", "v_lin"): "encoder.layers.{n}.attention.qkv",
        "attentions.{n}.out_lin": "encoder.layers.{n}.attention.out",
        "layer_norm1.{n}": "encoder.layers.{n}.attention_norm",
        "ffns.{n}.lin1": "encoder.layers.{n}.up",
        "ffns.{n}.lin2": "encoder.layers.{n}.down",
        "layer_norm2.{n}": "encoder.layers.{n}.norm",
    },
    heads={
        "masked": {"pred_layer.proj": ""},
        "tokens": {"classifier": "out"},
        "start_end": {"qa_outputs": "out"},
    },
    architectures=architectures("XLM", "tokens")
    | {frozenset({"masked"}): "XLMWithLMHeadModel", frozenset({"start_end"}): "XLMForQuestionAnsweringSimple"},
    settings=SETTINGS,
    tied={"pred_layer.proj.weight": "transformer.embeddings.weight"},
    derived=sinusoidal_table,
    without_derived=without_sinusoidal_table,
)
