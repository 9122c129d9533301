"""GPT: input tokens with random vectors, heads that are one matrix, and language modeling beside a task."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.unit.predict.small_models import model_of
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.base import config as configuration
from bertie.base.contracts import MicroBatch, Sequence
from bertie.base.errors import UsageError, UserError
from bertie.batches.collate import collate
from bertie.checkpoints.families import openai_gpt
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import Checkpoint, read_checkpoint
from bertie.finetuning import gpt
from bertie.finetuning.data import load_task_data
from bertie.finetuning.recipe import FinetuneConfig
from bertie.finetuning.single_run import initialized_model
from bertie.model.config import TransformerConfig
from bertie.model.encoders.transformer_xl import TransformerXlConfig
from bertie.model.heads.heads import PooledHead
from bertie.model.model import Model
from bertie.objectives import CausalLM
from bertie.tasks import Choose, Classify, Embed, MultiLabel, Regress, Span, Tag
from bertie.tasks.inference import head_index, outputs
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.schedules import LinearDecay

SIZE = TransformerConfig(
    *(2, 32, 4, 128, 500, 64, 0),
    causal=True,
    embedding_norm=False,
    hidden_act="gelu_tanh",
    layer_norm_eps=1e-5,
)
CONFIG = fine_tuning(1, input_tokens="gpt", lm_weight=0.5)
TRAINING = CONFIG.training
PAIRS = [
    {"text": f"{('and', 'in')[i % 2]} the", "text_pair": "the in", "label": float(i % 2), "context": "the"}
    for i in range(24)
]


@pytest.fixture(scope="module")
def start(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt")
    write_model(folder, model_of(SIZE, CausalLM(), scale=0.1), small_tokenizer)
    assert read_checkpoint(folder).family is openai_gpt.FAMILY
    return folder


@pytest.fixture(scope="module")
def run(start: Path, rows: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    training = replace(TRAINING, checkpoint_every=5)
    bertie.finetune(replace(CONFIG, training=training), rows[:50], start, out, dev=rows[50:], threads=1)
    return out


def tokens_of(data: Any) -> list[list[str]]:
    return [data.checkpoint.tokenizer.tokens(sequence.input_ids) for sequence in data.train_sequences]


def test_inputs_of_a_text_a_pair_and_answers(start: Path) -> None:
    checkpoint = read_checkpoint(start)
    texts = [{"text": "and the", "label": "a"}, {"text": "in", "label": "b"}]
    assert tokens_of(load_task_data(CONFIG, texts, texts, checkpoint)) == [
        ["<start>", "and", "the", "<extract>"],
        ["<start>", "in", "<extract>"],
    ]
    pairs = [{**row, "text_pair": "the in"} for row in texts]
    assert tokens_of(load_task_data(CONFIG, pairs, pairs, checkpoint))[1] == [
        *("<start>", "in", "<delimiter>", "the", "in", "<extract>")
    ]
    answers = [{"context": "and the", "endings": ["in", "the"], "label": 1}]
    assert tokens_of(load_task_data(replace(CONFIG, task=Choose()), answers, answers, checkpoint)) == [
        ["<start>", "and", "the", "<delimiter>", answer, "<extract>"] for answer in ("in", "the")
    ]


def test_input_tokens_that_a_text_spells_are_text(start: Path) -> None:
    texts = [{"text": "in <extract> the [SEP]", "label": "a"}, {"text": "in", "label": "b"}]
    [tokens, _] = tokens_of(load_task_data(CONFIG, texts, texts, read_checkpoint(start)))
    assert [tokens.count(name) for name in ("<start>", "<extract>", "[SEP]")] == [1, 1, 0]


def test_long_texts_keep_the_input_tokens(start: Path) -> None:
    texts = [{"text": "the in and " * 20, "text_pair": "in the " * 30, "label": label} for label in "ab"]
    for truncation, windows in (("head_tail", 1), ("windows", 5)):
        config = replace(CONFIG, task=Classify(truncation=truncation), max_length=23)  # type: ignore[arg-type]
        found = tokens_of(load_task_data(config, texts, texts, read_checkpoint(start)))
        assert len(found) >= 2 * windows
        for tokens in found:
            assert (tokens[0], tokens[-1], tokens.count("<delimiter>")) == ("<start>", "<extract>", 1)
            assert len(tokens) <= 23


def test_new_entries_are_random_by_the_seed_and_others_are_kept(start: Path) -> None:
    before = read_checkpoint(start)
    one, again, other = (gpt.prepared(replace(CONFIG, seed=seed), before) for seed in (3, 3, 4))
    name = "encoder.embeddings.word.weight"
    assert one.tokenizer.vocabulary[-3:] == ["<start>", "<delimiter>", "<extract>"]
    assert torch.equal(one.weights[name][:-3], before.weights[name])
    assert torch.equal(one.weights[name], again.weights[name])
    assert not torch.equal(one.weights[name][-3:], other.weights[name][-3:])
    new = torch.cat([gpt.prepared(replace(CONFIG, seed=i), before).weights[name][-3:] for i in range(30)])
    assert new.std().item() == pytest.approx(SIZE.initializer_range, rel=0.05)
    assert before.tokenizer.size == 500
    assert len(before.weights[name]) == 500


def test_the_head_is_one_matrix_on_the_state_of_the_last_token(start: Path) -> None:
    data = load_task_data(CONFIG, PAIRS, PAIRS, read_checkpoint(start))
    model, _ = initialized_model(CONFIG, data.task, data.checkpoint)
    head = model.heads["classify"]
    assert isinstance(head, PooledHead)
    assert [name for name, _ in head.named_parameters()] == ["out.weight"]
    assert head.dropout == 0.1
    dropped = replace(CONFIG, head_dropout_prob=0.4)
    assert initialized_model(dropped, data.task, data.checkpoint)[0].heads["classify"].dropout == 0.4


def by_hand(model: Model, sequences: list[Any], weight: float) -> dict[str, torch.Tensor]:
    """Return the losses of a step, sequence after sequence."""
    word = model.encoder.embeddings.word.weight
    task, lm, tokens = torch.zeros(()), torch.zeros(()), 0
    for sequence in sequences:
        states = model.encoder(collate([sequence], 24).tensors()).last
        logits = model.heads["classify"].out(states[-1])  # type: ignore[operator, union-attr]
        ids = torch.as_tensor(sequence.input_ids, dtype=torch.int64)
        task = task + F.cross_entropy(logits, torch.tensor(sequence.target))
        lm = lm + F.cross_entropy(states[:-1] @ word.T, ids[1:], reduction="sum")
        tokens += len(ids) - 1
    task, lm = task / len(sequences), lm / tokens
    return {"loss": task + weight * lm, "classify_loss": task, "lm_loss": lm}


@pytest.mark.parametrize("row_tokens", [8192, 48])
def test_the_loss_is_that_of_the_task_and_a_share_of_language_modeling(
    row_tokens: int, start: Path, rows: list[dict[str, str]], tmp_path: Path
) -> None:
    """A step is 1 or 4 micro-batches: the language model's loss is the mean over all its tokens."""
    training = replace(TRAINING, steps=1, row_tokens=row_tokens, learning_rate=1e-2, max_grad_norm=1e9)
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = replace(CONFIG, training=training, lm_weight=0.7, schedule=LinearDecay(warmup=0.0), **dropout)
    data = load_task_data(config, rows[:8], rows[8:12], read_checkpoint(start))
    model, _ = initialized_model(config, data.task, data.checkpoint)
    expected = by_hand(model, data.train_sequences, 0.7)
    expected["loss"].backward()
    word = model.encoder.embeddings.word.weight
    assert word.grad is not None
    bertie.finetune(config, rows[:8], start, tmp_path / "run", dev=rows[8:12], threads=1)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    train, held_out = (next(each for each in records if each["split"] == split) for split in ("train", "eval"))
    for name, value in expected.items():
        assert train[name] == pytest.approx(value.item(), rel=1e-5)
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert train["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert 0 <= train["lm_accuracy"] <= 1
    tuned = bertie.load(tmp_path / "run").model
    found = by_hand(tuned, data.dev_sequences, 0.7)
    for name, value in found.items():
        assert held_out[name] == pytest.approx(value.item(), rel=1e-5)


def test_windows_count_once_in_the_task_and_with_all_tokens_in_the_language_model(start: Path) -> None:
    config = replace(CONFIG, task=Classify(truncation="windows"))
    texts = [{"text": "the in and " * 20, "label": label} for label in "ab"]
    data = load_task_data(config, texts, texts, read_checkpoint(start))
    targets = gpt.auxiliary_targets(config, collate(data.train_sequences, 24))["lm"]
    assert targets.weight.sum() == sum(len(sequence) - 1 for sequence in data.train_sequences)


@pytest.mark.parametrize("kind", ["classify", "regress", "choose", "multi_label"])
def test_a_run_is_read_back_and_predicts_the_same(kind: str, start: Path, tmp_path: Path) -> None:
    tasks = {"classify": Classify(), "regress": Regress(), "choose": Choose(), "multi_label": MultiLabel()}
    given: list[Any] = PAIRS
    if kind == "choose":
        given = [{"context": "the", "endings": ["in", "and the"], "label": i % 2} for i in range(24)]
    if kind == "multi_label":
        given = [{"text": row["text"], "labels": ["a", "b"][: i % 3]} for i, row in enumerate(PAIRS)]
    config = replace(CONFIG, task=tasks[kind])
    out = tmp_path / "run"
    tuned = bertie.finetune(config, given, start, out, dev=given, threads=1)
    loaded = bertie.load(out)
    assert loaded.model.kinds == {kind}
    assert loaded.tokenizer.templates == tuned.tokenizer.templates
    assert loaded.tokenizer.fingerprint == tuned.tokenizer.fingerprint
    assert loaded.predict(given) == tuned.predict(given)
    assert bertie.finetune(config, given, start, out, dev=given, threads=1).predict(given) == tuned.predict(given)
    values = json.loads((out / "config.json").read_text())
    one_matrix = {"choose": "OpenAIGPTModel"}.get(kind, "OpenAIGPTForSequenceClassification")
    assert values["architectures"] == [one_matrix]
    written = tmp_path / "again"
    written.mkdir()
    write_model(written, loaded.model, loaded.tokenizer, read_checkpoint(out).task)
    assert bertie.load(written).predict(given) == loaded.predict(given)


def test_a_second_fine_tuning_has_the_entries_of_the_first(run: Path, rows: list[dict[str, str]]) -> None:
    first = read_checkpoint(run)
    again = gpt.prepared(replace(CONFIG, seed=9), first)
    assert again.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert again.config == first.config
    assert all(torch.equal(again.weights[name], tensor) for name, tensor in first.weights.items())
    by_default = replace(CONFIG, input_tokens="model", lm_weight=0.0)
    assert tokens_of(load_task_data(by_default, rows[:2], rows[:2], first)) == tokens_of(
        load_task_data(CONFIG, rows[:2], rows[:2], first)
    )
    load_task_data(replace(CONFIG, frozen=True, lm_weight=0.0), rows[:2], rows[:2], first)


def test_another_class_without_a_pooler_is_read_from_its_name(run: Path) -> None:
    """A folder of transformers has no key for it; a head with a pooler stays bertie's own."""
    values = json.loads((run / "config.json").read_text())
    assert values.pop("pooler_act") == "none"
    read = openai_gpt.FAMILY.settings.from_config
    assert read(values)["pooler_act"] == "none"
    assert read(values | {"architectures": ["OpenAIGPTModel"]})["pooler_act"] == "tanh"
    with pytest.raises(UsageError, match="pooler_act is 'relu'"):
        read(values | {"pooler_act": "relu"})


def test_a_head_with_a_pooler_is_saved_with_the_names_of_bertie(
    start: Path, rows: list[dict[str, str]], tmp_path: Path
) -> None:
    config = replace(CONFIG, input_tokens="model", lm_weight=0.5)
    bertie.finetune(config, rows[:50], start, tmp_path / "run", dev=rows[50:], threads=1)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["architectures"] == ["OpenAIGPTModel"]
    tuned = bertie.load(tmp_path / "run")
    assert "heads.classify.pooler.weight" in tuned.model.state_dict()


def test_auxiliary_losses_suit_tasks_on_tokens(start: Path, tmp_path: Path) -> None:
    given = [{"words": ["the", "in", "and"], "tags": ["a", "b", ("a", "b")[i % 2]]} for i in range(16)]
    config = replace(CONFIG, task=Tag(), input_tokens="model")
    tuned = bertie.finetune(config, given, start, tmp_path / "run", dev=given, threads=1)
    assert bertie.load(tmp_path / "run").predict(given) == tuned.predict(given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": Span()}, "input_tokens gpt needs"),
        ({"task": Embed(), "lm_weight": 0.0}, "input_tokens gpt needs"),
        ({"task": Classify(pooling="mean")}, "input_tokens gpt needs task.pooling token"),
        ({"frozen": True}, "lm_weight does not work with frozen"),
        ({"lstm_hidden_size": 4}, "lm_weight does not work with frozen"),
        ({"lm_weight": -0.5}, "lm_weight"),
    ],
    ids=str,
)
def test_recipes_that_contradict_themselves_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        replace(CONFIG, **change)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def refused(config: FinetuneConfig, checkpoint: Checkpoint, rows: Any) -> str:
    with pytest.raises(UsageError) as raised:
        load_task_data(config, rows, rows, checkpoint)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_models_that_cannot_have_them_are_refused(start: Path, rows: list[dict[str, str]]) -> None:
    checkpoint = read_checkpoint(start)
    both = replace(checkpoint, config=replace(SIZE, causal=False))
    assert f"needs a causal Transformer, unlike {start}" in refused(CONFIG, both, rows)
    only_loss = replace(CONFIG, input_tokens="model")
    assert f"lm_weight needs a causal model, but {start}" in refused(only_loss, both, rows)
    narrow = replace(checkpoint, config=replace(SIZE, embedding_size=16))
    assert f"lm_weight needs a head of word embeddings alone, unlike {start}" in refused(only_loss, narrow, rows)
    segments = replace(both, config=TransformerXlConfig(1, 16, 2, 32, 8, 8, vocab_size=SIZE.vocab_size))
    assert f"needs a causal Transformer, unlike {start}" in refused(CONFIG, segments, rows)
    assert "lm_weight needs a head of word embeddings alone" in refused(only_loss, segments, rows)
    pooled = replace(checkpoint, config=replace(SIZE, classifier_pooling="mean"))
    assert "task.pooling token, not mean" in refused(only_loss, pooled, rows)
    frozen = replace(CONFIG, frozen=True, lm_weight=0.0)
    assert "frozen keeps the random vectors of the new tokens <start>, <delimiter>, <extract>" in refused(
        frozen, checkpoint, rows
    )
    modern = replace(SIZE, norm_position="pre", embedding_norm=True)
    assert gpt.prepared(CONFIG, replace(checkpoint, config=modern)).config.pooler_act == "none"  # type: ignore[union-attr]


