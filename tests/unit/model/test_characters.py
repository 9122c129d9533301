from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from encoders import packed, sequences
from torch.utils.flop_counter import FlopCounterMode

from bertie.base.contracts import MicroBatch, Targets
from bertie.batches.collate import collate
from bertie.model.encoder import build_encoder, spell_entries
from bertie.model.encoders.characters import ENTRIES_MULTIPLE, GATE_BIAS, CharacterCNN, Characters
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.flops import model_flops
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.objectives import BidirectionalLM
from bertie.objectives.objective import Labeling
from bertie.tokenizers.spelling import spelling_table
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

WORDS = ["abcd", "abce", "##abcd", "b", *(f"w{i}" for i in range(300))]
SETTINGS = Characters(filters=(3, 4, 5), character_size=4, max_characters=8)
SIZE = len(SPECIAL_TOKENS) + len(WORDS)
CONFIG = LstmConfig(
    2, 12, 10, vocab_size=SIZE, max_position_embeddings=16, hidden_dropout_prob=0.0, input=SETTINGS
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.build([*SPECIAL_TOKENS, *WORDS])


def cnn(tokenizer: Tokenizer, settings: Characters = SETTINGS) -> CharacterCNN:
    made = CharacterCNN(settings, SIZE, 6)
    torch.manual_seed(0)
    initialize_weights(made, 0.5)
    made.spell(tokenizer)
    return made


def language_model(config: LstmConfig, tokenizer: Tokenizer) -> Model:
    encoder = build_encoder(config)
    model = Model(encoder, {"bilm": BidirectionalLM().head(encoder)})
    torch.manual_seed(0)
    initialize_weights(model, 0.3)
    spell_entries(encoder, tokenizer)
    return model


def test_vectors_are_those_of_the_definition(tokenizer: Tokenizer) -> None:
    """Every product and maximum in a loop over numbers."""
    made, entry = cnn(tokenizer), 5
    weights = {name: tensor.double().numpy() for name, tensor in made.state_dict().items()}
    spelled = [weights["symbols"][i] for i in spelling_table(tokenizer, 8)[entry]]
    features = []
    for width in (1, 2, 3):
        filters, biases = weights[f"filters.{width - 1}.weight"], weights[f"filters.{width - 1}.bias"]
        for one, bias in zip(filters, biases, strict=True):
            read = [
                bias + sum(one[c, k] * spelled[start + k][c] for k in range(width) for c in range(4))
                for start in range(8 - width + 1)
            ]
            features.append(max(0.0, *read))
    for layer in range(2):
        matrix, bias = weights[f"highways.{layer}.weight"], weights[f"highways.{layer}.bias"]
        sums = [b + sum(m * x for m, x in zip(row, features, strict=True)) for row, b in zip(matrix, bias, strict=True)]
        gates = [1 / (1 + math.exp(-(s + GATE_BIAS))) for s in sums[12:]]
        features = [g * max(0.0, new) + (1 - g) * x for g, new, x in zip(gates, sums[:12], features, strict=True)]
    expected = weights["project.weight"] @ np.array(features) + weights["project.bias"]
    torch.testing.assert_close(made(torch.tensor([9, entry, 9]))[1].double(), torch.from_numpy(expected))


def test_each_distinct_entry_is_computed_once(tokenizer: Tokenizer) -> None:
    made, seen = cnn(tokenizer), []
    made.project.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    for ids, entries in (([7] * 500, ENTRIES_MULTIPLE), (list(range(70)) * 2, 2 * ENTRIES_MULTIPLE)):
        assert made(torch.tensor(ids)).shape == (len(ids), 6)
        assert seen.pop() == entries
    made.to("meta")(torch.zeros(500, dtype=torch.int64, device="meta"))
    assert seen.pop() == SIZE  # without reading the ids: at most the vocabulary


def test_the_output_matrix_is_the_heads_own(tokenizer: Tokenizer) -> None:
    model = language_model(CONFIG, tokenizer)
    head, own = model.heads["bilm"], model.state_dict()["heads.bilm.output.weight"]
    assert own.shape == (SIZE, 6)
    hidden = model.encoder(packed([5, 6, 7]))
    targets = Targets(torch.arange(3), torch.tensor([[6, 0], [7, 5], [0, 6]]), torch.tensor([[1.0, 0], [1, 1], [0, 1]]))
    log = torch.log_softmax(hidden.last.view(3, 2, 6) @ own.T, 2)
    expected = -(log[0, 0, 6] + log[1, 0, 7] + log[1, 1, 5] + log[2, 1, 6])
    torch.testing.assert_close(head(hidden, targets).total, expected)
    tied = replace(CONFIG, input=LstmConfig(2, 12, 10).input)
    assert not list(language_model(tied, tokenizer).heads.parameters())


def test_flops_agree_with_torchs_counter(tokenizer: Tokenizer) -> None:
    ids = list(range(ENTRIES_MULTIPLE)) * 2
    packed, targets, _ = BidirectionalLM().label(
        collate(sequences(ids), len(ids)), Labeling(tokenizer, np.random.default_rng(0))
    )
    micro = MicroBatch.of(packed, {"bilm": targets})
    with FlopCounterMode(display=False) as counter:
        cnn(tokenizer)(torch.tensor(ids))
    without = replace(CONFIG, input=LstmConfig(2, 12, 10).input)
    assert (
        model_flops(language_model(CONFIG, tokenizer), micro) - model_flops(language_model(without, tokenizer), micro)
        == 3 * counter.get_total_flops()
    )
