"""bertie convert loses nothing: settings, weights without a reader, dtypes; what a target cannot hold is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.folder import save_tensors, write_model
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.encoders.gru import GruConfig
from bertie.model.encoders.xlnet import XlnetConfig
from bertie.model.heads.features import FeatureExtractor
from bertie.model.heads.vector_modules import Dense, LayerNorm, Normalize
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.predict.convert import export
from bertie.predict.engines.graph import Graph
from bertie.predict.predictor import Predictor
from bertie.tasks import AnyTask, Classify, MultiLabel, Regress, Span
from bertie.tasks.task import build_head
from bertie.tokenizers.tokenizer import Tokenizer

TWELVE = tuple(f"class {number}" for number in range(12))


@pytest.fixture(autouse=True)
def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests in test_export.py and tests/parity load the results with the libraries."""
    monkeypatch.setattr(export, "CHECKED_IN", {})


def small(config: TransformerConfig, task: AnyTask, pooling: Any = "token", lstm: int = 0) -> Model:
    config = replace(config, num_hidden_layers=1)
    reading = FeatureExtractor(config, lstm_hidden_size=lstm, pooling=pooling) if lstm or pooling != "token" else None
    width = reading.width if reading else config.hidden_size
    model = Model(build_encoder(config), {task.kind: build_head(task, config, width)}, reading).eval()
    initialize_weights(model, 0.3)
    return model


def foreign(
    folder: Path, config: TransformerConfig, tokenizer: Tokenizer, task: AnyTask, **changes: Any
) -> dict[str, Any]:
    """Write a classifier as other libraries do: without task.json, with other keys in config.json. Return these."""
    folder.mkdir()
    write_model(folder, small(config, task), tokenizer, {"labels": list(task.labels)})
    (folder / "task.json").unlink()
    values = json.loads((folder / "config.json").read_text()) | changes
    values = {name: value for name, value in values.items() if value != "REMOVED"}
    (folder / "config.json").write_text(json.dumps(values))
    return values


def test_all_of_config_json_is_kept(tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer) -> None:
    task = Classify(labels=TWELVE)
    further = {"classifier_dropout": 0.25, "initializer_range": 0.3, "function_to_apply": "sigmoid", "use_cache": True}
    source = foreign(tmp_path / "source", tiny_config, small_tokenizer, task, **further, problem_type="REMOVED")
    export.convert(tmp_path / "source", tmp_path / "out", "hf", threads=1)
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert found == source
    assert [found["id2label"][str(number)] for number in range(12)] == list(TWELVE)
    loaded = [bertie.load(tmp_path / name, threads=1) for name in ("source", "out")]
    assert loaded[0].task == loaded[1].task
    assert loaded[1].task is not None
    assert loaded[1].task.labels == TWELVE


