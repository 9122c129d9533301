"""bertie convert: every target is compared with its source, loads again, and is refused if it loses too much."""

from __future__ import annotations

import gc
import json
import multiprocessing
import shutil
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import changed, model_of, run, saved

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.read import read_checkpoint
from bertie.cli import main
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.predict.convert import compared_texts
from bertie.predict.convert.export import ExportTarget, convert
from bertie.predict.engines import cpu, files
from bertie.tasks import AnyTask, Classify, Span, Tag
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

needs_int8 = pytest.mark.skipif(not cpu.has(cpu.INT8), reason="needs a processor with int8 instructions")


@pytest.fixture(scope="module")
def sentences(small_texts: list[str]) -> list[str]:
    return [sentence for text in small_texts[:40] for sentence in text.split(". ")][:80]


def tuned(task: AnyTask, rows: list[Any], pretrained: Path, out: Path) -> Path:
    training = FinetuneTraining(steps=12, batch_size=8, learning_rate=3e-3, precision="fp32")
    config = FinetuneConfig(task, AdamW(), LinearDecay(), training, max_length=48, hidden_dropout_prob=0.0)
    bertie.finetune(config, rows, pretrained, out, dev=rows, threads=1)
    return out


@pytest.fixture(scope="module")
def one_layer(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """As `pretrained`, with one layer, whose graph is exported in half the time: for tests of heads."""
    model = model_of(replace(tiny_config, num_hidden_layers=1), MaskedLM(), NextSentence())
    return saved(tmp_path_factory.mktemp("one_layer"), model, small_tokenizer).folder


@pytest.fixture(scope="module")
def classifier(sentences: list[str], one_layer: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A fine-tuned run, and its data."""
    folder = tmp_path_factory.mktemp("classifier")
    rows = [{"text": text, "label": "long" if len(text) > 50 else "short"} for text in sentences]
    (folder / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tuned(Classify(), rows, one_layer, folder / "run"), folder / "dev.jsonl"


def library(target: str) -> None:
    if target == "onnx":
        pytest.importorskip("onnxscript", reason="needs the package onnxruntime")
        pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")
    if target == "openvino":
        pytest.importorskip("openvino", reason="needs the package openvino")


@pytest.fixture(scope="module")
def onnx_folder(classifier: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The classifier as an ONNX file, and what its conversion returned."""
    library("onnx")
    run, data = classifier
    out = tmp_path_factory.mktemp("onnx") / "out"
    return out, convert(run, out, "onnx", data=data, threads=1)


@pytest.fixture(scope="module")
def converted(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model for the engine torch. Copy it to change it."""
    out = tmp_path_factory.mktemp("converted") / "out"
    convert(pretrained, out, "torch", threads=1)
    return out


@pytest.mark.parametrize("target", ["torch", "onnx", "openvino", "hf", "sentence-transformers", "tf"])
def test_a_classifier_predicts_the_same(
    target: ExportTarget,
    classifier: tuple[Path, Path],
    sentences: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    library(target)
    if target == "hf":
        pytest.importorskip("transformers", reason="needs the package transformers")
    if target == "sentence-transformers":
        pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    run, data = classifier
    out = tmp_path / "out"
    if target == "onnx":
        out, result = request.getfixturevalue("onnx_folder")
    else:
        result = convert(run, out, target, data=data, threads=1)
    assert result["difference"] < 1e-4
    assert result["scores"] == result["source_scores"]
    assert result["loss"] == 0
    source, found = (bertie.load(folder, threads=1) for folder in (run, out))
    assert found.engine == result["engine"] or (found.engine == "plain" and result["engine"] is None)
    assert found.max_length == source.max_length == 48
    ours, theirs = source.predict(sentences), found.predict(sentences)
    assert [each.label for each in ours] == [each.label for each in theirs]
    assert len({each.label for each in ours}) == 2
    pairs = [[each.probabilities["long"] for each in predicted] for predicted in (ours, theirs)]
    np.testing.assert_allclose(*pairs, atol=1e-5)
    assert read_checkpoint(out).task == read_checkpoint(run).task


def test_a_checkpoint_of_googles_code_becomes_one_of_transformers(pretrained: Path, tmp_path: Path) -> None:
    """By way of a file without bertie's additions, in a folder with another checkpoint."""
    convert(pretrained, tmp_path / "tf", "tf", threads=1)
    damaged = shutil.copytree(tmp_path / "tf", tmp_path / "damaged") / "bert_model.ckpt.data-00000-of-00001"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"bert_model\.ckpt\.data-00000-of-00001 was altered"):
        read_checkpoint(tmp_path / "damaged")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "manifest.json", "checkpoint"):
        (tmp_path / "tf" / name).unlink()
    (tmp_path / "tf" / "other.index").touch()
    convert(tmp_path / "tf" / "bert_model.ckpt", tmp_path / "hf", "hf", threads=1)
    before, after = read_checkpoint(pretrained), read_checkpoint(tmp_path / "hf")
    assert before.tokenizer.fingerprint == after.tokenizer.fingerprint
    assert before.weights.keys() == after.weights.keys()
    assert all(torch.equal(tensor, after.weights[name]) for name, tensor in before.weights.items())


def test_an_onnx_file_runs_without_bertie(
    onnx_folder: tuple[Path, dict[str, Any]], classifier: tuple[Path, Path], sentences: list[str]
) -> None:
    import onnx
    import onnxruntime

    run, data = classifier
    out, result = onnx_folder
    assert set(result["outputs"]) == {"last_hidden_state", "logits"}
    [path] = (out / "onnx").iterdir()
    model = onnx.load(path, load_external_data=False)
    assert [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")] == [18]
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    shapes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    assert shapes == {
        **{key: ["batch_size", "sequence_length"] for key in inputs},
        "last_hidden_state": ["batch_size", "sequence_length", 32],
        "logits": ["batch_size", 2],
    }
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    predictor = bertie.load(run, threads=1)
    for count in (1, 5):
        encoded = [each.input_ids for each in compared_texts.sequences(predictor, data)[:count]]
        longest = max(len(each) for each in encoded)
        ids, mask = (np.zeros((count, longest), np.int64) for _ in range(2))
        for i, each in enumerate(encoded):
            ids[i, : len(each)], mask[i, : len(each)] = each, 1
        [logits] = session.run(["logits"], {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids})
        shares = torch.from_numpy(logits).softmax(1)
        expected = [list(each.probabilities.values()) for each in predictor.predict(sentences[:count])]
        np.testing.assert_allclose(shares, expected, atol=1e-5)


def survives_a_signal() -> bool:
    """Whether a copy of this process handles a signal. A library may have left handlers without a stack."""
    child = multiprocessing.get_context("fork").Process(target=signal.raise_signal, args=[signal.SIGUSR1])
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads: the copy runs only the handler
        child.start()
    child.join()
    signal.signal(signal.SIGUSR1, before)
    return child.exitcode == 0


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_an_engine_gives_the_vectors_of_the_model(engine: Any, one_layer: Path, small_texts: list[str]) -> None:
    library(engine)
    plain, fast = bertie.load(one_layer, threads=1), bertie.load(one_layer, threads=1, engine=engine)
    texts = [text[:length] for text, length in zip(small_texts, np.resize([9, 40, 200, 41], 60), strict=False)]
    expected = plain.embed(texts)
    np.testing.assert_allclose(fast.embed(texts), expected, atol=1e-5)
    with ThreadPoolExecutor(3) as pool:
        for vectors in pool.map(lambda _: fast.embed(texts), range(3)):
            np.testing.assert_allclose(vectors, expected, atol=1e-5)


@needs_int8
@pytest.mark.parametrize("target", ["torch", "onnx", "openvino"])
def test_int8_is_scored_and_loads_again(target: ExportTarget, classifier: tuple[Path, Path], tmp_path: Path) -> None:
    library(target)
    if target == "openvino":
        pytest.importorskip("nncf", reason="needs the package openvino")
    run, data = classifier
    result = convert(run, tmp_path / "out", target, precision="int8", data=data, max_loss=0.1, threads=1)
    assert result["engine"] == f"{target}-int8"
    assert result["cosine"] < 0.99999
    assert set(result["scores"]) == {"accuracy", "f1", "matthews"}
    found = bertie.load(tmp_path / "out", threads=1)
    assert found.engine == f"{target}-int8"
    assert found.evaluate(data)["scores"] == result["scores"]
    measured = json.loads((tmp_path / "out" / "engine.json").read_text())["measured"]
    assert measured["source_scores"]["accuracy"] == bertie.load(run, threads=1).evaluate(data)["scores"]["accuracy"]
    del found
    gc.collect()
    assert survives_a_signal()


@needs_int8
def test_too_large_a_loss_is_refused(classifier: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = classifier
    with pytest.raises(UserError, match=r"int8 loses .* more than -0\.5: allow it with --max-loss"):
        convert(run, tmp_path / "out", "torch", precision="int8", data=data, max_loss=-0.5, threads=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "precision", "message"),
    [
        ("hf", "bf16", "--precision is bf16"),
        ("transformers.js", "bf16", "--precision is bf16"),
        ("onnx", "bf16", "use --precision fp32 or int8"),
        ("torch", "int8", "give --data FILE"),
    ],
)
def test_impossible_precisions_are_refused(
    target: Any, precision: Any, message: str, pretrained: Path, tmp_path: Path
) -> None:
    if target == "transformers.js":
        library("onnx")
    with pytest.raises(UsageError, match=message):
        convert(pretrained, tmp_path / "out", target, precision=precision)
    assert list(tmp_path.iterdir()) == []


def test_a_pre_trained_model_keeps_its_heads(one_layer: Path, tmp_path: Path) -> None:
    library("onnx")
    result = convert(one_layer, tmp_path / "out", "onnx", threads=1)
    assert set(result["outputs"]) == {"last_hidden_state", "mlm_logits", "nsp_logits"}
    assert max(result["outputs"].values()) < 1e-4
    text = "The [MASK] in the gudon"
    ours, theirs = (bertie.load(folder, threads=1).fill_mask(text) for folder in (one_layer, tmp_path / "out"))
    assert [each.token for each in ours[0]] == [each.token for each in theirs[0]]


@pytest.mark.parametrize("kind", [pytest.param("tag", marks=pytest.mark.slow), "span"])
def test_other_heads_are_exported(kind: str, sentences: list[str], one_layer: Path, tmp_path: Path) -> None:
    library("onnx")
    words = [sentence.split() for sentence in sentences[:16]]
    task: AnyTask = Tag() if kind == "tag" else Span()
    rows: list[Any] = [{"tokens": each, "tags": ["A" if len(w) > 4 else "O" for w in each]} for each in words]
    if kind == "span":
        answers = [{"answers": [{"text": each[1], "answer_start": len(each[0]) + 1}]} for each in words]
        rows = [{"question": each[1], "context": " ".join(each), **answers[i]} for i, each in enumerate(words)]
    run = tuned(task, rows, one_layer, tmp_path / "run")
    result = convert(run, tmp_path / "out", "onnx", threads=1)
    heads = {"tag": {"logits"}, "span": {"start_logits", "end_logits"}}
    assert set(result["outputs"]) == {"last_hidden_state", *heads[kind]}
    found, source = (bertie.load(folder, threads=1).evaluate(rows)["scores"] for folder in (tmp_path / "out", run))
    assert found == pytest.approx(source)


@pytest.mark.parametrize("target", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_head_that_reads_the_mean_of_all_tokens_is_exported(
    target: ExportTarget, sentences: list[str], one_layer: Path, tmp_path: Path
) -> None:
    library(target)
    rows = [{"text": text, "label": "long" if len(text) > 50 else "short"} for text in sentences]
    run = tuned(Classify(pooling="mean"), rows, one_layer, tmp_path / "run")
    result = convert(run, tmp_path / "out", target, threads=1)
    assert set(result["outputs"]) == {"last_hidden_state", "logits"}
    assert max(result["outputs"].values()) < 1e-4
    source, found = (bertie.load(folder, threads=1) for folder in (run, tmp_path / "out"))
    found.model.encoder.encoder = None  # pyright: ignore[reportAttributeAccessIssue]  # the library does all the work
    pairs = [[each.probabilities["long"] for each in model.predict(sentences)] for model in (source, found)]
    np.testing.assert_allclose(*pairs, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "quick"}, r"engine\.json is damaged"),
        ({"files": {"../graph.bin": "0" * 64}}, "outside of the folder"),
        ({"files": {"graph.bin": {"bytes": 7, "sha256": "0" * 64}}}, r"graph\.bin was altered"),
        ({"format": 2}, "update bertie"),
    ],
)
def test_a_damaged_folder_of_an_engine_is_refused(
    change: dict[str, Any], message: str, converted: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(converted, tmp_path / "out")
    (out / "graph.bin").write_bytes(b"a graph")
    files.write(files.Exported(out, "torch", files=("graph.bin",)))
    assert bertie.load(out).engine == "torch"
    changed(out / "engine.json", **change)
    with pytest.raises(UserError, match=message):
        bertie.load(out)


def test_a_converted_model_reads_as_many_tokens_as_its_run(pretrained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(pretrained, run)
    (run / "config.toml").write_text("layout = { max_length = 48 }\n")
    assert bertie.load(run, threads=1).max_length == 48
    for to in ("hf", "torch"):
        convert(run, tmp_path / to, to, threads=1)
        assert bertie.load(tmp_path / to, threads=1).max_length == 48


def test_an_existing_folder_is_not_overwritten(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="already exists"):
        convert(pretrained, tmp_path, "hf")


def test_the_command(classifier: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, data = classifier
    [result], told = run("convert", source, tmp_path / "out", "--to", "torch", "--data", data, capsys=capsys)
    assert (result["engine"], "differs from its source by" in told) == ("torch", True)
    run("predict", tmp_path / "out", "a text", "--engine", "plain", capsys=capsys)
    assert main(["evaluate", str(tmp_path / "out"), "--data", str(data), "--engine", "quick"]) == 2
