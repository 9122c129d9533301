"""Masked next token prediction: its targets, what it refuses, and what a trained model predicts with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.predict.small_models import model_of

import bertie
from bertie.base.contracts import Sequence
from bertie.batches.collate import collate
from bertie.checkpoints.folder import write_model
from bertie.model.config import TransformerConfig
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.objectives import MaskedNextToken
from bertie.objectives.objective import Labeling
from bertie.predict.predictor import Predictor
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model with large random weights."""
    made = tmp_path_factory.mktemp("mntp")
    write_model(made, model_of(tiny_config, MaskedNextToken()), small_tokenizer)
    return made


def by_hand(predictor: Predictor, ids: np.ndarray, position: int) -> np.ndarray:
    """Return the log probabilities of all entries at a position, from the row before it."""
    masked = ids.copy()
    masked[position] = predictor.tokenizer.mask_id
    sequence = Sequence(masked, np.zeros_like(masked), np.ones(len(masked), bool))
    head = predictor.model.heads["mntp"]
    assert isinstance(head, MaskedLMHead)
    with torch.no_grad():
        states = predictor.model.encoder(collate([sequence], 64).tensors()).last
        return head.logits(states[position - 1 : position]).log_softmax(-1)[0].numpy()


def test_each_target_is_one_row_before_its_masked_token(small_tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(60, 500, (3, 40)).astype(np.int32)
    ids[:2, 0] = small_tokenizer.cls_id  # the third sequence has no special token
    sequences = [Sequence(row, np.zeros(40, np.int32), np.ones(40, bool)) for row in ids]
    batch = collate(sequences, 64)
    objective = MaskedNextToken(mntp_probability=0.9, mask_replace_prob=1, random_replace_prob=0)
    seen = False
    for seed in range(5):
        masked, targets, _ = objective.label(batch, Labeling(small_tokenizer, np.random.default_rng(seed)))
        changed = np.flatnonzero(masked.input_ids != batch.input_ids)
        real = targets.weight > 0
        assert set(targets.index[real] + 1) == set(changed) - {80}  # nothing of its sequence stands before token 80
        np.testing.assert_array_equal(targets.label[real], batch.input_ids[targets.index[real] + 1])
        seen |= 80 in changed
    assert seen


def test_the_folder_claims_no_class_of_transformers_for_its_head(folder: Path) -> None:
    """Classes for masked LM read another row. The encoder still loads."""
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertModel"]
    assert "Only bertie loads the layers above it" in (folder / "README.md").read_text()


def test_masked_words_and_likelihoods_read_the_row_before(folder: Path) -> None:
    predictor = bertie.load(folder)
    words = [entry for entry in predictor.tokenizer.vocabulary if entry.isalpha() and len(entry) > 3][:5]
    [sequence] = truncation.encode(predictor.tokenizer, [" ".join(words)])
    ids = sequence.input_ids
    assert len(ids) == 7
    [score] = list(predictor.score_tokens([" ".join(words)]))
    assert not isinstance(score, Exception)
    expected = [by_hand(predictor, ids, place)[ids[place]] for place in range(1, len(ids) - 1)]
    np.testing.assert_allclose(score.log_probabilities, expected, rtol=1e-4)
    best = by_hand(predictor, ids, 2).argmax()
    [[first, *_]] = predictor.fill_mask(" ".join([words[0], "[MASK]", *words[2:]]))
    assert first.token == predictor.tokenizer.vocabulary[best]
