"""Minimal pairs: scores and accuracies by hand, files, and the output folder."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import run

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.predict import minimal_pairs as module
from bertie.predict.minimal_pairs import MinimalPair, minimal_pairs, read_pairs, score_pairs, wilson_interval
from bertie.predict.predictor import Predictor


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(small_texts: list[str], tmp_path: Path) -> list[Path]:
    """Two phenomena of one term and one without a UID, in sentences of the synthetic language."""

    def row(i: int, **names: str) -> dict[str, Any]:
        words = small_texts[i].split()[:6]
        bad = " ".join([*words[:2], words[3], words[2], *words[4:]])
        return {"sentence_good": " ".join(words), "sentence_bad": bad, **names, "pair_id": i}

    names = {"field": "syntax", "linguistics_term": "order"}
    first = [row(i, UID="one", **names) for i in range(12)] + [row(i, UID="two", **names) for i in range(12, 20)]
    return [write(tmp_path / "a.jsonl", *first), write(tmp_path / "late.jsonl", *(row(i) for i in range(20, 27)))]


def test_pairs_are_scored_by_the_likelihood_of_their_sentences(predictor: Predictor, files: list[Path]) -> None:
    result = minimal_pairs(predictor, files)
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    good, bad = (predictor.pseudo_log_likelihood([row[f"sentence_{side}"] for row in rows]) for side in ("good", "bad"))
    correct = good > bad
    assert 0 < correct.mean() < 1
    groups = {(group["kind"], group["name"]): group for group in result["groups"]}
    parts = {
        ("all", "all"): range(27),
        ("field", "syntax"): range(20),
        ("linguistics_term", "order"): range(20),
        ("UID", "one"): range(12),
        ("UID", "two"): range(12, 20),
        ("UID", "late"): range(20, 27),
    }
    assert set(groups) == set(parts)
    for key, part in parts.items():
        hits = int(correct[list(part)].sum())
        assert (groups[key]["pairs"], groups[key]["correct"]) == (len(part), hits)
        assert groups[key]["accuracy"] == pytest.approx(hits / len(part))
        assert groups[key]["low"] < groups[key]["accuracy"] < groups[key]["high"] or hits in (0, len(part))
    assert result["accuracy"] == pytest.approx(correct.mean())
    assert (result["pairs"], result["refused"], result["score"]) == (27, 0, "pseudo-log-likelihood")


def test_blocks_do_not_change_scores(predictor: Predictor, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = predictor.token_model()
    together = [(each.good, each.bad) for each in score_pairs(model, read_pairs(files[0]))]  # type: ignore[union-attr]
    monkeypatch.setattr(module, "BLOCK", 3)
    apart = [(each.good, each.bad) for each in score_pairs(model, read_pairs(files[0]))]  # type: ignore[union-attr]
    np.testing.assert_allclose(together, apart, atol=1e-4)


def test_equal_sentences_are_a_tie_and_wrong(predictor: Predictor, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"sentence_good": "The ka", "sentence_bad": "the KA"})
    [group] = [group for group in minimal_pairs(predictor, [path])["groups"] if group["kind"] == "all"]
    assert (group["pairs"], group["correct"], group["ties"]) == (1, 0, 1)


def test_the_output_folder(predictor: Predictor, files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = minimal_pairs(predictor, files, out, within_word=True)
    assert result["score"] == "pseudo-log-likelihood with within-word masks"
    assert result["out"] == str(out)
    assert sorted(path.name for path in out.iterdir()) == sorted(module.FILES)
    assert json.loads((out / "results.json").read_text()) == {k: v for k, v in result.items() if k != "out"}
    table = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert table == [{name: str(value) for name, value in group.items()} for group in result["groups"]]
    lines = [json.loads(line) for line in (out / "pairs.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert [line["sentence_good"] for line in lines] == [row["sentence_good"] for row in rows]
    for side in ("good", "bad"):
        expected = predictor.pseudo_log_likelihood([row[f"sentence_{side}"] for row in rows], within_word=True)
        np.testing.assert_allclose([line[side] for line in lines], expected, atol=1e-4)
    assert [line["correct"] for line in lines] == [line["good"] > line["bad"] for line in lines]
    assert lines[0]["source"] == "a.jsonl:1"
    with pytest.raises(UsageError, match="already exists"):
        minimal_pairs(predictor, files, out)


def test_the_page_of_a_perfect_model(predictor: Predictor, small_texts: list[str], tmp_path: Path) -> None:
    pairs = [text.split()[:4] for text in small_texts[:6]]
    sides = [" ".join(words) for words in pairs], [" ".join(words[::-1]) for words in pairs]
    better = predictor.pseudo_log_likelihood(sides[0]) > predictor.pseudo_log_likelihood(sides[1])
    rows = [(a, b) if first else (b, a) for a, b, first in zip(*sides, better, strict=True)]
    path = write(tmp_path / "a.jsonl", *({"sentence_good": a, "sentence_bad": b} for a, b in rows))
    result = minimal_pairs(predictor, [path], tmp_path / "out")
    assert result["accuracy"] == 1
    assert result["groups"][0]["high"] == 1
    assert 0.5 < result["groups"][0]["low"] < 1
    page = (tmp_path / "out" / "report.html").read_text()
    assert "All pairs are correct." in page
    assert "Accuracy by field" not in page


def test_only_the_worst_pairs_are_kept(
    predictor: Predictor, files: list[Path], tmp_path: Path, monkeypatch: Any
) -> None:
    minimal_pairs(predictor, files, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "pairs.jsonl").read_text().splitlines()]
    wrong = sorted((line for line in lines if not line["correct"]), key=lambda line: line["good"] - line["bad"])
    monkeypatch.setattr(module, "WORST", 2)
    minimal_pairs(predictor, files, tmp_path / "two")
    page = (tmp_path / "two" / "report.html").read_text()
    shown = re.findall(r"<i>difference</i> ([\d.]+) nats", page)
    assert shown == [f"{line['bad'] - line['good']:.2f}" for line in wrong[:2]]


def test_wilson_interval() -> None:
    low, high = wilson_interval(5, 10)
    assert (low, high) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    assert wilson_interval(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert wilson_interval(10, 10) == (pytest.approx(0.7225, abs=1e-4), 1.0)
    low, high = wilson_interval(500_000, 1_000_000)
    assert high - low == pytest.approx(2 * 1.96 * 0.0005, rel=1e-3)


def test_bad_rows_are_counted_and_the_rest_is_done(
    predictor: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    good = {"sentence_good": "the ka", "sentence_bad": "ka the"}
    long = {"sentence_good": "the", "sentence_bad": "ka " * 70}
    write(path, good, {"sentence_good": "the ka"}, {**good, "UID": 3}, {**good, "sentence_bad": ""}, long, good)
    path.write_text(path.read_text() + "{broken\n")
    result = minimal_pairs(predictor, [path])
    assert (result["pairs"], result["refused"]) == (2, 5)
    told = capsys.readouterr().err
    assert f"5 rows are left out: {path}:2: no sentence_bad; " in told
    assert "a.jsonl:4: sentence_bad has no tokens" in told
    with pytest.raises(UserError, match=r"a\.jsonl:1: no sentence_good and no sentence_bad"):
        minimal_pairs(predictor, [write(path, {"text": "a"})], tmp_path / "out")
    with pytest.raises(UserError, match="no pairs in it"):
        minimal_pairs(predictor, [write(path)])
    with pytest.raises(UsageError, match="no such file"):
        minimal_pairs(predictor, str(tmp_path / "missing.jsonl"))
    with pytest.raises(UsageError, match="give at least one file of minimal pairs"):
        minimal_pairs(predictor, [])
    assert not (tmp_path / "out").exists()


def test_other_formats(tmp_path: Path) -> None:
    path = tmp_path / "my_pairs.tsv"
    path.write_text("sentence_good\tsentence_bad\tUID\nthe ka\tka the\t\nin the\tthe in\tx\n")
    [first, second] = read_pairs(path)
    assert first == MinimalPair("the ka", "ka the", {"UID": "my_pairs"}, "my_pairs.tsv:2")
    assert isinstance(second, MinimalPair)
    assert second.groups["UID"] == "x"


def test_command_line(
    predictor: Predictor, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [result], told = run("minimal-pairs", predictor.folder, *files, "--out", tmp_path / "out", capsys=capsys)
    assert result["groups"] == bertie.minimal_pairs(predictor, files)["groups"]
    assert re.search(r"all +\d+\.\d % \(\d+\.\d % to \d+\.\d %\) +of 27", told)


def test_own_pairs_are_balanced_and_distinct(own_minimal_pairs: Path) -> None:
    pairs = [pair for pair in read_pairs(own_minimal_pairs) if isinstance(pair, MinimalPair)]
    assert len(pairs) == len({(pair.good, pair.bad) for pair in pairs}) == 150
    assert all(pair.good != pair.bad for pair in pairs)
    assert set(Counter(pair.groups["UID"] for pair in pairs).values()) == {12, 13}
    assert len({pair.groups["linguistics_term"] for pair in pairs}) == 7
