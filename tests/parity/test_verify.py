"""`bertie verify --against`: equal where the libraries are, and a difference is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import bertie
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.cli import main
from bertie.predict.compare_libraries import compare, wrong

pytest.importorskip("transformers", reason="needs the package transformers")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(pretrained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pretrained, tmp_path / "model"))


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_folder_is_compared_with_transformers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder), "--against", "transformers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["comparisons"]
    verdicts = {each["what"]: each["verdict"] for each in found}
    assert verdicts.pop("token ids of texts with special tokens") == "by design"
    assert "ids and token types in a pair of such texts" in verdicts
    assert set(verdicts.values()) == {"equal"}
    assert {"token ids of texts", "offsets of tokens", "ids and token types in sequences of pairs"} < verdicts.keys()
    assert {"outputs of the head (masked LM)", "outputs of the head (next sentence prediction)"} < verdicts.keys()
    assert 'masked tokens, and those of pipeline("fill-mask")' in verdicts
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
    assert "hidden states failed (transformers finds no weights for" in last


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
