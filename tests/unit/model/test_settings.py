"""Settings of encoders that do not go together are refused, and the message names the key."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoders.characters import Characters
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.encoders.reformer_config import ReformerConfig, idle_settings
from bertie.model.encoders.transformer_xl import TransformerXlConfig
from bertie.model.encoders.xlnet import XlnetConfig

BERT = TransformerConfig(6, 16, 4, 24, vocab_size=50)
SHARED = replace(BERT, num_hidden_groups=2)
DEBERTA = replace(BERT, disentangled_distances=16, position_embedding="none")
ELMO = LstmConfig(2, 12, 10)
CHUNKS: dict[str, Any] = {"local_attn_chunk_length": 4, "lsh_attn_chunk_length": 8, "num_buckets": (4, 2)}
GRID: dict[str, Any] = {"max_position_embeddings": 64, "axial_pos_shape": (8, 8), "axial_pos_embds_dim": (4, 12)}
REFORMER = ReformerConfig(("local", "lsh"), 32, 2, 24, **GRID, **CHUNKS)
LOCAL = replace(REFORMER, attn_layers=("local",), **idle_settings(["local"], "axial"))
LEARNED = replace(REFORMER, position_embedding="learned", **idle_settings(["local", "lsh"], "learned"))
XL = TransformerXlConfig(3, 8, 2, 12, segment_length=4, memory_length=6)
XLNET = XlnetConfig(3, 8, 2, 12, segment_length=4, memory_length=6)


@pytest.mark.parametrize(
    ("config", "changes", "key"),
    [
        (BERT, {"hidden_size": 33}, "model.hidden_size 33"),
        (BERT, {"num_hidden_layers": 0}, "model.num_hidden_layers is 0"),
        (BERT, {"num_hidden_groups": 7}, "model.num_hidden_groups is 7"),
        (BERT, {"local_attention": 5}, "model.local_attention is 5"),
        (BERT, {"relative_bias_buckets": 6}, "model.relative_bias_buckets is 6"),
        (BERT, {"num_key_value_heads": 3}, "model.num_key_value_heads is 3"),
        (BERT, {"hidden_size": 12, "position_embedding": "rotary"}, "model.position_embedding"),
        (BERT, {"pooler_act": "none", "norm_position": "modern"}, "model.pooler_act"),
        (BERT, {"mlm_transform": False, "embedding_size": 8}, "model.mlm_transform"),
        (BERT, {"conv_kernel_size": 3}, "model.conv_kernel_size is 3"),
        (BERT, {"languages": ("en",)}, "model.language_embeddings"),
        (BERT, {"languages": ("en", "en"), "language_embeddings": True}, "model.languages"),
        (BERT, {"languages": ("en",), "language": "de", "language_embeddings": True}, "model.language is 'de'"),
        (SHARED, {"local_attention": 4}, "model.num_hidden_groups"),
        (SHARED, {"norm_position": "modern"}, "model.num_hidden_groups"),
        (DEBERTA, {"causal": True}, "model.disentangled_distances"),
        (DEBERTA, {"position_embedding": "rotary"}, "model.disentangled_distances"),
        (DEBERTA, {"disentangled_buckets": 1}, "model.disentangled_buckets"),
        (DEBERTA, {"conv_kernel_size": 2}, "model.conv_kernel_size is 2"),
        (DEBERTA, {"num_key_value_heads": 1}, "model.num_key_value_heads is 1"),
        (ELMO, {"hidden_size": 13}, "model.hidden_size is 13"),
        (ELMO, {"cell_size": 5}, "model.cell_size is 5"),
        (Characters(), {"filters": ()}, "model.input.filters is []"),
        (Characters(), {"filters": (3,) * 9, "max_characters": 8}, "model.input.filters"),
        (Characters(), {"filters": (3, 0)}, "model.input.filters is [3, 0]"),
        (Characters(), {"max_characters": 2}, "model.input.max_characters is 2"),
        (REFORMER, {"hidden_size": 33}, "model.hidden_size is 33"),
        (REFORMER, {"num_attention_heads": 3}, "model.num_attention_heads 3"),
        (REFORMER, {"attn_layers": ()}, "model.attn_layers"),
        (REFORMER, {"num_buckets": (3,)}, "model.num_buckets is [3]"),
        (REFORMER, {"num_buckets": (2, 0)}, "model.num_buckets is [2, 0]"),
        (REFORMER, {"num_buckets": (2, 6)}, "model.num_buckets is [2, 6]"),
        (REFORMER, {"axial_pos_shape": (8, 4)}, "model.axial_pos_shape is [8, 4]"),
        (REFORMER, {"axial_pos_shape": (64,)}, "model.axial_pos_shape is [64]"),
        (REFORMER, {"axial_pos_embds_dim": (8, 12)}, "model.axial_pos_embds_dim is [8, 12]"),
        (REFORMER, {"local_attn_chunk_length": 7}, "model.local_attn_chunk_length is 7"),
        (REFORMER, {"lsh_attn_chunk_length": 24}, "model.lsh_attn_chunk_length is 24"),
        (REFORMER, {"causal": True, "lsh_num_chunks_after": 1}, "model.lsh_num_chunks_after is 1"),
        (LOCAL, {"num_hashes": 3}, "model.num_hashes has no effect"),
        (LEARNED, {"axial_pos_shape": (3, 3)}, "model.axial_pos_shape has no effect"),
        (XL, {"hidden_size": 9}, "model.hidden_size is 9"),
        (XL, {"segment_length": 0}, "model.segment_length is 0"),
        (XL, {"memory_length": -1}, "model.memory_length is -1"),
        (XLNET, {"num_attention_heads": 3}, "model.num_attention_heads 3"),
        (XLNET, {"hidden_dropout_prob": 1.0}, "model.hidden_dropout_prob is 1"),
        (XLNET, {"segment_length": 0}, "model.segment_length and model.memory_length"),
        (XLNET, {"memory_length": 0}, "model.segment_length and model.memory_length"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(config: Any, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=re.escape(key)):
        replace(config, **changes)
