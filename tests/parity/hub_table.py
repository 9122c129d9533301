"""The encoders that people use most, and what a small model needs to be like each. `hub_models.py` builds them.

The table is also the source of the page docs/reference/checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Words = Literal["wordpiece", "cased wordpiece", "byte-level", "unigram", "openai"]
SIZES = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    "max_position_embeddings": 130,
}
ROBERTA = SIZES | {
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
OLD_BERT = {  # what files of 2019 have, and what transformers of today does not write
    **{"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3},
    **{"pooler_size_per_head": 128, "pooler_type": "first_token_transform", "output_past": True},
}
DEBERTA_V3 = SIZES | {
    **{"relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    **{"pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1, "position_biased_input": False},
    **{"pooler_dropout": 0, "pooler_hidden_act": "gelu", "type_vocab_size": 0},
}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 130}
MPNET = SIZES | {"relative_attention_num_buckets": 32}
EUROBERT = SIZES | {
    **{"num_key_value_heads": 4, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "mask_token_id": 3,
}
MODERNBERT = SIZES | {
    **{"global_attn_every_n_layers": 2, "local_attention": 8, "classifier_pooling": "mean", "pad_token_id": 0},
    **{"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
}


SENTENCEPIECE = {
    "Bert": "sentencepiece.bpe.model",
    "XLMRoberta": "sentencepiece.bpe.model",
    "Camembert": "sentencepiece.bpe.model",
    "DebertaV2": "spm.model",
}
"""Names of SentencePiece models by the start of the model's class; others are spiece.model."""


@dataclass(frozen=True)
class Sentences:
    """The files of sentence-transformers."""

    pooling: Literal["cls", "mean"] = "mean"
    normalize: bool = True
    prompts: dict[str, str] = field(default_factory=dict)
    length: int = 128
    dense: bool = False


@dataclass(frozen=True)
class HubModel:
    """A checkpoint of the hub, and what a small model needs to be like it."""

    name: str
    """Its id on the hub."""
    architecture: str
    """Class of transformers that wrote it."""
    words: Words
    """Kind of its tokenizer."""
    values: dict[str, Any] = field(default_factory=lambda: dict(SIZES))
    """Keys of its configuration, at a small size."""
    weights: Literal["safetensors", "bin", "legacy bin"] = "safetensors"
    files: Literal["all", "tokenizer.json", "vocabulary"] = "all"
    """The tokenizer's files: all; without the vocabulary's own file; or the vocabulary's own file alone."""
    added: dict[str, Any] = field(default_factory=dict)
    """Keys that config.json has besides those that transformers writes today."""
    removed: tuple[str, ...] = ()
    """Keys that its config.json lacks."""
    tokenizer_config: dict[str, Any] | None = None
    """Its tokenizer_config.json where it is not what transformers writes; {}: it has none."""
    labels: tuple[str, ...] = ()
    sentences: Sentences | None = None
    renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda weights: weights
    """What makes its weights other than those that transformers writes today."""
    refused: str = ""
    """A part of the line with which bertie refuses it; empty: it loads."""

    @property
    def vocabulary_files(self) -> tuple[str, ...]:
        """Names of the files of its vocabulary, without tokenizer.json."""
        if self.words in ("byte-level", "openai"):
            return "vocab.json", "merges.txt"
        if self.words != "unigram":
            return ("vocab.txt",)
        names = (name for prefix, name in SENTENCEPIECE.items() if self.architecture.startswith(prefix))
        return (next(names, "spiece.model"),)

    @property
    def tokenizer_files(self) -> tuple[str, ...]:
        """Names of the files of its tokenizer, without its settings."""
        own = () if self.files == "tokenizer.json" else self.vocabulary_files
        return own if self.files == "vocabulary" else ("tokenizer.json", *own)


