from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from encoders import built, packed

from bertie.base.errors import UsageError
from bertie.model.encoder import build_encoder
from bertie.model.encoders.gru import GruConfig, TimeSteps
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.initialization import initialize_weights

CONFIG = GruConfig(6, 4, vocab_size=40, max_position_embeddings=16, hidden_dropout_prob=0.0)


def test_states_are_those_of_torchs_gru_for_each_sequence() -> None:
    encoder, given = built(CONFIG), [[1, 2], [3, 9, 4, 7], [5], [6, 8]]
    found = encoder(packed(*given)).last
    alone = [encoder.layers[0](encoder.embeddings.word(torch.tensor(ids)))[0] for ids in given]  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(found, torch.cat(alone))
    torch.testing.assert_close(encoder(packed(*given), torch.tensor([0, 3, 6])).last, found[[0, 3, 6]])


def test_time_steps_begin_with_the_longest_sequence() -> None:
    steps = TimeSteps.of(torch.tensor([0, 2, 6]), torch.tensor([2, 4, 1]))  # pyright: ignore[reportArgumentType]
    assert steps.sizes.tolist() == [3, 2, 1, 1]
    assert steps.token.tolist() == [2, 0, 6, 3, 1, 4, 5]
    assert steps.sequence.tolist() == [1, 0, 2, 1, 0, 1, 1]


def test_layers_of_different_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="layers: the embeddings of this gru"):
        built(CONFIG)(packed([1]), all_layers=True)
    same = built(replace(CONFIG, embedding_size=0))
    hidden = same(packed([1, 2]), all_layers=True)
    assert hidden.layers is not None
    assert [layer.shape for layer in hidden.layers] == [(2, 6), (2, 6)]


def test_the_vector_of_a_text_is_the_last_state() -> None:
    assert CONFIG.text_vector == "lasttoken"
    assert LstmConfig(1, 4, 4).text_vector == "mean"


def test_recurrent_matrices_begin_orthogonal() -> None:
    for gate in built(CONFIG).layers[0].weight_hh_l0.detach().split(6):  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        torch.testing.assert_close(gate @ gate.T, torch.eye(6))


def test_the_last_state_begins_as_one_that_remembers_the_first_word() -> None:
    """With torch's biases, the difference that the first of twelve words makes is 0.002 of that of the last; here 0.07."""
    encoder = build_encoder(GruConfig(64, 32, vocab_size=40, max_position_embeddings=16, hidden_dropout_prob=0.0))
    torch.manual_seed(0)
    initialize_weights(encoder, 0.1)
    base, first, last = [5] * 12, [6] + [5] * 11, [5] * 11 + [6]
    vector, early, late = (encoder.eval()(packed(ids)).last[-1] for ids in (base, first, last))
    assert (early - vector).norm() > 0.02 * (late - vector).norm()
