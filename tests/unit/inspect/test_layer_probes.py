"""Linear probes of layers, with control tasks and baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from bertie.inspect.probes.layer_probes import PART_OF_SPEECH, RELATION, UNKNOWN, LayerProbes, ProbeTask
from bertie.inspect.probes.probe_data import StateScale, WordBatch
from bertie.inspect.treebank import ParsedSentence

TASKS = (PART_OF_SPEECH, RELATION)


def tasks_of(train: list[ParsedSentence], test: list[ParsedSentence]) -> list[ProbeTask]:
    return [task for name in TASKS if (task := ProbeTask.of(name, train, test, 0)) is not None]


def rows_of(probe: LayerProbes, batches: list[WordBatch]) -> list[dict[str, float]]:
    with torch.no_grad():
        for batch in batches:
            probe.test(batch)
    return probe.tables()[0].rows()


def test_probes_find_the_layer_that_tells_the_label(
    planted_batches: list[WordBatch],
    planted_trees: list[ParsedSentence],
    unit_scale: StateScale,
    train_probe: Callable[..., None],
) -> None:
    """The embeddings tell the word, and with it the part of speech. Layer 1 tells the depth, and with it the relation."""
    probe = LayerProbes(unit_scale, tasks_of(planted_trees, planted_trees), "m")
    train_probe(probe, planted_batches, 30, 20)
    rows = rows_of(probe, planted_batches)
    found = {(row["task"], row["layer"]): row for row in rows}
    assert list(found) == [(task, layer) for task in TASKS for layer in (0, 1)]
    assert found[PART_OF_SPEECH, 0]["accuracy"] > 0.9 > found[PART_OF_SPEECH, 1]["accuracy"]
    assert found[RELATION, 1]["accuracy"] > 0.9 > found[RELATION, 0]["accuracy"]
    for row in rows:
        assert row["selectivity"] == pytest.approx(row["accuracy"] - row["control_accuracy"])
        for name, prefix in (("accuracy", ""), ("control_accuracy", "control_"), ("selectivity", "selectivity_")):
            assert row[f"{prefix}low"] <= row[name] <= row[f"{prefix}high"]
    assert found[PART_OF_SPEECH, 0]["control_accuracy"] > found[PART_OF_SPEECH, 1]["control_accuracy"] + 0.1
    assert found[RELATION, 1]["selectivity_low"] > 0.2
    words = [part for sentence in planted_trees for part in sentence.parts_of_speech]
    assert found[PART_OF_SPEECH, 0]["words"] == len(words)
    assert found[PART_OF_SPEECH, 0]["majority"] == pytest.approx(max(Counter(words).values()) / len(words))
    assert found[PART_OF_SPEECH, 0]["usual_label"] == 1


def sentence(words: str, parts: str) -> ParsedSentence:
    given = words.split()
    return ParsedSentence(tuple(given), tuple(parts.split()), (-1,) * len(given), ("root",) * len(given), "s")


def test_a_task_by_hand() -> None:
    train = [sentence("the can can the", "D A V D"), sentence("can x", "V _")]
    test = [sentence("the can new x", "D N A _")]
    task = ProbeTask.of(PART_OF_SPEECH, train, test, 0)
    assert task is not None
    assert task.labels == ["A", "D", "V"]
    assert task.of_type == {"the": 1, "can": 2}
    assert task.labels[task.majority] in ("D", "V")
    assert task.gold(test[0]) == [1, UNKNOWN, 0, UNKNOWN]
    control = task.control_gold(test[0])
    assert [label == UNKNOWN for label in control] == [False, False, False, True]
    assert control[:2] == [task.control_gold(train[0])[0], task.control_gold(train[0])[1]]
    assert ProbeTask.of(PART_OF_SPEECH, [sentence("a", "_")], test, 0) is None


def test_control_labels_follow_the_frequencies_and_the_seed() -> None:
    words = " ".join(f"w{i}" for i in range(2000))
    train = [sentence(words, " ".join("N" if i % 4 else "V" for i in range(2000)))]
    tasks = [ProbeTask.of(PART_OF_SPEECH, train, train, seed) for seed in (0, 0, 1)]
    drawn = [list(task.control.values()) for task in tasks if task is not None]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sum(drawn[0]) / 2000 == pytest.approx(0.25, abs=0.04)


def test_unknown_labels_are_wrong_and_missing_ones_do_not_count(
    planted_batches: list[WordBatch], unit_scale: StateScale
) -> None:
    batch = planted_batches[0]
    known = [replace(s, parts_of_speech=("A",) * len(s.words)) for s in batch.sentences]
    marked = [replace(s, parts_of_speech=("A", "Z", "_", *"A" * 9)[: len(s.words)]) for s in batch.sentences]
    [task] = [ProbeTask.of(PART_OF_SPEECH, known, marked, 0)]
    assert task is not None
    probe = LayerProbes(unit_scale, [task], "m")
    marked_batch = replace(batch, sentences=marked)
    assert probe.loss(marked_batch) == 0  # a single label
    row = rows_of(probe, [marked_batch])[0]
    lengths = [len(s.words) for s in marked]
    counted = sum(lengths) - sum(n > 2 for n in lengths)
    assert row["words"] == counted
    unknown = sum(n > 1 for n in lengths)
    assert row["accuracy"] == row["majority"] == row["usual_label"] == pytest.approx(1 - unknown / counted)
