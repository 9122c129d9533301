"""bertie verify: what it says of a folder, and its exit code."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import changed

import bertie
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.folder import write_manifest
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.cli import main
from bertie.predict.convert import verify as module
from bertie.predict.convert.compared_texts import ComparedTexts
from bertie.predict.convert.comparison import Probe, compared, not_done, run
from bertie.tokenizers.tokenizer import Tokenizer

Change = Callable[[Path], object]


@pytest.fixture
def folder(pretrained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pretrained, tmp_path / "model"))


def result(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any], list[str]]:
    """Return the exit code, the JSON object, and the lines for people."""
    code = main(["verify", str(folder), "--json", *flags])
    printed = capsys.readouterr()
    return code, json.loads(printed.out.splitlines()[-1]), printed.err.splitlines()


def test_a_model_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, lines = result(folder, capsys)
    assert code == 0
    assert found["right"]
    assert found["comparisons"] == []
    facts = found["facts"]
    assert facts["model"]["family"] == "BERT (model_type bert)"
    assert facts["model"]["class"] == "BertForPreTraining"
    assert facts["model"]["head mlm"] == "masked LM, predicts masked words"
    assert "float32" in facts["files"]["weights"]
    assert facts["files"]["no effect, config.json"] == "dtype, initializer_range"
    assert facts["tokenizer"]["of a pair"] == "[CLS] A [SEP] B [SEP], with the token types 0 0 0 1 1"
    assert facts["tokenizer"]["text"] == "lowercases, removes accents"
    assert facts["in transformers"] == {"AutoModel": "BertModel", "AutoTokenizer": "BertTokenizer"}
    assert "[MASK] written in a text" in facts["different by design"]["special tokens"]
    assert lines[0] == str(folder)
    assert lines[-1] == f"nothing is wrong with {folder}"
    assert all(f"  {name:24} {value}" in lines for section in facts.values() for name, value in section.items())


def test_settings_of_the_files_show(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    token = tokenizer.vocabulary[-1]
    changed(folder / "config.json", hidden_act="relu")
    changed(folder / "tokenizer_config.json", do_lower_case=False, extra_special_tokens=[token], model_max_length=30)
    how = SentenceEmbedding(("cls", "max"), prompts={"query": "find: "}, lowercase=True, similarity="dot")
    loaded = bertie.load(folder, threads=1)
    sentence_transformers_format.write(folder, loaded.model.encoder.config, how, 20)
    facts = bertie.verify(folder).facts
    assert facts["model"]["encoder"].endswith("hidden_act relu")
    assert facts["model"]["longest input"].startswith("20 tokens")
    assert facts["tokenizer"]["text"].startswith("keeps the case")
    assert facts["tokenizer"]["added tokens"] == token
    assert facts["tokenizer"]["its limit"] == "30 tokens"
    assert facts["vectors"]["pooling"] == "cls and max (as the files of sentence-transformers say)"
    assert facts["vectors"]["width"] == str(2 * loaded.vector_width("cls"))
    assert facts["vectors"]["similarity"] == "dot"
    assert facts["vectors"]["prompts"] == "query 'find: '"
    assert facts["vectors"]["lowercase"]


def test_what_a_folder_says_cannot_control_the_terminal(folder: Path) -> None:
    changed(folder / "config.json", architectures=["Bert\x1b[31m\nForPreTraining"])
    config = bertie.load(folder, threads=1).model.encoder.config
    how = SentenceEmbedding(prompts={"a\x07\nb": "\x1b[2J"})
    sentence_transformers_format.write(folder, config, how, 20)
    lines = bertie.verify(folder).lines()
    assert any(r"\x1b[2J" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_unknown_keys_are_named_every_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(folder / "config.json", secret_scale=3)
    for _ in range(2):
        code, found, lines = result(folder, capsys)
        assert code == 0
        [warning] = found["warnings"]
        assert "config.json" in warning
        assert "secret_scale" in warning
        assert lines.count(f"warning: {warning}") == 1


def test_the_manifest_is_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bertie.verify(folder).facts["files"]["manifest"].startswith("none")
    write_manifest(folder)
    assert "checksums of" in bertie.verify(folder).facts["files"]["manifest"]
    with (folder / "vocab.txt").open("a") as file:
        file.write("more\n")
    code, found, _ = result(folder, capsys)
    assert code == found["exit_code"] == 1
    assert "vocab.txt" in found["error"]


REFUSED: dict[str, tuple[Change, str]] = {
    "activation": (lambda f: changed(f / "config.json", hidden_act="swish9"), "hidden_act"),
    "weights": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 100), "model.safetensors"),
    "manifest": (lambda f: (f / "manifest.json").write_text('{"files": 3}'), "manifest.json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_is_refused_ends_in_one_line(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, names = REFUSED[name]
    change(folder)
    code, found, lines = result(folder, capsys)
    assert code == 1
    assert names in found["error"]
    assert lines == [f"bertie: {found['error']}"]


def test_a_wrong_call_has_the_exit_code_2(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert result(tmp_path / "none", capsys)[0] == 2
    assert result(folder, capsys, "--against", "tensorflow")[0] == 2
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    code, found, _ = result(folder, capsys, "--against", "sentence-transformers")
    assert (code, "pip install sentence-transformers" in found["error"]) == (2, True)


def test_a_library_whose_import_fails_ends_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken" / "transformers").mkdir(parents=True)
    (tmp_path / "broken" / "transformers" / "__init__.py").write_text("raise ImportError('cannot import name X')")
    monkeypatch.syspath_prepend(tmp_path / "broken")
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    code, found, lines = result(folder, capsys, "--against", "transformers")
    assert code == 2
    assert "(ImportError: cannot import name X)" in found["error"]
    assert lines == [f"bertie: {found['error']}"]
    assert bertie.convert(folder, tmp_path / "out", "hf", threads=1)["not_checked"] == "transformers"
    assert "not checked in transformers: " in capsys.readouterr().err


def test_a_difference_has_the_exit_code_1(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [np.array([1.0, 2.0])]
    probes = [
        Probe("vectors", ["a text"], numbers, lambda: [np.array([1.0, 2.5])]),
        Probe("ids", ["a text"], [[1]], lambda: [[2]], 0.0, "they may differ"),
        not_done("loading the head", "ValueError: no"),
        Probe("scores", ["a text"], numbers, lambda: numbers),
    ]
    monkeypatch.setitem(module.PROBES, "transformers", lambda *_: probes)
    monkeypatch.setattr(module, "absent", lambda _: "")
    code, found, lines = result(folder, capsys, "--against", "transformers")
    assert code == 1
    assert not found["right"]
    assert [each["verdict"] for each in found["comparisons"]] == ["DIFFERENT", "by design", "FAILED", "equal"]
    assert found["comparisons"][0]["example"] == {"text": "a text", "ours": "2 (number 2 of 2)", "theirs": "2.5"}
    assert found["comparisons"][2]["difference"] is None
    assert "2 of 4 comparisons: vectors; loading the head failed (ValueError: no)" in found["error"]
    assert any("theirs  2.5" in line for line in lines)


def test_numbers_are_compared_relative_to_the_largest_one() -> None:
    theirs = [np.array([100.0, 0.0])]
    differences = {0.009: True, 0.011: False, np.nan: False}
    found = {x: compared("x", [""], [np.array([100.0, x])], theirs).equal for x in differences}
    assert found == differences
    other_size = compared("x", [""], [np.array([100.0])], theirs)
    assert not np.isfinite(other_size.difference)
    assert compared("x", [], [], []).equal
    assert compared("x", [""], [], theirs).verdict == "FAILED"


def test_names_among_numbers_must_be_equal() -> None:
    ours = [{"label": "a", "probabilities": {"a": 0.7, "b": 0.3}, "spans": [[1, 2]]}]
    for theirs, equal in (
        ({"probabilities": {"a": 0.70001, "b": 0.3}}, True),
        ({"probabilities": {"a": 0.71, "b": 0.29}}, False),
        ({"probabilities": {"a": 0.7, "c": 0.3}}, False),
        ({"label": "b"}, False),
        ({"spans": [[1, 3]]}, False),
    ):
        result = compared("x", [""], ours, [ours[0] | theirs])
        assert (result.equal, result.example is None) == (equal, equal), theirs
    exact = compared("ids", ["long text", "text"], [["a", "b"], ["a"]], [["a", "c"], ["b"]], 0.0)
    assert (exact.difference, exact.example and exact.example.text) == (2.0, "text")


def test_an_error_of_the_other_program_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Any:
        print("hidden")
        raise KeyError("two\nlines")

    def no_memory() -> Any:
        raise MemoryError

    found = run([Probe("tokens", [""], [1], fail), Probe("vectors", [""], [1], no_memory)])
    assert [each.reason for each in found] == [r"KeyError: 'two\nlines'", "MemoryError:"]
    assert {each.verdict for each in found} == {"FAILED"}
    assert capsys.readouterr().out == ""


def test_texts_have_the_tokens_of_the_vocabulary(folder: Path) -> None:
    token = Tokenizer.load(folder).vocabulary[-1]
    changed(folder / "tokenizer_config.json", extra_special_tokens=[token])
    texts = ComparedTexts.of(Tokenizer.load(folder), 40)
    assert any(f"the {token} acme{token}b" in text for text in texts.plain)
    assert not any("[SEP]" in text for text in texts.plain)
    assert "a [SEP] b[SEP]c" in texts.with_roles
    assert any("<s>" in text for text in texts.plain)
    sizes = [sorted(map(len, Tokenizer.load(folder).encode([*pair]))) for pair in texts.pairs]
    assert max(short for short, _ in sizes) <= 18
    assert max(long for _, long in sizes) > 40
