"""Minimal pairs of grammar from templates: sentences that differ in what makes one of them wrong, from a small vocabulary.

    python benchmarks/grammar_templates.py --out pairs.jsonl
    bertie minimal-pairs RUN pairs.jsonl

The phenomena are a choice of those of BLiMP (Warstadt et al. 2020), with our own templates and words:

    agreement                   the guard sleeps / sleep
    agreement_across_phrase     the guard near the trees is / are tired
    agreement_across_clause     the guard that the boys like is / are tired
    determiner_noun             this book / books
    determiner_adjective_noun   this old book / books
    irregular_noun              these children / child
    anaphor_number              the boys blamed themselves / himself
    anaphor_gender              Anna blamed herself / himself
    licensing_of_ever           only / even the boys have ever seen it
    past_or_participle          she wrote / written a letter, she has written / wrote a letter
    transitive_verb             the boys saw / slept the guard
    passive_verb                the guard was seen / slept by the boys
    wh_word_with_gap            she knows what / that the boys bought
    wh_word_without_gap         she knows that / what the boys bought bread
    existential_quantifier      there was a / every dog in the garden
    noun_phrase_ellipsis        one old book and two / one book and two old

--count pairs of each phenomenon are drawn with a fixed seed, without repetition.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

PEOPLE = [
    "guard",
    "boy",
    "girl",
    "doctor",
    "teacher",
    "student",
    "king",
    "farmer",
    "driver",
    "writer",
    "soldier",
    "friend",
]
THINGS = ["book", "car", "house", "picture", "hat", "letter", "boat", "table", "cup", "flower", "ring", "map"]
PLACES = ["garden", "house", "castle", "river", "school", "station", "tree", "door", "bridge", "wall"]
IRREGULAR = [
    ("child", "children"),
    ("man", "men"),
    ("woman", "women"),
    ("foot", "feet"),
    ("tooth", "teeth"),
    ("mouse", "mice"),
]
WOMEN = ["Anna", "Mary", "Sarah", "Emma", "Julia", "Helen", "Alice", "Laura"]
MEN = ["John", "Peter", "David", "Paul", "Thomas", "James", "Robert", "Henry"]
ADJECTIVES = ["old", "new", "small", "red", "beautiful", "large", "green", "black"]
STATES = ["tired", "happy", "angry", "young", "famous", "rich", "poor", "ill"]
SLEEPS = ["sleeps", "works", "waits", "sings", "plays", "sits", "stands", "lives"]
SLEPT = ["slept", "arrived", "smiled", "died", "laughed", "fell", "danced", "appeared"]
SAW = ["saw", "followed", "helped", "visited", "liked", "killed", "married", "praised"]
SEEN = ["seen", "followed", "helped", "visited", "liked", "killed", "married", "praised"]
BLAMED = ["blamed", "hurt", "saw", "helped", "killed", "praised"]
MADE = [
    ("wrote", "written"),
    ("broke", "broken"),
    ("chose", "chosen"),
    ("drew", "drawn"),
    ("took", "taken"),
    ("gave", "given"),
]
BOUGHT = ["bought", "sold", "found", "took", "painted", "broke"]
NUMBERS = ["two", "three", "four", "five", "six"]
Pair = tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    args = parser.parse_args()
    with args.out.open("w", encoding="utf-8") as file:
        for name, template in TEMPLATES.items():
            source = random.Random(name)
            drawn: dict[Pair, None] = {}
            for _ in range(50 * args.count):
                drawn[template(source)] = None
                if len(drawn) == args.count:
                    break
            print(f"{name}: {len(drawn)} pairs")
            for good, bad in drawn:
                row = {"sentence_good": sentence(good), "sentence_bad": sentence(bad), "UID": name}
                file.write(json.dumps(row | {"linguistics_term": name}) + "\n")


def sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def agreement(source: random.Random) -> Pair:
    pick, verb = source.choice, source.choice(SLEEPS)
    subject, place = pick(PEOPLE), pick(PLACES)
    pair = f"the {subject} {verb} near the {place}", f"the {subject} {verb[:-1]} near the {place}"
    plural = f"the {subject}s {verb[:-1]} near the {place}", f"the {subject}s {verb} near the {place}"
    return pick([pair, plural])


def number_after(phrase: Callable[[random.Random, str], str]) -> Callable[[random.Random], Pair]:
    """Return a template: a subject, a phrase with a noun of the other number, and the verb of the subject."""

    def template(source: random.Random) -> Pair:
        subject, state = source.choice(PEOPLE), source.choice(STATES)
        ending, other, verb, wrong = source.choice([("", "s", "is", "are"), ("s", "", "are", "is")])
        start = f"the {subject}{ending} {phrase(source, other)}"
        return f"{start} {verb} {state}", f"{start} {wrong} {state}"

    return template


def determiner(with_adjective: bool, irregular: bool = False) -> Callable[[random.Random], Pair]:
    def template(source: random.Random) -> Pair:
        pick = source.choice
        noun = pick(IRREGULAR) if irregular else (lambda word: (word, f"{word}s"))(pick(THINGS))
        words, number = pick([("this", "these"), ("that", "those")]), pick([0, 1])
        start = f"{pick(WOMEN + MEN)} {pick(SAW[:5])} {words[number]}" + f" {pick(ADJECTIVES)}" * with_adjective
        return f"{start} {noun[number]}", f"{start} {noun[1 - number]}"

    return template


def anaphor_number(source: random.Random) -> Pair:
    subject, verb, wrong = source.choice(PEOPLE), source.choice(BLAMED), source.choice(["himself", "herself"])
    return f"the {subject}s {verb} themselves", f"the {subject}s {verb} {wrong}"


def anaphor_gender(source: random.Random) -> Pair:
    names, own, wrong = source.choice([(WOMEN, "herself", "himself"), (MEN, "himself", "herself")])
    start = f"{source.choice(names)} {source.choice(BLAMED)}"
    return f"{start} {own}", f"{start} {wrong}"


def licensing_of_ever(source: random.Random) -> Pair:
    rest = f"the {source.choice(PEOPLE)}s have ever {source.choice(SEEN)} the {source.choice(PEOPLE)}"
    return f"only {rest}", f"even {rest}"


def past_or_participle(source: random.Random) -> Pair:
    (past, participle), name = source.choice(MADE), source.choice(WOMEN + MEN)
    thing, perfect = source.choice(THINGS), source.choice([True, False])
    right, wrong = (participle, past) if perfect else (past, participle)
    start = f"{name} has" if perfect else name
    return f"{start} {right} the {thing}", f"{start} {wrong} the {thing}"


def transitive_verb(source: random.Random) -> Pair:
    subject, other = source.sample(PEOPLE, 2)
    pair = source.choice(SAW), source.choice(SLEPT)
    return f"the {subject}s {pair[0]} the {other}", f"the {subject}s {pair[1]} the {other}"


def passive_verb(source: random.Random) -> Pair:
    subject, other = source.sample(PEOPLE, 2)
    pair = source.choice(SEEN), source.choice(SLEPT)
    return f"the {subject} was {pair[0]} by the {other}s", f"the {subject} was {pair[1]} by the {other}s"


def wh_word(gap: bool) -> Callable[[random.Random], Pair]:
    def template(source: random.Random) -> Pair:
        start = f"{source.choice(WOMEN + MEN)} {source.choice(['knows', 'remembers', 'saw', 'found out'])}"
        rest = f"the {source.choice(PEOPLE)} {source.choice(BOUGHT)}" + f" the {source.choice(THINGS)}" * (not gap)
        right, wrong = ("what", "that") if gap else ("that", "what")
        return f"{start} {right} {rest}", f"{start} {wrong} {rest}"

    return template


def existential_quantifier(source: random.Random) -> Pair:
    rest = f"{source.choice(PEOPLE + THINGS)} near the {source.choice(PLACES)}"
    return f"there was a {rest}", f"there was {source.choice(['every', 'each'])} {rest}"


def noun_phrase_ellipsis(source: random.Random) -> Pair:
    first, second = source.choice(WOMEN), source.choice(MEN)
    adjective, thing, many, verb = (source.choice(words) for words in (ADJECTIVES[1:], THINGS, NUMBERS, BOUGHT))
    good = f"{first} {verb} one {adjective} {thing} and {second} {verb} {many}"
    return good, f"{first} {verb} one {thing} and {second} {verb} {many} {adjective}"


TEMPLATES: dict[str, Callable[[random.Random], Pair]] = {
    "agreement": agreement,
    "agreement_across_phrase": number_after(lambda source, other: f"near the {source.choice(PLACES)}{other}"),
    "agreement_across_clause": number_after(
        lambda source, other: f"that the {source.choice(PEOPLE)}{other} {source.choice(SAW[1:5])}"
    ),
    "determiner_noun": determiner(with_adjective=False),
    "determiner_adjective_noun": determiner(with_adjective=True),
    "irregular_noun": determiner(with_adjective=False, irregular=True),
    "anaphor_number": anaphor_number,
    "anaphor_gender": anaphor_gender,
    "licensing_of_ever": licensing_of_ever,
    "past_or_participle": past_or_participle,
    "transitive_verb": transitive_verb,
    "passive_verb": passive_verb,
    "wh_word_with_gap": wh_word(gap=True),
    "wh_word_without_gap": wh_word(gap=False),
    "existential_quantifier": existential_quantifier,
    "noun_phrase_ellipsis": noun_phrase_ellipsis,
}


if __name__ == "__main__":
    main()
