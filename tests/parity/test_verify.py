"""`bertie verify --against`: equal where the libraries are, and a difference is found."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.predict.small_models import changed

import bertie
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.cli import main
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.encoders.transformer_xl import TransformerXlConfig
from bertie.model.heads.features import FeatureExtractor
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.predict.convert.comparison import wrong
from bertie.predict.convert.verify import compare
from bertie.tasks import Classify
from bertie.tasks.task import build_head
from bertie.tasks.task_json import to_task_json
from bertie.tokenizers.bpe_backend import BYTE_CHARACTERS
from bertie.tokenizers.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the package transformers")


@pytest.fixture
def folder(pretrained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pretrained, tmp_path / "model"))


def test_a_folder_is_compared_with_transformers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder), "--against", "transformers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["comparisons"]
    verdicts = {each["what"]: each["verdict"] for each in found}
    assert verdicts.pop("token ids of texts with special tokens") == "by design"
    assert "ids and token types in a pair of such texts" in verdicts
    assert set(verdicts.values()) == {"equal"}
    assert {"token ids of texts", "offsets of tokens", "ids and token types in sequences of pairs"} < verdicts.keys()
    assert {"outputs of the head (masked LM)", "outputs of the head (next sentence prediction)"} < verdicts.keys()
    assert 'masked tokens of pipeline("fill-mask")' in verdicts
    assert all(each["cases"] for each in found)


def test_a_contradiction_of_the_files_is_found(folder: Path, tmp_path: Path) -> None:
    """transformers takes tokenizer.json as it is if the class is the generic one."""
    loaded = bertie.load(folder, threads=1)
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    changed(other / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    content = json.loads((other / "tokenizer.json").read_text())
    content["normalizer"] |= {"lowercase": False, "strip_accents": False}
    (other / "tokenizer.json").write_text(json.dumps(content))
    found = wrong(compare(loaded, "transformers", other))
    assert "token ids of texts" in [each.what for each in found]
    example = found[0].example
    assert example is not None
    assert example.ours != example.theirs


def test_weights_that_only_bertie_finds_are_a_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name.startswith("bert.")}
    save_file({f"0.auto_model.{name.removeprefix('bert.')}": tensor for name, tensor in tensors.items()}, path)
    changed(folder / "config.json", architectures=["BertModel"])
    assert main(["verify", str(folder), "--against", "transformers"]) == 1
    [*_, last] = capsys.readouterr().err.splitlines()
    assert "hidden states of texts failed (transformers finds no weights for" in last


def test_a_library_that_refuses_a_folder_is_a_difference(folder: Path) -> None:
    loaded = bertie.load(folder, threads=1)
    (folder / "config.json").unlink()
    assert {each.verdict for each in compare(loaded, "transformers") if each in wrong([each])} == {"FAILED"}


def test_vectors_are_compared_with_sentence_transformers(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    config = bertie.load(folder, threads=1).model.encoder.config
    how = SentenceEmbedding(("mean",), prompts={"query": "find: ", "other": "as: "}, lowercase=True, similarity="dot")
    sentence_transformers_format.write(folder, config, how, 40)
    found = bertie.verify(folder, "sentence-transformers").comparisons
    assert [each.what for each in wrong(list(found))] == []
    wanted = ("encode", "encode_query", "encode_document", 'encode with the prompt "other"')
    assert {f"vectors of {what}" for what in wanted} | {"similarity"} <= {each.what for each in found}
    loaded = bertie.load(folder, threads=1)
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    changed(other / "config_sentence_transformers.json", prompts={"query": "seek: "})
    differences = [each.what for each in wrong(compare(loaded, "sentence-transformers", other))]
    assert differences[0] == "vectors of encode_query"
    assert "vectors of encode" not in differences


@pytest.mark.parametrize("library", ["transformers", "sentence-transformers"])
def test_a_model_that_no_library_has_is_refused(
    library: str, small_tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    config = TransformerXlConfig(1, 16, 2, 32, 8, 8, vocab_size=small_tokenizer.size, max_position_embeddings=64)
    write_model(tmp_path, Model(build_encoder(config), {}), small_tokenizer)
    assert main(["verify", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "pad on the left" not in printed
    assert printed.count("none for this model") == 2  # in transformers, in sentence-transformers
    assert main(["verify", str(tmp_path), "--against", library]) == 2
    [told] = capsys.readouterr().err.splitlines()
    assert f"{library} has no class for the structure of {tmp_path} (transformer_xl)" in told


@pytest.mark.parametrize("library", ["transformers", "sentence-transformers"])
@pytest.mark.parametrize("pooling", ["esim", "both_orders"])
def test_a_head_that_no_class_has_is_not_compared(
    pooling: Any, library: Any, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    config, lstm = (tiny_config, 4) if pooling == "esim" else (replace(tiny_config, type_vocab_size=0), 0)
    task = Classify(labels=("no", "yes"), pooling=pooling, paired=True)
    reading = FeatureExtractor(config, lstm_hidden_size=lstm, pooling=pooling, pairs=True)
    model = Model(build_encoder(config), {task.kind: build_head(task, config, reading.width)}, reading)
    initialize_weights(model, 0.3)
    write_model(tmp_path, model, small_tokenizer, to_task_json(task, 64, "last", lstm))
    found = bertie.verify(tmp_path, library)
    assert found.problem == ""
    [left_out] = [each for each in found.comparisons if each.verdict == "not done"]
    assert f'pooling "{pooling}"' in left_out.reason
    assert ("CrossEncoder" in left_out.what) == (library == "sentence-transformers")
    assert "CrossEncoder" not in found.facts["in sentence-transformers"]


def test_models_whose_tokenizer_adds_no_special_tokens_get_the_same_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPT-2's tokenizer adds none, and the Reformer for bytes has none: bertie puts them around a text."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 257, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": 0.3}
    ids = {"bos_token_id": 256, "eos_token_id": 256}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ids)).save_pretrained(tmp_path / "gpt2")
    entries = {character: i for i, character in enumerate(BYTE_CHARACTERS)} | {"<|endoftext|>": 256}
    (tmp_path / "gpt2" / "vocab.json").write_text(json.dumps(entries))
    (tmp_path / "gpt2" / "merges.txt").write_text("#version: 0.2\n")
    shape = {"attn_layers": ["local", "lsh"], "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 8}
    chunks = {"local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8, "num_buckets": 4, "hash_seed": 3}
    grid = {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16], "max_position_embeddings": 64}
    config = transformers.ReformerConfig(
        vocab_size=258, is_decoder=True, feed_forward_size=32, **shape, **chunks, **grid
    )
    transformers.ReformerModelWithLMHead(config).save_pretrained(tmp_path / "reformer")
    for name in ("gpt2", "reformer"):
        found = bertie.verify(tmp_path / name, "transformers")
        assert found.problem == ""
        verdicts = {each.what: each.verdict for each in found.comparisons}
        assert verdicts["last hidden states of pairs"] == "equal"
        assert verdicts["last hidden states of texts"] == "equal"
        result = bertie.convert(tmp_path / name, tmp_path / f"{name}-hf", "hf", threads=1)
        assert {"equal", "by design"} == {each["verdict"] for each in result["compared"]}
        assert main(["convert", str(tmp_path / name), str(tmp_path / "out"), "--to", "sentence-transformers"]) == 2
        assert "bertie puts special tokens around a text" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    assert verdicts["tokens"] == "not done"  # no tokenizer files
