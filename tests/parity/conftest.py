"""A part of a real model that is small enough to be trained by two libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that the tests here share
ENTRIES = 8000


@pytest.fixture(scope="session")
def two_layers(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four heads of the first two layers of `minilm`, with the first entries of its vocabulary, the frequent words.

    Every matrix has the first rows and columns of one of `minilm`.
    """
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    folder = tmp_path_factory.mktemp("two_layers")
    whole = transformers.BertModel.from_pretrained(minilm, num_hidden_layers=2)
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": ENTRIES}
    model = transformers.BertModel(transformers.BertConfig(**whole.config.to_dict() | sizes))
    for own, larger in zip(model.parameters(), whole.parameters(), strict=True):
        own.data.copy_(larger.data[tuple(map(slice, own.shape))])
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {entry: number for entry, number in vocabulary.items() if number < ENTRIES}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert transformers.AutoTokenizer.from_pretrained(folder).vocab_size == ENTRIES
    return folder
