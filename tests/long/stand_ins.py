"""Small models of the kinds that people convert, beside those of hub_table.py, for the long tests that load the results."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tokenizers
import transformers
from safetensors.torch import load_file
from tokenizers import models, normalizers, trainers

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
from hub_models import TEXTS, build
from hub_table import DEBERTA_V3, DISTILBERT, HUB_MODELS, MODERNBERT, MPNET, NER, ROBERTA, SIZES, HubModel, Sentences

Change = Literal["added tokens", "settings of vectors", "no words"]
TWELVE = tuple(f"class {number}: Größe, “{number}”" for number in range(12))
TONES = ("toxic", "insult", "threat", "identity hate")
SCORE = ("LABEL_0",)
TEXT, SIGMOID = "ForSequenceClassification", "torch.nn.modules.activation.Sigmoid"
PROMPTS = {"query": "query: ", "document": "passage: ", "topic": "Find the topic of the text: "}
ADDED, ADDED_SPECIAL = ["<url>", "Zürichsee", "acme corp"], ["[E1]", "[E2]"]


@dataclass(frozen=True)
class StandIn:
    """A model, and how it differs from what hub_models.py builds."""

    model: HubModel
    change: Change | None = None

    @property
    def name(self) -> str:
        """What it stands for."""
        return self.model.name

    @property
    def scores_pairs(self) -> bool:
        """Whether it is a cross-encoder."""
        return "sbert_ce_default_activation_function" in self.model.added

    def build(self, folder: Path) -> None:
        """Write it as transformers does."""
        build(self.model, folder)
        changes = {"added tokens": add_tokens, "settings of vectors": set_vectors, "no words": remove_words}
        if self.change is not None:
            changes[self.change](folder)


def rewritten(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def add_tokens(folder: Path) -> None:
    """Add tokens as people do who fine-tune a model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(ADDED)
    tokenizer.add_special_tokens({"additional_special_tokens": ADDED_SPECIAL})
    tokenizer.save_pretrained(folder)
    _resize(folder, len(tokenizer))


def set_vectors(folder: Path) -> None:
    """Write the settings of sentence-transformers that change vectors."""
    settings = {"default_prompt_name": "topic", "similarity_fn_name": "dot", "truncate_dim": 20}
    rewritten(folder / "config_sentence_transformers.json", **settings)
    rewritten(folder / "sentence_bert_config.json", max_seq_length=40, do_lower_case=True)
    rewritten(folder / "1_Pooling" / "config.json", include_prompt=False)


def remove_words(folder: Path) -> None:
    """Replace the tokenizer by one that splits no text into words before it looks for entries."""
    engine = tokenizers.Tokenizer(models.Unigram())
    engine.normalizer = normalizers.NFKC()
    special = ["<unk>", "<s>", "</s>", "<pad>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    engine.train_from_iterator(TEXTS, trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    names |= {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
    ids = [(token, engine.token_to_id(token)) for token in ("<s>", "</s>")]
    engine.post_processor = tokenizers.processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", ids)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    transformers.PreTrainedTokenizerFast(tokenizer_object=engine, **names).save_pretrained(folder)
    _resize(folder, engine.get_vocab_size())


def _resize(folder: Path, rows: int) -> None:
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(folder)
    model.resize_token_embeddings(rows)
    model.save_pretrained(folder)
    assert any(len(tensor) == rows for tensor in load_file(folder / "model.safetensors").values())


def _texts(name: str, prefix: str, words: Any, values: dict[str, Any], **more: Any) -> StandIn:
    return StandIn(HubModel(name, prefix + TEXT, words, values, labels=more.pop("labels", TONES[:3]), **more))


KINDS = (
    _texts("12 classes", "Bert", "wordpiece", SIZES, labels=TWELVE),
    _texts("regression", "Bert", "wordpiece", SIZES, labels=SCORE, added={"problem_type": "regression"}),
    _texts(
        *("several labels", "Bert", "wordpiece", SIZES),
        labels=TONES,
        added={"problem_type": "multi_label_classification"},
    ),
    _texts(
        *("cross-encoder with sigmoid", "Bert", "wordpiece", SIZES),
        labels=SCORE,
        added={"sbert_ce_default_activation_function": SIGMOID},
    ),
    StandIn(HubModel("tagger", "BertForTokenClassification", "cased wordpiece", labels=NER)),
    StandIn(
        HubModel("prompts", "BertModel", "wordpiece", sentences=Sentences("mean", prompts=PROMPTS)),
        "settings of vectors",
    ),
    _texts("classes of XLM-RoBERTa", "XLMRoberta", "unigram", ROBERTA),
    _texts("classes of MPNet", "MPNet", "wordpiece", MPNET),
    StandIn(
        HubModel(
            "XLM-RoBERTa with prompts",
            "XLMRobertaModel",
            "unigram",
            ROBERTA,
            sentences=Sentences("cls", prompts=PROMPTS),
        )
    ),
    StandIn(HubModel("choice", "BertForMultipleChoice", "wordpiece")),
    StandIn(HubModel("added tokens", "BertForMaskedLM", "wordpiece"), "added tokens"),
    StandIn(HubModel("added tokens of RoBERTa", "RobertaForMaskedLM", "byte-level", ROBERTA), "added tokens"),
    StandIn(HubModel("added tokens of XLM-RoBERTa", "XLMRobertaForMaskedLM", "unigram", ROBERTA), "added tokens"),
    StandIn(HubModel("no words", "BertForMaskedLM", "wordpiece"), "no words"),
    _texts("classes of ModernBERT", "ModernBert", "byte-level", MODERNBERT, files="tokenizer.json"),
    _texts("classes of DeBERTa", "DebertaV2", "unigram", DEBERTA_V3),
    _texts("classes of CamemBERT", "Camembert", "unigram", ROBERTA),
    _texts("classes of ALBERT", "Albert", "unigram", SIZES | {"embedding_size": 24}),
    _texts("classes of ELECTRA", "Electra", "wordpiece", SIZES | {"embedding_size": 24}),
    _texts("12 classes of DistilBERT", "DistilBert", "wordpiece", DISTILBERT, labels=TWELVE),
    _texts("classes of XLNet", "XLNet", "unigram", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    StandIn(
        HubModel(
            *("first XLM", "XLMWithLMHeadModel", "wordpiece"),
            {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 130, "pad_index": 0},
        )
    ),
    StandIn(
        HubModel(
            *("GPT-2", "GPT2LMHeadModel", "byte-level"),
            {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 130, "bos_token_id": 2, "eos_token_id": 3},
            files="tokenizer.json",
        )
    ),
)
"""Kinds of heads and settings, and the families that the hub's models leave out."""
OF_THE_HUB = tuple(StandIn(model) for model in HUB_MODELS if not model.refused)