def test_a_folder_without_merges_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "a</w>": 1}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "OpenAIGPTTokenizer"}))
    with pytest.raises(UserError, match="merges"):
        Tokenizer.load(tmp_path)


def test_recipes_have_the_settings_of_the_paper() -> None:
    for kind, task in (("classify", Classify), ("regress", Regress), ("choose", Choose)):
        recipe = configuration.load(FinetuneConfig, f"gpt-{kind}", "finetune")
        assert type(recipe.task) is task
        assert (recipe.input_tokens, recipe.lm_weight, recipe.head_dropout_prob) == ("gpt", 0.5, 0.1)
        training = recipe.training
        assert (training.learning_rate, training.batch_size, training.epochs) == (6.25e-5, 32, 3)
        assert recipe.schedule == LinearDecay(warmup=0.002)


def test_frequencies_of_labels_need_a_bias(start: Path) -> None:
    given = [{"text": "the in", "labels": ["a"]}, {"text": "in", "labels": []}]
    config = replace(CONFIG, task=MultiLabel())
    tuned = bertie.finetune(config, given * 4, start, dev=given, threads=1)
    assert np.isfinite(tuned.losses).all()
    assert tuned.model.heads["multi_label"].out.bias is None  # type: ignore[union-attr]


SIMILAR = replace(CONFIG, task=Regress(pooling="both_orders"))


