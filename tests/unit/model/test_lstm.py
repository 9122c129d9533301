from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from encoders import built, packed, sequences

from bertie.base.contracts import MicroBatch
from bertie.batches.collate import collate
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.flops import model_flops
from bertie.objectives import BidirectionalLM
from bertie.objectives.objective import Labeling
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers.tokenizer import Tokenizer

CONFIG = LstmConfig(2, 12, 10, vocab_size=40, max_position_embeddings=16, hidden_dropout_prob=0.0)


@pytest.mark.parametrize("cells", [6, 10])
def test_each_direction_is_torchs_lstm(cells: int) -> None:
    encoder, ids = built(replace(CONFIG, cell_size=cells)), [3, 9, 4, 7]
    hidden = encoder(packed([1, 2], ids, [5]), all_layers=True)
    assert hidden.layers is not None
    x = encoder.embeddings.word(torch.tensor(ids))
    ahead, back = x, x.flip(0)
    torch.testing.assert_close(hidden.layers[0][2:6], torch.cat([x, x], 1))
    for number, layer in enumerate(encoder.layers):
        ahead = layer.ahead(ahead)[0] + (ahead if number else 0)
        back = layer.back(back)[0] + (back if number else 0)
        torch.testing.assert_close(hidden.layers[number + 1][2:6], torch.cat([ahead, back.flip(0)], 1))
    torch.testing.assert_close(encoder(packed([1, 2], ids, [5]), torch.tensor([0, 3, 6])).last, hidden.last[[0, 3, 6]])


def test_targets_are_the_next_and_the_previous_token(small_tokenizer: Tokenizer) -> None:
    made = sequences([2, 7, 3], [2, 3])
    _, targets, _ = BidirectionalLM().label(collate(made, 16), Labeling(small_tokenizer, np.random.default_rng(0)))
    assert targets.weight.tolist() == [[1, 0], [1, 1], [0, 1], [1, 0], [0, 1]]
    assert (targets.label * targets.weight).tolist() == [[7, 0], [3, 2], [0, 7], [3, 0], [0, 2]]


def test_flops_count_gates_projections_and_logits(small_tokenizer: Tokenizer) -> None:
    made = sequences([1, 2, 3])
    packed, targets, _ = BidirectionalLM().label(collate(made, 16), Labeling(small_tokenizer, np.random.default_rng(0)))
    products = 2 * 2 * (4 * 10 * (6 + 6) + 10 * 6) + 12 * 40  # of a token: layers × directions, then logits
    model = new_model(CONFIG, (BidirectionalLM(),), 0)
    assert model_flops(model, MicroBatch.of(packed, {"bilm": targets})) == 6 * 3 * products
