"""Relations between marked spans: markers, truncation, scores, head, training, folders, other libraries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.unit.predict.small_models import model_of
from torch import nn

import bertie
from bertie.base.contracts import Hidden, Targets
from bertie.base.errors import UsageError, UserError
from bertie.batches.collate import collate
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.vocabulary_growth import with_added_tokens
from bertie.examples.marked_texts import RelationExample
from bertie.model.config import TransformerConfig
from bertie.model.heads.heads import SpanPairHead
from bertie.tasks import Relate
from bertie.tasks.markers import kept_tokens, marked_text
from bertie.tasks.predictions import ClassPrediction
from bertie.tokenizers.added_tokens import with_tokens
from bertie.tokenizers.tokenizer import Tokenizer

LABELS = ("A(e1,e2)", "A(e2,e1)", "B(e1,e2)", "C(e2,e1)", "Other")
PLAIN = {name: f"[{name}]" for name in ("E1", "/E1", "E2", "/E2")}


def example(
    text: str = "Ada left Rome .", first: str = "Ada", second: str = "Rome", label: str | None = "A(e1,e2)"
) -> RelationExample:
    a, b = ((text.index(span), text.index(span) + len(span)) for span in (first, second))
    return RelationExample(text, a, b, "PER", "LOC", label, "x:1")


def row(first: str, verb: str, second: str, label: str) -> dict[str, str]:
    return {"text": f"<e1>{first}</e1> {verb} <e2>{second}</e2> .", "relation": label}


# Markers


def test_the_three_forms_of_markers() -> None:
    swapped = example(first="Rome", second="Ada")
    typed = {name: f"[{name}]" for name in ("E1:PER", "/E1:PER", "E2:LOC", "/E2:LOC")}
    assert marked_text("markers", PLAIN, example()) == "[E1] Ada [/E1] left [E2] Rome [/E2] ."
    assert marked_text("markers", PLAIN, swapped) == "[E2] Ada [/E2] left [E1] Rome [/E1] ."
    assert marked_text("typed", typed, example()) == "[E1:PER] Ada [/E1:PER] left [E2:LOC] Rome [/E2:LOC] ."
    assert marked_text("masked", typed, example()) == "[E1:PER] left [E2:LOC] ."
    assert Relate().fit([example(), example(label="Other")]).markers == PLAIN
    typed_task = Relate(form="typed").fit([example(), example(label="Other")])
    assert typed_task.markers == typed
    with pytest.raises(UserError, match="no marker for 'E1:LOC'"):
        typed_task.validate([replace(example(), first_type="LOC")])
    with pytest.raises(UserError, match="overlaps the other one"):
        marked_text("markers", PLAIN, replace(example(), second=(1, 4)))


@pytest.mark.parametrize(
    ("markers", "size", "most", "kept"),
    [
        ([2, 5], 8, 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        ([2, 5], 10, 6, [1, 2, 3, 4, 5, 6]),  # the window around the spans
        ([0, 1], 10, 4, [0, 1, 2, 3]),
        ([0, 9], 10, 4, [0, 1, 8, 9]),  # the spans are too far apart: the middle is left out
        ([0, 3, 6, 9], 10, 4, [0, 3, 6, 9]),
    ],
)
def test_truncation_keeps_the_markers(markers: list[int], size: int, most: int, kept: list[int]) -> None:
    assert kept_tokens(np.array(markers), size, most).tolist() == kept


def test_sequences_have_the_markers_and_their_positions(small_tokenizer: Tokenizer, small_texts: list[str]) -> None:
    tokenizer = with_tokens(small_tokenizer, PLAIN.values())
    assert tokenizer.vocabulary[: small_tokenizer.size] == small_tokenizer.vocabulary
    task = Relate(labels=LABELS, markers=PLAIN)
    words = " ".join(small_texts[:20]).split()
    long = [*words[:70], "Ada", *words[70:75], "Rome", *words[75:150]]
    examples = [example(" ".join(long), *names, "Other") for names in (("Ada", "Rome"), ("Rome", "Ada"))]
    for each, sequence in zip(examples, task.encode(examples, tokenizer, 32), strict=True):
        tokens = tokenizer.tokens(sequence.input_ids)
        assert len(tokens) == 32
        assert sequence.truncated > 0
        assert [tokens.count(marker) for marker in PLAIN.values()] == [1, 1, 1, 1]
        assert [tokens[at] for at in sequence.target[:2]] == ["[E1]", "[E2]"]
        assert sequence.target.label == LABELS.index("Other")
        assert task.head_positions(sequence, "first").tolist() == sorted(sequence.target[:2])
        assert (sequence.target.first < sequence.target.second) == (each is examples[0])
    with pytest.raises(UserError, match="x:1: the text has a marker of its own"):
        task.encode([example("Ada [/E2] left Rome .")], tokenizer, 32)
    with pytest.raises(UsageError, match="max_length is 5, but the markers alone are 4 tokens"):
        task.encode([example()], tokenizer, 5)


# Scores


def officially(gold: list[str], found: list[str]) -> float:
    """SemEval's score, from a confusion matrix of relations with a column for wrong directions."""
    f1 = []
    for relation in sorted({label[0] for label in gold if label != "Other"}):
        pairs = list(zip(gold, found, strict=True))
        right = sum(a == b and a[0] == relation for a, b in pairs)
        wrong_way = sum(a != b and a[0] == b[0] == relation for a, b in pairs)
        confused = sum(a[0] != b[0] and b[0] == relation for a, b in pairs)
        missed = sum(a[0] == relation and b[0] != relation for a, b in pairs)
        precision = right / (right + wrong_way + confused) if right + wrong_way + confused else 0.0
        recall = right / (right + wrong_way + missed)
        f1.append(2 * precision * recall / (precision + recall) if right else 0.0)
    return sum(f1) / len(f1)


