"""Rules that choose an antecedent."""

from __future__ import annotations

import pytest

from bertie.inspect.mention_windows import RULES, choose
from bertie.inspect.mentions import Mention, MentionText

SENTENCE = "The old king saw two queens . A king told them that he saw Anna and her dog"
KING, QUEENS, A_KING, THEM, HE, ANNA, HER, DOG = range(8)
MENTIONS = (
    Mention(0, 2, "nominal", plural=False),
    Mention(4, 5, "nominal", plural=True),
    Mention(7, 8, "nominal", plural=False),
    Mention(10, 10, "pronoun"),
    Mention(12, 12, "pronoun"),
    Mention(14, 14, "proper noun", plural=False),
    Mention(16, 16, "pronoun"),
    Mention(16, 17, "nominal", plural=False),
)
TEXT = MentionText(tuple(SENTENCE.split()), MENTIONS, (), "test")


@pytest.mark.parametrize(
    ("mention", "candidates", "nearest", "head_match", "rules"),
    [
        (A_KING, (KING, QUEENS), QUEENS, KING, KING),  # the same head word
        (THEM, (KING, QUEENS, A_KING), A_KING, None, QUEENS),  # number
        (HE, (KING, QUEENS, A_KING, THEM), THEM, None, A_KING),  # number
        (HER, (A_KING, HE, ANNA), ANNA, None, ANNA),
        (HER, (A_KING, HE), HE, None, A_KING),  # gender
        (THEM, (KING, A_KING), A_KING, None, A_KING),  # nothing agrees: the nearest
        (HE, (KING, ANNA), ANNA, None, ANNA),  # a candidate that follows: 2 words away
    ],
)
def test_choices(mention: int, candidates: tuple[int, ...], nearest: int, head_match: int | None, rules: int) -> None:
    assert choose(TEXT, mention, candidates) == (nearest, head_match, rules)
    assert len(RULES) == 3


def test_the_same_words_come_before_the_same_head_word_and_case_is_ignored() -> None:
    words = ("Old", "Kings", ",", "new", "kings", "and", "old", "kings")
    mentions = tuple(Mention(first, first + 1, "nominal", plural=True) for first in (0, 3, 6))
    assert choose(MentionText(words, mentions, (), "test"), 2, (0, 1)) == (1, 1, 0)


def test_of_two_candidates_at_the_same_distance_the_earlier_one_is_nearest() -> None:
    words = ("Anna", "saw", "her", "with", "Eve")
    mentions = (Mention(0, 0, "proper noun"), Mention(2, 2, "pronoun"), Mention(4, 4, "proper noun"))
    assert choose(MentionText(words, mentions, (), "test"), 1, (0, 2)) == (0, None, 0)
