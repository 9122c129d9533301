from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bertie
from bertie.base.contracts import Sequence
from bertie.batches.collate import collate
from bertie.predict import embed
from bertie.predict.predictor import Predictor

sys.path.insert(0, str(Path(__file__).parent))  # for engine_inputs.py
LogP = Callable[[Predictor, list[int]], np.ndarray]


@pytest.fixture(scope="session")
def own_minimal_pairs() -> Path:
    """150 minimal pairs in BLiMP's format: 12 phenomena of English grammar, in sentences of this project."""
    return Path(__file__).with_name("minimal_pairs.jsonl")


@pytest.fixture(scope="module")
def predictor(pretrained: Path) -> Predictor:
    """The small model with the heads of pre-training."""
    return bertie.load(pretrained, threads=1)


@pytest.fixture(scope="module")
def log_p() -> LogP:
    """The log probabilities of all entries at every position of one sequence, computed without any batching."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def compute(model: Predictor, ids: list[int]) -> np.ndarray:
        key = (id(model), *ids)
        if key not in known:
            known[key] = fresh(model, ids)
        return known[key]

    def fresh(model: Predictor, ids: list[int]) -> np.ndarray:
        array = np.array(ids, np.int32)
        batch = collate([Sequence(array, np.zeros_like(array), np.ones(len(ids), bool))], 64).tensors()
        with torch.inference_mode():
            logits = model.model.heads["mlm"].logits(model.model.encoder(batch).last)  # type: ignore[operator]
        return logits.double().log_softmax(-1).numpy()

    return compute


@pytest.fixture
def texts(small_texts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """More texts than one block holds, all different."""
    monkeypatch.setattr(embed, "SEQUENCES_AT_ONCE", 100)
    return [f"{text[:30]} {i}" for i, text in enumerate(small_texts[:176])]
