from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bertie.base.contracts import Ragged, Sequence
from bertie.batches.collate import collate, filler
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig, build_encoder
from bertie.model.encoders.gru import GruConfig
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.encoders.static import StaticConfig
from bertie.model.heads.features import FeatureExtractor
from bertie.model.heads.max_texts import AttendingTexts, EsimTexts, MaxTexts, attended
from bertie.model.heads.pooled_texts import BothOrders, PooledRows, TextVectors, separate_texts
from bertie.model.heads.text_pooling import TextPooling
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model

ENCODERS = [
    TransformerConfig(2, 16, 2, 32, vocab_size=60, max_position_embeddings=32, hidden_dropout_prob=0.0),
    LstmConfig(2, 16, 12, vocab_size=60, max_position_embeddings=32, hidden_dropout_prob=0.0),
    StaticConfig(16, vocab_size=60, max_position_embeddings=32, hidden_dropout_prob=0.0),
    GruConfig(16, 12, vocab_size=60, max_position_embeddings=32, hidden_dropout_prob=0.0),
]


def pair(first: list[int], second: list[int]) -> Sequence:
    types = np.array([0] * len(first) + [1] * len(second), np.int32)
    return Sequence(np.array(first + second, np.int32), types, np.ones(len(types), bool))


def texts(*lengths: int) -> Ragged:
    return Ragged(torch.tensor([0, *np.cumsum(lengths)]), max(lengths))


def weights_of(pooled: nn.Module) -> None:
    torch.manual_seed(0)
    initialize_weights(pooled, 0.5)


def test_texts_of_pairs_become_sequences() -> None:
    made = [pair([1, 2, 3], [4, 5]), pair([6], [7, 8, 9]), *filler(3, 0, 16)]
    found = separate_texts(collate(made, 16).tensors())
    assert found.ragged.cu_seqlens.tolist() == [0, 3, 5, 6, 9, 12, 12]
    assert found.position_ids.tolist() == [0, 1, 2, 0, 1, 0, 0, 1, 2, 0, 1, 2]
    assert not found.token_type_ids.any()
    assert found.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0]


def test_each_token_attends_to_the_other_text() -> None:
    """Computed token by token from the definition."""
    torch.manual_seed(0)
    parts = [torch.randn(n, 4, dtype=torch.float64) for n in (3, 5, 2, 1)]
    expected = []
    for number, part in enumerate(parts):
        other = parts[number ^ 1]
        for x in part:
            exponentials = [float(torch.exp(sum(x[d] * y[d] for d in range(4)))) for y in other]  # pyright: ignore[reportArgumentType, reportCallIssue]
            expected.append(sum(e / sum(exponentials) * y for e, y in zip(exponentials, other, strict=True)))
    torch.testing.assert_close(attended(torch.cat(parts), torch.tensor([3, 5, 2, 1])), torch.stack(expected))  # pyright: ignore[reportArgumentType]


def test_pairs_are_combined_as_in_glues_baselines() -> None:
    pooled = MaxTexts(2, pairs=True)
    weights_of(pooled)
    x = torch.tensor([[1.0, -4], [0, -3], [2, 5], [-1, 6]])
    u, v = [1, -3], [2, 6]
    four = torch.tensor([*u, *v, 1, 9, 2, -18], dtype=torch.float32)
    assert pooled.combine is not None
    torch.testing.assert_close(pooled(x, texts(2, 2)), pooled.combine(four)[None])
    assert MaxTexts(2, pairs=False)(x, texts(3, 1)).tolist() == [[2, 5], [-1, 6]]


def test_attention_is_read_by_a_second_bilstm() -> None:
    pooled = AttendingTexts(4, pairs=True)
    weights_of(pooled)
    x, lengths = torch.randn(9, 4), [4, 5]
    both = torch.cat([x, attended(x, torch.tensor(lengths))], 1)
    u, v = (pooled.lstm(part, texts(len(part))).amax(0) for part in both.split(lengths))
    torch.testing.assert_close(pooled(x, texts(4, 5))[0], pooled.combine(torch.cat([u, v, (u - v).abs(), u * v])))


@pytest.mark.parametrize("kind", [MaxTexts, AttendingTexts, EsimTexts])
def test_filler_changes_nothing(kind: type[MaxTexts | AttendingTexts | EsimTexts]) -> None:
    pooled = kind(4, pairs=True)
    weights_of(pooled)
    x = torch.randn(12, 4)
    alone = pooled(x[:5], texts(2, 3))
    found = pooled(x, texts(2, 3, 7, 0))
    torch.testing.assert_close(found[:1], alone)
    found[0].sum().backward()
    after = [parameter.grad for parameter in pooled.parameters()]
    pooled.zero_grad()
    alone.sum().backward()
    for parameter, with_filler in zip(pooled.parameters(), after, strict=True):
        torch.testing.assert_close(parameter.grad, with_filler)


def features(config: EncoderConfig, pooling: TextPooling, sequences: list[Sequence]) -> torch.Tensor:
    """Return the features of a model with fixed weights: of the first text only, if it can be told apart."""
    reading = FeatureExtractor(config, "last", 6, pooling, pairs=True)
    model = Model(build_encoder(config), {}, reading)
    torch.manual_seed(0)
    initialize_weights(model, 0.5)
    assert isinstance(reading.pooled, MaxTexts | AttendingTexts | EsimTexts)
    assert reading.pooled.combine is not None
    with torch.no_grad():
        reading.pooled.combine.weight.copy_(torch.eye(12, 48))  # of [u; v; |u − v|; u ∗ v], it selects u
    batch = collate(sequences, 16).tensors()
    rows = batch.ragged.cu_seqlens[:-1]
    model.eval()
    return model.head_inputs(model.encoder_states(batch, rows), batch, rows).last