def old_norms(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with the names of BERT's first release in PyTorch."""
    new = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {next((k.replace(a, b) for a, b in new.items() if k.endswith(a)), k): v for k, v in weights.items()}


def with_next_sentence(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the heads of pre-training that google-bert's files have, and that the class in config.json does not name."""
    width = weights["bert.embeddings.word_embeddings.weight"].shape[1]
    more = {"cls.seq_relationship.weight": torch.randn(2, width), "cls.seq_relationship.bias": torch.randn(2)}
    more |= {"bert.pooler.dense.weight": torch.randn(width, width), "bert.pooler.dense.bias": torch.randn(width)}
    more["bert.embeddings.position_ids"] = torch.arange(130)[None]
    return old_norms(weights | more)


def with_pretraining_heads_of_deberta(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights as microsoft/deberta-v3-base has them: fp16, and heads that transformers has no class for."""
    width = weights["embeddings.word_embeddings.weight"].shape[1]
    head = {"dense.weight": torch.randn(width, width), "dense.bias": torch.randn(width)}
    head |= {"LayerNorm.weight": torch.randn(width), "LayerNorm.bias": torch.randn(width)}
    named = {f"deberta.{name}": tensor for name, tensor in weights.items()}
    named |= {f"lm_predictions.lm_head.{name}": tensor for name, tensor in head.items()}
    named |= {f"mask_predictions.{name}": tensor for name, tensor in head.items()}
    named |= {
        "mask_predictions.classifier.weight": torch.randn(1, width),
        "mask_predictions.classifier.bias": torch.randn(1),
    }
    named["lm_predictions.lm_head.bias"] = torch.randn(len(weights["embeddings.word_embeddings.weight"]))
    return {name: tensor.half() for name, tensor in named.items()}


NER = ("O", "B-MISC", "I-MISC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
UNCASED = {"do_lower_case": True, "model_max_length": 128}
CASED = {"do_lower_case": False, "model_max_length": 128}
HUB_MODELS = (
    HubModel(
        "google-bert/bert-base-uncased",
        "BertForMaskedLM",
        "wordpiece",
        tokenizer_config=UNCASED,
        renamed=with_next_sentence,
        added={"gradient_checkpointing": False},
    ),
    HubModel(
        "google-bert/bert-base-cased",
        "BertForMaskedLM",
        "cased wordpiece",
        tokenizer_config=CASED,
        renamed=with_next_sentence,
    ),
    HubModel(
        *("google-bert/bert-base-multilingual-cased", "BertForMaskedLM", "cased wordpiece"),
        tokenizer_config=CASED,
        added=OLD_BERT,
        renamed=with_next_sentence,
    ),
    HubModel(
        "google-bert/bert-base-chinese", "BertForMaskedLM", "cased wordpiece", tokenizer_config=CASED, added=OLD_BERT
    ),
    HubModel(
        *("google-bert/bert-large-uncased-whole-word-masking-finetuned-squad", "BertForQuestionAnswering", "wordpiece"),
        tokenizer_config=UNCASED,
    ),
    HubModel("FacebookAI/roberta-base", "RobertaForMaskedLM", "byte-level", ROBERTA),
    HubModel("FacebookAI/xlm-roberta-base", "XLMRobertaForMaskedLM", "unigram", ROBERTA, added={"output_past": True}),
    HubModel("almanach/camembert-base", "CamembertForMaskedLM", "unigram", ROBERTA),
    HubModel(
        "microsoft/mpnet-base",
        "MPNetForMaskedLM",
        "wordpiece",
        MPNET,
        weights="bin",
    ),
    HubModel(
        "microsoft/deberta-v3-base",
        "DebertaV2Model",
        "unigram",
        DEBERTA_V3,
        weights="bin",
        files="vocabulary",
        removed=("architectures",),
        tokenizer_config={"do_lower_case": False, "vocab_type": "spm"},
        renamed=with_pretraining_heads_of_deberta,
    ),
    HubModel(
        "distilbert/distilbert-base-uncased",
        "DistilBertForMaskedLM",
        "wordpiece",
        DISTILBERT,
        tokenizer_config=UNCASED,
        added={"tie_weights_": True},
    ),
    HubModel(
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        "DistilBertForSequenceClassification",
        "wordpiece",
        DISTILBERT,
        labels=("NEGATIVE", "POSITIVE"),
        added={"tie_weights_": True, "finetuning_task": "sst-2", "output_past": True},
    ),
    HubModel(
        "google/electra-base-discriminator",
        "ElectraForPreTraining",
        "wordpiece",
        SIZES | {"embedding_size": 32},
        weights="bin",
        tokenizer_config=UNCASED,
    ),
    HubModel(
        "albert/albert-base-v2",
        "AlbertForMaskedLM",
        "unigram",
        SIZES | {"embedding_size": 24, "hidden_act": "gelu_new"},
        added={"net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0, "down_scale_factor": 1},
    ),
    HubModel("answerdotai/ModernBERT-base", "ModernBertForMaskedLM", "byte-level", MODERNBERT, files="tokenizer.json"),
    HubModel(
        "xlnet/xlnet-base-cased",
        "XLNetLMHeadModel",
        "unigram",
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        weights="bin",
    ),
    HubModel(
        "openai-community/openai-gpt",
        "OpenAIGPTLMHeadModel",
        "openai",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 130},
    ),
    HubModel(
        "EuroBERT/EuroBERT-210m",
        "EuroBertForMaskedLM",
        "byte-level",
        EUROBERT,
        files="tokenizer.json",
    ),
    HubModel(
        "nomic-ai/nomic-embed-text-v1.5",
        "NomicBertModel",
        "wordpiece",
        SIZES,
        sentences=Sentences("mean", normalize=False, length=128),
    ),
    HubModel("intfloat/e5-base-v2", "BertModel", "wordpiece", sentences=Sentences("mean")),
    HubModel(
        "intfloat/multilingual-e5-base",
        "XLMRobertaModel",
        "unigram",
        ROBERTA,
        sentences=Sentences("mean"),
        added={"output_past": True},
    ),
    HubModel(
        "BAAI/bge-small-en-v1.5",
        "BertModel",
        "wordpiece",
        sentences=Sentences("cls"),
        added={"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    ),
    HubModel("BAAI/bge-m3", "XLMRobertaModel", "unigram", ROBERTA, weights="bin", sentences=Sentences("cls")),
    HubModel("thenlper/gte-base", "BertModel", "wordpiece", sentences=Sentences("mean")),
    HubModel(
        "Alibaba-NLP/gte-base-en-v1.5",
        "NewModel",
        "wordpiece",
        refused="model_type is 'new', with code of its own (auto_map), which bertie does not run",
    ),
    HubModel(
        "jinaai/jina-embeddings-v2-base-en",
        "JinaBertForMaskedLM",
        "wordpiece",
        refused="position_embedding_type is 'alibi'",
    ),
    HubModel(
        "Snowflake/snowflake-arctic-embed-m",
        "BertModel",
        "wordpiece",
        sentences=Sentences("cls", prompts={"query": "Represent this sentence for searching relevant passages: "}),
    ),
    HubModel(
        "sentence-transformers/all-MiniLM-L6-v2",
        "BertModel",
        "wordpiece",
        sentences=Sentences("mean"),
        added={"gradient_checkpointing": False},
    ),
    HubModel(
        "sentence-transformers/all-mpnet-base-v2",
        "MPNetForMaskedLM",
        "wordpiece",
        MPNET,
        sentences=Sentences("mean"),
    ),
    HubModel(
        "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        "BertModel",
        "unigram",
        SIZES,
        sentences=Sentences("mean", normalize=False),
    ),
    HubModel(
        "cross-encoder/ms-marco-MiniLM-L6-v2",
        "BertForSequenceClassification",
        "wordpiece",
        labels=("LABEL_0",),
        added={"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ),
    HubModel("BAAI/bge-reranker-base", "XLMRobertaForSequenceClassification", "unigram", ROBERTA, labels=("LABEL_0",)),
    HubModel(
        "dslim/bert-base-NER",
        "BertForTokenClassification",
        "cased wordpiece",
        labels=NER,
        tokenizer_config=CASED | {"max_len": 128, "init_inputs": []},
        added={"_num_labels": 9},
    ),
    HubModel(
        "nlptown/bert-base-multilingual-uncased-sentiment",
        "BertForSequenceClassification",
        "wordpiece",
        labels=STARS,
        added=OLD_BERT | {"_num_labels": 5, "finetuning_task": "sentiment-analysis"},
    ),
    HubModel(
        "cardiffnlp/twitter-roberta-base-sentiment-latest",
        "RobertaForSequenceClassification",
        "byte-level",
        ROBERTA,
        weights="bin",
        files="vocabulary",
        labels=("negative", "neutral", "positive"),
    ),
    HubModel(
        *("dmis-lab/biobert-v1.1", "BertModel", "cased wordpiece"),
        weights="bin",
        files="vocabulary",
        tokenizer_config={},
        removed=("architectures",),
    ),
    HubModel(
        "allenai/scibert_scivocab_uncased",
        "BertModel",
        "wordpiece",
        weights="legacy bin",
        files="vocabulary",
        tokenizer_config={},
        removed=("architectures",),
        renamed=old_norms,
    ),
    HubModel(
        "ProsusAI/finbert",
        "BertForSequenceClassification",
        "wordpiece",
        weights="bin",
        files="vocabulary",
        labels=("positive", "negative", "neutral"),
        tokenizer_config={"do_lower_case": True},
    ),
    HubModel(
        *("nlpaueb/legal-bert-base-uncased", "BertForPreTraining", "wordpiece"),
        weights="bin",
        tokenizer_config={"do_lower_case": True},
        added={"output_past": True, "eos_token_ids": 0},
    ),
    HubModel(
        *("nlpaueb/bert-base-greek-uncased-v1", "BertForPreTraining", "wordpiece"),
        weights="bin",
        added={"eos_token_ids": 0, "output_past": True},
    ),
    HubModel(
        *("severinsimmler/literary-german-bert", "BertForTokenClassification", "cased wordpiece"),
        weights="bin",
        labels=("O", "B-PER", "I-PER"),
        tokenizer_config=CASED,
    ),
    HubModel("seyonec/ChemBERTa-zinc-base-v1", "RobertaForMaskedLM", "byte-level", ROBERTA, weights="bin"),
    HubModel(
        "SpanBERT/spanbert-base-cased",
        "BertModel",
        "cased wordpiece",
        weights="legacy bin",
        files="vocabulary",
        tokenizer_config={},
        removed=("architectures",),
    ),
)
