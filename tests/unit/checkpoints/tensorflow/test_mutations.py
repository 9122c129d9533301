"""2,000 mutations of checkpoints. tests/long/tensorflow_mutations.py tries 100,000."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_mutations import escape, fuzz, originals


def test_no_mutation_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz(originals(tmp_path), range(2000)) == []
    assert capsys.readouterr().err == ""


def test_an_escape_is_found(tmp_path: Path) -> None:
    original = originals(tmp_path)[-2]
    good = original.read(original.prefix)
    assert escape(original, good, forged=False) == ""
    assert escape(original, good | {"scalar": good["empty"]}, forged=False) == "damage was not noticed"
    broken = type(original)(original.prefix, lambda _: {}["a"])
    assert escape(broken, good, forged=True) == "KeyError: 'a'"
