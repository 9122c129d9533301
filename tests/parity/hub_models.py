"""Stand-ins for the encoders that people use most: small models with random weights, as transformers writes them.

Each has the class, the kind of tokenizer, the set of files and the odd keys of a checkpoint of the hub. The table is the
source of the page docs/guides/which-checkpoints.md.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import sentencepiece
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import processors
from torch import Tensor

TEXTS = (
    "The acetylcholine receptor binds two molecules, as Smith (2004) has shown for the first time.",
    "Ein Märchen über Zürich: Straße, Größe und naïve Café-Besucher im Jahr 1899.",
    "Η δίκη άρχισε στις εννέα το πρωί και ο μάρτυρας απάντησε σε όλες τις ερωτήσεις.",
    "最高法院昨天作出了判决。東京の夏は暑いです。",
    "उसने कहा कि यह किताब अच्छी है। Она не знает ответа.",
    "I didn't like it at all :( 5 stars, would not buy again!!! http://example.org/a?b=c #fail @you",
    "CC(=O)OC1=CC=CC=C1C(=O)O is read as a word, and so is N-acetyl-p-aminophenol.",
)
"""What the vocabularies are trained on, and what is compared."""
Words = Literal["wordpiece", "cased wordpiece", "byte-level", "unigram", "metaspace bpe", "openai"]
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
MODERNBERT = SIZES | {
    **{"global_attn_every_n_layers": 2, "local_attention": 8, "classifier_pooling": "mean", "pad_token_id": 0},
    **{"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
}


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
    weights: Literal["safetensors", "bin", "legacy bin", "sharded"] = "safetensors"
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
    """Pattern of the line with which bertie refuses it; empty: it loads."""


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
        "google-bert/bert-base-multilingual-cased",
        "BertForMaskedLM",
        "cased wordpiece",
        tokenizer_config=CASED,
        added=OLD_BERT,
        renamed=with_next_sentence,
    ),
    HubModel(
        "google-bert/bert-base-chinese", "BertForMaskedLM", "cased wordpiece", tokenizer_config=CASED, added=OLD_BERT
    ),
    HubModel(
        "google-bert/bert-large-uncased-whole-word-masking-finetuned-squad",
        "BertForQuestionAnswering",
        "wordpiece",
        tokenizer_config=UNCASED,
    ),
    HubModel("FacebookAI/roberta-base", "RobertaForMaskedLM", "byte-level", ROBERTA),
    HubModel("FacebookAI/xlm-roberta-base", "XLMRobertaForMaskedLM", "unigram", ROBERTA, added={"output_past": True}),
    HubModel("almanach/camembert-base", "CamembertForMaskedLM", "unigram", ROBERTA),
    HubModel(
        "microsoft/mpnet-base",
        "MPNetForMaskedLM",
        "wordpiece",
        SIZES | {"relative_attention_num_buckets": 32},
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
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 130},
        tokenizer_config=UNCASED,
        added={"tie_weights_": True},
    ),
    HubModel(
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        "DistilBertForSequenceClassification",
        "wordpiece",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 130},
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
        SIZES
        | {
            "num_key_value_heads": 4,
            "head_dim": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "mask_token_id": 3,
        },
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
    HubModel("Alibaba-NLP/gte-base-en-v1.5", "NewModel", "wordpiece", refused="model_type"),
    HubModel("jinaai/jina-embeddings-v2-base-en", "JinaBertForMaskedLM", "wordpiece", refused="alibi"),
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
        SIZES | {"relative_attention_num_buckets": 32},
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
        "dmis-lab/biobert-v1.1",
        "BertModel",
        "cased wordpiece",
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
        "nlpaueb/legal-bert-base-uncased",
        "BertForPreTraining",
        "wordpiece",
        weights="bin",
        tokenizer_config={"do_lower_case": True},
        added={"output_past": True, "eos_token_ids": 0},
    ),
    HubModel(
        "nlpaueb/bert-base-greek-uncased-v1",
        "BertForPreTraining",
        "wordpiece",
        weights="bin",
        added={"eos_token_ids": 0, "output_past": True},
    ),
    HubModel(
        "severinsimmler/literary-german-bert",
        "BertForTokenClassification",
        "cased wordpiece",
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


def build(model: HubModel, folder: Path) -> None:
    """Write the stand-in of a checkpoint."""
    torch.manual_seed(0)
    vocabulary = write_tokenizer(model, folder)
    known = getattr(transformers, model.architecture, None)
    written = known or transformers.BertModel  # a class of remote code: the weights of another one, under its name
    values = dict(model.values) | {"vocab_size": vocabulary}
    if model.labels:
        values |= {"num_labels": len(model.labels), "id2label": dict(enumerate(model.labels))}
        values |= {"label2id": {label: i for i, label in enumerate(model.labels)}}
    network = written(written.config_class(**values))
    for parameter in network.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.15)
    network.eval().save_pretrained(folder)
    write_config(model, folder, remote=known is None)
    weights = model.renamed(load_file(folder / "model.safetensors"))
    write_weights(model, {name: tensor.contiguous() for name, tensor in weights.items()}, folder)
    if model.sentences is not None:
        write_sentences(model.sentences, 32, folder)


def write_config(model: HubModel, folder: Path, *, remote: bool) -> None:
    values = json.loads((folder / "config.json").read_text()) | model.added
    if remote:
        values |= {
            "architectures": [model.architecture],
            "auto_map": {"AutoModel": f"remote--code.{model.architecture}"},
        }
        values |= {"model_type": "new"} if model.architecture == "NewModel" else {"position_embedding_type": "alibi"}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if k not in model.removed}))


def write_weights(model: HubModel, weights: dict[str, Tensor], folder: Path) -> None:
    path = folder / "model.safetensors"
    if model.weights == "safetensors":
        save_file(weights, path, metadata={"format": "pt"})
        return
    path.unlink()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=model.weights != "legacy bin")


def write_sentences(how: Sentences, width: int, folder: Path) -> None:
    """Write the files of sentence-transformers, with the keys of its versions 2 to 5."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *([("Normalize", "2_Normalize")] if how.normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    pooling = {"word_embedding_dimension": width, "pooling_mode_cls_token": how.pooling == "cls"}
    pooling |= {"pooling_mode_mean_tokens": how.pooling == "mean", "pooling_mode_max_tokens": False}
    versions = {"sentence_transformers": "2.2.2", "transformers": "4.28.1", "pytorch": "1.13.0"}
    config = {"__version__": versions} | ({"prompts": how.prompts} if how.prompts else {})
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": how.length, "do_lower_case": False},
        "config_sentence_transformers.json": config,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def write_tokenizer(model: HubModel, folder: Path) -> int:
    """Train a tokenizer on `TEXTS` and write its files. Returns the number of its entries."""
    folder.mkdir(parents=True, exist_ok=True)
    train = {"byte-level": byte_level, "openai": openai, "unigram": unigram}.get(model.words, wordpiece)
    tokenizer, own = train(model, folder)
    tokenizer.save_pretrained(folder)
    keep = {"all": {*own, "tokenizer.json"}, "tokenizer.json": {"tokenizer.json"}, "vocabulary": own}[model.files]
    for name in {*own, "tokenizer.json"} - keep:
        (folder / name).unlink()
    if model.tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(model.tokenizer_config))
        if not model.tokenizer_config:
            (folder / "tokenizer_config.json").unlink()
    return len(tokenizer)


