"""Wrong calls of commands that use a model: one line that names the flag and the remedy, and no file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bertie.cli import main
from bertie.predict.predictor import Predictor

MASK = "the [MASK]"
WRONG = [
    ("fill-mask", [MASK, "--max-pieces", "2"], 2, "--max-pieces"),
    ("fill-mask", [MASK, "--beam", "2"], 2, "--beam"),
    ("fill-mask", [MASK, "--order", "confidence", "--joint", "--candidates", "a"], 2, "--order"),
    ("fill-mask", [MASK, "--whole-words", "--candidates", "a"], 2, "--whole-words"),
    ("fill-mask", [MASK, "--joint", "--beam", "0"], 2, "beam is 0"),
    ("generate", ["--sweeps", "2"], 2, "set method to gibbs"),
    ("likelihood", ["the", "--out", "x.csv"], 2, ".jsonl"),
    ("likelihood", ["--input", "empty.txt"], 1, "empty.txt: no texts in it"),
    ("likelihood", [""], 1, "none of 1 texts has a likelihood"),
    ("likelihood", ["", "--strict"], 1, "text 1 has no tokens"),
    ("similarity", ["a"], 2, "give at least two texts"),
    ("similarity", ["a", "b", "--text", "c"], 2, "add --input FILE"),
    ("similarity", ["--input", "one.tsv"], 2, "one.tsv"),
    ("similarity", ["--input", "bad.jsonl"], 1, "none of 1 pairs has a"),
    ("embed", ["--out", "a.npy"], 2, "give either texts or --input FILE"),
    ("embed", ["--out", "a.npy", "a", "--input", "b.txt"], 2, "give either texts or --input FILE"),
    ("embed", ["--out", "a.npy", "a", "--unit", "word", "--pooling", "cls"], 2, "--pooling has no effect"),
    ("embed", ["--out", "a.npy", "a", "--word-pooling", "mean"], 2, "--word-pooling has no effect"),
    ("embed", ["--out", "a.npy", "a", "--layers", "sum_last_4"], 2, "layers sum_last_4 needs 4 layers"),
    ("embed", ["--out", "a.npy", "a", "--prompt-name", "title"], 2, "no prompt 'title'"),
    ("embed", ["--out", "a.npy", "--input", "b.txt"], 2, "no such file"),
]


@pytest.mark.parametrize(("verb", "flags", "code", "message"), WRONG)
def test_wrong_usage_is_refused(
    predictor: Predictor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    flags: list[str],
    code: int,
    message: str,
) -> None:
    files = {"empty.txt": "", "one.tsv": "text\na\n", "bad.jsonl": '{"text": 3, "text_pair": "b"}\n'}
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        Path(name).write_text(content)
    assert main([verb, str(predictor.folder), *flags]) == code
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == files.keys()


@pytest.mark.parametrize("verb", ["fill-mask", "likelihood", "generate", "next-sentence", "minimal-pairs"])
def test_a_model_without_the_head_is_refused(
    verb: str, minilm: Path, own_minimal_pairs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pairs = str(shutil.copy(own_minimal_pairs, tmp_path / "pairs.jsonl"))
    given = {"minimal-pairs": [pairs, "--out", str(tmp_path / "out")], "next-sentence": ["a", "b"]}.get(verb, [MASK])
    assert main([verb, str(minilm), *given]) == 1
    told = capsys.readouterr().err
    assert "has no head for" in told if verb == "next-sentence" else "has no masked-LM" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()
