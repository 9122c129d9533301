from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertie.batches.collate import collate
from bertie.batches.layouts import SentencePairs
from bertie.contracts import Batch, MicroBatch, Sequence, Targets
from bertie.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.flops import training_flops
from bertie.model.initialization import initialize_weights
from bertie.model.lstm import LstmConfig, LstmEncoder
from bertie.model.model import Model
from bertie.model.vocabulary_heads import BidirectionalLMHead
from bertie.objectives import BidirectionalLM, CausalLM, MaskedLM, NextSentence
from bertie.text.tokenizer import Tokenizer

CONFIG = LstmConfig(2, 12, 10, vocab_size=40, max_position_embeddings=16, hidden_dropout_prob=0.0)


def built(config: LstmConfig = CONFIG) -> LstmEncoder:
    encoder = build_encoder(config)
    torch.manual_seed(0)
    initialize_weights(encoder, 0.5)
    assert isinstance(encoder, LstmEncoder)
    return encoder.eval()


def batch(*sequences: list[int]) -> Batch:
    made = [Sequence(np.array(s, np.int32), np.zeros(len(s), np.int32), np.ones(len(s), bool)) for s in sequences]
    return collate(made, 16).tensors()


@pytest.mark.parametrize("cells", [6, 10])
def test_each_direction_is_torchs_lstm(cells: int) -> None:
    encoder, ids = built(replace(CONFIG, cell_size=cells)), [3, 9, 4, 7]
    hidden = encoder(batch([1, 2], ids, [5]), all_layers=True)
    assert hidden.layers is not None
    x = encoder.embeddings.word(torch.tensor(ids))
    ahead, back = x, x.flip(0)
    torch.testing.assert_close(hidden.layers[0][2:6], torch.cat([x, x], 1))
    for number, layer in enumerate(encoder.layers):
        ahead = layer.ahead(ahead)[0] + (ahead if number else 0)
        back = layer.back(back)[0] + (back if number else 0)
        torch.testing.assert_close(hidden.layers[number + 1][2:6], torch.cat([ahead, back.flip(0)], 1))
    torch.testing.assert_close(encoder(batch([1, 2], ids, [5]), torch.tensor([0, 3, 6])).last, hidden.last[[0, 3, 6]])


def test_no_half_sees_the_tokens_that_it_predicts() -> None:
    encoder = built()
    before = encoder(batch([1, 2, 3, 4, 5])).last
    for changed in range(5):
        ids = [1, 2, 3, 4, 5]
        ids[changed] = 30
        same = (encoder(batch(ids)).last == before).view(5, 2, 6).all(2)
        for token in range(5):
            assert bool(same[token, 0]) == (token < changed)  # the left half has read everything up to the token
            assert bool(same[token, 1]) == (token > changed)


def test_targets_are_the_next_and_the_previous_token(small_tokenizer: Tokenizer) -> None:
    made = [
        Sequence(np.array(s, np.int32), np.zeros(len(s), np.int32), np.ones(len(s), bool)) for s in ([2, 7, 3], [2, 3])
    ]
    _, targets = BidirectionalLM().label(collate(made, 16), small_tokenizer, np.random.default_rng(0))
    assert targets.weight.tolist() == [[1, 0], [1, 1], [0, 1], [1, 0], [0, 1]]
    assert (targets.label * targets.weight).tolist() == [[7, 0], [3, 2], [0, 7], [3, 0], [0, 2]]


def test_the_loss_is_the_sum_of_both_directions() -> None:
    encoder, packed = built(), batch([1, 2, 3], [4, 5])
    head = BidirectionalLMHead(encoder.embeddings.word)
    targets = Targets(
        torch.arange(5), torch.randint(40, (5, 2)), torch.tensor([[1.0, 0], [1, 1], [0, 1], [1, 0], [0, 1]])
    )
    loss = head(encoder(packed), targets)
    log = head.logits(encoder(packed).last).log_softmax(-1)
    expected = -(log.gather(2, targets.label[:, :, None])[:, :, 0] * targets.weight).sum()
    torch.testing.assert_close(loss.total, expected)
    assert loss.count == 6


def test_initial_weights_are_a_function_of_the_seed() -> None:
    first, second = built().state_dict(), built().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_flops_count_gates_projections_and_logits(small_tokenizer: Tokenizer) -> None:
    made = [Sequence(np.array([1, 2, 3], np.int32), np.zeros(3, np.int32), np.ones(3, bool))]
    packed, targets = BidirectionalLM().label(collate(made, 16), small_tokenizer, np.random.default_rng(0))
    products = 2 * 2 * (4 * 10 * (6 + 6) + 10 * 6) + 12 * 40  # of a token: layers × directions, then logits
    assert training_flops(CONFIG, MicroBatch.of(packed, {"bilm": targets})) == 6 * 3 * products


def test_models_and_objectives_that_do_not_fit_are_refused() -> None:
    transformer, layout = TransformerConfig(1, 12, 2, 24), SentencePairs()
    BidirectionalLM().check(CONFIG, layout, ())
    with pytest.raises(UsageError, match=r"objectives\.bilm .* model\.kind"):
        BidirectionalLM().check(transformer, layout, ())
    for objective in (MaskedLM(), NextSentence(), CausalLM()):
        with pytest.raises(UsageError, match=rf"objectives\.{objective.kind} .* model\.kind"):
            objective.check(CONFIG, layout, ())
    with pytest.raises(UsageError, match="hidden_size must be even"):
        LstmConfig(2, 13, 10)
    with pytest.raises(UsageError, match="at least half"):
        LstmConfig(2, 12, 5)


def test_overfits_a_few_sequences(small_tokenizer: Tokenizer) -> None:
    encoder = build_encoder(replace(CONFIG, hidden_size=64, cell_size=48))
    model = Model(encoder, {"bilm": BidirectionalLM().head(CONFIG, encoder)})
    torch.manual_seed(0)
    initialize_weights(model, 0.1)
    rng = np.random.default_rng(0)
    made = [
        Sequence(
            np.concatenate([[i], rng.integers(16, 40, 9), [8 + i]]).astype(np.int32),
            np.zeros(11, np.int32),
            np.ones(11, bool),
        )
        for i in range(8)  # the first and the last token name the sequence
    ]
    packed, targets = BidirectionalLM().label(collate(made, 16), small_tokenizer, rng)
    micro = MicroBatch.of(packed, {"bilm": targets}).tensors()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        loss = model(micro)["bilm"]
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    assert float((loss.total / loss.count).detach()) < 0.1
