"""A small lab: text, a task, and a file with two variants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def lab_data(small_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and a task that asks whether a sentence has a certain word."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in small_texts[:150]))
    rng = np.random.default_rng(0)
    sentences = [sentence for text in small_texts[150:] for sentence in text.split(".") if sentence]
    lines = [f"{sentence.strip()}\t{int(' and ' in sentence)}" for sentence in rng.permutation(sentences)[:140]]
    for name, part in (("train", lines[:80]), ("dev", lines[80:])):
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *part]) + "\n")
    return folder


@pytest.fixture
def lab_file() -> dict[str, Any]:
    """The content of a lab file: BERT with and without next sentence prediction."""
    model = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    training = {"batch_size": 4, "learning_rate": 1e-3, "eval_every": 2, "checkpoint_every": 2}
    return {
        "title": "Objectives",
        "question": "Does it help?",
        "budget": {"unit": "steps", "amount": 4},
        "text": {"inputs": ["text.jsonl"], "vocab_size": 300, "eval_share": 0.2},
        "pretrain": {"extends": "tiny", "model": model, "layout": {"max_length": 32}, "training": training},
        "tasks": [
            {
                "name": "and",
                "train": "train.tsv",
                "dev": "dev.tsv",
                "finetune": {"extends": "classify", "max_length": 32, "training": {"epochs": 1, "batch_size": 16}},
            }
        ],
        "axes": [
            {
                "name": "objective",
                "variants": [
                    {"name": "BERT"},
                    {"name": "no NSP", "pretrain": {"objectives": [{"kind": "mlm"}]}},
                ],
            }
        ],
    }
