"""GLUE's baselines in fine-tuning: max pooling, and attention between the texts of a pair."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.predict.small_models import model_of
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.huggingface import transformers_heads
from bertie.corpus import bpe, word_counts
from bertie.finetuning import finetune as finetuning
from bertie.finetuning.finetune import Finetuned
from bertie.finetuning.glue_tasks import TASKS as TASKS_OF_GLUE
from bertie.finetuning.glue_tasks import _configured
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.config import ClassifierPooling, TransformerConfig
from bertie.model.encoders.gru import GruConfig
from bertie.model.encoders.static import StaticConfig
from bertie.model.heads.text_pooling import TaskPooling, TextPooling
from bertie.objectives import MaskedLM, SkipThoughts
from bertie.predict.engines import cpu
from bertie.pretraining.initial_weights import new_model
from bertie.tasks import Choose, Classify, MultiLabel, Regress
from bertie.tasks.inference import outputs
from bertie.tokenizers.tokenizer import ByteLevel, Tokenizer

CONFIG = fine_tuning(1, 1e-2, max_length=32, lstm_hidden_size=6, hidden_dropout_prob=0.0)
TRAINING = CONFIG.training
TASKS = {"classify": Classify(), "regress": Regress(), "choose": Choose()}
POOLINGS: list[TextPooling] = ["mean", "max", "attention", "esim"]


@pytest.fixture(scope="module")
def static(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Static vectors."""
    folder = tmp_path_factory.mktemp("static")
    return written(folder, small_tokenizer)


def written(folder: Path, tokenizer: Tokenizer) -> Path:
    config = StaticConfig(16, vocab_size=tokenizer.size, max_position_embeddings=64)
    write_model(folder, model_of(config, scale=0.5), tokenizer)
    return folder


@pytest.fixture(scope="module")
def pairs(small_texts: list[str]) -> list[dict[str, Any]]:
    """Pairs whose label is in the second text, at a place that varies."""
    made = []
    for i, text in enumerate(small_texts[:48]):
        words = text.split()[: 2 + i % 5]
        words.insert(i % len(words), ["a", "in"][i % 2])
        made.append({"text": text[10:20], "text_pair": " ".join(words), "label": ["no", "yes"][i % 2]})
    return made


