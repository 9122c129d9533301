"""Stand-ins for the encoders that people use most: small models with random weights, as transformers writes them.

Each has the class, the kind of tokenizer, the set of files and the odd keys of a checkpoint of the hub (`hub_table.py`).
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
import torch
import transformers
from hub_table import HubModel, Sentences
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
    tokenizer, own = train(model, folder), {*model.vocabulary_files}
    tokenizer.save_pretrained(folder)
    for name in {*own, "tokenizer.json"} - {*model.tokenizer_files}:
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


def wordpiece(model: HubModel, folder: Path) -> Any:
    cased = model.words == "cased wordpiece"
    trained = tokenizers.BertWordPieceTokenizer(lowercase=not cased)
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"] if model.architecture.startswith("MPNet") else None
    trained.train_from_iterator(
        TEXTS, vocab_size=400, **({"special_tokens": special} if special else {}), show_progress=False
    )
    entries = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n")
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    return class_of(model, "BertTokenizer")(vocab=vocabulary, do_lower_case=not cased)


def byte_level(model: HubModel, folder: Path) -> Any:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if not model.architecture.startswith("Roberta"):
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXTS, vocab_size=400, special_tokens=special, show_progress=False)
    trained.save_model(str(folder))
    if model.architecture.startswith("Roberta"):
        merges = [tuple(line.split(" ")) for line in (folder / "merges.txt").read_text().split("\n")[1:] if line]
        return transformers.RobertaTokenizer(vocab=trained.get_vocab(), merges=merges)
    engine = trained._tokenizer
    ids = {name: engine.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    pair = "[CLS] $A [SEP] $B [SEP]"
    engine.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, list(ids.items()))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=engine, **names)


def openai(model: HubModel, folder: Path) -> Any:  # noqa: ARG001
    trained = tokenizers.CharBPETokenizer(lowercase=True)
    trained.train_from_iterator(TEXTS, vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    trained.save_model(str(folder))
    merges = [tuple(line.split(" ")) for line in (folder / "merges.txt").read_text().split("\n")[1:] if line]
    return transformers.OpenAIGPTTokenizer(vocab=trained.get_vocab(), merges=merges)


def unigram(model: HubModel, folder: Path) -> Any:
    """Train SentencePiece's Unigram, and let transformers read its model."""
    starts, [name] = model.architecture.startswith, model.vocabulary_files
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
    return class_of(model, "XLMRobertaTokenizer").from_pretrained(folder)
