"""Keys of config.json that every class of transformers knows: without effect on results, or refused."""

from __future__ import annotations

from typing import Any

from bertie.errors import UsageError

READ = ("architectures", "model_type", "id2label", "problem_type", "num_labels", "_num_labels", "finetuning_task")
READ += ("pad_token_id", "tie_word_embeddings", "transformers_weights", "auto_map", "tokenizer_class", "generator")
"""Keys that bertie reads, whatever the family is."""
GENERATION = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "do_sample", "num_beams"),
    *(
        "num_beam_groups",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "top_h",
        "min_p",
    ),
    *("diversity_penalty", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "prefix", "output_scores"),
    *(
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "remove_invalid_values",
        "suppress_tokens",
    ),
    *("exponential_decay_length_penalty", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    *("decoder_start_token_id", "return_dict_in_generate", "task_specific_params", "max_time", "stop_strings"),
)
TOKENS = tuple(f"{name}_token_id" for name in ("bos", "eos", "cls", "sep", "mask", "unk"))
WITHOUT_EFFECT = (
    *("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype", "label2id"),
    *("output_attentions", "output_hidden_states", "output_past", "return_dict", "use_return_dict", "use_cache"),
    *(
        "chunk_size_feed_forward",
        "gradient_checkpointing",
        "torchscript",
        "use_bfloat16",
        "xla_device",
        "tie_encoder_decoder",
    ),
    *(
        "_attn_implementation",
        "attn_implementation",
        "_attn_implementation_autoset",
        "tf_legacy_loss",
        "function_to_apply",
    ),
    *("cross_attention_hidden_size", "tie_last_hidden_states", "is_composition", "language", "tags", "license"),
    # read with the files of sentence-transformers
    *("sentence_transformers", "sbert_ce_default_activation_function", "initializer_range", "transformers.js_config"),
    *("matryoshka_dimensions", "is_matryoshka"),  # `bertie serve` reads them
    # BERT's first conversions and Google's files
    *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"),
    *("pooler_type", "eos_token_ids"),
    *GENERATION,
    *TOKENS,
)
"""Keys that cannot change the result of an encoder or of a head for a task."""
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


def require_empty(values: dict[str, Any]) -> None:
    """Check the keys in `EMPTY`. Raises UsageError."""
    for name, what in EMPTY.items():
        if values.get(name):
            raise UsageError(f"{name} is {str(values[name])[:60]}; bertie does not support {what}")