def test_similarity_adds_the_states_of_both_orders(start: Path) -> None:
    """Scores and losses are those of both orders, each read alone; the language model's are over both."""
    data = load_task_data(SIMILAR, PAIRS, PAIRS, read_checkpoint(start))
    model = initialized_model(SIMILAR, data.task, data.checkpoint)[0].eval()
    tokenizer, sequences = data.checkpoint.tokenizer, data.train_sequences[1:3]
    orders = [["in", "the"], ["the", "in"]]
    names = [name for a, b in (orders, orders[::-1]) for name in ("<start>", *a, "<delimiter>", *b, "<extract>")]
    assert tokenizer.tokens(sequences[0].input_ids) == names
    scores, lm = [], torch.zeros(())
    with torch.no_grad():
        for sequence in sequences:
            added = torch.zeros(SIZE.hidden_size)
            for half in np.split(sequence.input_ids, 2):
                alone = Sequence(half, half * 0, half > 0)
                states = model.encoder(collate([alone], 24).tensors()).last
                added += states[-1]
                logits = states[:-1] @ model.encoder.embeddings.word.weight.T
                lm += F.cross_entropy(logits, torch.as_tensor(half[1:], dtype=torch.int64), reduction="sum")
            scores.append(model.heads["regress"].out(added))  # type: ignore[operator, union-attr]
        batch = collate(sequences, 24)
        index, _ = head_index(data.task, sequences, "last")
        targets = {"regress": data.task.targets(batch, sequences, index)} | gpt.auxiliary_targets(SIMILAR, batch)
        losses = model(MicroBatch.of(batch, targets).tensors())
        squared = sum(
            (score - float(sequence.target[0])) ** 2 for score, sequence in zip(scores, sequences, strict=True)
        )
    found = np.concatenate(outputs(model, data.task, sequences))
    np.testing.assert_allclose(found, torch.stack(scores).numpy(), atol=1e-6)
    assert losses["lm"].count == 4 * 6
    torch.testing.assert_close(losses["lm"].total, lm)
    torch.testing.assert_close(losses["regress"].total, torch.as_tensor(squared)[0])


