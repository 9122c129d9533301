"""Probes that name the head of each word, and their baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertie.inspect.probes.dependency_probes import (
    ATTENTION,
    DISTANCES,
    GOLD,
    RIGHT,
    VECTORS,
    AttentionProbe,
    AttentionVectorsProbe,
    DependencyProbes,
    OffsetBaseline,
    baselines,
)
from bertie.inspect.probes.probe_data import StateScale, WordBatch
from bertie.inspect.treebank import ParsedSentence

Train = Callable[..., None]


def rows_of(probe: DependencyProbes, batches: list[WordBatch]) -> list[list[dict[str, float]]]:
    with torch.no_grad():
        for batch in batches:
            probe.hold_out(batch)
        for batch in batches:
            probe.test(batch)
    return [table.rows() for table in probe.tables()]


def test_a_head_that_points_at_every_syntactic_head_gives_every_arc(
    planted_batches: list[WordBatch], planted_trees: list[ParsedSentence], unit_scale: StateScale, train_probe: Train
) -> None:
    probe = DependencyProbes(planted_batches[0], unit_scale, planted_trees, 0, "m")
    train_probe(probe, planted_batches, 12, 10)
    methods, relations, labels = rows_of(probe, planted_batches)
    by_name = {row["probe"]: row for row in methods}
    assert list(by_name) == probe.methods
    attention = by_name[ATTENTION]
    assert attention["uas"] == attention["uas_low"] == attention["uas_high"] == 1
    assert by_name[VECTORS]["uas"] > 0.98
    assert by_name[DISTANCES]["uas"] < 0.9
    assert by_name[RIGHT]["uas"] < 0.6
    assert probe.probes[ATTENTION].weights[0].argmax() == 1  # pyright: ignore[reportIndexIssue]
    # The relation follows from the depth, which layer 1 has and the embeddings lack.
    assert [row["layer"] for row in labels] == [0, 1]
    assert labels[0]["accuracy"] + 0.1 < labels[1]["accuracy"]
    assert labels[1]["accuracy"] > 0.8
    assert probe.label_layer == attention["label_layer"] == 1
    assert by_name[GOLD]["las"] == pytest.approx(labels[1]["accuracy"])
    assert attention["las"] == by_name[GOLD]["las"]
    assert by_name[RIGHT]["las"] < by_name[RIGHT]["uas"]
    assert {row["relation"] for row in relations} == {"nsubj", "root", "punct"}
    words = sum(len(sentence.words) for sentence in planted_trees)
    assert attention["words"] == words
    mean = sum(row["words"] * row["uas"] for row in relations if row["probe"] == RIGHT) / words
    assert mean == pytest.approx(by_name[RIGHT]["uas"])


def test_scores_are_the_formulas_of_the_paper(planted_batches: list[WordBatch]) -> None:
    torch.manual_seed(0)
    batch = planted_batches[0]
    plain, with_vectors = AttentionProbe(3), AttentionVectorsProbe(3, 10)
    for probe in (plain, with_vectors):
        torch.nn.init.normal_(probe.weights)
    scores, with_vector_scores = plain(batch), with_vectors(batch)
    (w, u), (w_i, w_j, u_i, u_j) = plain.weights, with_vectors.weights.flatten(0, 1)
    for s, i, j in ((0, 1, 0), (7, 3, 5), (7, 5, 3), (8, 2, 9)):
        a, back = batch.attention[s, :, i, j], batch.attention[s, :, j, i]
        torch.testing.assert_close(scores[s, i, j], w @ a + u @ back)
        v_i, v_j = (torch.cat([batch.vectors[s, place], torch.ones(1)]) for place in (i, j))
        expected = (v_i @ w_i + v_j @ w_j) @ a + (v_i @ u_i + v_j @ u_j) @ back
        torch.testing.assert_close(with_vector_scores[s, i, j], expected)


def test_the_loss_is_the_cross_entropy_among_other_words_and_the_root(
    planted_batches: list[WordBatch], planted_trees: list[ParsedSentence], unit_scale: StateScale
) -> None:
    probe, batch = DependencyProbes(planted_batches[0], unit_scale, planted_trees, 0, "m", True), planted_batches[0]
    words = [len(sentence.words) for sentence in batch.sentences]
    # All weights are 0: every other word and the root are equally likely, and so are the relations in both layers.
    expected = sum(n * np.log(n) for n in words) / sum(words) * 2 + 2 * np.log(3)
    assert probe.loss(batch).item() == pytest.approx(expected, rel=1e-5)
    assert probe.methods == [ATTENTION, VECTORS, GOLD]


def test_baselines_by_hand() -> None:
    sentence = ParsedSentence(
        ("the", "cat", "sees", "me"), ("D", "N", "V", "P"), (1, 2, -1, 2), ("det", "nsubj", "root", "obj"), "s"
    )
    found = {name: baseline.predict(sentence) for name, baseline in baselines([sentence, sentence]).items()}
    assert found[RIGHT] == [1, 2, 3, -1]
    assert found["best offset"] == [1, 2, 3, -1]
    assert found["best offset for the part of speech"] == found["best offset for the relation"] == [1, 2, -1, 2]
    new = ParsedSentence(("run", "on"), ("V", "X"), (-1, 0), ("root", "compound:prt"), "s")
    fitted = OffsetBaseline.fit("relation", [sentence])
    assert fitted.predict(new) == [-1, -1]  # the unknown relation has the usual distance, 1, outside of the sentence
    assert OffsetBaseline.fit("part of speech", [new]).predict(sentence)[2] == -1


def test_words_and_heads_without_a_token(
    planted_batches: list[WordBatch], planted_trees: list[ParsedSentence], unit_scale: StateScale
) -> None:
    """Words without a token are left out. A word whose head has none cannot be right."""
    valid = planted_batches[0].valid.clone()
    sentence = planted_batches[0].sentences[8]
    dropped = next(head for head in sentence.heads if head >= 0)
    valid[8, dropped + 1] = False
    batch = replace(planted_batches[0], valid=valid)
    probe = DependencyProbes(batch, unit_scale, planted_trees, 0, "m")
    methods, _, _ = rows_of(probe, [batch])
    words = sum(len(each.words) for each in batch.sentences) - 1
    orphans = sum(head == dropped for word, head in enumerate(sentence.heads) if word != dropped)
    by_name = {row["probe"]: row for row in methods}
    assert by_name[GOLD]["words"] == words
    assert by_name[GOLD]["uas"] == pytest.approx(1 - orphans / words)
    assert probe.loss(batch).isfinite()


def test_a_relation_unknown_to_training_is_wrong(
    planted_batches: list[WordBatch], planted_trees: list[ParsedSentence], unit_scale: StateScale
) -> None:
    known = [s for s in planted_trees if len(s.words) == 1]
    probe = DependencyProbes(planted_batches[0], unit_scale, known, 0, "m")
    assert probe.relations == ["root"]
    methods, _, labels = rows_of(probe, planted_batches)
    roots = sum(sentence.relations.count("root") for sentence in planted_trees)
    share = roots / sum(len(sentence.words) for sentence in planted_trees)
    assert [row["accuracy"] for row in labels] == pytest.approx([share, share])
    gold = methods[-1]
    assert (gold["uas"], gold["las"]) == (1, pytest.approx(share))
    assert probe.loss(planted_batches[0]).isfinite()
