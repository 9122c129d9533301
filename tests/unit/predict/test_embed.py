"""`bertie embed`: files of vectors."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from small_models import close, run

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.predict import embed as embed_module
from bertie.predict import vector_files
from bertie.predict.embed import TextUnit, WordUnit, embed
from bertie.predict.predictor import Predictor


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_npy_has_the_vectors_of_predictor_embed(predictor: Predictor, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(texts))
    told = embed(predictor, tmp_path / "a.txt", tmp_path / "new" / "a.npy")
    found = np.load(tmp_path / "new" / "a.npy", mmap_mode="r", allow_pickle=False)
    assert isinstance(found, np.memmap)
    assert found.dtype == np.float32
    close(found, predictor.embed(texts))
    assert told.pop("seconds") >= 0
    assert told == {"out": str(tmp_path / "new" / "a.npy"), "texts": 176, "errors": 0, "vectors": 176, "width": 32}
    assert names(tmp_path / "new") == {"a.npy"}


def test_stdin_is_read_once(predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\n\ntwo words\nbad \xff\n")
    os.close(writing)
    monkeypatch.setattr("bertie.examples.rows.STDIN_DEVICE", Path(f"/dev/fd/{reading}"))
    told = embed(predictor, "-", tmp_path / "a.npy")
    os.close(reading)
    assert (told["texts"], told["errors"], told["vectors"]) == (4, 1, 4)
    found = np.load(tmp_path / "a.npy")
    close(found[:3], predictor.embed(["one", "", "two words"]))
    assert np.isnan(found[3]).all()


def test_a_file_that_changes_during_the_run_is_refused(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    real = embed_module.layer_selection.selected_width

    def width(*given: Any) -> int:  # called between the first and the second pass over the file
        path.write_text("one\ntwo\nthree\n")
        return real(*given)

    monkeypatch.setattr(embed_module.layer_selection, "selected_width", width)
    with pytest.raises(UserError, match=r"a\.txt changed while it was read: it had 2 texts and now has 3"):
        embed(predictor, path, tmp_path / "a.npy")
    assert names(tmp_path) == {"a.txt"}


def test_parquet_has_an_index_and_the_vectors(predictor: Predictor, texts: list[str], tmp_path: Path) -> None:
    embed(predictor, texts, tmp_path / "a.parquet", TextUnit(pooling="max"), dtype="float16")
    file = parquet.ParquetFile(tmp_path / "a.parquet")
    assert file.num_row_groups == 2
    table = file.read()
    assert str(table.schema.field("vector").type).startswith("fixed_size_list<element: halffloat")
    assert table["index"].to_pylist() == list(range(176))
    found = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, 32)
    close(found, predictor.embed(texts, "max"), 2e-3)


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_words_have_offsets_and_vectors(predictor: Predictor, texts: list[str], tmp_path: Path, ending: str) -> None:
    texts[3] = texts[5] = ""
    told = embed(predictor, texts, tmp_path / f"a{ending}", WordUnit(word_pooling="mean"))
    table = parquet.read_table(tmp_path / ("a.parquet" if ending == ".parquet" else "a.words.parquet"))
    vectors = np.load(tmp_path / "a.npy") if ending == ".npy" else np.stack(table["vector"].to_pylist())
    expected = predictor.word_vectors(texts, word_pooling="mean")
    assert told["vectors"] == len(vectors) == table.num_rows
    close(vectors, np.concatenate([each.vectors for each in expected]))
    rows = table.drop_columns("vector").to_pylist() if ending == ".parquet" else table.to_pylist()
    wanted = [
        {"index": i, "number": j, "word": word, "start": int(each.offsets[j, 0]), "end": int(each.offsets[j, 1])}
        for i, each in enumerate(expected)
        for j, word in enumerate(each.words)
    ]
    assert rows == wanted
    assert {3, 5}.isdisjoint(row["index"] for row in rows)


def test_texts_without_words_give_an_empty_array(predictor: Predictor, tmp_path: Path) -> None:
    for ending in (".npy", ".parquet"):
        assert embed(predictor, ["", " "], tmp_path / f"a{ending}", WordUnit())["vectors"] == 0
    assert np.load(tmp_path / "a.npy").shape == (0, 32)
    assert parquet.read_table(tmp_path / "a.parquet").schema.names[-1] == "vector"
    assert parquet.read_table(tmp_path / "a.words.parquet").num_rows == 0


def test_unreadable_rows_have_nan_vectors(
    predictor: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": 1}\n{"text": "the b"}\n')
    told = embed(predictor, tmp_path / "a.jsonl", tmp_path / "a.npy")
    assert told["errors"] == 1
    assert "1 of 3 rows cannot be read and have no vector: " in capsys.readouterr().err
    found = np.load(tmp_path / "a.npy")
    assert np.isnan(found[1]).all()
    close(found[[0, 2]], predictor.embed(["a", "the b"]))
    embed(predictor, tmp_path / "a.jsonl", tmp_path / "a.parquet")
    vectors = parquet.read_table(tmp_path / "a.parquet")["vector"]
    assert vectors.is_null().to_pylist() == [False, True, False]
    close(np.stack(vectors.drop_null().to_pylist()), found[[0, 2]])
    embed(predictor, tmp_path / "a.jsonl", tmp_path / "w.parquet", WordUnit())
    assert parquet.read_table(tmp_path / "w.parquet")["index"].to_pylist() == [0, 2, 2]
    with pytest.raises(UserError, match=r"a\.jsonl:2: 'text' must be a string"):
        embed(predictor, tmp_path / "a.jsonl", tmp_path / "b.npy", strict=True)
    assert not (tmp_path / "b.npy").exists()


def test_texts_without_tokens_have_nan_vectors(
    without_special_tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor = bertie.load(without_special_tokens, threads=1)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": ""}\n{"text": 1}\n{"text": "the b"}\n{"text": " "}\n')
    told = embed(predictor, tmp_path / "a.jsonl", tmp_path / "a.npy")
    assert (told["texts"], told["errors"], told["vectors"]) == (5, 3, 5)
    assert "2 of 5 texts have no vector: the model finds no tokens" in capsys.readouterr().err
    found = np.load(tmp_path / "a.npy")
    assert np.isnan(found).any(1).tolist() == [False, True, True, False, True]
    close(found[[0, 3]], predictor.embed(["a", "the b"]))
    embed(predictor, tmp_path / "a.jsonl", tmp_path / "a.parquet")
    nulls = parquet.read_table(tmp_path / "a.parquet")["vector"].is_null()
    assert nulls.to_pylist() == [False, True, True, False, True]
    assert embed(predictor, ["a", ""], tmp_path / "p.npy", TextUnit(pooling="cls"))["errors"] == 1
    with pytest.raises(UserError, match="text 2 has no vector: the model finds no tokens"):
        embed(predictor, ["a", ""], tmp_path / "b.npy", strict=True)
    with pytest.raises(UserError, match="no text has a vector: the model finds no tokens"):
        embed(predictor, ["", " "], tmp_path / "b.npy")
    assert not (tmp_path / "b.npy").exists()


@pytest.mark.parametrize(
    ("content", "out", "error", "message"),
    [
        (b"a\n", "a.txt", UsageError, "--out"),
        (b"a\n", "there.npy", UsageError, "already exists"),
        (b"", "b.npy", UserError, "no texts in it"),
        (b"\xff\n\xfe\n", "b.npy", UserError, r"x\.txt:1: not UTF-8"),
    ],
)
def test_bad_input_is_refused_and_leaves_no_file(
    predictor: Predictor, tmp_path: Path, content: bytes, out: str, error: type[UserError], message: str
) -> None:
    (tmp_path / "there.npy").write_text("kept")
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(error, match=message):
        embed(predictor, tmp_path / "x.txt", tmp_path / out)
    assert names(tmp_path) == {"there.npy", "x.txt"}
    assert (tmp_path / "there.npy").read_text() == "kept"


def test_numbers_outside_the_range_of_float16_are_refused(tmp_path: Path) -> None:
    def write() -> None:
        with vector_files.vector_file(tmp_path / "a.npy", 2, "float16", words=False) as block:
            block({}, np.array([[1.0, 1e6]], np.float32))

    with pytest.raises(UserError, match="outside the range of float16"):
        write()
    assert names(tmp_path) == set()


def test_memory_does_not_grow_with_the_file(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_module, "SEQUENCES_AT_ONCE", 256)
    peaks = []
    for times in (1, 2, 8):  # the first imports what it needs
        source = tmp_path / f"{times}.txt"
        source.write_text("".join(f"the ka du {i}\n" for i in range(256 * times)))
        for unit in (TextUnit(), WordUnit()):
            tracemalloc.start()
            embed(predictor, source, tmp_path / f"{type(unit).__name__}{times}.npy", unit)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[4] < 1.2 * peaks[2], peaks
    assert peaks[5] < 1.2 * peaks[3], peaks


def test_command_line(predictor: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("id,review\n1,a b\n2,c\n")
    columns = ["--input", tmp_path / "a.csv", "--text", "review", "--out", tmp_path / "a.npy"]
    [result], _ = run(
        "embed", predictor.folder, *columns, "--pooling", "cls", "--layers", "second_to_last", capsys=capsys
    )
    assert result["vectors"] == 2
    close(np.load(tmp_path / "a.npy"), predictor.embed(["a b", "c"], "cls", "second_to_last"))
    words = ["--out", tmp_path / "w.npy", "--unit", "word", "--word-pooling", "mean", "--dtype", "float16"]
    run("embed", predictor.folder, "a b", "c", *words, capsys=capsys)
    assert np.load(tmp_path / "w.npy").dtype == np.float16
    assert parquet.read_table(tmp_path / "w.words.parquet")["word"].to_pylist() == ["a", "b", "c"]


def test_help_imports_no_torch() -> None:
    code = "import sys; from bertie.cli import main; main(['--help']); print({'torch', 'pyarrow', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