def class_of(model: HubModel, default: str) -> Any:
    """Return the class of the tokenizer of a family, whose name begins like that of the model's class."""
    prefixes = ("DistilBert", "Electra", "MPNet", "Roberta", "XLMRoberta", "Camembert", "Albert", "XLNet", "DebertaV2")
    found = next((prefix for prefix in prefixes if model.architecture.startswith(prefix)), None)
    return getattr(transformers, f"{found}Tokenizer" if found else default)


def wordpiece(model: HubModel, folder: Path) -> tuple[Any, set[str]]:
    cased = model.words == "cased wordpiece"
    trained = tokenizers.BertWordPieceTokenizer(lowercase=not cased)
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"] if model.architecture.startswith("MPNet") else None
    trained.train_from_iterator(
        TEXTS, vocab_size=400, **({"special_tokens": special} if special else {}), show_progress=False
    )
    entries = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    return class_of(model, "BertTokenizer")(vocab=vocabulary, do_lower_case=not cased), {"vocab.txt"}


def byte_level(model: HubModel, folder: Path) -> tuple[Any, set[str]]:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if not model.architecture.startswith("Roberta"):
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXTS, vocab_size=400, special_tokens=special, show_progress=False)
    trained.save_model(str(folder))
    if model.architecture.startswith("Roberta"):
        merges = [tuple(line.split(" ")) for line in (folder / "merges.txt").read_text().split("\n")[1:] if line]
        return transformers.RobertaTokenizer(vocab=trained.get_vocab(), merges=merges), {"vocab.json", "merges.txt"}
    engine = trained._tokenizer
    ids = {name: engine.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    pair = "[CLS] $A [SEP] $B [SEP]"
    engine.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, list(ids.items()))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=engine, **names), {"vocab.json", "merges.txt"}


def openai(model: HubModel, folder: Path) -> tuple[Any, set[str]]:  # noqa: ARG001
    trained = tokenizers.CharBPETokenizer(lowercase=True)
    trained.train_from_iterator(TEXTS, vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    trained.save_model(str(folder))
    merges = [tuple(line.split(" ")) for line in (folder / "merges.txt").read_text().split("\n")[1:] if line]
    return transformers.OpenAIGPTTokenizer(vocab=trained.get_vocab(), merges=merges), {"vocab.json", "merges.txt"}


NAMES_OF_MODELS = {
    "Bert": "sentencepiece.bpe.model",
    "XLMRoberta": "sentencepiece.bpe.model",
    "Camembert": "sentencepiece.bpe.model",
    "DebertaV2": "spm.model",
}


def unigram(model: HubModel, folder: Path) -> tuple[Any, set[str]]:
    """Train SentencePiece's Unigram, and let transformers read its model."""
    starts = model.architecture.startswith
    name = next((name for prefix, name in NAMES_OF_MODELS.items() if starts(prefix)), "spiece.model")
    kinds = {"Albert": "[CLS] [SEP] [MASK]", "DebertaV2": "[CLS] [SEP]", "XLNet": "<cls> <sep> <mask>"}
    control = next((each.split() for prefix, each in kinds.items() if starts(prefix)), [])
    start = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3} if control else {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=written,
        vocab_size=300,
        hard_vocab_limit=False,
        minloglevel=2,
        character_coverage=1.0,
        num_threads=1,
        control_symbols=control,
        **start,
    )
    (folder / name).write_bytes(written.getvalue())
    return class_of(model, "XLMRobertaTokenizer").from_pretrained(folder), {name}
