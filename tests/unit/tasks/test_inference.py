from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bertie.base.contracts import Batch, Sequence
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.head_facts import with_facts
from bertie.model.heads.heads import PooledHead
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.tasks import Classify
from bertie.tasks.inference import infer, outputs


def sequences(lengths: list[int]) -> list[Sequence]:
    rng = np.random.default_rng(0)
    return [
        Sequence(rng.integers(0, 500, n).astype(np.int32), np.zeros(n, np.int32), np.ones(n, bool)) for n in lengths
    ]


def model_of(config: TransformerConfig) -> Model:
    torch.manual_seed(0)
    model = Model(
        build_encoder(config), {"classify": with_facts(PooledHead(config.hidden_size, 3, 0.5), Classify().facts)}
    )
    initialize_weights(model, 0.2)
    return model


def test_results_are_in_the_order_of_the_sequences(tiny_config: TransformerConfig) -> None:
    mixed = sequences(np.random.default_rng(1).integers(1, 60, 100).tolist())
    sizes: list[int] = []

    def first_ids(batch: Batch, members: list[Sequence]) -> list[int]:
        assert len(members) == len(batch.ragged.lengths)
        assert int(batch.ragged.lengths.max()) <= batch.ragged.max_seqlen
        sizes.append(len(batch.input_ids))
        return batch.input_ids[batch.ragged.cu_seqlens[:-1]].tolist()

    found = infer(model_of(tiny_config), mixed, first_ids, batch_tokens=200)
    assert found == [int(sequence.input_ids[0]) for sequence in mixed]
    assert max(sizes) <= 200
    assert np.mean(sizes[:-1]) > 150


def test_sequence_longer_than_a_batch_is_a_batch_of_its_own(tiny_config: TransformerConfig) -> None:
    found = infer(model_of(tiny_config), sequences([50, 3, 50]), lambda batch, _: batch.ragged.lengths.tolist(), 10)
    assert found == [50, 3, 50]
    assert infer(model_of(tiny_config), [], lambda batch, _: batch.ragged.lengths.tolist()) == []


def test_a_text_of_several_pairs_is_computed_once(
    tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classify, "unit", "batch")
    model, task = model_of(tiny_config), Classify()
    texts = sequences([5, 60, 17])
    expected = outputs(model, task, texts)
    counts: list[int] = []
    whole = model.encoder_states

    def counted(batch: Batch, rows: Any) -> Any:
        counts.append(len(batch.ragged.lengths))
        return whole(batch, rows)

    monkeypatch.setattr(model, "encoder_states", counted)
    order = [0, 1, 0, 2, 2, 0]
    found = outputs(model, task, [texts[i] for i in order])
    assert sum(counts) == 3
    for one, i in zip(found, order, strict=True):
        np.testing.assert_array_equal(one, expected[i])


def test_outputs_do_not_depend_on_the_batch_and_dropout_is_off(tiny_config: TransformerConfig) -> None:
    model = model_of(tiny_config).train()
    mixed = sequences([5, 60, 17, 17, 1, 33])
    together = [logits[0] for logits in outputs(model, Classify(), mixed)]
    assert not model.training
    for one, expected in zip(mixed, together, strict=True):
        [[alone]] = outputs(model, Classify(), [one])
        np.testing.assert_allclose(alone, expected, atol=1e-5)
    assert together[0].shape == (3,)
    assert together[0].dtype == np.float32
    assert np.std(together, axis=0).min() > 1e-3