@pytest.mark.parametrize(("task", "frozen"), [(Regress(), False), (Classify(), True)], ids=str)
def test_swapped_texts_have_the_same_score(task: Regress | Classify, frozen: bool, start: Path, tmp_path: Path) -> None:
    given = [row | {"label": str(int(row["label"]))} for row in PAIRS]
    first = start
    config = replace(SIMILAR, task=replace(task, pooling="both_orders"))
    if frozen:  # the tokens are those of an earlier run
        first = tmp_path / "first"
        bertie.finetune(config, given, start, first, dev=given, threads=1)
        config = replace(config, frozen=True, lm_weight=0.0)
    tuned = bertie.finetune(config, given, first, tmp_path / "run", dev=given, threads=1)
    loaded = bertie.load(tmp_path / "run")
    pairs = [["in and the", "the in"], ["and", "the the"]]
    assert loaded.predict(pairs) == tuned.predict(pairs) == loaded.predict([pair[::-1] for pair in pairs])
    assert loaded.predict(pairs[:1]) != loaded.predict(pairs[1:])
    values = json.loads((tmp_path / "run" / "config.json").read_text())
    assert values["architectures"] == ["OpenAIGPTModel"]  # no class of transformers adds two states


def test_both_orders_have_no_windows() -> None:
    with pytest.raises(UsageError, match="both_orders does not work with"):
        replace(SIMILAR, task=Regress(pooling="both_orders", truncation="windows"))