@pytest.mark.parametrize("seed", range(3))
def test_scores_follow_the_official_rules(seed: int) -> None:
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    rng = np.random.default_rng(seed)
    gold = [str(label) for label in rng.choice(LABELS[: 5 if seed else 2] + LABELS[4:], 60)]  # once without B and C
    found = [str(rng.choice([label, rng.choice(LABELS)])) for label in gold]
    task = Relate(labels=LABELS)
    examples, predictions = [example(label=label) for label in gold], [ClassPrediction(label, {}) for label in found]
    relations = list(LABELS[:4])
    micro = precision_recall_fscore_support(gold, found, labels=relations, average="micro", zero_division=0)  # pyright: ignore
    expected = dict(zip(("precision", "recall", "f1"), micro, strict=False)) | {"macro_f1": officially(gold, found)}
    assert task.score(predictions, examples) == pytest.approx(expected | {"accuracy": accuracy_score(gold, found)})
    assert [task.score(each, examples)["f1"] for each in task.constant_predictions(examples)][-1] == 0


def test_the_negative_class_is_found_named_or_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    def fitted(*labels: str, **settings: Any) -> Relate:
        return Relate(**settings).fit([example(label=label) for label in labels])

    assert fitted("a", "no_relation").negative == "no_relation"
    assert "the negative class is no_relation: f1" in capsys.readouterr().err
    assert fitted("a", "b").negative == "none"
    assert fitted("a", "Other", negative="none").score([ClassPrediction("Other", {})], [example(label="Other")])["f1"]
    assert fitted("a", "Other", "no_relation", negative="Other").negative == "Other"
    with pytest.raises(UsageError, match="no_relation and Other could both be the negative class"):
        fitted("a", "Other", "no_relation")
    with pytest.raises(UsageError, match=r"task\.negative is 'x', but the relations are a, b"):
        fitted("a", "b", negative="x")
    with pytest.raises(UserError, match="nothing to learn"):
        fitted("a", "a")
    with pytest.raises(UserError, match="the label 'b' is none of the relations"):
        fitted("a", "b", labels=("a", "c"))
    assert (Relate(labels=("a", "b")).metric, Relate(labels=LABELS).metric) == ("f1", "macro_f1")


def test_files_of_predictions_are_scored() -> None:
    rows = [row("a", "x", "b", label) for label in LABELS]
    scores = bertie.score("relate", rows, [{"label": label} for label in ("A(e1,e2)", "A(e1,e2)", *LABELS[2:])])
    assert scores["scores"]["macro_f1"] == pytest.approx((0.5 + 1 + 1) / 3)
    with pytest.raises(UserError, match="'x' is none of the relations"):
        bertie.score("relate", rows, [{"label": "x"}] * 5)


# Head


