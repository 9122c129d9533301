"""Minimal pairs of grammar from a treebank: real sentences, in each of which one word, or the order of two, is made wrong.

    python benchmarks/grammar_pairs.py en_ewt-ud-dev.conllu en_ewt-ud-test.conllu --forms en_ewt-ud-train.conllu --out pairs.jsonl
    bertie minimal-pairs RUN pairs.jsonl

The phenomena, by the universal dependencies and the tags of the Penn Treebank:

    agreement           a verb or auxiliary in the present, with a third-person subject, gets the other number
    determiner          this, that, these or those before a noun gets the other number
    noun_number         a plural noun with a numeral above one, or with many, several or few, becomes singular
    verb_form           the verb after a modal becomes a past tense
    article             a or an before a word that starts with the other kind of letter
    auxiliary_form      the participle after have becomes a base form
    word_order          a determiner and the word after it are swapped
    pronoun_case        a subject pronoun becomes an object pronoun, or the other way round

A wrong form is one that the treebank has for the same lemma with the other tag, so no rule makes words up. Sentences have 4 to
20 words. At most 200 pairs of a phenomenon are kept, drawn with a fixed seed. Some "wrong" sentences are acceptable in another
reading; this is the same for every model that reads the file.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MOST, SHORTEST, LONGEST = 200, 4, 20
OTHER_DETERMINER = {"this": "these", "these": "this", "that": "those", "those": "that"}
OTHER_CASE = {"he": "him", "she": "her", "they": "them", "we": "us", "i": "me"}
OTHER_CASE |= {"him": "he", "them": "they", "us": "we", "me": "i"}
QUANTIFIERS = frozenset({"many", "several", "few"})
Forms = dict[tuple[str, str], Counter[str]]


@dataclass(frozen=True)
class Word:
    """A word of a sentence. Heads count from 0; -1 for the root."""

    form: str
    lemma: str
    upos: str
    tag: str
    head: int
    relation: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("treebanks", type=Path, nargs="+", help="the sentences of the pairs")
    parser.add_argument("--forms", type=Path, nargs="*", default=[], help="more treebanks, for forms of words only")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    sentences = [sentence for path in args.treebanks for sentence in read(path)]
    forms: Forms = defaultdict(Counter)
    for sentence in [*sentences, *(sentence for path in args.forms for sentence in read(path))]:
        for word in sentence:
            forms[word.lemma, word.tag][word.form.lower()] += 1
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for sentence in sentences:
        if SHORTEST <= len(sentence) <= LONGEST:
            good = [word.form for word in sentence]
            for phenomenon, bad in pairs(sentence, forms):
                found[phenomenon].append((" ".join(good), " ".join(bad)))
    chosen = np.random.default_rng(0)
    with args.out.open("w", encoding="utf-8") as file:
        for phenomenon, every in sorted(found.items()):
            every = list(dict.fromkeys(every))
            kept = sorted(chosen.permutation(len(every))[:MOST])
            print(f"{phenomenon}: {len(kept)} of {len(every)} pairs")
            for number in kept:
                good, bad = every[number]
                row = {"sentence_good": good, "sentence_bad": bad, "UID": phenomenon, "linguistics_term": phenomenon}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read(path: Path) -> Iterator[list[Word]]:
    """Yield the sentences of a CoNLL-U file, without multiword tokens and empty nodes."""
    sentence: list[Word] = []
    for line in [*path.read_text(encoding="utf-8").split("\n"), ""]:
        columns = line.split("\t")
        if len(columns) == 10 and columns[0].isdecimal():
            _, form, lemma, upos, tag, _, head, relation, *_ = columns
            sentence.append(Word(form, lemma, upos, tag, int(head) - 1, relation))
        elif not line and sentence:
            yield sentence
            sentence = []


def pairs(words: list[Word], forms: Forms) -> Iterator[tuple[str, list[str]]]:
    """Yield a phenomenon and the wrong sentence for every place of a sentence that has it."""
    form = [word.form for word in words]

    def with_word(place: int, other: str) -> list[str]:
        old = form[place]
        cased = other.upper() if old.isupper() and len(old) > 1 else other
        cased = cased.capitalize() if old[0].isupper() and (old != "I" or place == 0) and cased == other else cased
        return [*form[:place], cased, *form[place + 1 :]]

    for place, word in enumerate(words):
        for phenomenon, wrong in wrong_forms(words, place, forms):
            yield phenomenon, with_word(place, wrong)
        swapped = word.relation == "det" and 0 < place < len(words) - 1 and words[place + 1].upos in ("NOUN", "ADJ")
        if swapped:
            yield "word_order", [*form[:place], form[place + 1], form[place], *form[place + 2 :]]


def wrong_forms(words: list[Word], place: int, forms: Forms) -> Iterator[tuple[str, str]]:
    """Yield the phenomena of a word, each with a wrong form."""
    word, lower = words[place], words[place].form.lower()
    dependents = [each for each in words if each.head == place]
    if (wrong := wrong_number(words, place, forms)) is not None:
        yield "agreement", wrong
    if word.relation == "det" and lower in OTHER_DETERMINER and words[word.head].tag in ("NN", "NNS"):
        yield "determiner", OTHER_DETERMINER[lower]
    have = any(each.lemma == "have" and each.relation == "aux" for each in dependents)
    inflections = (
        ("noun_number", "NNS", "NN", any(map(is_above_one, dependents))),
        ("verb_form", "VB", "VBD", any(each.tag == "MD" for each in dependents)),
        ("auxiliary_form", "VBN", "VB", have),
    )
    for phenomenon, tag, other_tag, applies in inflections:
        other = usual(forms, word.lemma, other_tag)
        if word.tag == tag and applies and other not in (None, lower):
            yield phenomenon, str(other)
    following = words[place + 1].form if place + 1 < len(words) else ""
    plain = following.isalpha() and following.islower() and following[0] not in "hu"  # an hour, a user
    if lower in ("a", "an") and plain and (following[0] in "aeio") == (lower == "an"):
        yield "article", "a" if lower == "an" else "an"
    if word.upos == "PRON" and lower in OTHER_CASE and word.relation in ("nsubj", "obj", "obl"):
        yield "pronoun_case", "I" if OTHER_CASE[lower] == "i" else OTHER_CASE[lower]


def wrong_number(words: list[Word], place: int, forms: Forms) -> str | None:
    """Return the form with the other number of a verb or auxiliary in the present; None if it has none, or no subject."""
    word = words[place]
    if word.tag not in ("VBZ", "VBP") or not word.form.isalpha():
        return None
    clause = place if word.upos == "VERB" else word.head
    subjects = [each for each in words if each.head == clause and each.relation.startswith("nsubj")]
    first = [each for each in words if each.head == clause and each.relation.startswith(("aux", "cop"))]
    if len(subjects) != 1 or subjects[0].tag not in ("NN", "NNS") or (first and word is not first[0]):
        return None
    singular = {"VBZ": "NN", "VBP": "NNS"}
    if subjects[0].tag != singular[word.tag]:  # an error of the text or of its annotation
        return None
    other = usual(forms, word.lemma, "VBP" if word.tag == "VBZ" else "VBZ")
    return (
        {"VBZ": "are", "VBP": "is"}[word.tag] if word.lemma == "be" else other if other != word.form.lower() else None
    )


def usual(forms: Forms, lemma: str, tag: str) -> str | None:
    """Return the most frequent form of a lemma with a tag; None if the treebank has none."""
    known = forms.get((lemma, tag))
    return max(known, key=lambda form: (known[form], form)) if known else None


def is_above_one(word: Word) -> bool:
    if word.relation == "nummod":
        return word.form.lower() not in ("one", "1", "half") and "." not in word.form
    return word.lemma in QUANTIFIERS and word.relation in ("amod", "det")


if __name__ == "__main__":
    main()
