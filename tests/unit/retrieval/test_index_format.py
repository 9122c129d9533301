"""The code on the page about the files of an index, which searches them without bertie."""

from __future__ import annotations

from pathlib import Path

import bm25s
import numpy as np
import pytest
from tests.unit.test_docs import ROOT, parsed

import bertie
from bertie.predict.predictor import Predictor
from bertie.retrieval.index import index_facts, open_index

PAGE = ROOT / "docs" / "reference" / "index-format.md"


@pytest.fixture
def model(pretrained: Path) -> Predictor:
    return bertie.load(pretrained, threads=1)


def test_the_code_on_the_page_finds_the_nearest_passages(
    model: Predictor,
    small_texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(small_texts[:20]), encoding="utf-8")
    bertie.index("text.txt", model, "runs/index")
    [query] = model.embed([small_texts[3]], prompt_name="query")
    np.save("query.npy", query / np.linalg.norm(query))
    [code] = [block.text for block in parsed(PAGE)[1] if block.language == "python"]
    capsys.readouterr()
    exec(code, {})
    opened = open_index("runs/index", model)
    scores = model.similarity([small_texts[3]], [row["text"] for row in opened.passages])[0]
    printed = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(printed, np.sort(scores)[::-1][:5], atol=1e-3)
    assert bm25s.BM25.load("runs/index/words").scores["num_docs"] == len(opened.passages)


def test_the_page_names_all_keys_and_files(model: Predictor, small_texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(small_texts[:20]), encoding="utf-8")
    bertie.index(tmp_path / "text.txt", model, tmp_path / "index")
    passages, files = open_index(tmp_path / "index", model).passages, (tmp_path / "index").iterdir()
    keys = {*passages[0], *index_facts(tmp_path / "index"), *(file.name for file in files)}
    page = PAGE.read_text(encoding="utf-8")
    assert {key for key in keys if f"| `{key}` |" not in page and f"| `{key}/` |" not in page} == set()