@pytest.mark.parametrize("config", ENCODERS, ids=lambda config: config.kind)
@pytest.mark.parametrize("pooling", ["max", "attention", "esim"])
def test_the_vector_of_a_text_depends_on_the_other_text_only_with_attention(
    config: EncoderConfig, pooling: TextPooling
) -> None:
    first = [pair([2, 10, 11, 3], [2, 20, 3]), pair([2, 12, 3], [2, 22, 23, 24, 3])]
    other = [pair([2, 10, 11, 3], [2, 40, 41, 42, 3]), first[1]]
    before, after = (features(config, pooling, made) for made in (first, other))
    torch.testing.assert_close(before[1], after[1])  # nor on other pairs of the batch
    difference = float((before[0] - after[0]).detach().abs().max())
    assert (difference > 1e-4) == (pooling != "max")
    alone = features(config, pooling, first[1:])
    torch.testing.assert_close(alone[0], before[1])


def test_fixed_vectors_of_a_pair_are_those_of_the_paper() -> None:
    """|u − v| and u ∗ v, with the mean of the tokens, or the last one of a GRU."""
    x = torch.tensor([[1.0, -4], [0, -2], [2, 5], [-1, 6], [5, 1]])
    pairs, rows = texts(2, 3), torch.tensor([0])
    for kind, u, v in (("mean", [0.5, -3], [2, 4]), ("lasttoken", [0, -2], [5, 1])):
        found = TextVectors(2, pairs=True)
        given = PooledRows(rows, texts(5), pairs, text_vector=kind)
        expected = [*(abs(a - b) for a, b in zip(u, v, strict=True)), *(a * b for a, b in zip(u, v, strict=True))]
        torch.testing.assert_close(found.vectors(found.reduce(x, given)), torch.tensor([expected], dtype=torch.float32))
        alone = TextVectors(2, pairs=False)
        single = PooledRows(torch.tensor([1, 2]), texts(2, 3), texts(2, 3), text_vector=kind)
        torch.testing.assert_close(alone.vectors(alone.reduce(x, single)), torch.tensor([u, v], dtype=torch.float32))


def test_fixed_vectors_of_layers_side_by_side() -> None:
    """Concatenated layers are reduced one by one, so the numbers of both texts alternate in each of them."""
    x = torch.randn(5, 6)
    given = PooledRows(torch.tensor([0]), texts(5), texts(2, 3))
    both, halves = TextVectors(6, pairs=True), TextVectors(3, pairs=True)
    apart = torch.cat([halves.reduce(part, given) for part in x.split(3, 1)], 1)
    torch.testing.assert_close(both.vectors(apart), both.vectors(both.reduce(x, given)))


def test_fixed_vectors_of_filler_are_zeros() -> None:
    found = TextVectors(2, pairs=True)
    given = PooledRows(torch.tensor([0, 4]), texts(3, 2), texts(1, 2, 2, 0))
    reduced = found.reduce(torch.ones(5, 2), given)
    assert reduced.tolist() == [[1, 1, 1, 1], [1, 0, 1, 0]]


def test_esim_is_computed_token_by_token() -> None:
    """Equations 11 to 20 of the paper, with the projection of the hidden layer apart."""
    pooled = EsimTexts(4, pairs=True)
    weights_of(pooled)
    x, lengths = torch.randn(9, 4), [4, 5]
    a, b = x.split(lengths)
    pieces = []
    for own, other in ((a, b), (b, a)):
        met = torch.stack([(each @ other.T).softmax(0) @ other for each in own])
        compared = pooled.projection(torch.cat([own, met, own - met, own * met], 1)).clamp(min=0)
        read = pooled.lstm(compared, texts(len(own)))
        pieces += [read.mean(0), read.amax(0)]
    torch.testing.assert_close(pooled(x, texts(4, 5))[0], pooled.combine(torch.cat(pieces)))


def test_both_orders_are_added_at_the_first_or_the_last_token() -> None:
    """Rows of filler, which has no second order, may be asked for, as if each token had a target."""
    batch = collate([pair([1, 2, 3], [4, 5, 6]), pair([7, 8], [9, 1]), *filler(3, 0, 16)], 16).tensors()
    read = separate_texts(batch)
    x_TW = torch.arange(13.0)[:, None] ** 2
    pooled = BothOrders(1, pairs=True)
    for rows, expected in (([0, 6], [0 + 9, 36 + 64]), ([5, 9], [4 + 25, 49 + 81])):
        found = pooled.reduce(x_TW, PooledRows(torch.tensor(rows), batch.ragged, read.ragged))
        assert found[:, 0].tolist() == expected
    every = pooled.reduce(x_TW, PooledRows(torch.arange(13), batch.ragged, read.ragged))
    assert every[[0, 5, 6, 9], 0].tolist() == [9, 29, 100, 130]
    with pytest.raises(AssertionError):
        BothOrders(1, pairs=False)
