"""Structural probes: planted trees, the loss, the measures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from bertie.inspect.probes.probe_data import StateScale, WordBatch
from bertie.inspect.probes.structural_probe import CHAIN, MEASURES, StructuralProbes, tree_distances
from bertie.inspect.treebank import ParsedSentence


def rows_of(probe: StructuralProbes, batches: list[WordBatch]) -> list[dict[str, float]]:
    with torch.no_grad():
        for batch in batches:
            probe.test(batch)
    [table] = probe.tables()
    return table.rows()


def test_a_linear_map_that_gives_the_distances_finds_every_tree(
    planted_batches: list[WordBatch], unit_scale: StateScale
) -> None:
    mixing = np.random.default_rng(1).normal(0, 1, (10, 10))
    probe = StructuralProbes(unit_scale, 10, 0, "m")
    with torch.no_grad():
        probe.maps[:, 1] = torch.as_tensor(np.linalg.inv(mixing))
        distances, depths = probe.predict(planted_batches[1])
        gold, gold_depth = tree_distances(planted_batches[1].sentences[8].heads)
        n = len(gold)
        np.testing.assert_allclose(distances[1, 8, 1 : n + 1, 1 : n + 1].numpy(), gold, atol=1e-4)
        np.testing.assert_allclose(depths[1, 8, 1 : n + 1].numpy(), gold_depth, atol=1e-4)
    embeddings, layer, chain = rows_of(probe, planted_batches)
    assert chain["model"] == CHAIN
    assert chain["layer"] is None
    for name in ("uuas", "root_accuracy"):
        assert layer[name] == layer[f"{name}_low"] == layer[f"{name}_high"] == 1
        assert embeddings[name] < 0.8
    for name in ("distance_spearman", "depth_spearman"):  # rounding breaks the ties of equal distances
        assert layer[name] > 0.85
        assert layer[f"{name}_low"] <= layer[name] <= layer[f"{name}_high"]


def test_training_finds_the_map_in_the_layer_that_has_it(
    planted_batches: list[WordBatch], unit_scale: StateScale, train_probe: Callable[..., None]
) -> None:
    probe = StructuralProbes(unit_scale, 10, 0, "m")
    for factor in (30, 10, 2):
        train_probe(probe, planted_batches, 25, factor)
    embeddings, layer, _ = rows_of(probe, planted_batches)
    assert layer["uuas"] > 0.98
    assert layer["root_accuracy"] > 0.98
    assert embeddings["uuas"] < 0.8


def test_the_loss_is_the_mean_absolute_error_of_every_layer(
    planted_batches: list[WordBatch], unit_scale: StateScale
) -> None:
    probe, batch = StructuralProbes(unit_scale, 4, 0, "m"), planted_batches[0]
    distances, depths = probe.predict(batch)
    expected = 0.0
    for s, sentence in enumerate(batch.sentences):
        gold, gold_depth = tree_distances(sentence.heads)
        n = len(gold)
        for layer in range(2):
            found = distances[layer, s, 1 : n + 1, 1 : n + 1].detach().numpy()
            expected += np.abs(found - gold).mean() / len(batch.sentences)
            found = depths[layer, s, 1 : n + 1].detach().numpy()
            expected += np.abs(found - gold_depth).mean() / len(batch.sentences)
    assert probe.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_layers_learn_independently(
    planted_batches: list[WordBatch], unit_scale: StateScale, train_probe: Callable[..., None]
) -> None:
    both = StructuralProbes(unit_scale, 4, 0, "m")
    train_probe(both, planted_batches, 2)
    other = [
        WordBatch(b.sentences, b.numbers, b.valid, b.states * torch.tensor([7.0, 1])[:, None, None, None], *rest)
        for b in planted_batches
        for rest in [(b.attention, b.vectors)]
    ]
    changed = StructuralProbes(unit_scale, 4, 0, "m")
    train_probe(changed, other, 2)
    torch.testing.assert_close(changed.maps[:, 1], both.maps[:, 1])
    assert not torch.allclose(changed.maps[:, 0], both.maps[:, 0])


def batch_of(sentence: ParsedSentence, valid: list[bool]) -> WordBatch:
    n = len(valid)
    zeros = (torch.zeros(2, 1, n, 10), torch.zeros(1, 3, n, n), torch.zeros(1, n, 10))
    return WordBatch([sentence], [0], torch.tensor([valid]), *zeros)


def test_measures_of_the_chain_by_hand(unit_scale: StateScale) -> None:
    words = ("she", "sees", ",", "the", "cat")
    sentence = ParsedSentence(words, ("X",) * 5, (1, -1, 1, 4, 1), ("nsubj", "root", "punct", "det", "obj"), "s")
    rows = rows_of(StructuralProbes(unit_scale, 4, 0, "m"), [batch_of(sentence, [True] * 6)])
    chain = rows[-1]
    # The chain without the comma: she-sees, sees-the, the-cat. The tree: she-sees, the-cat, cat-sees.
    assert chain["uuas"] == pytest.approx(2 / 3)
    assert chain["root_accuracy"] == 0  # the first word
    # Depths 1 0 1 2 1 have the ranks 3 1 3 5 3, the chain has 1 2 3 4 5.
    assert chain["depth_spearman"] == pytest.approx(4 / np.sqrt(8 * 10))
    flat = rows[0]  # all hidden states are equal
    assert flat["distance_spearman"] == flat["depth_spearman"] == 0


def test_sentences_that_do_not_count(unit_scale: StateScale) -> None:
    """One word has no arc, four words have no rank correlation, and words without a token are left out."""
    one = ParsedSentence(("go",), ("X",), (-1,), ("root",), "s")
    row = rows_of(StructuralProbes(unit_scale, 4, 0, "m"), [batch_of(one, [True, True])])[-1]
    assert row["root_accuracy"] == 1
    assert [row[name] for name in MEASURES if name != "root_accuracy"] == [None] * 3
    four = ParsedSentence(tuple("abcd"), ("X",) * 4, (1, -1, 1, 2), ("a", "root", "a", "a"), "s")
    row = rows_of(StructuralProbes(unit_scale, 4, 0, "m"), [batch_of(four, [True] * 5)])[-1]
    assert (row["uuas"], row["depth_spearman"]) == (1, None)
    row = rows_of(StructuralProbes(unit_scale, 4, 0, "m"), [batch_of(four, [True, True, True, False, True])])[-1]
    assert row["uuas"] == 1  # the arc a-b; the head of d has no token
    mark = ParsedSentence(("!",), ("X",), (-1,), ("punct",), "s")
    row = rows_of(StructuralProbes(unit_scale, 4, 0, "m"), [batch_of(mark, [True, True])])[-1]
    assert [row[name] for name in MEASURES] == [None] * 4
