from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.base import console
from bertie.base.errors import UsageError, UserError
from bertie.batches.loader import Position
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.read import Checkpoint, read_checkpoint
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.checkpoints.training_state import Counters
from bertie.examples.texts import Example
from bertie.finetuning.finetune import Finetuned
from bertie.finetuning.recipe import FinetuneConfig
from bertie.finetuning.single_run import build_model
from bertie.model.config import TransformerConfig
from bertie.model.heads.vector_modules import Normalize
from bertie.tasks.classify import Classify
from bertie.tasks.embed import Embed
from bertie.tasks.span import Span
from bertie.training import trainer

CONFIG = fine_tuning(2)
TRAINING = CONFIG.training


def finetune(config: FinetuneConfig, rows: Any, start: Any, out: Path | None = None) -> Finetuned:
    return bertie.finetune(config, rows[:50], start, out, dev=rows[50:], threads=1)


def test_finetune_learns_a_simple_task(rows: list[dict[str, str]], start: Path) -> None:
    long = replace(CONFIG, training=replace(TRAINING, epochs=8, learning_rate=6e-3))
    found = finetune(long, rows, start)
    assert found.run is None
    assert found.task.labels == ("no", "yes")
    assert len(found.losses) == 8 * 7  # ⌈50 / 8⌉ steps per epoch
    assert found.losses[0] == pytest.approx(np.log(2), abs=0.2)
    assert found.losses[-1] < 0.1
    assert found.scores == {"accuracy": 1.0, "f1": 1.0, "matthews": 1.0}


