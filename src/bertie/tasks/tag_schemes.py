"""Find the scheme of tags in all tags of labeled examples, or ask for it (`examples/tag_form.py` has the schemes)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cache
from typing import Literal

from bertie.base import console
from bertie.base.errors import UsageError, UserError, join_names, shorten
from bertie.examples.tag_form import LETTERS, OUTSIDE, Scheme, TagForm, TagMark
from bertie.examples.tagged import TaggedSentence

_FOUND = tuple(LETTERS)[:6]  # by letters alone; the order of the tags tells iob1 and io
_NAMES = {scheme: scheme.upper() for scheme in LETTERS} | {"bio": "BIO (IOB2)"}
# separator, whether the letter is last
_WAYS = (*((mark, last) for last in (False, True) for mark in "-_:/"), ("", False))
_TYPO = 0.9  # share of the words with tags above which bare letters are a scheme, and the others are mistakes
_PROBED = 2048  # the most frequent tags decide
_MOST = 0.5  # the same of letters beside a kind
_Pair = tuple[str | None, str | None]  # tags that follow each other; None: the ends of a sentence
_REMEDY = "--task.scheme names the scheme; with none, the metric is the accuracy of single tags"


class TagCounts:
    """The tags of labeled examples: how often each follows each other one, and where first. More examples take no more memory.

    Attributes:
        pairs: The count of each pair, in the order of the first ones.
        places: The place of the second tag of the first such pair; at the end of a sentence, the place of its last word.
        tags: The count of each tag, in the order of the first ones.
        untagged: The source of the first example without tags; empty: all have them.
        has_texts: Whether the words of an example are from a raw text.
    """

    def __init__(self, examples: Iterable[TaggedSentence] = ()):
        self.pairs: Counter[_Pair] = Counter()
        self.places: dict[_Pair, str] = {}
        self.untagged = ""
        self.has_texts = False
        for example in examples:
            self.add(example)

    def __len__(self) -> int:
        return len(self.pairs)

    def add(self, example: TaggedSentence) -> None:
        """Count the tags of an example."""
        self.has_texts |= example.text is not None
        if example.tags is None:
            self.untagged = self.untagged or example.source
        if not (tags := example.tags):
            return
        self.pairs.update(zip((None, *tags), (*tags, None), strict=True))
        if len(self.pairs) > len(self.places):
            for i, pair in enumerate(zip((None, *tags), (*tags, None), strict=True)):
                if pair not in self.places:
                    self.places[pair] = example.place(min(i, len(tags) - 1))

    @property
    def tags(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (_, tag), count in self.pairs.items():
            if tag is not None:
                counts[tag] += count
        return counts

    def place(self, tag: str) -> str:
        """Return where a tag is first; "" if it is nowhere."""
        return next((place for pair, place in self.places.items() if pair[1] == tag), "")

    def first(self, pairs: Collection[_Pair]) -> str:
        """Return the place of the first of some pairs, with its tags."""
        before, after = pair = next(pair for pair in self.pairs if pair in pairs)
        if after is None:
            return f"{self.places[pair]}, {before!r} at the end of the sentence"
        return f"{self.places[pair]}, {after!r} " + (f"after {before!r}" if before else "at the start of the sentence")


@cache
def form_of(labels: tuple[str, ...], scheme: Scheme = "") -> TagForm | None:
    """Return the form of the tags of a task; None if they mark no entities.

    Args:
        labels: The tags. Without `scheme`, half of them at least must have the form: other models have tags such as [PAD].
        scheme: The scheme, if it is known.
    """
    tags = Counter(dict.fromkeys(labels, 1))
    form, share = _best_form(tags, scheme)
    return form if form is not None and (scheme or share >= 0.5) else None


def find_form(tag_counts: TagCounts, scheme: Scheme, labels: Iterable[str] = ()) -> TagForm | None:
    """Find how the tags of labeled examples mark entities, and say it in one line.

    Args:
        tag_counts: The tags of the examples.
        scheme: The scheme that the user names; empty: found from all tags.
        labels: Further tags.

    Returns:
        None if the tags mark no entities.

    Raises:
        UserError: Most tags have one form, and another tag, which is named with its line, has not.
        UsageError: The tags contradict `scheme`, or fit a scheme only in part.
    """
    if scheme == "none":
        return None
    counts = Counter(dict.fromkeys(labels, 0))
    counts.update(tag_counts.tags)
    form, share = _best_form(counts, scheme)
    if form is not None and form.whole and (other := form_of(tuple(counts))) is not None:
        raise UsageError(f'task.scheme is "io", but the tags are {_NAMES[other.scheme]}: {join_names(counts)}')
    if form is not None and form.strict and not scheme and _are_broken(form, tag_counts):
        looser, most = _best_form(counts, "bio")  # E or S instead of I or B is a mistake
        form, share = (looser, most) if looser is not None and most >= _TYPO else (form, share)
    wrong = [tag for tag in counts if form is not None and form.mark(tag) is None]
    if form is None or (wrong and not scheme and not _is_meant(form, counts, share, tag_counts)):
        if scheme:
            raise UsageError(f'task.scheme is "{scheme}", but no tag has its letters: {join_names(counts)}')
        remedy = "--task.scheme io takes equal tags in a row as one entity"
        console.info(f"tags: they mark no entities, so the metric is the accuracy of words ({remedy})")
        return None
    if wrong:
        _refuse(form, wrong, counts, tag_counts)
    form = _by_order(form, tag_counts, scheme)
    kinds = sorted({mark[1] for tag in counts if (mark := form.mark(tag)) is not None and mark != OUTSIDE})
    example = next(tag for tag in counts if form.mark(tag) not in (None, OUTSIDE))
    name = f"{_NAMES[form.scheme]}{', the letter last' * form.suffix}"
    console.info(f"tags: {name}, such as {shorten(example)}; kinds of entities: {join_names(kinds)}")
    return form


def require_complete(form: TagForm, tag_counts: TagCounts) -> None:
    """Check the entities of labeled examples in a scheme in which they must be complete. Warns if some are not.

    Raises:
        UsageError: Many are not.
    """
    if not form.strict:
        return
    bad = _breaks(form, tag_counts, "strict")
    if _are_broken(form, tag_counts):
        raise UsageError(f"the order of the tags does not fit {_NAMES[form.scheme]}: {tag_counts.first(bad)}", _REMEDY)
    if bad:
        places = _places(tag_counts, bad)
        console.warn(f"tags that make no complete entity in {_NAMES[form.scheme]} count as none: {places}", once=True)


def _places(tag_counts: TagCounts, pairs: set[_Pair]) -> str:
    """Say how often some pairs occur, and where first."""
    return f"{console.plural(sum(tag_counts.pairs[pair] for pair in pairs), 'place')}, first {tag_counts.first(pairs)}"


def _best_form(counts: Counter[str], scheme: Scheme) -> tuple[TagForm | None, float]:
    """Return the form that most words have, and their share among the words with other tags than O."""
    schemes: tuple[Scheme, ...] = _FOUND if not scheme else () if scheme == "none" else (scheme,)
    outside = "o" if counts["o"] > counts["O"] or ("o" in counts and "O" not in counts) else "O"
    forms = [
        TagForm(known, *way, lower, outside=outside) for way in _WAYS for lower in (False, True) for known in schemes
    ]
    if scheme == "io":
        forms.append(TagForm("io", "", whole=True, outside=outside))
    inside = {tag: max(count, 1) for tag, count in counts.most_common(_PROBED) if tag.upper() != "O"}
    best, most, total = None, 0.0, max(sum(inside.values()), 1)
    for form in forms:
        share = sum(count for tag, count in inside.items() if form.mark(tag) is not None) / total
        if share > max(most, 1e-6):
            best, most = form, share
    return best, most


def _is_meant(form: TagForm, counts: Counter[str], share: float, tag_counts: TagCounts) -> bool:
    """Whether tags of which some do not have the form are meant to have it. One-letter tags are also parts of speech.

    Raises:
        UsageError: It is not certain.
    """
    if not form.separator:
        return share >= _TYPO
    if not any((form.mark(tag) or OUTSIDE)[0] in "BS" for tag in counts) or share < 1 - _TYPO:
        return False
    if share < _MOST:
        like = next(tag for tag in tag_counts.tags if form.mark(tag) not in (None, OUTSIDE))
        other = next(tag for tag in counts if form.mark(tag) is None)
        problem = f"{tag_counts.place(like)}: the tag {shorten(like)!r} looks like {form.scheme.upper()}"
        raise UsageError(f"{problem}, but most tags do not, such as {shorten(other)!r}", f"Choose: {_REMEDY}")
    return True


def _refuse(form: TagForm, wrong: list[str], counts: Counter[str], found: TagCounts) -> None:
    """Raise an error that names the first tag without the form. A tag of `labels` alone has no line."""
    first = next((tag for tag in found.tags if tag in wrong), wrong[0])
    fitting = next(tag for tag in counts if form.mark(tag) not in (None, OUTSIDE))
    others = f"; there are {len(wrong)} such tags: {join_names(wrong)}" if len(wrong) > 1 else ""
    problem = f"{found.place(first) or 'task.labels'}: the tag {shorten(first)!r} does not fit {_NAMES[form.scheme]}"
    raise UserError(f"{problem}, the scheme of others such as {shorten(fitting)!r}{others}", f"Correct it; {_REMEDY}")


def _by_order(form: TagForm, tag_counts: TagCounts, scheme: Scheme) -> TagForm:
    """Return the form with iob1 told from bio by the order of the tags, and warn of tags in an impossible order.

    Raises:
        UsageError: The order of the tags contradicts the scheme.
    """
    if form.scheme == "io":
        return form
    if form.strict:
        require_complete(form, tag_counts)
        return form
    bad, other = (_breaks(form, tag_counts, rules) for rules in ("bio", "iob1"))
    if (scheme == "iob1" and other and not bad) or (scheme == "bio" and bad and not other):
        fits, against = ("bio", other) if scheme == "iob1" else ("iob1", bad)
        place = tag_counts.first(against)
        raise UsageError(
            f'task.scheme is "{scheme}", but the tags are {_NAMES[fits]}: {place}', "Set that scheme, or none"
        )
    if bad and not other:
        return replace(form, scheme="iob1")
    if bad and scheme != "iob1":
        console.warn(f"an I without a B before it begins an entity, as in conlleval: {_places(tag_counts, bad)}")
    return replace(form, scheme=scheme or "bio")


def _are_broken(form: TagForm, tag_counts: TagCounts) -> bool:
    """Whether many of the entities of a strict scheme are incomplete."""
    begun = sum(count for pair, count in tag_counts.pairs.items() if (_marks(form, pair)[1][0]) in "BS")
    return sum(tag_counts.pairs[pair] for pair in _breaks(form, tag_counts, "strict")) > (1 - _TYPO) * begun


def _marks(form: TagForm, pair: _Pair) -> tuple[TagMark, TagMark]:
    """Return the marks of two tags that follow each other. The ends of a sentence are outside of entities."""
    before, after = ((None if tag is None else form.mark(tag)) or OUTSIDE for tag in pair)
    return before, after


def _breaks(form: TagForm, tag_counts: TagCounts, rules: Literal["bio", "iob1", "strict"]) -> set[_Pair]:
    """Return the pairs of tags that cannot follow each other."""
    bad = set()
    for pair in tag_counts.pairs:
        before, after = _marks(form, pair)
        same = before[1] == after[1] and before[0] != "O"
        goes_on = after[0] in "IE"
        if rules == "bio":
            is_bad = after[0] == "I" and not same
        elif rules == "iob1":
            is_bad = after[0] == "B" and not same
        else:
            is_bad = goes_on != (before[0] in "BI") or (goes_on and not same)
        if is_bad:
            bad.add(pair)
    return bad
