"""Baselines that choose the antecedent of a mention by rules, without a model (Clark et al. 2019, section 4.3)."""

from __future__ import annotations

from bertie.inspect.mentions import MentionText
from bertie.inspect.pronouns import PRONOUNS, Agreement

RULES = ("nearest mention", "head match", "rules")
"""The baselines, in the order of `choose`:

- nearest mention: the candidate whose head word is nearest;
- head match: the nearest candidate with the same head word; none if there is no such candidate;
- rules: the nearest candidate with the same words; else with the same head word; else one that agrees in person, number and
  gender; else any. A short form of the sieves of Lee et al. (2011).

Distances are between head words. Of two candidates at the same distance, the one before the mention counts. Comparisons ignore
case."""


def choose(text: MentionText, mention: int, candidates: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the choice of each baseline in `RULES`; None if it makes none.

    Args:
        text: The text.
        mention: Number of the mention.
        candidates: Numbers of the mentions to choose from; at least one.
    """
    own = text.mentions[mention].last
    nearest_first = sorted(candidates, key=lambda number: _distance(own, text.mentions[number].last))
    same_words = [other for other in nearest_first if _words(text, other) == _words(text, mention)]
    same_head = [other for other in nearest_first if _words(text, other)[-1] == _words(text, mention)[-1]]
    agreement = _agreement(text, mention)
    agreeing = [other for other in nearest_first if _agreement(text, other).agrees(agreement)]
    by_rules = next(sieve[0] for sieve in (same_words, same_head, agreeing, nearest_first) if sieve)
    return nearest_first[0], same_head[0] if same_head else None, by_rules


def _distance(own: int, other: int) -> tuple[int, bool]:
    return abs(own - other), other > own


def _words(text: MentionText, number: int) -> list[str]:
    mention = text.mentions[number]
    return [word.lower() for word in text.words[mention.first : mention.last + 1]]


def _agreement(text: MentionText, number: int) -> Agreement:
    mention = text.mentions[number]
    if mention.first == mention.last and (known := PRONOUNS.get(text.words[mention.last].lower())):
        return known
    return Agreement(3, mention.plural)