def examples(kind: str, pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if kind == "choose":
        return [
            {"context": p["text"], "ending0": p["text_pair"], "ending1": p["text_pair"][::-1], "label": str(i % 2)}
            for i, p in enumerate(pairs)
        ]
    return [{**p, "label": float(p["label"] == "yes")} for p in pairs] if kind == "regress" else pairs


def finetune(config: FinetuneConfig, rows: Any, model: Path, out: Path | None = None) -> Finetuned:
    return bertie.finetune(config, rows[:32], model, out, dev=rows[32:], threads=1)


def with_task(
    config: FinetuneConfig, task: Classify | Regress | Choose, pooling: TextPooling, **changes: Any
) -> FinetuneConfig:
    return replace(config, task=replace(task, pooling=pooling), **changes)


# `make test` has every task, every pooling, and both with frozen and with tuned layers.
FIRST = {
    ("classify", "mean", True),
    ("regress", "max", True),
    ("choose", "attention", True),
    ("classify", "max", False),
}
RUNS = list(product(TASKS, POOLINGS, (True, False)))


@pytest.mark.parametrize(
    ("kind", "pooling", "frozen"),
    [pytest.param(*run, marks=[] if run in FIRST else pytest.mark.slow) for run in RUNS],
)
def test_a_run_is_read_back_unchanged(
    kind: str, pooling: TextPooling, frozen: bool, pairs: list[dict[str, Any]], start: Path, tmp_path: Path
) -> None:
    """Over a Transformer, frozen with cached states and tuned."""
    config = with_task(CONFIG, TASKS[kind], pooling, frozen=frozen, layers="scalar_mix")
    rows = examples(kind, pairs)
    found = finetune(config, rows, start, tmp_path / "run")
    loaded = bertie.load(tmp_path / "run")
    assert loaded.evaluate(rows[32:])["scores"] == pytest.approx(found.scores)
    for ours, theirs in zip(loaded.model.state_dict().values(), found.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert finetune(config, rows, start, tmp_path / "run").scores == found.scores
    assert json.loads((tmp_path / "run" / "task.json").read_text())["pooling"] == pooling


@pytest.mark.parametrize("pooling", POOLINGS)
def test_cached_hidden_states_give_the_same_losses(
    pooling: TextPooling, pairs: list[dict[str, Any]], start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_task(CONFIG, Classify(), pooling, frozen=True, attention_probs_dropout_prob=0.0)
    cached = finetune(config, pairs, start)
    monkeypatch.setattr(finetuning, "cache_hidden_states", lambda data, *_: data)
    np.testing.assert_allclose(cached.losses, finetune(config, pairs, start).losses, rtol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_predictions_do_not_depend_on_other_examples(
    pooling: TextPooling, pairs: list[dict[str, Any]], static: Path
) -> None:
    found = finetune(with_task(CONFIG, Classify(), pooling), pairs, static)
    together = [prediction.probabilities for prediction in found.predict(pairs)]
    for row, expected in zip(pairs[:6], together, strict=False):
        [alone] = found.predict([row])
        assert alone.probabilities == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pairs_are_learned_from_static_vectors(pooling: TextPooling, pairs: list[dict[str, Any]], static: Path) -> None:
    training = replace(TRAINING, epochs=14, learning_rate=2e-2)
    found = finetune(with_task(CONFIG, Classify(), pooling, frozen=True, training=training), pairs, static)
    assert np.mean(found.losses[-4:]) < 0.2


def test_single_texts_are_pooled_without_a_bilstm(pairs: list[dict[str, Any]], static: Path, tmp_path: Path) -> None:
    rows = [{"text": row["text_pair"], "label": row["label"]} for row in pairs]
    config = with_task(CONFIG, Classify(), "max", lstm_hidden_size=0, training=replace(TRAINING, epochs=20))
    found = finetune(config, rows, static, tmp_path / "run")
    assert np.mean(found.losses[-4:]) < 0.2
    reading = bertie.load(tmp_path / "run").model.reading
    assert reading is not None
    assert not list(reading.parameters())


@pytest.mark.skipif(not cpu.has(cpu.BF16), reason="needs a processor with bf16 instructions")
def test_bf16_with_filler_sequences(pairs: list[dict[str, Any]], start: Path) -> None:
    training = replace(TRAINING, precision="bf16", batch_size=1, epochs=1)
    found = finetune(with_task(CONFIG, Classify(), "attention", training=training), pairs, start)
    assert np.isfinite(found.losses).all()


def test_texts_of_a_byte_level_vocabulary_are_told_apart(
    pairs: list[dict[str, Any]], small_texts: list[str], tmp_path: Path
) -> None:
    """Its pairs have no segments otherwise."""
    counts = word_counts.count_words(small_texts[:50], ByteLevel()).counts
    tokenizer = Tokenizer.build_bpe(*bpe.train(counts, vocab_size=300))
    config = with_task(CONFIG, Classify(), "max", max_length=60)
    found = finetune(config, pairs, written(tmp_path, tokenizer))
    [sequence] = found.task.encode(list(found.task.reader.values(pairs[:1])), tokenizer, 60)
    second = sequence.input_ids[sequence.token_type_ids == 1]
    assert (second[0], second[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
    assert tokenizer.decode(second[1:-1].tolist()) == pairs[0]["text_pair"]


def test_a_model_keeps_its_pooling_when_it_reads_other_columns(
    pairs: list[dict[str, Any]], static: Path, tmp_path: Path
) -> None:
    found = finetune(with_task(CONFIG, Classify(), "max"), pairs, static, tmp_path / "run")
    renamed = [{"one": row["text"], "two": row["text_pair"], "label": row["label"]} for row in pairs[32:]]
    loaded = bertie.load(tmp_path / "run", task=Classify(text="one", text_pair="two"), threads=1)
    assert loaded.evaluate(renamed)["scores"] == found.scores
    with pytest.raises(UserError, match=r"no column 'text_pair'|one text"):
        bertie.load(tmp_path / "run", task=Classify()).predict([{"text": "a text"}])
    with pytest.raises(UsageError, match=r'task\.pooling: the model was trained with "max"'):
        bertie.load(tmp_path / "run", task=Classify(pooling="attention"))


MODERN = TransformerConfig(
    *(2, 16, 2, 32),
    max_position_embeddings=64,
    type_vocab_size=0,
    position_embedding="rotary",
    norm_position="modern",
    use_bias=False,
    hidden_act="geglu",
    pooler_act="gelu",
    local_attention=8,
)


@pytest.mark.parametrize(("own", "asked"), [("token", "model"), ("mean", "model"), ("mean", "token")])
def test_a_model_of_modernbert_has_its_pooling_in_its_configuration(
    own: ClassifierPooling, asked: TaskPooling, pairs: list[dict[str, Any]], small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = replace(MODERN, vocab_size=small_tokenizer.size, classifier_pooling=own)
    (tmp_path / "start").mkdir()
    write_model(tmp_path / "start", new_model(config, (MaskedLM(),), 0), small_tokenizer)
    used = own if asked == "model" else asked
    task = Classify(pooling=asked)
    found = finetune(replace(CONFIG, task=task, lstm_hidden_size=0), pairs, tmp_path / "start", tmp_path / "run")
    values = json.loads((tmp_path / "run" / "config.json").read_text())
    assert values["architectures"] == ["ModernBertForSequenceClassification"]
    assert values["classifier_pooling"] == {"token": "cls", "mean": "mean"}[used]
    assert json.loads((tmp_path / "run" / "task.json").read_text())["pooling"] == used
    for name in ("task.json", "manifest.json"):  # as in a model of others
        (tmp_path / "run" / name).unlink()
    loaded = bertie.load(tmp_path / "run", threads=1)
    expected, given = (model.predict(pairs[32:]) for model in (found, loaded))
    names = dict(zip(loaded.task.labels, found.task.labels, strict=True))
    for ours, theirs in zip(expected, given, strict=True):
        renamed = {names[label]: p for label, p in theirs.probabilities.items()}
        assert renamed == pytest.approx(ours.probabilities, abs=1e-5)


def test_a_bert_that_pools_the_mean_keeps_its_format(pairs: list[dict[str, Any]], start: Path, tmp_path: Path) -> None:
    """No class of transformers has its head. AutoModel loads its encoder."""
    finetune(with_task(CONFIG, Classify(), "mean", lstm_hidden_size=0), pairs, start, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model_type"] == "bert"
    assert transformers_heads(bertie.load(tmp_path / "run").model) is None
    assert "Only bertie loads the layers above it" in (tmp_path / "run" / "README.md").read_text()


def test_glue_has_one_pooling_for_all_tasks() -> None:
    """A task of single texts has the pooling that takes its place."""
    config = with_task(CONFIG, Classify(), "attention")
    poolings = {task.name: _configured(task, config).pooling for task in TASKS_OF_GLUE}
    assert (poolings["rte"], poolings["sst2"]) == ("attention", "max")


def test_combinations_without_sense_are_refused(pairs: list[dict[str, Any]], static: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"task\.pooling is \"attention\".* lstm_hidden_size is 0: set it"):
        with_task(CONFIG, Classify(), "attention", lstm_hidden_size=0)
    with pytest.raises(UsageError, match=r"task\.pooling is \"attention\".* has one: set task\.pooling to \"max\""):
        finetune(with_task(CONFIG, Classify(), "attention"), [p | {"text_pair": None} for p in pairs], static)
    with pytest.raises(UsageError, match=r"task\.pooling is \"vectors\".* lstm_hidden_size is 6: set it to 0"):
        with_task(CONFIG, Classify(), "vectors")
    with pytest.raises(UsageError, match=r"task\.pooling is not known"):
        bertie.finetune({"extends": "tag", "task": {"kind": "tag", "pooling": "max"}}, [], static, dev=[])
    with pytest.raises(UsageError, match="max_length is 4: the model reads 5 to 64 tokens"):
        finetune(with_task(CONFIG, Classify(), "max", max_length=4), pairs, static)
    finetune(with_task(CONFIG, Classify(), "max"), pairs, static, tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()
    path = tmp_path / "run" / "task.json"
    values = json.loads(path.read_text())
    for wrong in ({"pooling": "lost"}, {"pooling": "attention", "lstm_hidden_size": 0}, {"pooling": "vectors"}):
        path.write_text(json.dumps(values | wrong))
        with pytest.raises(UserError, match=r"task\.json is damaged"):
            bertie.load(tmp_path / "run")


@pytest.fixture(scope="module")
def gru(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder of skip-thoughts, with random weights."""
    folder = tmp_path_factory.mktemp("gru")
    config = GruConfig(24, 16, vocab_size=small_tokenizer.size, max_position_embeddings=64)
    write_model(folder, new_model(config, (SkipThoughts(),), 0), small_tokenizer)
    return folder


@pytest.mark.parametrize(("task", "frozen"), [(Classify(), True), (Regress(), False), (MultiLabel(), True)], ids=str)
def test_fixed_vectors_of_pairs(
    task: Classify | Regress | MultiLabel, frozen: bool, pairs: list[dict[str, Any]], gru: Path, tmp_path: Path
) -> None:
    """The head is a single layer over |u − v| and u ∗ v of the vectors that `embed` returns."""
    config = replace(
        CONFIG, task=replace(task, pooling="vectors"), lstm_hidden_size=0, frozen=frozen, head_dropout_prob=0.0
    )
    rows = examples(task.kind, pairs)
    found = finetune(config, rows, gru, tmp_path / "run")
    head = found.model.heads[task.kind]
    assert [name for name, _ in head.named_parameters()] == ["out.weight", "out.bias"]
    loaded = bertie.load(tmp_path / "run", threads=1)
    if task.kind != "multi_label":  # whose scores are those of one half
        assert loaded.evaluate(rows[32:])["scores"] == pytest.approx(found.scores)
    u, v = (torch.tensor(loaded.embed([row[key] for row in rows])) for key in ("text", "text_pair"))
    with torch.no_grad():
        expected = found.model.heads[task.kind].out(torch.cat([(u - v).abs(), u * v], 1))  # pyright: ignore[reportCallIssue]
    sequences = loaded.task.encode(list(loaded.task.reader.values(rows)), loaded.tokenizer, 32)
    given = np.concatenate(outputs(loaded.model, loaded.task, sequences))
    np.testing.assert_allclose(given, expected.numpy(), atol=1e-5)
    untrained = bertie.load(gru, threads=1).embed([rows[0]["text"]])
    assert np.allclose(untrained[0], u[0].numpy(), atol=1e-6) == frozen


def test_fixed_vectors_of_single_texts(pairs: list[dict[str, Any]], static: Path, gru: Path, tmp_path: Path) -> None:
    """The mean of word vectors, and the last state of a GRU."""
    rows = [{"text": row["text_pair"], "label": row["label"]} for row in pairs]
    for name, start in (("static", static), ("gru", gru)):
        config = with_task(CONFIG, Classify(), "vectors", lstm_hidden_size=0, frozen=True, head_dropout_prob=0.0)
        found = finetune(config, rows, start, tmp_path / name)
        loaded = bertie.load(tmp_path / name, threads=1)
        logits = loaded.model.heads["classify"].out(torch.tensor(loaded.embed([row["text"] for row in rows])))  # pyright: ignore[reportCallIssue]
        expected = logits.softmax(1)[:, 1].tolist()
        label = found.task.labels[1]
        assert [p.probabilities[label] for p in loaded.predict(rows)] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("layers", ["scalar_mix", "concat_last_4", "sum_all"])
def test_fixed_vectors_of_other_layers(layers: Any, pairs: list[dict[str, Any]], start: Path, tmp_path: Path) -> None:
    if layers == "concat_last_4":
        size = bertie.load(start).model.encoder.config
        assert isinstance(size, TransformerConfig)
        deep = replace(size, num_hidden_layers=4)
        write_model(tmp_path, new_model(deep, (MaskedLM(),), 0), bertie.load(start).tokenizer)
        start = tmp_path
    config = with_task(CONFIG, Classify(), "vectors", lstm_hidden_size=0, frozen=True, layers=layers)
    found = finetune(config, pairs, start, tmp_path / "run")
    assert bertie.load(tmp_path / "run").evaluate(pairs[32:])["scores"] == pytest.approx(found.scores)
