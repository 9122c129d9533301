"""SQuAD scores, compared bit for bit with a plain reimplementation of the published rules.

SQuAD 1.1: exact match and F1 over bags of normalized words, each the best over the gold answers; a question without a
prediction scores 0. SQuAD 2.0: gold answers that are empty after normalization are dropped, and if none is left, the
gold answer is empty; if either side has no words, F1 is 1 if both have none, else 0. The scores are also given for the
questions with and without answer, and for the best thresholds of the odds.
"""

from __future__ import annotations

import re
import string
from typing import Any

import numpy as np
import pytest

from bertie.examples.squad import Answer, Question
from bertie.tasks.squad_metrics import best_scores, normalize_answer, squad_scores

WORDS = [
    "the", "The", "a", "an", "AN", "cat", "cats", "cat.", "(cat)", "the-cat", "A.", "...", "“cat”", "cat’s", "cat's", "thé",
    "ﬁn", "İstanbul", "ΟΔΟΣ", "ß", "ſ", "中文", "e\u0301", "\u00a0",
    "\u2009the\u2009", "\u200b", "1,000", "1000", "$5", "the_a", "a\u0301", "an\tt",
]  # fmt: skip
BLANKS = [" ", "  ", "\t", "\n", "\u00a0", "\u3000", ""]


def plain(text: str) -> str:
    """Lower case; no ASCII punctuation; articles as separate words become blanks; runs of blanks become one."""
    text = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def overlap(one: list[str], other: list[str]) -> float:
    """F1 of two bags of words, counted by removing shared words from one of them; 0 if no word is shared."""
    rest, same = list(other), 0
    for word in one:
        if word in rest:
            rest.remove(word)
            same += 1
    if not same:
        return 0
    precision, recall = 1.0 * same / len(one), 1.0 * same / len(other)
    return (2 * precision * recall) / (precision + recall)


def first_rules(predicted: str | None, gold: list[str]) -> tuple[float, float]:
    if predicted is None:
        return 0, 0
    exact = [plain(predicted) == plain(text) for text in gold]
    return max(exact), max(overlap(plain(predicted).split(), plain(text).split()) for text in gold)


def second_rules(predicted: str, gold: list[str]) -> tuple[float, float]:
    gold = [text for text in gold if plain(text)] or [""]
    found = []
    for text in gold:
        one, other = plain(predicted).split(), plain(text).split()
        found.append((plain(predicted) == plain(text), overlap(one, other) if one and other else int(one == other)))
    return max(exact for exact, _ in found), max(f1 for _, f1 in found)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def best(
    predicted: dict[str, str], scores: dict[str, float], odds: dict[str, float], has: dict[str, bool]
) -> tuple[float, float]:
    """Start with no answers; add answers in the order of rising odds; keep the first best total and its odds."""
    total = most = sum(not known for known in has.values())
    threshold = 0.0
    for name in sorted(odds, key=lambda name: odds[name]):
        if has[name]:
            total += scores[name]
        elif predicted[name]:
            total -= 1
        if total > most:
            most, threshold = total, odds[name]
    return most / len(scores), threshold


def text(rng: np.random.Generator, most: int) -> str:
    return "".join(
        str(rng.choice(WORDS)) + str(rng.choice(BLANKS, p=[0.7, *[0.05] * 6])) for _ in range(rng.integers(0, most))
    )


def case(rng: np.random.Generator, second: bool) -> tuple[list[Question], dict[str, str], dict[str, float]]:
    questions, predicted, odds = [], {}, {}
    for number in range(rng.integers(1, 9)):
        gold = [text(rng, 4) for _ in range(rng.integers(1, 4))]
        if second and rng.random() < 0.4:
            gold = []
        name = f"q{number}"
        questions.append(Question(name, "q", "c", tuple(Answer(each, -1) for each in gold), "here"))
        right = str(rng.choice(gold)).upper() if gold and rng.random() < 0.4 else text(rng, 4)
        predicted[name] = "" if rng.random() < 0.2 else right
        odds[name] = (
            float(rng.choice([-2.5, -1.0, 0.0, 0.3, 1.0, 1.5])) if rng.random() < 0.5 else float(rng.normal(0, 3))
        )
    order = rng.permutation(len(questions))
    return questions, predicted, {f"q{number}": odds[f"q{number}"] for number in order}


@pytest.mark.parametrize("seed", range(3))
def test_normalize_answer_follows_the_rules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    every = "".join(chr(c) for c in rng.integers(1, 0x3000, 400) if not 0xD800 <= c < 0xE000)
    assert normalize_answer(every) == plain(every)
    for _ in range(50):
        given = text(rng, 6)
        assert normalize_answer(given) == plain(given)


@pytest.mark.parametrize("seed", range(3))
def test_squad_1_scores_follow_the_rules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(100):
        questions, predicted, _ = case(rng, second=False)
        if rng.random() < 0.3:
            predicted.pop(questions[0].id)
        found = [first_rules(predicted.get(each.id), [a.text for a in each.answers or ()]) for each in questions]
        ours = squad_scores(predicted, questions)
        assert ours == {"exact_match": mean([a for a, _ in found]), "f1": mean([b for _, b in found])}


@pytest.mark.parametrize("seed", range(3))
def test_squad_2_scores_and_thresholds_follow_the_rules(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    for _ in range(100):
        questions, predicted, odds = case(rng, second=True)
        questions.append(Question("none", "q", "c", (), "here"))
        predicted["none"], odds["none"] = text(rng, 3), float(rng.normal())
        has = {each.id: bool(each.answers) for each in questions}
        raw = {each.id: second_rules(predicted[each.id], [a.text for a in each.answers or ()]) for each in questions}
        limit = float(rng.choice([1.0, 0.0, -1.0]))
        kept = {name: (not has[name],) * 2 if odds[name] > limit else raw[name] for name in raw}
        wanted: dict[str, Any] = {}
        for prefix, names in (
            ("", list(raw)),
            ("has_answer_", [name for name in raw if has[name]]),
            ("no_answer_", [name for name in raw if not has[name]]),
        ):
            for side, score in enumerate(("exact_match", "f1")):
                if names:
                    wanted[prefix + score] = mean([kept[name][side] for name in names])
        assert squad_scores(predicted, questions, frozenset(name for name in odds if odds[name] > limit)) == wanted
        ours = best_scores(predicted, odds, questions)
        for side, score in enumerate(("best_exact", "best_f1")):
            scores = {name: float(each[side]) for name, each in raw.items()}
            assert (ours[score], ours[f"{score}_thresh"]) == best(predicted, scores, odds, has)
