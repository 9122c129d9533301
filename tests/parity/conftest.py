"""A real model that is small enough to be trained by two libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that the tests here share
ENTRIES = 8000


@pytest.fixture(scope="session")
def two_layers(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first two layers of `minilm`, with the first entries of its vocabulary, which has the frequent words first."""
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    folder = tmp_path_factory.mktemp("two_layers")
    model = transformers.BertModel.from_pretrained(minilm, num_hidden_layers=2)
    model.resize_token_embeddings(ENTRIES)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {entry: number for entry, number in vocabulary.items() if number < ENTRIES}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert transformers.AutoTokenizer.from_pretrained(folder).vocab_size == ENTRIES
    return folder