def test_the_head_is_a_linear_layer_on_two_states() -> None:
    torch.manual_seed(0)
    head, states, label = SpanPairHead(8, 3, 0.0), torch.randn(5, 8), torch.tensor([2, 0])
    index, weight = torch.tensor([1, 3, 4, 0]), torch.ones(2)  # the second pair stands in the other order
    pairs = torch.cat([states[[1, 4]], states[[3, 0]]], 1)
    loss = head(Hidden(states), Targets(index, label, weight))
    assert loss.total.item() == pytest.approx(
        nn.functional.cross_entropy(head.out(pairs), label, reduction="sum").item()
    )
    task = Relate(labels=("a", "b", "c"), markers=PLAIN)
    shares = head.logits(states).detach().numpy()
    tokenizer = Tokenizer.build(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PLAIN.values()])
    [encoded] = task.encode([example()], with_tokens(tokenizer, PLAIN.values()), 16)
    targets = encoded.target._replace(first=1, second=3, label=2), encoded.target._replace(first=4, second=0, label=0)
    sequences = [replace(encoded, example=number, target=target) for number, target in enumerate(targets)]
    found = task.decode([shares[[1, 3]], shares[[0, 4]]], sequences, [example(), example()])
    for each, logits in zip(found, head.out(pairs).softmax(1).tolist(), strict=True):
        assert list(each.probabilities.values()) == pytest.approx(logits, abs=1e-6)
    gold = task.targets(None, sequences, np.array([1, 3, 5, 9]))  # pyright: ignore[reportArgumentType]
    assert (gold.index.tolist(), gold.label.tolist()) == ([1, 3, 9, 5], [2, 0])


# Trained models


@pytest.fixture(scope="module")
def rows(small_texts: list[str]) -> list[dict[str, Any]]:
    """The order of two words is the relation; a third of the examples have none."""
    words = sorted({word for text in small_texts[:40] for word in text.split() if word.isalpha()})[:12]
    found = []
    for i in range(48):
        first, second = words[i % 12], words[(5 * i + 1) % 12]
        label, verb = (("X(e1,e2)", "and"), ("X(e2,e1)", "the"), ("Other", "in"))[i % 3]
        found.append(row(first, verb, second, label) | {"e1_type": "P", "e2_type": "QR"[i % 2]})
    return found


RECIPE = {
    "extends": "relate",
    "max_length": 32,
    "hidden_dropout_prob": 0.0,
    "training": {"epochs": 10, "batch_size": 12, "learning_rate": 3e-3},
}


