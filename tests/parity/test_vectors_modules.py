"""Folders of sentence-transformers: vectors, similarities and scores compared with that library, over its settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.base.errors import UsageError
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import read_checkpoint
from bertie.tokenizers.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
sentence_transformers: Any = pytest.importorskip(
    "sentence_transformers", reason="needs the package sentence-transformers"
)
TEXTS = ["A café in 東京.", "", "The quick BROWN fox jumps Over the lazy dog İ", "unbelievable", "a long text " * 30]
WIDTH = 32


@pytest.fixture(scope="module")
def encoder(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with a vocabulary that has capital letters, and random weights."""
    folder = tmp_path_factory.mktemp("encoder")
    entries = [*small_tokenizer.vocabulary, *"ABCDEFGHIJKLMNOPQRSTUVWXYZé", "Over", "BROWN", "##R", "query", "passage"]
    tokenizer = Tokenizer.build(
        list(dict.fromkeys(entries)), bertie.tokenizers.tokenizer.NormalizerOptions(lowercase=False)
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(
        **sizes, vocab_size=tokenizer.size, max_position_embeddings=64, initializer_range=0.3
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save(folder, 64)
    return folder


def write(folder: Path, name: str, values: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(values))


def dense(folder: Path, at: str, sizes: tuple[int, int], pickled: bool = False, **settings: Any) -> str:
    """Write a module Dense."""
    write(folder, f"{at}/config.json", {"in_features": sizes[0], "out_features": sizes[1], "bias": True, **settings})
    weights = {"linear.weight": torch.randn(*sizes[::-1]) / 4, "linear.bias": torch.randn(sizes[1])}
    if not settings.get("bias", True):
        weights.pop("linear.bias")
    if settings.get("use_residual") and sizes[0] != sizes[1]:
        weights["residual.weight"] = torch.randn(*sizes[::-1])
    if pickled:
        torch.save(weights, folder / at / "pytorch_model.bin")
    else:
        bertie.checkpoints.folder.save_tensors(weights, folder / at / "model.safetensors")
    return at


def plain(folder: Path, at: str, values: dict[str, Any]) -> str:
    """Write a module without weights."""
    write(folder, f"{at}/config.json", values)
    return at


def norm(folder: Path, at: str, width: int) -> str:
    """Write a module LayerNorm."""
    write(folder, f"{at}/config.json", {"dimension": width})
    weights = {"norm.weight": torch.randn(width), "norm.bias": torch.randn(width)}
    bertie.checkpoints.folder.save_tensors(weights, folder / at / "model.safetensors")
    return at


def built(encoder: Path, out: Path, case: dict[str, Any]) -> Path:
    """Write a folder with the files of a case."""
    inner = out / case.get("encoder", "")
    shutil.copytree(encoder, inner)
    write(out, "1_Pooling/config.json", {"word_embedding_dimension": WIDTH, **case.get("pooling", {})})
    paths = ["1_Pooling", *(add(out) for add in case.get("modules", ()))]
    module = "sentence_transformers.models.{}"
    listed = [(case.get("encoder", ""), "Transformer"), *((path, path.split("_")[1]) for path in paths)]
    entries = [{"idx": i, "name": str(i), "path": path, "type": module.format(t)} for i, (path, t) in enumerate(listed)]
    write(out, "modules.json", entries)
    for name, values in case.get("files", {}).items():
        write(inner if name.endswith("bert_config.json") else out, name, values)
    return out


def mode(*names: str) -> dict[str, Any]:
    return {"pooling_mode": list(names) if len(names) > 1 else names[0]}


PROMPTS = {"prompts": {"query": "Query: ", "passage": "passage: "}, "default_prompt_name": "passage"}
NORMALIZE, GENERAL = "2_Normalize", "config_sentence_transformers.json"
CASES: dict[str, dict[str, Any]] = {
    "oldest layout": {
        "encoder": "0_Transformer",
        "files": {
            "config.json": {"__version__": "0.3.8"},
            "sentence_roberta_config.json": {"max_seq_length": 16, "do_lower_case": True},
        },
        "pooling": {"pooling_mode_cls_token": True, "pooling_mode_mean_sqrt_len_tokens": True},
    },
    "all old modes": {
        "pooling": {
            f"pooling_mode_{name}": name != "max_tokens"
            for name in ("max_tokens", "weightedmean_tokens", "lasttoken", "mean_tokens", "cls_token")
        },
        "files": {"sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": False}},
    },
    "no old mode": {"pooling": {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}},
    "modules": {
        "pooling": mode("mean", "max"),
        "modules": (
            lambda at: dense(at, "2_Dense", (64, 24), pickled=True),
            lambda at: norm(at, "3_LayerNorm", 24),
            lambda at: dense(
                at, "4_Dense", (24, 24), activation_function="torch.nn.modules.activation.GELU", use_residual=True
            ),
            lambda at: dense(
                at,
                "5_Dense",
                (24, 16),
                activation_function="torch.nn.modules.linear.Identity",
                use_residual=True,
                bias=False,
            ),
            lambda at: plain(at, "6_Dropout", {"dropout": 0.3}),
            lambda at: plain(at, "7_Normalize", {}),
        ),
        "files": {GENERAL: {"truncate_dim": 12, "similarity_fn_name": "manhattan", **PROMPTS}},
    },
    "prompt not pooled": {
        "pooling": {**mode("weightedmean", "cls", "mean", "max", "lasttoken"), "include_prompt": False},
        "files": {
            GENERAL: {**PROMPTS, "similarity_fn_name": "euclidean"},
            "sentence_bert_config.json": {"do_lower_case": True, "max_seq_length": 12},
        },
    },
    "cls after the prompt": {
        "pooling": {**mode("cls"), "include_prompt": False},
        "files": {GENERAL: {**PROMPTS, "similarity_fn_name": "dot", "__version__": {"pytorch": "2"}}},
    },
}


def test_vectors_and_similarities_are_equal_and_survive_writing(encoder: Path, tmp_path: Path) -> None:
    wrong = []
    for name, case in CASES.items():
        torch.manual_seed(1)
        folder = built(encoder, tmp_path / name, case)
        theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
        ours = bertie.load(folder, threads=1)
        source = read_checkpoint(folder).without_weights()
        written = tmp_path / f"{name} written"
        written.mkdir()
        write_model(written, ours.model, ours.tokenizer, {"max_length": ours.max_length}, source=source)
        (written / "task.json").unlink()
        again = bertie.load(written, threads=1)
        for prompt in (None, "query", "document", *(["passage"] if GENERAL in case.get("files", {}) else [])):
            expected = theirs.encode(TEXTS, prompt_name=prompt)
            for which, model in (("read", ours), ("written", again)):
                difference = np.abs(model.embed(TEXTS, prompt_name=prompt) - expected).max()
                if not difference < 1e-5:
                    wrong.append(f"{name}, {which}, prompt {prompt}: {difference}")
        vectors = theirs.encode(TEXTS)
        np.testing.assert_allclose(ours.similarity(TEXTS), theirs.similarity(vectors, vectors), atol=2e-4)
        assert ours.similarity(TEXTS[:1], TEXTS)[0].argmax() == 0
    assert not wrong, "\n".join(wrong)


def test_query_and_document_are_those_of_the_library(encoder: Path, tmp_path: Path) -> None:
    folder = built(encoder, tmp_path / "x", CASES["cls after the prompt"])
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    ours = bertie.load(folder, threads=1)
    np.testing.assert_allclose(ours.embed(TEXTS, prompt_name="query"), theirs.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(ours.embed(TEXTS, prompt_name="document"), theirs.encode_document(TEXTS), atol=1e-5)
    own = ours.embed(TEXTS, prompt="Say: ")
    np.testing.assert_allclose(own, theirs.encode(TEXTS, prompt="Say: "), atol=1e-5)
    found = ours.rerank(TEXTS[0], TEXTS)
    np.testing.assert_allclose(
        found,
        theirs.similarity(theirs.encode_query(TEXTS[:1]), theirs.encode_document(TEXTS))[0],
        rtol=1e-4,
        atol=1e-4,
    )
    with pytest.raises(UsageError, match="no prompt 'title': the model has document, passage, query"):
        ours.embed(TEXTS, prompt_name="title")


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("keys", "version_6"),
    [
        ({"sbert_ce_default_activation_function": IDENTITY}, False),
        ({"sbert_ce_default_activation_function": SIGMOID}, False),
        ({"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.1.0"}}, False),
        ({"sentence_transformers": {"version": "4.1.0"}}, False),
        ({}, True),
    ],
)
def test_scores_of_cross_encoders(encoder: Path, tmp_path: Path, keys: dict[str, Any], version_6: bool) -> None:
    folder = tmp_path / "x"
    torch.manual_seed(2)
    config = transformers.AutoConfig.from_pretrained(encoder, num_labels=1)
    shutil.copytree(encoder, folder)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    write(folder, "config.json", json.loads((folder / "config.json").read_text()) | keys)
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    if version_6:
        theirs.save_pretrained(str(tmp_path / "saved"))
        folder = tmp_path / "saved"
        assert json.loads((folder / GENERAL).read_text())["model_type"] == "CrossEncoder"
    pairs = [(TEXTS[0], text) for text in TEXTS]
    ours = bertie.load(folder, threads=1)
    expected = theirs.predict(pairs)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose([each.score for each in ours.predict(pairs)], expected, atol=1e-5)
    np.testing.assert_allclose(ours.rerank(TEXTS[0], TEXTS), expected, atol=1e-5)
    (tmp_path / "written").mkdir()
    write_model(tmp_path / "written", ours.model, ours.tokenizer, source=read_checkpoint(folder).without_weights())
    again = sentence_transformers.CrossEncoder(str(tmp_path / "written"), device="cpu")
    np.testing.assert_allclose(again.predict(pairs), expected, atol=1e-5)
