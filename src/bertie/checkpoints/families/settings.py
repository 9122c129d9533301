"""Checks and conversions of config.json that several families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.positions import SinusoidalEmbedding

T = TypeVar("T")
POSITION = "encoder.embeddings.position.weight"
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}  # bertie -> Hugging Face
READ_ACTIVATIONS = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {
    **{"gelu_python": "gelu"},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"), "gelu_tanh"),
}
HEAD_DROPOUT = "head_dropout_prob"
HALF_PRECISION = 4e-3  # rounding error of numbers up to 1 in bf16
OBJECTIVES = "own_objectives"  # those of heads that are the user's own (`own_code`)
READ = ("architectures", "model_type", "id2label", "problem_type", "num_labels", "_num_labels", "finetuning_task")
READ += ("pad_token_id", "tie_word_embeddings", "transformers_weights", "auto_map", "tokenizer_class", "generator")
READ += (OBJECTIVES,)
"""Keys that bertie reads, whatever the family is."""
GENERATION = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "do_sample", "num_beams"),
    *("num_beam_groups", "temperature", "top_k", "top_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"),
    *("min_p", "diversity_penalty", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "prefix"),
    *("output_scores", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
    *("remove_invalid_values", "suppress_tokens", "exponential_decay_length_penalty", "begin_suppress_tokens"),
    *("forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id", "return_dict_in_generate"),
    *("task_specific_params", "max_time", "stop_strings"),
)
TOKENS = tuple(f"{name}_token_id" for name in ("bos", "eos", "cls", "sep", "mask", "unk"))
WITHOUT_EFFECT = (
    *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype", "label2id"),
    *("output_attentions", "output_hidden_states", "output_past", "return_dict", "use_return_dict", "use_cache"),
    *("chunk_size_feed_forward", "gradient_checkpointing", "torchscript", "use_bfloat16", "xla_device"),
    *("tie_encoder_decoder", "_attn_implementation", "attn_implementation", "_attn_implementation_autoset"),
    *("tf_legacy_loss", "function_to_apply", "cross_attention_hidden_size", "tie_last_hidden_states"),
    *("is_composition", "language", "tags", "license", "sentence_transformers"),
    *("sbert_ce_default_activation_function", "initializer_range", "transformers.js_config", "matryoshka_dimensions"),
    *("is_matryoshka", "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
    *("pooler_size_per_head", "pooler_type", "eos_token_ids"),
    *GENERATION,
    *TOKENS,
)
"""Keys that cannot change the result of an encoder or of a head for a task, also of BERT's first conversions and of Google's
files. Some are read elsewhere: with the files of sentence-transformers, and by `bertie serve`."""
EMPTY = {
    "is_decoder": "the left-to-right attention of a decoder",
    "is_causal": "left-to-right attention in this family",
    "add_cross_attention": "the cross-attention of a decoder",
    "is_encoder_decoder": "an encoder with a decoder",
    "pruned_heads": "layers with fewer heads",
    "quantization_config": "quantized weights; save the model without quantization (model.dequantize())",
    "compression_config": "compressed weights",
    "per_layer_config": "layers with settings of their own",
}
"""Keys that bertie supports only if they are empty or false, and what they ask for."""


@dataclass(frozen=True)
class Settings:
    """How the config.json of a family describes an encoder. Two functions add what tables cannot say."""

    encoder: type = field(default=TransformerConfig, kw_only=True)
    """The type of the configurations of its encoders."""
    keys: dict[str, str]
    """bertie's names of settings, and the keys of config.json."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Values of keys that config.json may omit. A dropout of heads with a default here cannot be null."""
    training_only: dict[str, float | None] = field(default_factory=dict)
    """Dropout probabilities that bertie has not, or not apart from others, and what it has in their place; None:
    hidden_dropout_prob. `convert` keeps them."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Settings, by bertie's names, that all encoders of the family have."""
    supported: dict[str, Any] = field(default_factory=dict)
    """Keys of which bertie supports a single value. Missing keys have this value."""
    activation: str = ""
    """Key of the activation, which is gelu by default; empty: there is none."""
    activations: dict[str, str] = field(default_factory=lambda: ACTIVATIONS)
    """bertie's names of activations, and Hugging Face's."""
    free: tuple[str, ...] = ()
    """Settings that `suits` decides. All that is not mentioned here must be as in BERT."""
    fits_all: bool = False
    """Whether all encoders, of any type, are in the format of the family."""
    suits: Callable[[Any], bool] = lambda _: True
    """Whether the class computes the same as an encoder whose settings are in the tables."""
    write: Callable[[Any], dict[str, Any]] = lambda _: {}
    """Returns further keys for an encoder."""
    read: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda *_: {}
    """Returns further settings, from config.json and from those that the tables gave. Raises UsageError."""
    reads: tuple[str, ...] = ()
    """Keys that `read` obeys or refuses."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Other names of keys, from older versions, and the keys."""
    without_effect: tuple[str, ...] = ()
    """Keys that cannot change the result, beside the keys of all families (`WITHOUT_EFFECT`)."""

    @property
    def known(self) -> frozenset[str]:
        """The keys of config.json that are obeyed, refused, or without effect."""
        tables = (self.keys.values(), self.supported, self.reads, self.aliases, self.without_effect)
        tables += (self.training_only, [self.activation])
        return frozenset(key for table in tables for key in table)

    @property
    def _head_dropout(self) -> str:
        """The key of the dropout of heads, if it cannot be null."""
        key = self.keys.get(HEAD_DROPOUT, "")
        return key if key in self.defaults else ""

    def fits(self, config: Any) -> bool:
        """Return whether the class of the family computes the same as an encoder with this configuration."""
        free = {*self.keys, *self.fixed, *self.free, *["hidden_act"] * bool(self.activation)}
        return self.fits_all or (
            isinstance(config, self.encoder)
            and all(
                getattr(config, setting.name) == setting.default
                for setting in fields(config)
                if setting.name not in free
            )
            and all(getattr(config, name) == value for name, value in self.fixed.items())
            and (not self.activation or config.hidden_act in self.activations)
            and self.suits(config)
        )

    def to_config(self, config: Any) -> dict[str, Any]:
        """Return the keys of config.json for an encoder that fits."""
        values = {theirs: getattr(config, ours) for ours, theirs in self.keys.items()}
        activation = {self.activation: self.activations[config.hidden_act]} if self.activation else {}
        if values.get(key := self._head_dropout, 0) is None:
            values[key] = config.hidden_dropout_prob
        return values | activation | self.write(config)

    def from_config(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of the encoder that config.json describes.

        Raises:
            UsageError: bertie does not support the model.
        """
        for name in self.aliases.keys() & values.keys():
            other = self.aliases[name]
            if values.get(other, values[name]) != values[name]:
                both = f"{name} is {values[name]!r:.60} and {other} is {values[other]!r:.60}"
                raise UsageError(f"{both}, which are the same setting: make them agree")
            values = values | {other: values[name]}
        require(values, self.supported)
        named = {ours: values.get(theirs, self.defaults.get(theirs)) for ours, theirs in self.keys.items()}
        known = {name: value for name, value in named.items() if value is not None} | self.fixed
        if self._head_dropout and known.get(HEAD_DROPOUT) == known.get("hidden_dropout_prob", 0.1):
            known.pop(HEAD_DROPOUT, None)
        if self.activation:
            name = str(values.get(self.activation, self.defaults.get(self.activation, "gelu")))
            if name not in READ_ACTIVATIONS:
                names = ", ".join(READ_ACTIVATIONS)
                raise UsageError(f"{self.activation} {name!r} is not supported: give one of {names}")
            known["hidden_act"] = READ_ACTIVATIONS[name]
        return known | self.read(values, known)


def require(values: dict[str, Any], supported: dict[str, Any]) -> None:
    """Check keys of config.json of which bertie supports a single value. Missing keys have this value.

    Raises:
        UsageError: A key has another value.
    """
    for name, value in supported.items():
        if (actual := values.get(name, value)) != value:
            raise UsageError(f"{name} is {actual!r}; bertie supports {value!r}")


def choice(values: dict[str, Any], name: str, default: str, names: Mapping[T, str]) -> T:
    """Return bertie's name of the value of a key. names: the supported values by bertie's names. Raises UsageError."""
    ours = {theirs: ours for ours, theirs in names.items()}
    if (value := values.get(name, default)) not in ours:
        raise UsageError(f"{name} is {value!r:.60}; bertie supports {' and '.join(map(repr, ours))}")
    return ours[value]


def require_empty(values: dict[str, Any]) -> None:
    """Check the keys in `EMPTY`. Raises UsageError."""
    for name, what in EMPTY.items():
        if values.get(name):
            raise UsageError(f"{name} is {str(values[name])[:60]}; bertie does not support {what}")


def rotary_base(values: dict[str, Any], default: float) -> float:
    """Return the base of rotary positions. Raises UsageError if positions are scaled or rotate only a part of a head."""
    key = next((name for name in ("rope_scaling", "rope_parameters") if values.get(name)), "rope_parameters")
    rope = values.get(key) or {}
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default":
        raise UsageError(f"{key} is {str(rope)[:60]}; bertie supports the rope_type 'default'")
    if (share := rope.get("partial_rotary_factor", 1)) != 1:
        raise UsageError(f"{key} has the partial_rotary_factor {share!r}; bertie supports 1")
    return float(rope.get("rope_theta") or values.get("rope_theta") or default)


def require_head_size(values: dict[str, Any], width: int, heads: int) -> None:
    """Check `head_dim`. Raises UsageError if the heads together are not as wide as the hidden states."""
    size = values.get("head_dim")
    if size is not None and size * heads != width:
        raise UsageError(f"head_dim is {size!r}; bertie supports hidden_size {width} / num_attention_heads {heads}")


def sinusoidal_table(config: TransformerConfig) -> dict[str, Tensor]:
    """Return the matrix of sinusoidal positions, which Hugging Face stores and bertie computes; {} for other positions."""
    if config.position_embedding != "sinusoidal":
        return {}
    return {POSITION: SinusoidalEmbedding(config.max_position_embeddings, config.embedding_width).table.clone()}


def without_sinusoidal_table(config: TransformerConfig, weights: dict[str, Tensor]) -> TransformerConfig:
    """Remove the matrix of sinusoidal positions from weights. A matrix with other values is learned, and remains."""
    stored = weights.get(POSITION)
    if config.position_embedding != "sinusoidal" or stored is None:
        return config
    learned = replace(config, position_embedding="learned")
    if stored.shape != (config.max_position_embeddings, config.embedding_width):
        return learned
    if not torch.allclose(stored.float(), sinusoidal_table(config)[POSITION], atol=HALF_PRECISION):
        return learned
    del weights[POSITION]
    return config
