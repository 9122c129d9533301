from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.base.contracts import Hidden, Targets
from bertie.base.errors import UsageError
from bertie.examples.left_out import valid_examples
from bertie.examples.squad import Answer, Question
from bertie.model.config import TransformerConfig
from bertie.model.heads.heads import PAIR_SIZE
from bertie.tasks.predictions import SpanPrediction
from bertie.tasks.span import Span
from bertie.tasks.squad_metrics import squad_scores
from bertie.tokenizers.tokenizer import Tokenizer


def question(context: str, text: str, start: int = -1, name: str = "q") -> Question:
    return Question(name, "the who", context, (Answer(text, start),), "here")


@pytest.fixture(scope="module")
def uncased(shared_data: Path) -> Tokenizer:
    words = (shared_data / "vocab" / "bert-base-uncased.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return Tokenizer.build(words)


def target_text(context: str, sequence: Any) -> str:
    """The text from the first to the last token of the target."""
    first, last = sequence.target.answer
    return context[sequence.offsets[first][0] : sequence.offsets[last][1]]


def test_windows_advance_by_the_stride(uncased: Tokenizer) -> None:
    context = " ".join(f"word{i}" for i in range(300))
    [asked] = [question(context, "word250", context.index("word250"))]
    windows = Span(doc_stride=50).encode([asked], uncased, 128)
    firsts = [int(w.offsets[w.target.first][0]) for w in windows if w.offsets is not None]
    tokens = uncased.encode_with_offsets([context])[0].offsets
    assert [tokens[i * 50][0] for i in range(len(windows))] == firsts
    assert {target_text(context, window) for window in windows if window.target.answer != (0, 0)} == {"word250"}
    may_start = np.zeros(len(tokens), int)
    for number, window in enumerate(windows):
        may_start[number * 50 : number * 50 + len(window.target.may_start)] += window.target.may_start
    assert may_start.tolist() == [1] * len(tokens)  # an answer may start at every token, in exactly one window


def test_an_answer_has_the_accents_after_its_last_letter(uncased: Tokenizer) -> None:
    """BERT's normalizer separates accents from letters and removes them, so no token covers the last one."""
    context = "the cafe\u0301 opened"
    asked = [question(context, "cafe\u0301")]
    [window] = Span().encode(asked, uncased, 32)
    assert window.target.answer is not None
    logits = np.zeros((len(window), 2), np.float32)
    logits[window.target.answer[0], 0] = logits[window.target.answer[1], 1] = 9
    [found] = Span().decode([logits], [window], asked)
    assert (found.answer, found.start, found.end) == ("cafe\u0301", 4, 9)


def test_answer_that_is_not_in_the_context_has_no_target(uncased: Tokenizer) -> None:
    asked = [
        question("the cat sat", "dog"),
        question("the cat sat", "cat", 9),  # a wrong start: the text is searched
        question("the cat sat", "cat"),
        question("the cat sat", " cat ", 3),
        replace(question("the cat sat", ""), answers=()),
    ]
    sequences = Span().encode(asked, uncased, 32)
    answers = [sequence.target.answer for sequence in sequences]
    assert answers == [None, (5, 5), (5, 5), (5, 5), (0, 0)]  # [CLS] the who [SEP] the cat sat [SEP]
    assert [sequence.example for sequence in Span().training_sequences(sequences)] == [1, 2, 3, 4]


def test_question_takes_at_most_half_a_window(uncased: Tokenizer) -> None:
    asked = replace(question("the cat " * 20, "cat"), question="who " * 100)
    assert len(Span(max_query_length=10).encode([asked], uncased, 32)[0]) == 32
    for max_length in (4, 5, 32):
        windows = Span().encode([asked], uncased, max_length)
        assert {window.target.first for window in windows} == {(max_length - 3) // 2 + 2}
        assert max(len(window) for window in windows) == max_length
        assert sum(window.target.may_start.sum() for window in windows) == 40


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_best_spans_match_brute_force(uncased: Tokenizer, seed: int, conditional: bool, empty: bool) -> None:
    """Over all pairs of a start and an end in all windows."""
    rng = np.random.default_rng(seed)
    context = " ".join(rng.choice(["cat", "dog", "sat", "mat", "unaffable"], 40))
    task = Span(
        doc_stride=7, max_answer_length=5, conditional=conditional, threshold=0.0 if empty else None, n_best_size=6
    )
    windows = task.encode([question(context, "cat")], uncased, 24)
    outputs = [rng.normal(size=(len(w), 2 + 2 * PAIR_SIZE * conditional)).astype(np.float32) for w in windows]
    [found] = task.decode(outputs, windows, [question(context, "cat")])
    every = []
    for window, logits in zip(windows, outputs, strict=True):
        target, ends = window.target, end_scores(logits, conditional)
        for i in range(target.first, target.last):
            for j in range(i, min(i + 5, target.last)):
                if target.may_start[i - target.first]:
                    every.append(
                        (float(logits[i, 0] + ends[i, j]), int(window.offsets[i][0]), int(window.offsets[j][1]))
                    )
    every.sort(reverse=True)
    spans = [guess for guess in found.guesses if guess.text]
    assert [(g.start, g.end) for g in spans] == [(start, end) for _, start, end in every[:6]]
    assert [g.score for g in spans] == pytest.approx([score for score, *_ in every[:6]], abs=1e-4)
    assert sum(guess.probability for guess in found.guesses) == pytest.approx(1)
    null = min(float(logits[0, 0] + end_scores(logits, conditional)[0, 0]) for logits in outputs)
    assert found.null_score == pytest.approx(null - every[0][0], abs=1e-4)
    silent = empty and null - every[0][0] > 0
    assert found.answer == ("" if silent else context[every[0][1] : every[0][2]])


def end_scores(logits: np.ndarray, conditional: bool) -> np.ndarray:
    """[start, end]: the logit of the end, or its log-probability given the start."""
    if not conditional:
        return np.tile(logits[:, 1], (len(logits), 1))
    ends = torch.from_numpy(logits[:, 1] + logits[:, 2 : 2 + PAIR_SIZE] @ logits[:, 2 + PAIR_SIZE :].T)
    return ends.log_softmax(1).numpy()


@pytest.mark.parametrize("conditional", [False, True])
def test_score_differences_equal_loss_differences(
    uncased: Tokenizer, tiny_config: TransformerConfig, conditional: bool
) -> None:
    torch.manual_seed(0)
    asked = question("the cat sat on the mat", "cat")
    task = Span(conditional=conditional, threshold=0.0, n_best_size=100)
    [window] = task.encode([asked], uncased, 32)
    head, states = task.head(tiny_config, 8), torch.randn(len(window), 8)
    with torch.no_grad():
        for weights in head.parameters():
            weights.normal_()
        [found] = task.decode([head.logits(states).numpy()], [window], [asked])

        def loss(start: int, end: int) -> float:
            weight = torch.zeros(len(window), 2)
            weight[start, 0] = weight[end, 1] = 1
            index = torch.arange(len(window))
            return float(head(Hidden(states), Targets(index, torch.zeros_like(index), weight)).total)

        assert window.offsets is not None
        starts, ends = window.offsets[:, 0].tolist(), window.offsets[:, 1].tolist()
        first = window.target.first
        sums = [
            guess.score
            + (loss(starts.index(guess.start, first), ends.index(guess.end, first)) if guess.text else loss(0, 0))
            for guess in found.guesses
        ]
    assert len(sums) == 6 * 7 // 2 + 1  # every span of six words, and "no answer"
    assert np.ptp(sums) < 1e-4


def test_task_without_unanswerable_questions_always_answers(uncased: Tokenizer) -> None:
    answered, silent = question("the cat sat", "cat"), replace(question("the cat sat", "cat"), id="2", answers=())
    assert Span().fit([answered]).threshold is None
    assert Span().fit([answered, silent]).threshold == 0
    assert Span(threshold=2.0).fit([answered]).threshold == 2  # set by the user
    task = Span()
    [window] = task.encode([answered], uncased, 32)
    logits = np.full((len(window), 2), -5, np.float32)
    logits[0] = 40
    [found] = task.decode([logits], [window], [answered])
    assert found.answer
    assert all(guess.text for guess in found.guesses)


def test_threshold_is_tuned_only_on_questions_of_both_kinds() -> None:
    silent = replace(question("the cat sat", "cat"), answers=())
    prediction = SpanPrediction(silent.id, "", 0, 0, 1.0, -1.0, [])
    assert Span(threshold=0.0).calibrate([prediction], [silent]).threshold == 0  # else it would never answer
    for threshold in (float("nan"), float("inf")):
        with pytest.raises(UsageError, match=r"task\.threshold is"):
            Span(threshold=threshold)


def test_threshold_decides_between_answer_and_no_answer(uncased: Tokenizer) -> None:
    asked = [question("the cat sat", "cat")]
    for threshold, answer in ((2.9, ""), (3.1, "cat")):
        task = Span(threshold=threshold)
        [window] = task.encode(asked, uncased, 32)
        logits = np.full((len(window), 2), -5, np.float32)
        logits[0], logits[5] = 4, 2.5  # "no answer" scores 8, "cat" scores 5
        [found] = task.decode([logits], [window], asked)
        assert found.null_score == pytest.approx(3)
        assert found.answer == answer


def test_scores_of_squad_2() -> None:
    asked = [
        Question("a", "q", "c", (Answer("cat", 0),), ""),
        Question("b", "q", "c", (), ""),
        Question("c", "q", "c", (), ""),
    ]
    found = squad_scores({"a": "cat", "b": "dog"}, asked)  # a missing prediction counts as no answer
    assert found["exact_match"] == found["f1"] == pytest.approx(2 / 3)
    assert found["has_answer_f1"] == 1
    assert found["no_answer_exact_match"] == 1 / 2
    assert (
        squad_scores({"a": "the", "b": "a", "c": ""}, asked)["no_answer_f1"] == 1
    )  # only articles: empty after normalization


def test_wrong_answer_start_is_corrected_to_the_nearest_occurrence(uncased: Tokenizer) -> None:
    context = "cat one two three cat four five cat"
    for start, place in ((0, 0), (16, 18), (19, 18), (25, 18), (26, 32), (99, 32), (-1, 0)):
        [sequence] = Span().encode([question(context, "cat", start)], uncased, 32)
        assert sequence.offsets is not None
        assert sequence.offsets[sequence.target.answer[0]][0] == place


def test_ties_go_to_the_first_and_shortest_span(uncased: Tokenizer) -> None:
    asked = [question("the cat sat on the mat", "cat")]
    [window] = Span().encode(asked, uncased, 32)
    [found] = Span(n_best_size=3).decode([np.zeros((len(window), 2), np.float32)], [window], asked)
    assert [guess.text for guess in found.guesses] == ["the", "the cat", "the cat sat"]


def test_squad_has_as_many_windows_as_in_the_code_of_2018(shared_data: Path, uncased: Tokenizer) -> None:
    """10,833 for the dev questions; `stride=128` as an overlap would give 10,784 (dev/decisions/005-squad.md)."""
    found = valid_examples(Span().reader.read(shared_data / "squad" / "dev-v1.1.json"), "squad")
    assert len(Span().encode(found, uncased, 384)) == 10_833
