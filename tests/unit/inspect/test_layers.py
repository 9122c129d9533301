"""Geometry of hidden states: anisotropy, self-similarity, CKA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bertie.base.contracts import Hidden, Sequence
from bertie.base.errors import UserError
from bertie.batches.collate import collate
from bertie.inspect.attention import Group, read_hidden
from bertie.inspect.heads.layers import ANISOTROPY, CKA, LayerStates, Sample, cka_rows
from bertie.inspect.tables import Table
from bertie.predict.predictor import Predictor
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

TEXTS = ["the fatun gat the bobin .", "go the", "a fet in the gatun .", "the . go . the", "the gat go"] * 3
States = Callable[[Sequence], Tensor]


@pytest.fixture(scope="module")
def sequences(predictor: Predictor) -> list[Sequence]:
    return truncation.encode(predictor.tokenizer, TEXTS, max_length=64)


def described(sequences: list[Sequence], sample: Sample, *layers: States) -> LayerStates:
    """Return the analysis of planted hidden states: a function of a sequence for every layer."""
    states = LayerStates("m", sample)
    for start in range(0, len(sequences), 4):
        block = sequences[start : start + 4]
        states.add(block)
        for members in ([2, 0], [1, 3]):
            chosen = [i for i in members if i < len(block)]
            if chosen:
                batch = collate([block[i] for i in chosen], 64).tensors()
                given = tuple(torch.cat([layer(block[i]) for i in chosen]) for layer in layers)
                states.see_hidden(Group([block[i] for i in chosen], chosen, batch), Hidden(given[-1], given))
    return states


def table_of(dimensions: int = 6) -> States:
    """Return states that depend on the token only."""
    table = torch.as_tensor(np.random.default_rng(0).normal(0, 1, (500, dimensions)), dtype=torch.float32)
    return lambda sequence: table[torch.as_tensor(sequence.input_ids.astype(np.int64))]


def draw(sequences: list[Sequence], tokenizer: Tokenizer, seed: int = 0) -> Sample:
    return Sample.draw([sequences[:7], sequences[7:]], tokenizer, 64, seed)


def test_anisotropy_and_self_similarity_against_a_slow_loop(predictor: Predictor, sequences: list[Sequence]) -> None:
    rng = np.random.default_rng(1)
    noise = {id(s): torch.as_tensor(rng.normal(0.3, 1, (len(s), 6)), dtype=torch.float32) for s in sequences}
    sample = draw(sequences, predictor.tokenizer)
    rows = described(sequences, sample, lambda s: noise[id(s)], table_of()).anisotropy()
    special = {predictor.tokenizer.cls_id, predictor.tokenizer.sep_id}
    tokens = [
        (number, int(token), vector / vector.norm())
        for number, s in enumerate(sequences)
        for token, vector in zip(s.input_ids, noise[id(s)].double(), strict=True)
        if int(token) not in special
    ]
    cosines = [float(a @ b) for i, (_, _, a) in enumerate(tokens) for _, _, b in tokens[:i]]
    assert rows[0]["tokens"] == rows[1]["tokens"] == len(tokens)
    assert rows[0]["anisotropy"] == pytest.approx(np.mean(cosines))
    assert "the" in [predictor.tokenizer.vocabulary[word] for word in sample.words]
    own = []
    for word in sample.words.tolist():
        first = {number: vector for number, token, vector in reversed(tokens) if token == word}
        vectors = [first[number] for number in sorted(first)]
        assert len(vectors) >= 5
        own.append(np.mean([float(a @ b) for i, a in enumerate(vectors) for b in vectors[:i]]))
    assert rows[0]["words"] == len(own) > 1
    assert rows[0]["self_similarity"] == pytest.approx(np.mean(own))
    assert rows[0]["adjusted"] == pytest.approx(np.mean(own) - np.mean(cosines))
    assert rows[1]["self_similarity"] == pytest.approx(1)  # a word has the same vector in every text


def test_pieces_of_words_are_no_words() -> None:
    tokenizer = Tokenizer.build([*SPECIAL_TOKENS, "a", "b", "##c"])
    texts = truncation.encode(tokenizer, ["a bc"] * 6, max_length=64)
    assert Sample.draw([texts], tokenizer, 64, 0).words.tolist() == [5]


def cka(x: np.ndarray, y: np.ndarray) -> float:
    """Linear CKA from centered Gram matrices: the definition."""
    n = len(x)
    center = np.eye(n) - 1 / n
    k, m = center @ x @ x.T @ center, center @ y @ y.T @ center
    return float((k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum()))


def debiased_cka(x: np.ndarray, y: np.ndarray) -> float:
    """CKA with the unbiased estimator of HSIC from Gram matrices without diagonals: the definition."""
    n, one = len(x), np.ones(len(x))

    def hsic(k: np.ndarray, m: np.ndarray) -> float:
        both = np.trace(k @ m) + one @ k @ one * (one @ m @ one) / ((n - 1) * (n - 2))
        return float(both - 2 / (n - 2) * (one @ k @ m @ one))

    k, m = (each @ each.T * (1 - np.eye(n)) for each in (x - x.mean(0), y - y.mean(0)))
    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


def test_cka_is_that_of_the_gram_matrices(predictor: Predictor, sequences: list[Sequence]) -> None:
    rng = np.random.default_rng(2)
    noise = [{id(s): rng.normal(1, 1, (len(s), d)).astype(np.float32) for s in sequences} for d in (3, 40)]
    layers: list[States] = [lambda s, each=each: torch.as_tensor(each[id(s)]) for each in noise]
    sample = draw(sequences, predictor.tokenizer)
    states = described(sequences, sample, table_of(), *layers)
    dense = [layer.double().numpy() for layer in states.states]
    assert [len(each) for each in dense] == [len(sample.tokens)] * 3
    for row in cka_rows(states, states):
        x, y = dense[row["layer_a"]], dense[row["layer_b"]]
        assert row["cka"] == pytest.approx(cka(x, y), abs=1e-6)
        assert row["cka_debiased"] == pytest.approx(debiased_cka(x, y), abs=1e-5)
        if row["layer_a"] == row["layer_b"]:
            assert row["cka"] == pytest.approx(1)
            assert row["cka_debiased"] == pytest.approx(1)
    assert len(list(cka_rows(states, states))) == 9


def test_undefined_values_are_not_numbers(predictor: Predictor) -> None:
    few = [truncation.encode(predictor.tokenizer, ["go the"], max_length=64)[0]]
    states = described(few, draw(few, predictor.tokenizer), lambda s: torch.ones(len(s), 2), table_of())
    rows = Table.of_rows("cka", list(cka_rows(states, states)), CKA).rows()
    assert rows[0]["cka"] is None
    assert rows[3]["cka"] == pytest.approx(1)
    assert {row["cka_debiased"] for row in rows} == {None}
    assert Table.of_rows("anisotropy", states.anisotropy(), ANISOTROPY).rows()[0]["self_similarity"] is None
    with pytest.raises(UserError, match="more than 2 tokens"):
        Sample.draw([few], predictor.tokenizer, 2, 0)


def test_samples_are_bounded_and_depend_on_the_seed(predictor: Predictor, sequences: list[Sequence]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.inspect.heads.layers.SAMPLED_TOKENS", 10)
        patch.setattr("bertie.inspect.heads.layers.SAMPLED_WORDS", 2)
        samples = [draw(sequences, predictor.tokenizer, seed) for seed in (0, 0, 1)]
    assert [len(sample.tokens) for sample in samples] == [10] * 3
    assert [len(sample.words) for sample in samples] == [2] * 3
    np.testing.assert_array_equal(samples[0].tokens, samples[1].tokens)
    assert samples[0].tokens.tolist() != samples[2].tokens.tolist()


def test_sampled_states_are_those_of_the_sampled_tokens(predictor: Predictor, sequences: list[Sequence]) -> None:
    """Through the encoder: blocks and batches do not change which tokens are sampled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.inspect.heads.layers.SAMPLED_TOKENS", 20)
        patch.setattr("bertie.inspect.attention.BATCH_TOKENS", 12)
        short = [sequence for sequence in sequences if len(sequence) != len(sequences[1])]
        sample = Sample.draw([sequences], predictor.tokenizer, max(map(len, sequences)) - 1, 0)
        found = []
        for size in (4, 15):
            states = LayerStates("m", sample)
            for start in range(0, len(sequences), size):
                block = sequences[start : start + size]
                states.add(block)
                read_hidden(predictor.model, block, states.see_hidden, "test")
            found.append(states.states)
    assert len(short) < len(sequences)
    every: list[Tensor] = []
    for sequence in sequences:
        if len(sequence) <= sample.max_length:
            with torch.inference_mode():
                layers = predictor.model.encoder(collate([sequence], 64).tensors(), all_layers=True).layers
            inside = np.arange(len(sequence)) % (len(sequence) - 1) != 0  # not [CLS] and [SEP]
            every.append(torch.stack(list(layers or ()))[:, torch.as_tensor(inside)])
    expected = torch.cat(every, 1)[:, sample.tokens]
    for states in found:
        torch.testing.assert_close(torch.stack(states), expected.clone(), atol=1e-5, rtol=1e-4)
