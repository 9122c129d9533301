"""Statistics of heads: against a slow loop, and of heads whose weights say what they attend to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertie.base.contracts import Sequence
from bertie.inspect.attention import Group, read_attention
from bertie.inspect.heads.statistics import REACH, STATISTICS, HeadStatistics, punctuation_ids
from bertie.inspect.tables import Table
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer

TEXTS = ["a b a, c a.", "c", "d e f ... g", "a b c d e f", "b b!"]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.build(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", ".", "!", *"abcdefgh"])


def random_model(causal: bool, local_attention: int = 0) -> Model:
    """Return a model with random weights. With local attention, every token of layer 2 sees only its neighbors."""
    torch.manual_seed(0)
    sizes = TransformerConfig(2, 32, 4, 64, vocab_size=16, max_position_embeddings=32)
    local = replace(sizes, local_attention=local_attention, global_attention_every=2)
    encoder = build_encoder(replace(local, causal=causal, position_embedding="alibi"))
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return Model(encoder, {})


def measured(model: Model, tokenizer: Tokenizer, batch_tokens: int = 12) -> dict[str, Table]:
    assert isinstance(model.encoder, TransformerEncoder)
    statistics = HeadStatistics(model.encoder, tokenizer)
    sequences = truncation.encode(tokenizer, TEXTS, max_length=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.inspect.attention.BATCH_TOKENS", batch_tokens)
        read_attention(model, sequences, statistics.see)
    return {table.name: table for table in statistics.tables()}


def attention_by_sequence(model: Model, sequences: list[Sequence]) -> list[np.ndarray]:
    """Return the probabilities of each sequence by themselves, float64 [heads of all layers, n, n]."""
    found: dict[int, list[np.ndarray]] = {i: [] for i in range(len(sequences))}

    def see(group: Group, _: int, probabilities: torch.Tensor) -> None:
        for s, index in enumerate(group.indices):
            n = len(group.sequences[s])
            found[index] += list(probabilities[s, :, :n, :n].double().numpy())

    read_attention(model, sequences, see)
    return [np.stack(found[i]) for i in range(len(sequences))]


def slow_means(
    attention: list[np.ndarray], ids: list[np.ndarray], tokenizer: Tokenizer, causal: bool, window: int | None = None
) -> np.ndarray:
    """Return the statistics of layers with a window, one token and one key after the other: [heads, statistics]."""
    marks = [tokenizer.vocabulary.index(mark) for mark in ",.!"]
    rows: dict[str, list[np.ndarray]] = {name: [] for name in STATISTICS}
    for p_NLL, tokens in zip(attention, ids, strict=True):
        n = len(tokens)
        for i in range(n):
            kinds: dict[str, list[int]] = {name: [] for name in STATISTICS}
            for j in range(i + 1 if causal else n):
                if window is not None and abs(i - j) > window:
                    continue
                found = {
                    "to_cls": j == 0,
                    "to_sep": tokens[j] == tokenizer.sep_id,
                    "to_punctuation": tokens[j] in marks,
                    "to_previous": j == i - 1,
                    "to_next": j == i + 1,
                    "to_self": j == i,
                    "to_same": tokens[j] == tokens[i] and j != i,
                }
                for name in found:
                    kinds[name] += [j] if found[name] else []
            for name, keys in kinds.items():
                if keys:
                    rows[name].append(p_NLL[:, i, keys].sum(-1))
            p_NL = p_NLL[:, i]
            entropy = -np.where(p_NL > 0, p_NL * np.log(np.where(p_NL > 0, p_NL, 1)), 0).sum(-1)
            rows["entropy"].append(entropy)
            rows["cls_entropy"] += [entropy] * (i == 0)
            rows["distance"].append(p_NL @ np.abs(np.arange(n) - i))
    heads = len(attention[0])
    return np.stack([np.mean(rows[name] or [[math.nan] * heads], 0) for name in STATISTICS], -1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch_tokens", [12, 1000])
def test_statistics_equal_those_of_a_slow_loop(tokenizer: Tokenizer, causal: bool, batch_tokens: int) -> None:
    model = random_model(causal)
    tables = measured(model, tokenizer, batch_tokens)
    sequences = truncation.encode(tokenizer, TEXTS, max_length=32)
    ids = [sequence.input_ids for sequence in sequences]
    expected = slow_means(attention_by_sequence(model, sequences), ids, tokenizer, causal)
    assert np.isnan(expected[:, list(STATISTICS).index("to_next")]).all() == causal
    found = np.stack([tables["heads"].columns[name] for name in STATISTICS], -1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert [tables["heads"].columns["layer"][0], tables["heads"].columns["head"][7]] == [1, 4]


@pytest.mark.parametrize("causal", [False, True])
def test_means_of_a_local_layer_leave_out_tokens_that_do_not_see_the_key(tokenizer: Tokenizer, causal: bool) -> None:
    model = random_model(causal, local_attention=4)
    tables = measured(model, tokenizer)
    sequences = truncation.encode(tokenizer, TEXTS, max_length=32)
    attention, ids = attention_by_sequence(model, sequences), [sequence.input_ids for sequence in sequences]
    layers = [
        slow_means([each[rows] for each in attention], ids, tokenizer, causal, window)
        for rows, window in ((slice(4), None), (slice(4, 8), 2))
    ]
    found = np.stack([tables["heads"].columns[name] for name in STATISTICS], -1)
    np.testing.assert_allclose(found, np.concatenate(layers), rtol=1e-5, atol=1e-6)
    everywhere = measured(random_model(causal), tokenizer)["uniform_head"]  # compares all layers with the same head
    assert tables["uniform_head"].rows()[0] == pytest.approx(everywhere.rows()[0], nan_ok=True)
    distances = tables["distances"].columns
    outside = (np.asarray(distances["layer"]) == 2) & (np.abs(distances["distance"]) > 2)
    assert outside.any()
    assert (np.isnan(np.asarray(distances["attention"])) == outside).all()


@pytest.mark.parametrize("causal", [False, True])
def test_a_uniform_head_has_the_values_of_the_baseline(tokenizer: Tokenizer, causal: bool) -> None:
    model = random_model(causal)
    encoder = build_encoder(replace(model.encoder.config, position_embedding="none"))
    tables = measured(Model(encoder.requires_grad_(False).apply(_zero), {}), tokenizer)
    for name in STATISTICS:
        [uniform] = tables["uniform_head"].columns[name]
        np.testing.assert_allclose(tables["heads"].columns[name], uniform, rtol=1e-5, err_msg=name)
    found = tables["distances"].columns
    np.testing.assert_allclose(found["attention"], found["uniform"], rtol=1e-5)


def _zero(module: torch.nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.data.zero_()


@pytest.mark.parametrize("causal", [False, True])
def test_distances_equal_those_of_a_slow_loop(tokenizer: Tokenizer, causal: bool) -> None:
    model = random_model(causal)
    table = measured(model, tokenizer)["distances"].columns
    sequences = truncation.encode(tokenizer, TEXTS, max_length=32)
    attention = attention_by_sequence(model, sequences)
    longest = max(map(len, sequences))
    assert longest <= REACH
    wanted = list(range(1 - longest, 1 if causal else longest))
    assert list(table["distance"][: len(wanted)]) == wanted
    for head in (0, 5):
        for at, distance in enumerate(wanted):
            values = [
                p_NLL[head, i, i + distance] for p_NLL in attention for i in range(p_NLL.shape[1])
                if 0 <= i + distance < p_NLL.shape[1]
            ]  # fmt: skip
            row = head * len(wanted) + at
            assert (table["layer"][row], table["head"][row]) == (head // 4 + 1, head % 4 + 1)
            assert table["attention"][row] == pytest.approx(np.mean(values), rel=1e-5)


def test_punctuation_is_what_berts_tokenizer_splits_off() -> None:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "...", "##!", "$", "—", "«", "a.", "1", "é", "€", "#"]
    tokenizer = Tokenizer.build(entries)
    assert [entries[i] for i in punctuation_ids(tokenizer)] == [".", "...", "##!", "$", "—", "«", "#"]


def test_punctuation_of_byte_level_bpe_has_a_space_before_it() -> None:
    entries = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", "Ġ,", ".", "Ġa", "âĢĶ", "âĢ"]
    tokenizer = Tokenizer.build_bpe(entries, [])
    found = [entries[i] for i in punctuation_ids(tokenizer)]
    assert found == ["Ġ,", ".", "âĢĶ"]  # the last entry is a part of a character
