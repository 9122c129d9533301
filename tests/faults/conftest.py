"""A place to kill processes in, and text to train on."""

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
    from bertie.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[killing.Nursery]:
    with killing.nursery(tmp_path_factory.mktemp("logs")) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def shards(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So little text that an epoch is some ten steps."""
    from bertie.text.prepare import prepare

    folder = tmp_path_factory.mktemp("few")
    lines = [json.dumps({"text": text}) + "\n" for text in small_texts[:60]]
    (folder / "text.jsonl").write_text("".join(lines))
    prepare([folder / "text.jsonl"], small_tokenizer, folder / "shards", eval_share=0.2)
    return folder / "shards"
