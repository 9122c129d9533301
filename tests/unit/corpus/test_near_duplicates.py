"""Near-copies: those with a Jaccard index of their pairs of words above a threshold go, and no others."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bertie.base.errors import UsageError
from bertie.corpus import duplicates
from bertie.corpus.document_blocks import Filters
from bertie.corpus.duplicates import BLOCKS, hash_parts
from bertie.corpus.executors import LocalExecutor
from bertie.corpus.near_duplicates import bands_of, find_near_duplicates, write_signatures
from bertie.corpus.prepare import prepare
from bertie.tokenizers.tokenizer import Tokenizer


def pairs_of_words(text: str) -> frozenset[tuple[str, str]]:
    return frozenset(pairwise(re.findall(r"\w+", text.lower())))


def nearly_equal(texts: list[str], threshold: float) -> list[set[int]]:
    """Return for each text the earlier ones whose pairs of words have at least this Jaccard index with its own."""
    sets = [pairs_of_words(text) for text in texts]
    return [
        {i for i, one in enumerate(sets[:j]) if len(one & other) >= threshold * len(one | other)}
        for j, other in enumerate(sets)
    ]


@pytest.fixture(scope="module")
def copies() -> list[str]:
    """40 texts of 100 words, each with ten copies in which 1 to 24 words are others."""
    rng = np.random.default_rng(0)
    texts: list[str] = []
    for _ in range(40):
        words = rng.integers(0, 5000, 100)
        texts.append(" ".join(f"w{word}" for word in words))
        for _ in range(10):
            copy = words.copy()
            copy[rng.permutation(100)[: rng.integers(1, 25)]] = rng.integers(0, 5000)
            texts.append(" ".join(f"w{word}" for word in copy))
    return [texts[i] for i in rng.permutation(len(texts))]


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_nearly_all_pairs_above_the_threshold_are_found_and_none_below(
    copies: list[str], threshold: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / BLOCKS).mkdir()
    blocks = {f"{number}": copies[number * 110 : number * 110 + 110] for number in range(4)}
    for name, texts in blocks.items():
        write_signatures(tmp_path / BLOCKS / name, [text.encode() for text in texts], "documents", threshold)
    monkeypatch.setattr(duplicates, "PART_BYTES", 40_000)
    parts = hash_parts(tmp_path, "near-documents", [*blocks])
    assert len(parts) > 1
    for part in parts:
        find_near_duplicates(tmp_path, [*blocks], threshold, part)
    found = [np.load(path) for path in (tmp_path / duplicates.DUPLICATES).iterdir()]
    found = {(110 * a + b, 110 * c + d) for rows in found for a, b, c, d in rows.T.tolist()}
    near = nearly_equal(copies, threshold)
    assert all(earlier in near[later] for later, earlier in found)
    assert len({later for later, _ in found}) >= 0.95 * sum(map(bool, near)) > 60
    bands, hashes = bands_of(threshold)
    assert 1 - (1 - threshold**hashes) ** bands >= 0.97


def test_prepare_leaves_out_near_copies(
    copies: list[str], small_tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [*copies[:100], "北京是中国的首都，也是一个很大的城市。", "北京是中国的首都，也是一个很大的城市！"]
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in own))
        own = [f"{copies[200]}\n\n{copies[0]} more", f"{copies[300]}\n\n{copies[0]} other"]
    for kind in ("documents", "paragraphs"):
        filters = Filters(duplicates=kind, near_duplicates=0.8)
        for out, workers in (("one", 1), ("two", 2)):
            texts = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
            out = tmp_path / f"{kind}-{out}"
            manifest = prepare(
                texts, small_tokenizer, out, eval_share=0.2, filters=filters, executor=LocalExecutor(workers)
            )
        counts = {name: dropped["count"] for name, dropped in manifest["duplicates"].items()}
        assert counts["near-documents"] == sum(map(bool, nearly_equal(copies[:100], 0.8))) + 1
        files = [sorted((tmp_path / f"{kind}-{out}" / "train").iterdir()) for out in ("one", "two")]
        assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert counts["near-paragraphs"] == 2
    assert "documents nearly equal to earlier ones" in capsys.readouterr().err
    page = (tmp_path / "documents-one" / "report.html").read_text(encoding="utf-8")
    assert "也是一个很大的城市！" in page


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--near-duplicates 1\.5: give a share from 0.3 to 1, or 0"):
        Filters(near_duplicates=1.5)
    with pytest.raises(UsageError, match="does not work with --duplicates keep"):
        Filters(duplicates="keep", near_duplicates=0.8)
