"""Random faults never lose or corrupt a run. The long version is tests/long/torment_pretrain.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from killing import Nursery, pretrain_command
from torment import WAYS, torment


@pytest.mark.slow
@pytest.mark.parametrize("each", [1, 3])
def test_random_faults_do_not_change_the_result(
    nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path, each: int
) -> None:
    landed: dict[str, int] = {}
    runs = torment(nursery, lambda run: pretrain_command(shards, run), tmp_path, undisturbed, random.Random(0), each, 8)
    for landed, different in runs:  # noqa: B007 - the last value is checked below
        assert different == []
    assert set(landed) == set(WAYS)
    assert min(landed.values()) >= each