def test_training_of_vectors_says_what_it_drops(
    start: Path, tiny_config: TransformerConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copytree(start, tmp_path / "start")
    how = SentenceEmbedding(("cls",), (Normalize(),), prompts={"query": "q "}, lowercase=True, dimensions=5)
    sentence_transformers_format.write(copied, tiny_config, how, 24)
    config = replace(CONFIG, task=Embed(), training=replace(TRAINING, epochs=1))
    rows = [{"text": "and a", "text_pair": "and b"}, {"text": "in a", "text_pair": "in b"}]
    bertie.finetune(config, rows, copied, tmp_path / "run", dev=rows, threads=1)
    said = " ".join(capsys.readouterr().err.split())
    assert f"{copied}: the modules Normalize, lowercasing, the width 5 isn't carried over" in said
    tuned = bertie.load(tmp_path / "run")
    assert (tuned.text_embedding.pooling, dict(tuned.text_embedding.prompts)) == (
        ("cls",),
        {"query": "q ", "document": ""},
    )
    with pytest.raises(UsageError, match=r"task.query_prompt is empty, and .* has the prompt 'q '"):
        bertie.finetune(replace(config, task=Embed(query_prompt="")), rows, copied, dev=rows, threads=1)


def test_runs_in_memory_and_in_a_folder_are_equal(rows: list[dict[str, str]], start: Path, tmp_path: Path) -> None:
    in_memory = finetune(CONFIG, rows, start)
    in_folder = finetune(CONFIG, rows, start, tmp_path / "run")
    assert in_memory.losses == in_folder.losses
    assert in_memory.scores == in_folder.scores
    again = finetune(CONFIG, rows, start, tmp_path / "run")  # finished: read back
    assert again.scores == in_folder.scores
    assert again.losses == []
    assert not again.model.training
    assert not in_folder.model.training
    for other in (in_folder, again):
        for a, b in zip(in_memory.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(a, b)
    scores = bertie.load(tmp_path / "run", threads=1).evaluate(rows[50:])["scores"]
    assert scores == in_folder.scores
    texts = [rows[50]["text"], "ka du " * 40]  # truncated to the run's maximum length
    predictions = bertie.load(tmp_path / "run", threads=1).predict(texts)
    assert [found.predict(texts) for found in (in_memory, in_folder, again)] == [predictions] * 3
    assert "Tensor" not in repr(in_memory)
    assert len(repr(in_memory)) < 1000
    dev = tmp_path / "run" / "dev"
    assert json.loads((dev / "scores.json").read_text())["scores"] == scores
    assert len((dev / "predictions.jsonl").read_text().splitlines()) == len(rows[50:])
    assert "run on all its dev examples" in (dev / "report.html").read_text()
    assert 'href="dev/report.html"' in (tmp_path / "run" / "report.html").read_text()


def test_finished_run_is_not_reused_for_other_examples_or_another_model(
    rows: list[dict[str, str]], start: Path, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finetune(CONFIG, rows, start, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # not needed any more
    swapped = [{**row, "label": {"yes": "no", "no": "yes"}[row["label"]]} for row in rows]
    renamed = [{**row, "label": {"yes": "yea", "no": "nay"}[row["label"]]} for row in rows]
    for train, dev in ((swapped[:50], swapped[50:]), (renamed[:50], renamed[50:]), (rows[:49], rows[49:])):
        with pytest.raises(UsageError, match="was made from other data"):
            bertie.finetune(CONFIG, train, start, tmp_path / "run", dev=dev, threads=1)
    with pytest.raises(UsageError, match="or another model"):
        finetune(CONFIG, rows, pretrained, tmp_path / "run")
    assert finetune(CONFIG, rows, start, tmp_path / "run").losses == []
    assert f"{tmp_path / 'run'} is finished: nothing to do" in capsys.readouterr().err


def test_each_epoch_has_every_example_once_in_another_order(
    rows: list[dict[str, str]], start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[trainer.TrainingJob] = []
    monkeypatch.setattr(trainer, "train", lambda job, _: jobs.append(job) or Counters())
    finetune(replace(CONFIG, training=replace(TRAINING, row_tokens=24 * 3)), rows, start)
    steps = list(islice(jobs[0].stream(0, Position()), 14))
    epochs = [
        [int(example) for step in part for micro in step.micro_batches for example in micro.batch.example]
        for part in (steps[:7], steps[7:])
    ]
    for epoch in epochs:
        assert sorted(epoch) == list(range(50))
    assert epochs[0] != epochs[1]
    assert [len(micro.batch.pair_label) for micro in steps[0].micro_batches] == [
        3,
        3,
        2,
    ]  # 8 examples, 3 per micro-batch
    assert steps[6].after == Position(1, 0)
    for start_at in (3, 7, 9):
        [again] = islice(jobs[0].stream(start_at, steps[start_at].position), 1)
        expected = [micro.batch.input_ids.tolist() for micro in steps[start_at].micro_batches]
        assert [micro.batch.input_ids.tolist() for micro in again.micro_batches] == expected


def test_examples_can_keep_their_order(
    rows: list[dict[str, str]], start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[trainer.TrainingJob] = []
    monkeypatch.setattr(trainer, "train", lambda job, _: jobs.append(job) or Counters())
    finetune(replace(CONFIG, training=replace(TRAINING, shuffle=False)), rows, start)
    steps = islice(jobs[0].stream(0, Position()), 14)
    read = [int(example) for step in steps for micro in step.micro_batches for example in micro.batch.example]
    assert read == [*range(50), *range(50)]


def test_losses_do_not_depend_on_the_micro_batch_size(rows: list[dict[str, str]], start: Path) -> None:
    no_dropout = replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    losses = [
        finetune(replace(no_dropout, training=replace(TRAINING, row_tokens=tokens, steps=5)), rows, start).losses
        for tokens in (8192, 24, 60)
    ]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)


def test_dropout_is_that_of_the_configuration_not_the_checkpoint(rows: list[dict[str, str]], start: Path) -> None:
    found = finetune(replace(CONFIG, training=replace(TRAINING, steps=1)), rows, start)
    config = found.model.encoder.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert read_checkpoint(start).config.hidden_dropout_prob == 0.0
    assert found.model.encoder.layers[0].attention.dropout == 0.1
    assert found.model.heads["classify"].dropout == 0.1


def test_the_dropout_of_the_head_is_that_of_the_checkpoint_unless_it_is_given() -> None:
    size, two = TransformerConfig(1, 8, 2, 8, vocab_size=10, head_dropout_prob=0.4), Classify(labels=("a", "b"))
    assert build_model(CONFIG, two, size).heads["classify"].dropout == 0.4
    assert build_model(CONFIG, two, replace(size, head_dropout_prob=None)).heads["classify"].dropout == 0.1
    given = replace(CONFIG, head_dropout_prob=0.2)
    for task in (two, Span()):
        assert build_model(given, task, size).heads[task.kind].dropout == 0.2
    assert build_model(CONFIG, Span(), size).heads["span"].dropout == 0.0
    with pytest.raises(UsageError, match=r"head_dropout_prob is 0\.2, and the head has no dropout"):
        build_model(given, Embed(), size)


def test_from_scratch_takes_size_and_vocabulary_only(rows: list[dict[str, str]], start: Path) -> None:
    no_training = replace(CONFIG, training=replace(TRAINING, steps=1, learning_rate=1e-30))
    pretrained = read_checkpoint(start).weights["encoder.embeddings.word.weight"]
    tuned, scratch = finetune(no_training, rows, start), finetune(replace(no_training, from_scratch=True), rows, start)
    assert torch.equal(tuned.model.encoder.embeddings.word.weight.detach(), pretrained)
    assert scratch.model.encoder.embeddings.word.weight.std().item() == pytest.approx(0.0176, abs=0.001)
    # The initial head weights of both are equal: they are a function of the seed.
    heads = [part.model.heads["classify"].state_dict()["out.weight"] for part in (tuned, scratch)]
    assert torch.equal(*heads)
    other = finetune(replace(no_training, seed=1), rows, start).model.heads["classify"].state_dict()["out.weight"]
    assert not torch.equal(heads[0], other)


def test_subset_of_the_examples_is_the_same_for_every_seed(
    rows: list[dict[str, str]], start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = []

    def record(job: trainer.TrainingJob, _: object) -> Counters:
        steps = islice(job.stream(0, Position()), 3)
        ids = [micro.batch.input_ids for step in steps for micro in step.micro_batches]
        parts.append(sorted(np.concatenate(ids).tolist()))
        return Counters()

    monkeypatch.setattr(trainer, "train", record)
    for seed in (0, 1):
        finetune(replace(CONFIG, seed=seed, max_train_examples=20), rows, start)
    assert parts[0] == parts[1]


def test_finetune_accepts_a_checkpoint_in_memory(rows: list[dict[str, str]], start: Path) -> None:
    checkpoint = read_checkpoint(start)
    assert isinstance(checkpoint, Checkpoint)
    short = replace(CONFIG, training=replace(TRAINING, steps=2))
    assert finetune(short, rows, checkpoint).losses == finetune(short, rows, start).losses


def test_dropped_heads_are_reported(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = replace(CONFIG, training=replace(TRAINING, steps=1))
    finetune(short, rows, start, tmp_path / "a")
    assert "; dropped its mlm and nsp heads; randomly initialized: heads.classify.out" in capsys.readouterr().err
    three = [{**row, "label": "abc"[i % 3]} for i, row in enumerate(rows)]
    found = finetune(short, three, tmp_path / "a", tmp_path / "b")
    assert "; dropped its classify head; randomly initialized: heads.classify.out" in capsys.readouterr().err
    assert found.task.labels == ("a", "b", "c")


def test_head_of_another_task_with_as_many_classes_is_not_reused(
    rows: list[dict[str, str]], start: Path, tmp_path: Path
) -> None:
    no_training = replace(CONFIG, training=replace(TRAINING, steps=1, learning_rate=1e-30))
    finetune(CONFIG, rows, start, tmp_path / "a")
    other = [{**row, "label": "ab"[i // 2 % 2]} for i, row in enumerate(rows)]
    from_start, from_tuned = finetune(no_training, other, start), finetune(no_training, other, tmp_path / "a")
    heads = [part.model.heads["classify"].state_dict()["out.weight"] for part in (from_start, from_tuned)]
    assert torch.equal(*heads)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"max_length": 3}, UsageError, "max_length is 3: the model reads 4 to 64 tokens"),
        ({"max_length": 65}, UsageError, "max_length is 65"),
        ({"task": Classify(label="stars")}, UsageError, "no column 'stars'"),
        ({"task": Classify(labels=("yes", "maybe"))}, UserError, "the label 'no' is none of the classes"),
        ({"metric": "foo"}, UsageError, "metric is 'foo'"),
        ({"layers": "sum_last_4"}, UsageError, "4 layers"),
        ({"training": replace(TRAINING, reinit_layers=3)}, UsageError, "reinit_layers is 3"),
    ],
)
def test_impossible_configurations_leave_no_folder(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, change: Any, error: type[UserError], message: str
) -> None:
    with pytest.raises(error, match=message):
        finetune(replace(CONFIG, **change), rows, start, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_examples_that_cannot_be_learned_from_are_refused(rows: list[dict[str, str]], start: Path) -> None:
    with pytest.raises(UserError, match="no examples"):
        bertie.finetune(CONFIG, [], start, dev=rows, threads=1)
    with pytest.raises(UserError, match="no examples"):
        bertie.finetune(CONFIG, rows, start, dev=[], threads=1)
    with pytest.raises(UserError, match="every example has the label 'yes'"):
        bertie.finetune(CONFIG, rows[::2], start, dev=rows, threads=1)
    mixed = [Example("in", "the", "yes", "a:1"), Example("in", None, "no", "a:2")]
    with pytest.raises(UserError, match="a:2: found one text, but the training examples have two"):
        bertie.finetune(CONFIG, mixed, start, dev=mixed[:1], threads=1)
    with pytest.raises(UserError, match="example 1: found 'text' and 'text_pair', but the task reads one text"):
        bertie.finetune(CONFIG, rows[:50], start, dev=[{**row, "text_pair": "b"} for row in rows[50:]], threads=1)


def test_model_of_single_texts_refuses_pairs(start: Path, rows: list[dict[str, str]], tmp_path: Path) -> None:
    bertie.finetune(
        replace(CONFIG, training=replace(TRAINING, steps=1)), rows[:50], start, tmp_path / "run", dev=rows[50:]
    )
    model = bertie.load(tmp_path / "run", threads=1)
    with pytest.raises(UserError, match="example 1: found two texts, but the training examples have one"):
        model.predict([("a", "b")])
    with pytest.raises(UserError, match="but the task reads one text"):
        model.evaluate([{**row, "text_pair": "b"} for row in rows])


def test_questions_whose_answer_is_not_in_the_context_are_reported(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": f"q{i}", "question": "ka", "context": "ka du in", "answers": ["du"]} for i in range(6)]
    rows[2]["answers"] = rows[4]["answers"] = ["gone"]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = replace(CONFIG, task=Span(), training=replace(TRAINING, steps=1))
    bertie.finetune(config, path, start, dev=rows, threads=1)
    reason = "the answer is not in the context (questions.jsonl:3; questions.jsonl:5)"
    assert f"skipped 2 of 6 training examples: {reason}" in capsys.readouterr().err
    with pytest.raises(UserError, match="cannot train on 2 training examples"):
        bertie.finetune(replace(config, strict=True), path, start, dev=rows, threads=1)


def test_a_pair_alone_joins_the_batch_before(start: Path) -> None:
    """A pair without a score needs other pairs of its batch as negatives."""
    pairs = [
        {"text": "in " * i + "ka", "text_pair": "ka " * i + "du"} for i in range(5)
    ]  # equal texts are no negatives
    config = replace(CONFIG, task=Embed(), training=replace(TRAINING, batch_size=2, epochs=1))
    found = bertie.finetune(config, pairs, start, dev=pairs, threads=1)
    assert len(found.losses) == 2  # of two and three pairs
    assert min(found.losses) > 0
    for bad, some in ((replace(config, training=replace(TRAINING, batch_size=1)), pairs), (config, pairs[:1])):
        with pytest.raises(UsageError, match="pairs without scores need negatives from their batch"):
            bertie.finetune(bad, some, start, dev=pairs, threads=1)


def test_class_weights_change_the_training_and_are_kept(
    rows: list[dict[str, str]], start: Path, tmp_path: Path
) -> None:
    weights = {"no": 0.5, "yes": 3.0}
    few = replace(CONFIG, training=replace(TRAINING, steps=2))
    found = finetune(replace(few, task=Classify(class_weights=weights)), rows, start, tmp_path / "run")
    assert found.losses != finetune(few, rows, start).losses
    assert json.loads((tmp_path / "run" / "task.json").read_text())["class_weights"] == weights
    assert bertie.load(tmp_path / "run").task.class_weights == weights
    assert finetune(replace(few, task=Classify(class_weights=weights)), rows, start, tmp_path / "run").losses == []


def test_finetune_reports_how_the_first_row_was_read(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("class\tpremise\thypothesis\nyes\t☃ in\tand\nno\tand\tin\n", encoding="utf-8")
    console.info_once.cache_clear()
    bertie.finetune(replace(CONFIG, training=replace(TRAINING, steps=1)), path, start, dev=path)
    line = "2 examples, the first with text '☃ in', text_pair 'and', label 'yes'"
    said = capsys.readouterr().err
    assert said.count(f"{path}: {line}") == 2
    share = "20.0 % of the words are [UNK]"  # one of five
    assert f"warning: the training examples: {share}" in said
    assert f"warning: the dev examples: {share}\n" in said
    assert said.count("use one that was trained on such text") == 1
