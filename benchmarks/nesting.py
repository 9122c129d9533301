"""Texts whose questions need several steps, for the lab `nesting`: who has it, so many hands after whom?

    python benchmarks/nesting.py data/nesting
    bertie lab nesting --data data --out labs/nesting

A text has eight lines such as "anna carl" (anna gave it to carl), one for each giver, in the alphabetical order of the givers. In
the order in which things go from hand to hand, the people form one random circle: everybody gives once and gets once. The
question "2 after anna" asks who has it two hands later, and the answer is that name where its owner gets it.

What does not tell the answer:

- the order of the lines, which has nothing to do with that of the circle: "in order" a model could take the last name;
- numbers of mentions: each name is once that of a giver, and once that of a receiver;
- which names there are: every other name is the answer equally often, after each number of hops;
- the way back: among eight people, four hops forward are as many as those backward to the same person, and fewer are fewer;
- circles by heart: those of the dev set are in no training text. All names are known, and each is in every text.

It writes train.json and dev.json (SQuAD's format), parts.txt (the hops of each dev question), baselines.json (scores of guesses
by hops, on the dev set) and text.txt (texts for the vocabulary). The training questions are in the order in which they are to be
read: first those of one hop, then others with one more hop join (`curriculum`). `guesses` says what the baselines are.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

HOPS = 4
NAMES = ("anna", "ben", "carl", "dora", "emil", "fritz", "greta", "hans")
PEOPLE = len(NAMES)
STAGES = (0.0625, 0.26, 0.26, 0.4175)  # shares of the training questions, by their largest number of hops
HELD_OUT = 5  # one circle of so many is only in the dev set
ALL = "who has it"
"""The name of the task in the lab, which is the key of all questions in baselines.json."""


@dataclass(frozen=True)
class Story:
    """A circle of people: each gives to the next one, the last to the first."""

    circle: tuple[str, ...]

    @property
    def text(self) -> str:
        """The lines in the alphabetical order of the givers."""
        return "\n".join(sorted(f"{name} {self.after(name, 1)}" for name in self.circle))

    def after(self, name: str, hops: int) -> str:
        """Return who has it so many hands after a person."""
        return self.circle[(self.circle.index(name) + hops) % len(self.circle)]

    def start(self, name: str) -> int:
        """Return the character of the text where a name is that of a receiver."""
        return f"{self.text}\n".index(f" {name}\n") + 1


@dataclass(frozen=True)
class Asked:
    """A question about a story."""

    story: Story
    person: str
    hops: int

    @property
    def question(self) -> str:
        return f"{self.hops} after {self.person}"

    @property
    def answer(self) -> str:
        return self.story.after(self.person, self.hops)


def is_held_out(circle: tuple[str, ...]) -> bool:
    """Return whether a circle, wherever it begins, is one of the dev set, and of no training text."""
    first = circle.index(NAMES[0])
    return zlib.crc32(" ".join(circle[first:] + circle[:first]).encode()) % HELD_OUT == 0


def draw_story(rng: np.random.Generator, held_out: bool) -> Story:
    """Return a random circle of all names, either of the dev set or of training."""
    while is_held_out(circle := tuple(NAMES[number] for number in rng.permutation(PEOPLE))) != held_out:
        pass
    return Story(circle)


def draw(rng: np.random.Generator, texts: int, held_out: bool) -> list[Asked]:
    """Return questions about random stories, two of each number of hops per story, each about another person."""
    asked = []
    for _ in range(texts):
        story = draw_story(rng, held_out)
        hops = np.repeat(np.arange(1, HOPS + 1), 2).tolist()
        asked += [
            Asked(story, story.circle[n], number) for number, n in zip(hops, rng.permutation(PEOPLE), strict=True)
        ]
    return asked


def curriculum(rng: np.random.Generator, questions: int) -> list[Asked]:
    """Return training questions in their order, each with its own story.

    With all numbers of hops from the start, those of many are noise until those of few are learned. So each stage adds one hop:
    half of its questions have it, the others fewer hops.
    """
    asked = []
    for most, share in enumerate(STAGES, 1):
        for _ in range(round(share * questions)):
            hops = most if most == 1 or rng.random() < 0.5 else int(rng.integers(1, most))
            story = draw_story(rng, False)
            asked.append(Asked(story, story.circle[rng.integers(PEOPLE)], hops))
    return asked


def _answer(each: Asked) -> dict[str, Any]:
    return {"text": each.answer, "answer_start": each.story.start(each.answer)}


def squad(asked: list[Asked]) -> dict[str, Any]:
    """Return questions in SQuAD's format."""
    numbered = [
        (each.story, {"id": str(number), "question": each.question, "answers": [_answer(each)]})
        for number, each in enumerate(asked)
    ]
    stories = groupby(numbered, key=lambda pair: pair[0])
    rows = [{"context": story.text, "qas": [question for _, question in group]} for story, group in stories]
    return {"version": "1.1", "data": [{"title": "nesting", "paragraphs": rows}]}


def place(each: Asked) -> int:
    """Return the number of the line in which the answer is the receiver."""
    return each.story.text.splitlines().index(f"{each.story.after(each.answer, PEOPLE - 1)} {each.answer}")


def guesses(train: list[Asked], dev: list[Asked]) -> dict[str, list[float]]:
    """Return how likely guesses are right that do not know who gives to whom, for each dev question.

    - chance: one of the names of the text.
    - bag of words: what words tell, however often they are there, without their order: for each number of hops, naive Bayes
      from the asked name to the answer, counted in training.
    - best place: the receiver of the line that most often has the answer in training, for each number of hops.
    """
    pairs, places = Counter[tuple[int, str, str]](), Counter[tuple[int, int]]()
    for each in train:
        pairs[each.hops, each.person, each.answer] += 1
        places[each.hops, place(each)] += 1

    def by_words(each: Asked) -> str:
        return max(NAMES, key=lambda name: pairs[each.hops, each.person, name])

    best = {hops: max(range(PEOPLE), key=lambda line: places[hops, line]) for hops in range(1, HOPS + 1)}
    return {
        "chance": [1 / len(each.story.circle) for each in dev],
        "bag of words": [float(by_words(each) == each.answer) for each in dev],
        "best place": [float(place(each) == best[each.hops]) for each in dev],
    }


def part(hops: int) -> str:
    """Return the name of a part of the dev set."""
    return f"{hops} hop" + "s" * (hops > 1)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, default=153_600, help="number of training questions")
    parser.add_argument("--dev", type=int, default=400, help="number of dev texts, each with eight questions")
    args = parser.parse_args()
    train, dev = curriculum(np.random.default_rng(0), args.train), draw(np.random.default_rng(1), args.dev, True)
    parts = [part(each.hops) for each in dev]
    baselines: dict[str, dict[str, float]] = {}
    for name, right in guesses(train, dev).items():
        by_part = {
            key: [value for value, own in zip(right, parts, strict=True) if own == key] for key in sorted(set(parts))
        }
        baselines[name] = {key: round(float(np.mean(values)), 4) for key, values in {ALL: right, **by_part}.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    some = train[:: max(1, len(train) // 2000)]
    texts = dict.fromkeys(f"{each.question} {each.story.text}".replace("\n", " ") for each in some)
    for name, content in {
        "train.json": json.dumps(squad(train)),
        "dev.json": json.dumps(squad(dev)),
        "parts.txt": "\n".join(parts) + "\n",
        "baselines.json": json.dumps(baselines, indent=1) + "\n",
        "text.txt": "\n\n".join(texts) + "\n",
    }.items():
        (args.out / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