def test_a_single_output_keeps_its_name_and_gets_no_problem_type(
    tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    name = {"id2label": {"0": "relevance"}, "label2id": {"relevance": 0}, "problem_type": "REMOVED"}
    activation = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
    foreign(tmp_path / "source", tiny_config, small_tokenizer, Regress(), **name, **activation)
    for target in ("hf", "sentence-transformers"):
        export.convert(tmp_path / "source", tmp_path / target, target, threads=1)
        found = json.loads((tmp_path / target / "config.json").read_text())
        assert "problem_type" not in found
        assert found["id2label"] == {"0": "relevance"}
        assert found["sentence_transformers"] == activation["sentence_transformers"]
        assert not (tmp_path / target / "modules.json").exists()  # a cross-encoder has no vectors
        task = bertie.load(tmp_path / target, threads=1).task
        assert isinstance(task, Regress)
        assert task.activation == "sigmoid"


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        (Classify(labels=("bad", "good")), {}),
        (MultiLabel(labels=("bad", "good")), {"problem_type": "multi_label_classification"}),
        (Regress(), {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}),
        (Span(), {}),
    ],
    ids=["classify", "multi_label", "regress", "span"],
)
def test_a_task_head_of_another_library_becomes_one_of_google(
    task: AnyTask, changes: dict[str, Any], tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    foreign(tmp_path / "source", tiny_config, small_tokenizer, task, **changes)
    export.convert(tmp_path / "source", tmp_path / "tf", "tf", threads=1)
    source, found = (bertie.load(tmp_path / name, threads=1).task for name in ("source", "tf"))
    assert source is not None
    assert found == source


@pytest.mark.parametrize("task", [Classify(labels=("bad", "good")), Span()], ids=["classify", "span"])
def test_a_task_head_of_googles_code_is_read(
    task: AnyTask, tmp_path: Path, tiny_config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    """Google's folders have neither task.json nor config.json, and name no class."""
    foreign(tmp_path / "source", tiny_config, small_tokenizer, task)
    export.convert(tmp_path / "source", tmp_path / "tf", "tf", threads=1)
    for name in ("task.json", "manifest.json"):
        (tmp_path / "tf" / name).unlink()
    path = tmp_path / "tf" / "bert_config.json"
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    values = json.loads(path.read_text())
    path.write_text(json.dumps({name: values[name] for name in (*kept, "max_position_embeddings", "hidden_act")}))
    found = bertie.load(tmp_path / "tf", threads=1).task
    assert found is not None
    assert (found.kind, found.labels) == (task.kind, ("LABEL_0", "LABEL_1") if task.labels else ())
    weights = bertie.verify(tmp_path / "tf").facts["files"]["weights"]
    assert weights.startswith("bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001 (")
    with pytest.raises(UsageError, match="transformers reads no TensorFlow checkpoint"):
        bertie.verify(tmp_path / "tf", "transformers")


def test_what_a_target_cannot_hold_is_refused_first(pretrained: Path, tmp_path: Path) -> None:
    source = shutil.copytree(pretrained, tmp_path / "source")
    config = bertie.load(source, threads=1).model.encoder.config
    sentence_transformers_format.write(source, config, SentenceEmbedding(modules=(Normalize(),)), 32)
    with pytest.raises(UsageError, match="use --to hf"):
        export.convert(source, tmp_path / "tf", "tf", threads=1)
    for path in source.glob("*token*"):
        path.unlink()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    Tokenizer.load(pretrained).backend.engine.save(str(source / "tokenizer.json"))
    values = json.loads((source / "tokenizer.json").read_text())
    values["added_tokens"] = []
    del values["model"]["vocab"]["[PAD]"]
    values["model"]["vocab"]["[PAP]"] = 0
    (source / "tokenizer.json").write_text(json.dumps(values))
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "vocab.txt").unlink()
    with pytest.raises(UsageError, match="has no padding token"):
        export.convert(source, tmp_path / "out", "sentence-transformers", threads=1)


OWN_FORMAT = {"gru": GruConfig(16, 8), "xlnet": XlnetConfig(1, 16, 2, 32, segment_length=8, memory_length=8)}


@pytest.mark.parametrize("kind", OWN_FORMAT)
def test_models_that_only_bertie_loads_are_not_written_for_sentence_transformers(
    kind: str, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = replace(OWN_FORMAT[kind], vocab_size=small_tokenizer.size, max_position_embeddings=64)
    write_model(tmp_path / "source", Model(build_encoder(config), {}), small_tokenizer)
    with pytest.raises(UsageError, match=rf"none has the structure of .*source \({kind}\)"):
        export.convert(tmp_path / "source", tmp_path / "out", "sentence-transformers", threads=1)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_messages_name_the_folder_by_the_name_that_it_gets(
    tiny_config: TransformerConfig,
    small_tokenizer: Tokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export, "CHECKED_IN", {"hf": "transformers"})
    config = replace(OWN_FORMAT["gru"], vocab_size=small_tokenizer.size, max_position_embeddings=64)
    (tmp_path / "gru").mkdir()
    write_model(tmp_path / "gru", Model(build_encoder(config), {}), small_tokenizer)
    export.convert(tmp_path / "gru", tmp_path / "out", "hf", threads=1)
    assert f"{tmp_path}/out: no class of transformers has the structure" in capsys.readouterr().err
    foreign(tmp_path / "bert", tiny_config, small_tokenizer, Classify(labels=("a", "b")), secret_scale=3)
    monkeypatch.setattr(export, "CHECKED_IN", {})
    export.convert(tmp_path / "bert", tmp_path / "again", "hf", threads=1)
    told = capsys.readouterr().err
    assert told.count("secret_scale") == 1  # of the source, not of the copy
    assert ".tmp-" not in told


def test_modules_with_weights_survive(pretrained: Path, tmp_path: Path) -> None:
    source = shutil.copytree(pretrained, tmp_path / "source")
    config = bertie.load(source, threads=1).model.encoder.config
    size = config.hidden_size
    modules = (LayerNorm(torch.randn(size), torch.randn(size)), Dense(torch.randn(5, size), torch.randn(5), "Tanh"))
    sentence_transformers_format.write(source, config, SentenceEmbedding(modules=modules), 32)
    export.convert(source, tmp_path / "out", "sentence-transformers", threads=1)
    first, second = (bertie.load(tmp_path / name, threads=1).embed(["a text"]) for name in ("source", "out"))
    assert first.shape == (1, 5)
    assert (first == second).all()
    pooling = json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())  # for old and new readers
    assert (pooling["pooling_mode_mean_tokens"], pooling["pooling_mode_cls_token"]) == (True, False)
    assert pooling["pooling_mode"] == "mean"
    assert pooling["word_embedding_dimension"] == pooling["embedding_dimension"] == size


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pickled", [False, True])
def test_weights_are_written_as_they_are(dtype: torch.dtype, pickled: bool, pretrained: Path, tmp_path: Path) -> None:
    """With their dtypes, and with a pooler that no head reads."""
    source = shutil.copytree(pretrained, tmp_path / "source")
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    half = {name: tensor.to(dtype) for name, tensor in tensors.items() if not name.startswith("cls.")}
    half = {name.removeprefix("bert."): tensor for name, tensor in half.items()}
    assert "pooler.dense.weight" in half
    (source / "model.safetensors").unlink()
    if pickled:
        torch.save(half, source / "pytorch_model.bin")
    else:
        safetensors.torch.save_file(half, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text()) | {"architectures": ["BertModel"]}
    del config["dtype"]
    (source / "config.json").write_text(json.dumps(config))
    export.convert(source, tmp_path / "out", "hf", threads=1)
    found = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == half.keys()
    assert all(torch.equal(found[name], tensor) and found[name].dtype == dtype for name, tensor in half.items())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


def test_tensors_are_written_as_safetensors_does(tmp_path: Path) -> None:
    floats, integers = (torch.float64, torch.float32, torch.bfloat16, torch.float16), (torch.int64, torch.uint8)
    dtypes = (*floats, *integers, torch.bool)
    tensors = {f"é {dtype} {rank}": torch.ones((3,) * rank).to(dtype) for dtype in dtypes for rank in (0, 1, 2)}
    tensors |= {"transposed": torch.arange(6.0).view(2, 3).t(), "empty": torch.zeros(0, 3)}
    save_tensors(tensors, tmp_path / "ours")
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    assert (tmp_path / "ours").read_bytes() == safetensors.torch.save(whole, {"format": "pt"})


def test_the_result_is_neither_the_source_nor_in_it(pretrained: Path, tmp_path: Path) -> None:
    source = shutil.copytree(pretrained, tmp_path / "source")
    (tmp_path / "link").symlink_to(source)
    before = sorted(source.iterdir())
    for out in (source / "out", tmp_path / "link" / "a" / "out"):
        with pytest.raises(UsageError, match="is in the source"):
            export.convert(source, out, "hf")
    assert sorted(source.iterdir()) == before


def test_a_failed_check_leaves_no_folder(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embed = Predictor.embed

    def changed(self: Predictor, *args: Any, **options: Any) -> Any:
        return embed(self, *args, **options) + float(self.folder != pretrained)

    monkeypatch.setattr(Predictor, "embed", changed)
    with pytest.raises(UserError, match="differs from its source in vectors"):
        export.convert(pretrained, tmp_path / "out", "hf", threads=1)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_computes_late_pooling(tiny_config: TransformerConfig) -> None:
    model = small(tiny_config, Classify(labels=("a", "b")), "late")
    ids = torch.randint(5, 90, (2, 7))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    _, logits = Graph(model)(ids, mask, torch.zeros_like(ids))
    head: Any = model.heads["classify"]
    states = Graph(Model(model.encoder, {}))(ids, mask, torch.zeros_like(ids))[0]
    means = torch.stack([head.pooled(states[0]).mean(0), head.pooled(states[1, :4]).mean(0)])
    torch.testing.assert_close(logits, head.out(means))


def test_a_head_that_no_graph_computes_is_refused(tiny_config: TransformerConfig) -> None:
    with pytest.raises(UsageError, match=r"a graph cannot hold the head \(classification\)"):
        Graph(small(tiny_config, Classify(labels=("a", "b")), lstm=8))
