"""The numbers of evaluations, compared with straightforward reimplementations."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.base.errors import UserError
from bertie.base.report import TextSpan
from bertie.examples.choices import ChoiceExample
from bertie.examples.squad import Answer, Question
from bertie.examples.tagged import TaggedSentence
from bertie.examples.texts import Example
from bertie.tasks import Choose, Classify, Embed, Regress, Span, Tag
from bertie.tasks.embed import partner_ranks
from bertie.tasks.evaluation.calibration import BINS, calibration, choice_calibration
from bertie.tasks.evaluation.findings import (
    MAX_CLASSES,
    Confusion,
    Curves,
    Evaluation,
    Histogram,
    Table,
)
from bertie.tasks.evaluation.passages import shortened
from bertie.tasks.evaluation.span import question_word
from bertie.tasks.predictions import (
    ChoicePrediction,
    ClassPrediction,
    NumberPrediction,
    SimilarityPrediction,
    SpanCandidate,
    SpanPrediction,
    TagPrediction,
)
from bertie.tasks.squad_metrics import best_threshold, squad_scores

LABELS = ("bad", "good", "so-so")


def finding(evaluation: Evaluation, name: str) -> object:
    return next(found for found in evaluation.findings if found.name == name)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_ece_matches_the_definition_of_guo_et_al(predictions: list[tuple[float, bool]]) -> None:
    total = 0.0
    edges = np.linspace(0, 1, BINS + 1)
    for low, high in pairwise(edges):
        inside = [(p, right) for p, right in predictions if low < p <= high or (low == 0 and p == 0)]
        if inside:
            accuracy = sum(right for _, right in inside) / len(inside)
            confidence = sum(p for p, _ in inside) / len(inside)
            total += len(inside) / len(predictions) * abs(accuracy - confidence)
    confidences, correct = (np.array(side) for side in zip(*predictions, strict=True))
    found = calibration(confidences, correct, {})
    assert found.ece == pytest.approx(total, abs=1e-12)
    assert found.count.sum() == len(predictions)


def test_calibration_bin_includes_its_upper_edge() -> None:
    found = calibration(np.array([0.0, 0.2, 0.2001, 1.0]), np.array([True, False, True, True]), {})
    assert np.flatnonzero(found.count).tolist() == [0, 2, 3, 14]
    assert [each["from"] for each in found.as_json()["bins"]] == [0.0, 0.1333, 0.2, 0.9333]


def test_log_loss_and_brier() -> None:
    rng = np.random.default_rng(3)
    rows = [rng.dirichlet(np.ones(size)) for size in rng.integers(2, 6, 50)]
    gold = [int(rng.integers(len(row))) for row in rows]
    found, losses = choice_calibration(rows, gold)
    plain = [sum((p - (i == right)) ** 2 for i, p in enumerate(row)) for row, right in zip(rows, gold, strict=True)]
    assert found.more["brier"] == pytest.approx(np.mean(plain))
    assert losses.tolist() == pytest.approx([-math.log(row[right]) for row, right in zip(rows, gold, strict=True)])
    assert found.more["log_loss"] == pytest.approx(losses.mean())
    impossible, losses = choice_calibration([np.array([0.0, 1.0])], [0])
    assert losses[0] == pytest.approx(15 * math.log(10))
    assert impossible.more["brier"] == 2


def test_confusion_matrix_of_many_classes_shows_those_with_the_most_errors() -> None:
    labels = [f"c{i:02d}" for i in range(MAX_CLASSES + 10)]
    counts = np.diag(np.full(len(labels), 5))
    counts[7, 25] = 9
    counts[3, 4] = 2
    confusion = Confusion(labels, counts)
    shown, small = confusion._worst()
    assert len(shown) == MAX_CLASSES + 1
    assert {"c03", "c04", "c07", "c25", "all others"} <= set(shown)
    assert small.sum() == counts.sum()
    assert small[shown.index("c07"), shown.index("c25")] == 9
    assert confusion.pairs(10) == [("c07", "c25", 9, 9 / 14), ("c03", "c04", 2, 2 / 7)]


def test_evaluation_of_classification() -> None:
    task = Classify(labels=LABELS)
    examples = [Example("a", None, "good", "f:1"), Example("b", "c", "bad", "f:2")]
    predictions = [
        ClassPrediction("so-so", {"bad": 0.1, "good": 0.2, "so-so": 0.7}),
        ClassPrediction("bad", {"bad": 0.9, "good": 0.1, "so-so": 0.0}),
    ]
    found = task.evaluate(predictions, examples)
    assert found.lines[0] == {"gold": "good", "loss": pytest.approx(-math.log(0.2))}
    assert finding(found, "calibration").as_json()["ece"] == pytest.approx((0.7 + 0.1) / 2)  # type: ignore[attr-defined]
    passage = found.passage(1)
    assert passage.facts == {"gold": "bad, 90.0 %", "predicted": "bad, 90.0 %"}
    assert passage.texts == [[TextSpan("b")], [TextSpan("c")]]
    with pytest.raises(UserError, match="f:3: the label 'new'"):
        task.evaluate(predictions, [examples[0], Example("a", None, "new", "f:3")])


def test_choose_marks_gold_and_predicted_endings() -> None:
    examples = [
        ChoiceExample("It rains.", "He", ("runs", "sleeps"), 1, "f:1"),
        ChoiceExample("x", "", ("a", "b", "c"), 2, "f:2"),
    ]
    found = Choose().evaluate([ChoicePrediction(0, [0.75, 0.25]), ChoicePrediction(2, [0.1, 0.2, 0.7])], examples)
    assert found.losses.tolist() == pytest.approx([-math.log(0.25), -math.log(0.7)])
    assert [line["gold"] for line in found.lines] == [1, 2]
    context, *endings = found.passage(0).texts
    assert context == [TextSpan("It rains. He")]
    assert [parts[1] for parts in endings] == [
        TextSpan("runs", "wrong", "75.0 %"),
        TextSpan("sleeps", "gold", "25.0 %"),
    ]
    assert found.passage(1).texts[3][1].mark == "right"
    assert finding(found, "confusion").as_json() == {"0": {}, "1": {"0": 1}, "2": {"2": 1}}  # type: ignore[attr-defined]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=30))
def test_evaluation_of_regression(pairs: list[tuple[float, float]]) -> None:
    examples = [Example("a", None, repr(gold), f"f:{i}") for i, (gold, _) in enumerate(pairs)]
    found = Regress().evaluate([NumberPrediction(predicted) for _, predicted in pairs], examples)
    residuals = [predicted - gold for gold, predicted in pairs]
    assert found.losses.tolist() == pytest.approx([residual**2 for residual in residuals])
    table, bars = finding(found, "errors"), finding(found, "residuals")
    assert isinstance(table, Table)
    assert isinstance(bars, Histogram)
    assert table.as_json()["mean residual"]["value"] == pytest.approx(sum(residuals) / len(residuals), abs=1e-9)
    assert sum(bars.bars.values()) == len(pairs)
    assert len(bars.bars) <= 21


def test_residual_histogram_has_round_edges() -> None:
    values = [-0.31, -0.3, 0.0, 0.04, 0.05, 0.62]
    found = Regress().evaluate([NumberPrediction(v) for v in values], [Example("a", None, "0", "f")] * len(values))
    bars = finding(found, "residuals").bars  # type: ignore[attr-defined]
    assert {name: count for name, count in bars.items() if count} == {
        "-0.35": 1,
        "-0.30": 1,
        "0.00": 2,
        "0.05": 1,
        "0.60": 1,
    }


def test_entity_table_agrees_with_the_scores() -> None:
    task = Tag(labels=("B-LOC", "B-PER", "I-LOC", "I-PER", "O"))
    gold = [("B-PER", "I-PER", "O", "B-LOC"), ("O", "B-NEW"), ("B-LOC", "I-LOC")]
    predicted = [["B-PER", "I-PER", "B-LOC", "O"], ["O", "B-PER"], ["B-LOC", "I-LOC"]]
    confidences = [[0.9, 0.8, 0.6, 0.5], [0.7, 0.4], [0.0, 0.9]]
    examples = [TaggedSentence(tuple("wxyz"[: len(tags)]), tags, f"f:{i}") for i, tags in enumerate(gold)]
    found = task.evaluate(
        [TagPrediction([], tags, p) for tags, p in zip(predicted, confidences, strict=True)], examples
    )
    kinds = finding(found, "entities").as_json()  # type: ignore[attr-defined]
    assert kinds["PER"] == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "count": 1, "found": 2}
    assert kinds["NEW"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "count": 1, "found": 0}
    first = -math.log(0.9) - math.log(0.8) - math.log(1 - 0.6) - math.log(1 - 0.5)
    assert found.losses.tolist() == pytest.approx([first, -math.log(0.7) - math.log(0.6), -math.log(0.9)])
    assert finding(found, "calibration").count.sum() == 7  # type: ignore[attr-defined]  # one is truncated
    [parts] = found.passage(0).texts
    assert "".join(part.text for part in parts).strip() == "w x y z"
    assert [part for part in parts if part.mark] == [
        TextSpan("y", "wrong", "O → B-LOC, 60.0 %"),
        TextSpan("z", "wrong", "B-LOC → O, 50.0 %"),
    ]


def answered(name: str, null: float, best: str, threshold: float) -> SpanPrediction:
    has_answer = null <= threshold
    guesses = [SpanCandidate(best, 4, 4 + len(best), -null, 0.6), SpanCandidate("", 0, 0, 0.0, 0.4)]
    chosen = guesses[0] if has_answer else guesses[1]
    return SpanPrediction(name, chosen.text, chosen.start, chosen.end, chosen.probability, null, guesses)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-4, 4), st.booleans(), st.booleans()), min_size=2, max_size=25), st.integers(-5, 5)
)
def test_threshold_curve_matches_scores_at_each_threshold(cases: list[tuple[int, bool, bool]], threshold: int) -> None:
    cases = [(0, True, True), (1, False, True), *cases]
    questions = [
        Question(str(i), "who", "the cat sat", (Answer("cat", 4),) if there else (), "f")
        for i, (_, there, _) in enumerate(cases)
    ]

    def at(tau: float) -> list[SpanPrediction]:
        return [answered(str(i), null, "cat" if right else "cat sat", tau) for i, (null, _, right) in enumerate(cases)]

    def score(tau: float) -> dict[str, float]:
        return squad_scores({found.id: found.answer for found in at(tau)}, questions)

    curve = finding(Span(threshold=threshold).evaluate(at(threshold), questions), "threshold")
    assert isinstance(curve, Curves)
    seen = sorted({float(null) for null, *_ in cases})
    below = [threshold, np.nextafter(seen[0], threshold)] if threshold < seen[0] else []
    assert curve.xs == [*below, *seen, *([threshold] if threshold > seen[-1] else [])]  # extended to the τ in use
    for i, x in enumerate(curve.xs):
        scores = score(x)
        assert curve.curves["f1"][i] == pytest.approx(scores["f1"])
        assert curve.curves["exact match"][i] == pytest.approx(scores["exact_match"])
    assert curve.chosen == (threshold, pytest.approx(score(threshold)["f1"]))
    best = best_threshold(at(0), questions)
    assert max([*curve.curves["f1"], score(-9)["f1"]]) == pytest.approx(score(best)["f1"])
    assert best not in seen  # so a rounding difference changes no answer


def test_evaluation_of_question_answering() -> None:
    context = "Once the cat sat on the mat " + "and slept " * 60 + "until Monday came."
    at = context.index("Monday")
    questions = [
        Question("a", "When did it end?", context, (Answer("Monday", at), Answer("Monday", at)), "f: a"),
        Question("b", "Who is the dog?", context, (), "f: b"),
    ]
    predictions = [
        SpanPrediction("a", "the cat", 5, 12, 0.8, -3.0, []),
        SpanPrediction("b", "", 0, 0, 0.9, 3.0, []),
    ]
    found = Span().evaluate(predictions, questions)
    assert finding(found, "answerable").as_json() == {  # type: ignore[attr-defined]
        "has an answer": {"exact_match": 0.0, "f1": 0.0, "count": 1},
        "has none": {"exact_match": 1.0, "f1": 1.0, "count": 1},
    }
    assert set(finding(found, "question_words").as_json()) == {"when", "who"}  # type: ignore[attr-defined]
    assert found.lines[0] == {"gold": ["Monday"], "exact_match": 0.0, "f1": 0.0, "loss": 0.8}
    assert found.losses.tolist() == [0.8, 0.0]
    _, parts = found.passage(0).texts
    assert [part.text for part in parts if part.mark] == ["the cat", "Monday"]
    assert [part.mark for part in parts if part.mark] == ["wrong", "gold"]
    assert sum(len(part.text) for part in parts) < 320 < len(context)
    assert found.passage(1).facts["gold"] == "no answer"


def test_question_words() -> None:
    asked = ("In what year, and how many?", "How many cats?", "how?", "To whom is it?", "Somewhat whoever", "")
    assert [question_word(each) for each in asked] == ["what", "how many", "how", "whom", "other", "other"]


def test_partner_ranks_match_sorting_by_cosine() -> None:
    rng = np.random.default_rng(5)
    first, second = (rng.integers(-2, 3, (40, 3)).astype(np.float32) for _ in range(2))  # small numbers: many are equal
    ranks, nearest = partner_ranks(first, second, np.arange(40), np.arange(40))
    for i in range(40):
        near = (first[i] @ second.T).tolist()
        order = sorted(range(40), key=lambda j: (-near[j], j == i, j))  # of equally near ones, its own comes last
        assert ranks[i] == order.index(i) + 1
        assert nearest[i] == order[0]
    predictions = [SimilarityPrediction(float(a @ b), (a, b)) for a, b in zip(first, second, strict=True)]
    examples = [Example(f"a{i}", f"b{i}", None, f"f:{i}") for i in range(40)]
    found = Embed().evaluate(predictions, examples)
    values = finding(found, "partners").as_json()  # type: ignore[attr-defined]
    assert values["among the nearest 1"]["value"] == Embed().score(predictions, examples)["accuracy"]
    assert values["mean of 1 / rank"]["value"] == pytest.approx(np.mean(1 / ranks))
    assert sum(finding(found, "ranks").bars.values()) == 40  # type: ignore[attr-defined]
    worst = int(ranks.argmax())
    assert found.passage(worst).texts[2][0].text == f"b{nearest[worst]}"
    [constant] = Embed().constant_predictions(examples)
    assert Embed().score(constant, examples) == {"accuracy": 0}  # and not a share that depends on the order


def test_loss_of_scored_pairs_is_their_rank_difference() -> None:
    zeros = (np.zeros(1), np.zeros(1))
    predictions = [SimilarityPrediction(value, zeros) for value in (0.9, 0.1, 0.5, 0.5)]
    examples = [Example("a", "b", score, "f") for score in ("0", "1", "2", "3")]
    found = Embed().evaluate(predictions, examples)
    assert found.losses.tolist() == pytest.approx([3 / 4, 1 / 4, 0.5 / 4, 1.5 / 4])
    assert found.lines[2]["gold"] == 2


def test_shortened_texts_keep_the_surroundings_of_marks() -> None:
    words = " ".join(f"w{i}" for i in range(400))
    [unmarked] = shortened([TextSpan(words)])
    assert unmarked.text.startswith("w0 w1 ")
    assert len(unmarked.text) <= 402
    parts = shortened(
        [TextSpan(words), TextSpan("here", "gold"), TextSpan(words), TextSpan("there", "wrong"), TextSpan(words)]
    )
    assert parts[0].text.startswith("…")
    assert parts[0].text.endswith("w399")
    assert parts[2].text.startswith("w0 ")
    assert parts[2].text.endswith("w399")
    assert " … " in parts[2].text
    assert parts[4].text.endswith("…")
    short = [TextSpan("a "), TextSpan("b", "gold"), TextSpan(" c")]
    assert shortened(short) == short
