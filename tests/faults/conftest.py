"""Fixtures: a server of processes that tests may kill, shards, and runs to compare with."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for killing.py, which the tests here share

import killing

if TYPE_CHECKING:
    from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[killing.Nursery]:
    with killing.nursery(tmp_path_factory.mktemp("logs")) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def shards(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of so little text that an epoch has about five steps."""
    from bertie.corpus.prepare import prepare

    folder = tmp_path_factory.mktemp("few")
    lines = [json.dumps({"text": text}) + "\n" for text in small_texts[:24]]
    (folder / "text.jsonl").write_text("".join(lines))
    prepare([folder / "text.jsonl"], small_tokenizer, folder / "shards", eval_share=0.2)
    return folder / "shards"


@pytest.fixture(scope="session")
def undisturbed(nursery: killing.Nursery, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run without faults."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    nursery.finish(killing.pretrain_command(shards, run))
    return run


@pytest.fixture(scope="session")
def halfway(nursery: killing.Nursery, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, killed after step 9. Copy it, and resume the copy with `pretrain_command`."""
    run = tmp_path_factory.mktemp("halfway") / "run"
    nursery.die(killing.pretrain_command(shards, run), "die_after_step", 9)
    return run


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of train.jsonl and dev.jsonl: sentences with two labels."""
    folder = tmp_path_factory.mktemp("examples")
    for name, count in (("train", 64), ("dev", 16)):
        rows = [{"text": f"the {'abcdefgh'[i % 8] * (i % 5 + 1)} ship", "label": "xy"[i % 2]} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
