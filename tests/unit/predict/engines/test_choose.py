"""Which engine runs: names, refusals, and the measurement of `auto`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, get_args

import pytest

import bertie
from bertie.base.errors import UsageError
from bertie.predict.engines import choose, cpu
from bertie.predict.engines.files import EngineName


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "bertie" / "engines.json"


def test_every_name_is_an_engine() -> None:
    found = {name: choose.named(name) for name in get_args(EngineName)}
    assert [name for name, engine in found.items() if engine is None] == ["auto", "plain"]
    assert found["torch-int8"] == choose.named("torch-int8")
    assert {(e.kind, e.precision) for e in found.values() if e} >= {("openvino", "fp32"), ("onnx", "int8")}


def test_an_unknown_name_is_refused(pretrained: Path) -> None:
    with pytest.raises(UsageError, match="'fast' is not known; choose from auto, plain"):
        bertie.load(pretrained, engine="fast")  # type: ignore[arg-type]


def test_precisions_without_instructions_are_refused(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has", lambda _: False)
    with pytest.raises(UsageError, match="needs a processor with amx_bf16 or avx512_bf16; bf16 would be slow"):
        bertie.load(pretrained, engine="torch-bf16")
    with pytest.raises(UsageError, match="give wrong results"):
        bertie.load(pretrained, engine="torch-int8")


def test_missing_packages_are_named(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"needs openvino: pip install '\.\[openvino\]' in a checkout of bertie$"):
        bertie.load(pretrained, engine="openvino")
    with pytest.raises(UsageError, match=r"needs onnxruntime: pip install '\.\[onnx\]' in a checkout of bertie$"):
        bertie.load(pretrained, engine="onnx")


def test_int8_needs_a_converted_model(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "has", lambda _: True)
    with pytest.raises(UsageError, match="bertie convert RUN FOLDER --to torch --precision int8"):
        bertie.load(pretrained, engine="torch-int8")


def test_auto_takes_the_fastest_and_remembers_it(
    pretrained: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def seconds(_: Any, name: str, *__: Any) -> float:
        measured.append(name)
        return {"torch": 2.0, "torch-bf16": 3.0}[name]

    monkeypatch.setattr(choose, "_seconds", seconds)
    monkeypatch.setattr(cpu, "has", lambda _: True)
    assert bertie.load(pretrained, threads=1, engine="auto").engine == "torch"
    assert measured == ["torch", "torch-bf16"]
    assert list(json.loads(cache.read_text()).values()) == ["torch"]
    assert bertie.load(pretrained, threads=1, engine="auto").engine == "torch"
    assert len(measured) == 2
    assert bertie.load(pretrained, threads=2, engine="auto").engine == "torch"
    assert len(measured) == 4


def test_auto_really_measures(pretrained: Path, cache: Path) -> None:
    model = bertie.load(pretrained, threads=1, engine="auto")
    assert model.engine in ("torch", "torch-bf16")
    assert cache.is_file()
    assert len(model.embed(["a text"])) == 1


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"x": 3}'])
def test_a_damaged_cache_is_replaced(content: str, pretrained: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text(content)
    assert bertie.load(pretrained, threads=1, engine="auto").engine in ("torch", "torch-bf16")
    assert "torch" in json.loads(cache.read_text()).values() or "torch-bf16" in json.loads(cache.read_text()).values()


def test_auto_works_without_a_writable_cache(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert bertie.load(pretrained, threads=1, engine="auto").engine in ("torch", "torch-bf16")
