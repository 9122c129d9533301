"""bertie convert --to transformers.js: three files that compute what their source does; other models are refused.

tests/long/transformers_js.py computes them in Node.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import model_of, saved

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.encoders.gru import GruConfig
from bertie.model.heads.vector_modules import Dropout, LayerNorm, Normalize
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.predict.convert import compared_texts, export_checks, transformers_js
from bertie.predict.convert.verify import verify
from bertie.predict.engines import onnx
from bertie.pretraining.initial_weights import new_model
from bertie.tasks import Choose, Classify, Tag
from bertie.tasks.task_json import to_task_json
from bertie.tokenizers.tokenizer import Tokenizer

pytest.importorskip("onnxscript", reason="needs the package onnxruntime")
pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")


NORM = LayerNorm(torch.ones(1), torch.ones(1))


@pytest.fixture(scope="module")
def source(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    task = Classify(labels=("a", "b"))
    model = model_of(replace(tiny_config, num_hidden_layers=1), task)
    folder = tmp_path_factory.mktemp("source")
    return saved(folder, model, small_tokenizer, to_task_json(task, 32, "last", 0)).folder


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("converted") / "out"
    return out, bertie.convert(source, out, "transformers.js", threads=1)


def test_the_folder_has_a_file_of_each_precision(source: Path, converted: tuple[Path, dict[str, Any]]) -> None:
    out, result = converted
    assert {f"onnx/{path.name}" for path in (out / "onnx").iterdir()} == set(transformers_js.FILES.values())
    assert set(result["outputs"]) == {"fp32", "fp16", "q8"}
    assert all(set(found) == {"last_hidden_state", "logits"} for found in result["outputs"].values())
    exact, half, quantized = (max(found.values()) for found in result["outputs"].values())
    assert exact < 1e-5 < half < 2e-2
    assert 1e-3 < quantized < 0.3
    assert result["difference"] == exact
    assert 0.95 < result["cosine"] < 0.99999
    sizes = [(out / name).stat().st_size for name in transformers_js.FILES.values()]
    assert sizes[0] > sizes[1] > sizes[2]
    config = json.loads((out / "config.json").read_text())
    assert config == json.loads((source / "config.json").read_text())
    assert "tags:\n- bert\n- bertie\n- transformers.js\n" in (out / "README.md").read_text()
    ids = np.array([[2, 7, 9, 3]])
    states = [
        onnx.OnnxSession(out / name).outputs(ids, np.ones_like(ids), 0 * ids)[0]
        for name in transformers_js.FILES.values()
    ]
    assert all(each.dtype == np.float32 for each in states)
    found = [bertie.load(folder, threads=1).predict(["the gudon"])[0].probabilities for folder in (source, out)]
    assert found[0] == pytest.approx(found[1])


def test_a_damaged_file_for_other_programs_is_found(converted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = shutil.copytree(converted[0], tmp_path / "copy")
    verify(folder)
    half = folder / transformers_js.FILES["fp16"]
    half.write_bytes(half.read_bytes()[:-1] + b"x")
    bertie.load(folder, threads=1)  # it reads none of these files
    with pytest.raises(UserError, match=r"model_fp16\.onnx was altered"):
        verify(folder)


def test_a_head_without_a_class_is_left_out_of_the_files(
    tiny_config: TransformerConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    model = new_model(tiny_config, (MaskedLM(), NextSentence()), 0)
    assert set(transformers_js.with_one_head(model, "bert").heads) == {"mlm"}
    assert "no class with the head of next sentence prediction" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "model_type", "message"),
    [
        (Choose(), "bert", "with this head: multiple choice"),
        (Tag(labels=("A", "O")), "albert", "with this head: tagging"),
        (Classify(labels=("a", "b")), "nomic_bert", "with this head"),
        (Classify(labels=("a", "b")), "gpt2", "this one is gpt2"),
    ],
)
def test_what_transformers_js_has_no_class_for_is_refused(
    task: Any, model_type: str, message: str, tiny_config: TransformerConfig
) -> None:
    with pytest.raises(UsageError, match=message):
        transformers_js.with_one_head(model_of(tiny_config, task), model_type)


def test_a_model_in_bertie_s_own_format_is_called_by_its_kind() -> None:
    model = Model(build_encoder(GruConfig(16, 8, vocab_size=20)), {})
    with pytest.raises(UsageError, match="this one is gru"):
        transformers_js.with_one_head(model, "bertie")


def copy_of(converted: Path, folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Return a folder that `write` fills with a file that was exported before, which takes a second."""
    exported = converted / "onnx" / "model.onnx"
    patch.setattr(onnx, "write", lambda _, path: shutil.copy(exported, path))
    shutil.copytree(converted, folder, ignore=shutil.ignore_patterns("onnx"))
    return folder


def test_files_that_differ_too_much_are_refused(
    source: Path, converted: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = bertie.load(source, threads=1)
    text = tmp_path / "texts.tsv"
    text.write_text("text\tlabel\nthe gudon\ta\nanother one in the place\tb\n")
    members = compared_texts.sequences(predictor, text)
    before = export_checks.measure(predictor, members, text)
    with monkeypatch.context() as patch:
        folder = copy_of(converted[0], tmp_path / "loss", patch)
        with pytest.raises(UserError, match=r"q8 loses .* of accuracy, more than -1: allow it with --max-loss"):
            transformers_js.write(before, folder, members, text, -1.0)
        folder = copy_of(converted[0], tmp_path / "half", patch)
        patch.setitem(transformers_js.TOLERANCES, "fp16", 1e-9)
        with pytest.raises(UserError, match=r"onnx/model_fp16\.onnx differs from its source by .* 16 bits"):
            transformers_js.write(before, folder, members, None, 1.0)
        patch.setattr(transformers_js, "MAX_BYTES", 1000)
        with pytest.raises(UsageError, match=r"GB in fp32, and one ONNX file holds 2\.1 GB"):
            transformers_js.write(before, folder, members, None, 1.0)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (SentenceEmbedding(), "give transformers.js {pooling: 'mean', normalize: false}"),
        (SentenceEmbedding(("cls",), (Dropout(0.1), Normalize())), "{pooling: 'cls', normalize: true}"),
        (SentenceEmbedding(("max",), lowercase=True, dimensions=5), "max pooling, lowercasing, truncated vectors"),
        (SentenceEmbedding(prompts={"q": "q: "}, default_prompt="q"), "its default prompt"),
        (SentenceEmbedding(("mean", "cls"), (NORM,)), "mean and cls pooling, LayerNorm"),
    ],
)
def test_what_is_needed_for_text_vectors_is_said(
    how: SentenceEmbedding, said: str, tiny_config: TransformerConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers_js.say_how_to_pool(Model(build_encoder(tiny_config), {}), how)
    assert said in capsys.readouterr().err