@pytest.fixture(scope="module")
def trained(pretrained: Path, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    tuned = bertie.finetune(RECIPE, rows, pretrained, out, dev=rows, threads=1)
    assert tuned.scores["macro_f1"] > 0.8
    return out


@pytest.fixture(scope="module")
def masked(pretrained: Path, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "masked"
    recipe = RECIPE | {"task": {"kind": "relate", "form": "masked"}, "training": {"steps": 2, "batch_size": 12}}
    bertie.finetune(recipe, rows, pretrained, out, dev=rows, threads=1)
    return out


def test_new_entries_begin_as_the_mean_of_their_pieces(pretrained: Path) -> None:
    old = read_checkpoint(pretrained)
    grown = with_added_tokens(old, ["[E1]", "[and:the]"])
    before, after = (each.weights["encoder.embeddings.word.weight"] for each in (old, grown))
    assert grown.config.vocab_size == grown.tokenizer.size == old.tokenizer.size + 2
    assert after[:-2].equal(before)
    for new, entry in zip(after[-2:], ("[E1]", "[and:the]"), strict=True):
        torch.testing.assert_close(new, before[old.tokenizer.encode([entry])[0].tolist()].mean(0))
    assert with_added_tokens(grown, ["[E1]"]).config == grown.config


def test_a_run_keeps_its_markers(trained: Path, rows: list[dict[str, Any]]) -> None:
    model = bertie.load(trained, threads=1)
    task = model.task
    assert isinstance(task, Relate)
    assert (task.markers, task.negative) == (PLAIN, "Other")
    assert json.loads((trained / "config.json").read_text())["vocab_size"] == model.tokenizer.size == 504
    found = model.predict(rows)
    assert [each.label for each in found] == [each.label for each in model.predict([row["text"] for row in rows])]
    own = task.score(found, list(task.reader.values(rows)))
    assert json.loads((trained / "scores.json").read_text()) == pytest.approx(own)
    renamed = [{"body": row["text"]} for row in rows[:3]]
    assert bertie.load(trained, task=Relate(text="body"), threads=1).predict(renamed) == model.predict(rows[:3])
    with pytest.raises(UsageError, match=r'task\.form: the model was trained with "markers"'):
        bertie.load(trained, task=Relate(form="typed"), threads=1)
    again = bertie.finetune(RECIPE | {"training": {"steps": 1, "batch_size": 4}}, rows, trained, dev=rows, threads=1)
    assert again.tokenizer.size == 504


def test_evaluation_has_a_table_of_relations(trained: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    model = bertie.load(trained, threads=1)
    result = model.evaluate(rows, out=tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert list(saved["relations"]) == ["X"]
    assert saved["relations"]["X"]["f1"] == pytest.approx(result["scores"]["macro_f1"])
    assert saved["relations"]["X"]["support"] == 32
    first = json.loads((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()[0])
    assert first["gold"] == "X(e1,e2)"


def test_transformers_gives_the_same_probabilities_for_masked_spans(masked: Path, rows: list[dict[str, Any]]) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    model = bertie.load(masked, threads=1)
    task = model.task
    assert isinstance(task, Relate)
    assert set(task.markers) == {"E1:P", "E2:Q", "E2:R"}
    texts = [marked_text(task.form, task.markers, each) for each in task.reader.values(rows[:8])]
    other, loading = transformers.AutoModelForSequenceClassification.from_pretrained(masked, output_loading_info=True)
    assert not any(loading.values()), loading
    inputs = transformers.AutoTokenizer.from_pretrained(masked)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = other.eval()(**inputs).logits.softmax(-1).numpy()
    found = [list(each.probabilities.values()) for each in model.predict(rows[:8])]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert list(other.config.id2label.values()) == list(task.labels)


# Models of others


@pytest.fixture
def spanbert(tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A folder as those of SpanBERT on TACRED: no names of classes, labels or markers; a file of torch."""
    folder = tmp_path / "spanbert"
    folder.mkdir()
    words = [*small_tokenizer.vocabulary, *(f"[unused{number}]" for number in range(4))]
    write_model(folder, model_of(replace(tiny_config, vocab_size=len(words))), Tokenizer.build(words))
    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    for name in folder.iterdir():
        if name.name not in ("config.json", "vocab.txt"):
            name.unlink()
    for name, rows in (("bert.pooler.dense", 32), ("classifier", 42)):
        weights |= {f"{name}.weight": torch.randn(rows, 32), f"{name}.bias": torch.randn(rows)}
    torch.save(weights, folder / "pytorch_model.bin")
    values = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in values.items() if key not in ("architectures", "model_type", "dtype")}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def test_a_model_of_relations_without_labels_and_markers_is_refused(spanbert: Path) -> None:
    problem = "42 outputs, as SpanBERT on TACRED: a model of relations needs a task.json with its kind"
    with pytest.raises(UserError, match=problem):
        bertie.load(spanbert, threads=1)


def test_a_file_gives_the_labels_and_the_markers(spanbert: Path) -> None:
    labels, markers = [f"r{number}" for number in range(42)], {"E1:PER": "[unused1]", "E2:LOC": "[unused3]"}
    task = {"kind": "relate", "form": "masked", "labels": labels, "markers": markers}
    whole = Relate(form="masked", labels=tuple(labels), markers=markers)
    found = bertie.load(spanbert, task=whole, threads=1).predict([example("the and in", "the", "in", None)])
    (spanbert / "task.json").write_text(json.dumps(task))
    model = bertie.load(spanbert, threads=1)
    assert isinstance(model.task, Relate)
    assert model.predict([example("the and in", "the", "in", None)]) == found
    weights = torch.load(spanbert / "pytorch_model.bin")
    [sequence] = model.task.encode([example("the and in", "the", "in")], model.tokenizer, 16)
    assert model.tokenizer.tokens(sequence.input_ids) == ["[CLS]", "[unused1]", "and", "[unused3]", "[SEP]"]
    with torch.inference_mode():
        first = model.model.encoder(collate([sequence], 16).tensors()).last[0]
    pooled = torch.tanh(first @ weights["bert.pooler.dense.weight"].T + weights["bert.pooler.dense.bias"])
    expected = (pooled @ weights["classifier.weight"].T + weights["classifier.bias"]).softmax(0)
    assert list(found[0].probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)
    (spanbert / "task.json").write_text(json.dumps(task | {"markers": {"E1:PER": "[unused9]"}}))
    with pytest.raises(UserError, match=r"the vocabulary lacks '\[unused9\]'"):
        bertie.load(spanbert, threads=1)
    (spanbert / "task.json").write_text(json.dumps(task | {"labels": labels[1:]}))
    with pytest.raises(UserError, match="names 41 labels and the head has 42 outputs"):
        bertie.load(spanbert, threads=1)