def test_both_orders_of_long_pairs_have_the_same_tokens(start: Path) -> None:
    long = [{"text": "the in and " * 20, "text_pair": "in the " * 30, "label": float(i)} for i in range(2)]
    data = load_task_data(SIMILAR, long, long, read_checkpoint(start))
    one, other = np.split(data.train_sequences[0].input_ids, 2)
    assert len(one) == 24
    assert sorted(one) == sorted(other)


def test_both_orders_are_for_pairs_and_models_without_segments(start: Path, rows: list[dict[str, str]]) -> None:
    config = replace(SIMILAR, task=Classify(pooling="both_orders"))
    assert 'task.pooling is "both_orders", which is between two texts' in refused(config, read_checkpoint(start), rows)
    plain = replace(SIMILAR, input_tokens="model", lm_weight=0.0)
    checkpoint = read_checkpoint(start)
    both = replace(checkpoint, config=replace(SIZE, type_vocab_size=2))
    with pytest.raises(UsageError, match=r"task\.pooling both_orders is for models without segments"):
        bertie.finetune(plain, PAIRS, both, dev=PAIRS, threads=1)
    first = replace(checkpoint, config=replace(SIZE, causal=False))
    pairs = [["in and the", "the in"]]
    tuned = bertie.finetune(plain, PAIRS, first, dev=PAIRS, threads=1)
    assert tuned.predict(pairs) == tuned.predict([pairs[0][::-1]])


def test_filler_of_bf16_changes_no_loss(start: Path) -> None:
    """On a CPU, tokens are padded to a multiple of 64 in bf16."""
    losses = []
    for precision in ("fp32", "bf16"):
        training = replace(TRAINING, steps=2, precision=precision, learning_rate=1e-4)
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "head_dropout_prob": 0.0}
        config = replace(SIMILAR, training=training, **dropout)  # type: ignore[arg-type]
        losses.append(bertie.finetune(config, PAIRS, start, dev=PAIRS, threads=1).losses)
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.02)
