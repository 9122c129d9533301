"""A real model that is small enough to be trained by two libraries."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def two_layers(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first two layers of `minilm`, with its tokenizer."""
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    folder = tmp_path_factory.mktemp("two_layers")
    transformers.BertModel.from_pretrained(minilm, num_hidden_layers=2).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return folder
