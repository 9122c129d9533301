"""The names of the models of `bertie serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertie.commands.serve import _names
from bertie.errors import UsageError


def test_models_have_the_last_part_of_their_path_or_a_given_name(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    link = tmp_path / "linked"
    link.symlink_to(tmp_path / "target")
    given = [str(link), "runs/sst2/", "vectors=runs/mini", "org/model"]
    assert _names(given) == {
        "linked": str(link),
        "sst2": "runs/sst2/",
        "vectors": "runs/mini",
        "model": "org/model",
    }


def test_names_are_unique() -> None:
    with pytest.raises(UsageError, match="two models have the name 'mini': name them, as in mini-2=other/mini"):
        _names(["runs/mini", "other/mini"])
    with pytest.raises(UsageError, match="lacks RUN"):
        _names([])
