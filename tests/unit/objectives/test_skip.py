from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertie.base.contracts import Batch, MicroBatch, Sequence
from bertie.batches.collate import collate, filler
from bertie.model.encoders.gru import GruConfig
from bertie.model.initialization import initialize_weights
from bertie.objectives import SkipThoughts
from bertie.objectives.objective import Labeled, Labeling
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer

GRU = GruConfig(12, 8, vocab_size=60, max_position_embeddings=32, hidden_dropout_prob=0.0)


def run(*sentences: list[int]) -> Sequence:
    ids = np.array([token for sentence in sentences for token in sentence], np.int32)
    return Sequence(ids, np.zeros_like(ids), np.ones(len(ids), bool))


def labeled(tokenizer: Tokenizer, *runs: Sequence) -> Labeled:
    row = collate([*runs, *filler(3, tokenizer.pad_id, 32)], 32)
    return SkipThoughts().label(row, Labeling(tokenizer, np.random.default_rng(0)))


def sentence(tokenizer: Tokenizer, *tokens: int) -> list[int]:
    return [tokenizer.cls_id, *tokens, tokenizer.sep_id]


def test_each_sentence_is_a_sequence_with_its_neighbors_in_the_run(small_tokenizer: Tokenizer) -> None:
    made = (sentence(small_tokenizer, *tokens) for tokens in ([10], [20, 21], [30], [40], [50]))
    first, second, third, fourth, fifth = made
    batch, targets, _ = labeled(small_tokenizer, run(first, second, third), run(fourth, fifth))
    assert batch.ragged.cu_seqlens.tolist() == [0, 3, 7, 10, 13, 16, 19]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1, 2, 3, *[0, 1, 2] * 4]
    assert batch.example.tolist() == [-1] * 5 + [-2]
    # The first sentence of a run is written only from the one after it, the last one only from the one before.
    next_, previous = targets.weight.T.tolist()
    assert next_ == [*[0] * 3, *[1, 1, 1, 0], *[1, 1, 0], *[0] * 3, *[1, 1, 0], *[0] * 3]
    assert previous == [*[1, 1, 0], *[1, 1, 1, 0], *[0] * 3, *[1, 1, 0], *[0] * 6]
    sep = small_tokenizer.sep_id
    assert (targets.label[:, 0] * targets.weight[:, 0]).tolist()[3:9] == [20, 21, sep, 0, 30, sep]
    assert (targets.label[:, 0] == targets.label[:, 1]).all()


def test_special_tokens_that_are_equal_divide_sentences() -> None:
    """GPT-2 has one token for both ends: two in a row are the end and the beginning."""
    same = type("Same", (), {"cls_id": 9, "sep_id": 9})()
    row = collate([run([9, 20, 9], [9, 30, 31, 9])], 32)
    batch, _, _ = SkipThoughts().label(row, Labeling(same, np.random.default_rng(0)))
    assert batch.ragged.cu_seqlens.tolist() == [0, 3, 7]


def losses(model_config: GruConfig, blind: bool, batch: Batch, targets: object) -> tuple[float, list[torch.Tensor]]:
    model = new_model(model_config, (SkipThoughts(blind=blind),), 0)
    torch.manual_seed(0)
    initialize_weights(model, 0.5)
    loss = model(MicroBatch.of(batch, {"skip": targets}).tensors())["skip"]
    loss.total.backward()
    gradients = [parameter.grad for parameter in model.encoder.layers.parameters()]
    assert None not in gradients
    return loss.total.item(), [gradient for gradient in gradients if gradient is not None]


@pytest.mark.parametrize("blind", [False, True])
def test_blind_decoders_do_not_read_the_vector(small_tokenizer: Tokenizer, blind: bool) -> None:
    """The first sentence has no influence on how the second one is written. It is not written by another one that changes."""
    second = sentence(small_tokenizer, 20, 21)
    found = []
    for word in (10, 11):
        batch, targets, _ = labeled(small_tokenizer, run(sentence(small_tokenizer, word), second))
        weight = targets.weight.copy()
        weight[:, 1] = 0  # only the second sentence, from the first
        total, gradients = losses(GRU, blind, batch, replace(targets, weight=weight))
        found.append(total)
        assert all(bool(gradient.any()) != blind for gradient in gradients)
    assert (found[0] == found[1]) == blind
