"""Damaged model folders are read, or refused with one line. tests/long/fuzz_models.py tries 100,000 of them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "long"))

from fuzz_models import make_models, try_case

CASES = 300


@pytest.mark.usefixtures("one_thread", "little_memory")
def test_damaged_models_are_read_or_refused_with_one_line(tmp_path: Path) -> None:
    folders = make_models(tmp_path)
    results = [try_case(folders[seed % len(folders)], seed) for seed in range(CASES)]
    assert [result for result in results if result.startswith("ESCAPE")] == []
    assert min(Counter(results).values()) > CASES // 10
