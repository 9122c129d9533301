"""Several data sets in one training: each batch is of one, they take turns by weight, and a resumed run continues as it was."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertie
from bertie.base import seeding
from bertie.base.errors import UsageError
from bertie.checkpoints.find import list_checkpoints
from bertie.checkpoints.read import read_checkpoint
from bertie.cli import main
from bertie.finetuning.data import TaskData, load_task_data
from bertie.finetuning.micro_batches import epoch_of, turns
from bertie.finetuning.recipe import FinetuneConfig, read_recipe
from bertie.training.run_folder import RunFolder

TRAINING = {"batch_size": 4, "epochs": 2, "row_tokens": 64, "precision": "fp32", "checkpoint_every": 4}
CONFIG = read_recipe({"extends": "embed", "max_length": 24, "training": TRAINING})


@pytest.fixture(scope="session")
def files(small_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """17 pairs and 9 triples, whose files have one name, and the same texts in part."""
    texts = [text[:40] for text in small_texts[:80]]
    rows = [{"query": texts[i], "document": texts[40 + i]} for i in range(17)]
    triples = [{"anchor": texts[i], "positive": texts[20 + i], "negative": texts[70 - i]} for i in range(12, 21)]
    paths = [tmp_path_factory.mktemp(name) / "train.jsonl" for name in "ab"]
    for path, part in zip(paths, (rows, triples), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return paths


def data_of(train: Any, start: Path, config: FinetuneConfig = CONFIG) -> TaskData:
    return load_task_data(config, train, train[0], read_checkpoint(start))


def epoch(data: TaskData, config: FinetuneConfig = CONFIG, number: int = 0) -> list[list[int]]:
    return [step.tolist() for step in epoch_of(config, data, seeding.generator(0, seeding.EXAMPLES, number))]


def test_each_batch_is_of_one_data_set_and_every_example_comes_once(files: list[Path], start: Path) -> None:
    """Also of queries that are in both data sets."""
    data = data_of(files, start)
    assert [len(each) for each in data.data_sets] == [17, 9]
    found = epoch(data)
    assert sorted(i for step in found for i in step) == list(range(26))
    assert all(len({i < 17 for i in step}) == 1 for step in found)
    assert sorted(len(step) for step in found) == [4, 4, 4, 4, 5, 5]  # none is alone
    assert len({step[0] < 17 for step in found[:4]}) == 2  # shuffled
    assert found == epoch(data) != epoch(data, number=1)
    in_order = replace(CONFIG, training=replace(CONFIG.training, shuffle=False))
    assert epoch(data, in_order)[3:5] == [[12, 13, 14, 15, 16], [17, 18, 19, 20]]


def test_one_data_set_is_shuffled_as_ever(files: list[Path], start: Path) -> None:
    order = seeding.generator(0, seeding.EXAMPLES, 0).permutation(17).tolist()
    assert [i for step in epoch(data_of(files[:1], start)) for i in step] == order


def test_weights_are_shares_of_the_turns(files: list[Path], start: Path) -> None:
    """The first data set, which has 4 of 6 batches, has one turn, and the second one goes through its units several times."""
    weighted = replace(CONFIG, weights=(1, 5))
    data = data_of(files, start, weighted)
    assert turns(weighted, data) == [1, 5]
    counts = Counter(i for step in epoch(data, weighted) for i in step)
    assert sum(i < 17 for i in counts) == 4
    assert {counts[i] for i in range(17, 26)} == {2, 3}
    for wrong in ((1,), (1, 0), (1, np.nan), (1, 1, 1)):
        with pytest.raises(UsageError, match="give a number above 0 for each data set that has turns: 2"):
            data_of(files, start, replace(CONFIG, weights=wrong))


def test_files_of_other_losses_are_joined(start: Path, tmp_path: Path) -> None:
    scored = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in scored:
        path.write_text("".join(f'{{"sentence1": "a {i}", "sentence2": "b", "score": {i}}}\n' for i in range(5)))
    data = data_of(scored, start)
    assert [each.tolist() for each in data.data_sets] == [list(range(10))]
    assert data.fingerprint == data_of(scored[::-1], start).fingerprint


def test_held_out_examples_keep_their_rows_where_files_have_one_name(files: list[Path], start: Path) -> None:
    """Equal queries of both files are on one side."""
    split = load_task_data(replace(CONFIG, dev_share=0.3), files, None, read_checkpoint(start)).split
    for name in ("train", "dev"):
        texts = [row.get("query") or row["anchor"] for row in split.rows[name]]
        assert texts == [example.text for example in getattr(split, name)]
    assert not {example.text for example in split.train} & {example.text for example in split.dev}
    assert len(split.data_set) == len(split.train)


def test_run_that_is_killed_between_checkpoints_ends_with_the_same_bytes(
    files: list[Path], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a batch, hard negatives, dropout, one positive of several, and turns by weight."""
    task = replace(CONFIG.task, positives="one", learn_scale=True)
    config = replace(CONFIG, task=task, weights=(1, 2))
    assert config.hidden_dropout_prob > 0
    whole = bertie.finetune(config, files, start, tmp_path / "whole", dev=files[0])
    log = RunFolder.log

    def killed(run: RunFolder, record: dict[str, Any]) -> None:
        if record["step"] == 7:
            raise RuntimeError("killed")
        log(run, record)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log", killed)
        with pytest.raises(RuntimeError, match="killed"):
            bertie.finetune(config, files, start, tmp_path / "cut", dev=files[0])
    assert [path.name for path in list_checkpoints(tmp_path / "cut")] == ["step-00000004"]
    found = bertie.finetune(config, files, start, tmp_path / "cut", dev=files[0])
    assert found.losses == whole.losses[4:]
    cut, uncut = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("cut", "whole"))
    assert cut == uncut


def test_positives_of_examples_that_are_left_out_are_no_negatives(small_texts: list[str], start: Path) -> None:
    """Every query has all documents as its positives, so that no document of a batch is a negative of another query."""
    queries, documents = ([text[:40] for text in part] for part in (small_texts[:6], small_texts[10:16]))
    pairs = [{"query": query, "document": document} for query in queries for document in documents]
    each_pair = replace(CONFIG, task=replace(CONFIG.task, positives="pairs"))
    config = replace(each_pair, max_train_examples=12)
    data = load_task_data(config, pairs, pairs, read_checkpoint(start))
    assert len(data.units) == 12
    assert {len(unit[0].target.positives) for unit in data.units} == {7}  # and the query itself
    whole = load_task_data(each_pair, pairs, pairs, read_checkpoint(start))
    assert {len(unit[0].target.positives) for unit in whole.units} == {7}


def test_command_records_all_data_sets_once(files: list[Path], start: Path, tmp_path: Path) -> None:
    words = ["finetune", "embed", "--train", str(files[0]), "--train", str(files[1]), "--model", str(start)]
    words += ["--out", str(tmp_path / "run"), "--training.steps", "2", "--max-length", "24", "--weights", "1", "2"]
    for _ in range(2):
        assert main([*words, "--dev", str(files[0])]) in (0, 1)
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["trained_on"] == list(map(str, files))
