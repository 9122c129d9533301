"""Nothing is lost, and nothing silently wrong, whatever happens. The long version: tests/long/torment_pretrain.py."""

from __future__ import annotations

import random
from pathlib import Path

from killing import Nursery, pretrain_command
from torment import WAYS, torment


def test_nothing_is_lost_or_silently_wrong(nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path) -> None:
    landed: dict[str, int] = {}
    runs = torment(nursery, lambda run: pretrain_command(shards, run), tmp_path, undisturbed, random.Random(0), 2, 8)
    for landed, different in runs:  # noqa: B007 - the last is looked at below
        assert different == []
    assert set(landed) == set(WAYS)
    assert min(landed.values()) >= 2
