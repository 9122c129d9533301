"""Find the scheme of tags in all tags of labeled examples, or ask for it (`data/tag_form.py` has the schemes)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cache
from typing import Literal

from bertie import console
from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import join_names, shorten
from bertie.tasks.data.tag_form import OUTSIDE, Scheme, TagForm, TagMark
from bertie.tasks.data.tagged import TaggedSentence

_FOUND: tuple[Scheme, ...] = (
    "bio",
    "iobes",
    "bilou",
    "bmes",
    "biewo",
    "bmewo",
)  # by letters alone; the order of the tags tells iob1
_NAMES = {"bio": "BIO (IOB2)", "iob1": "IOB1", "io": "IO", "iobes": "IOBES", "bilou": "BILOU", "bmes": "BMES"}
_NAMES |= {"biewo": "BIEWO", "bmewo": "BMEWO"}
_WAYS = (
    *((mark, last) for last in (False, True) for mark in "-_:/"),
    ("", False),
)  # separator, whether the letter is last
_TYPO = 0.9  # share of the words with tags above which bare letters are a scheme, and the others are mistakes
_PROBED = 2048  # the most frequent tags decide
_MOST = 0.5  # the same of letters beside a kind
_Pairs = Counter[tuple[str | None, str | None]]  # tags that follow each other; None: the ends of a sentence
_REMEDY = "--task.scheme names the scheme; with none, the metric is the accuracy of single tags"


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


def find_form(examples: Many[TaggedSentence], scheme: Scheme, labels: Iterable[str] = ()) -> TagForm | None:
    """Find how the tags of labeled examples mark entities, and say it in one line.

    Args:
        examples: The examples, all with tags.
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
    for example in examples:
        counts.update(example.tags or ())
    pairs = _pairs(examples)
    form, share = _best_form(counts, scheme)
    if form is not None and form.whole and (other := form_of(tuple(counts))) is not None:
        raise UsageError(f'task.scheme is "io", and the tags are {_NAMES[other.scheme]}: {join_names(counts)}')
    if form is not None and form.strict and not scheme and _are_broken(form, pairs):
        looser, most = _best_form(counts, "bio")  # E or S instead of I or B is a mistake
        form, share = (looser, most) if looser is not None and most >= _TYPO else (form, share)
    wrong = [tag for tag in counts if form is not None and form.mark(tag) is None]
    if form is None or (wrong and not scheme and not _is_meant(form, counts, share, examples)):
        if scheme:
            raise UsageError(f'task.scheme is "{scheme}", and no tag has its letters: {join_names(counts)}')
        remedy = "--task.scheme io takes equal tags in a row as one entity"
        console.info(f"tags: they mark no entities, so the metric is the accuracy of words ({remedy})")
        return None
    if wrong:
        _refuse(form, wrong, counts, examples)
    form = _by_order(form, pairs, scheme, examples)
    kinds = sorted({mark[1] for tag in counts if (mark := form.mark(tag)) is not None and mark != OUTSIDE})
    example = next(tag for tag in counts if form.mark(tag) not in (None, OUTSIDE))
    console.info(f"tags: {_NAMES[form.scheme]}, such as {shorten(example)}; kinds of entities: {join_names(kinds)}")
    return form


def require_complete(form: TagForm, examples: Many[TaggedSentence]) -> None:
    """Check the entities of labeled examples in a scheme in which they must be complete. Warns if some are not.

    Raises:
        UsageError: Many are not.
    """
    if not form.strict:
        return
    pairs = _pairs(examples)
    bad = _breaks(form, pairs, "strict")
    if _are_broken(form, pairs):
        raise UsageError(f"the order of the tags does not fit {_NAMES[form.scheme]}: {_first(bad, examples)}", _REMEDY)
    if bad:
        found = f"{console.plural(sum(pairs[pair] for pair in bad), 'place')}, first {_first(bad, examples)}"
        console.warn(f"tags that make no complete entity in {_NAMES[form.scheme]} count as none: {found}", once=True)


def _pairs(examples: Many[TaggedSentence]) -> _Pairs:
    pairs: _Pairs = Counter()
    for example in examples:
        tags = example.tags or ()
        pairs.update(zip((None, *tags), (*tags, None), strict=True))
    return pairs


def _best_form(counts: Counter[str], scheme: Scheme) -> tuple[TagForm | None, float]:
    """Return the form that most words have, and their share among the words with other tags than O."""
    schemes: tuple[Scheme, ...] = _FOUND if not scheme else () if scheme == "none" else (scheme,)
    outside = "o" if counts["o"] > counts["O"] or ("o" in counts and "O" not in counts) else "O"
    forms = [
        TagForm(each, *way, lower, outside=outside) for way in _WAYS for lower in (False, True) for each in schemes
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


def _is_meant(form: TagForm, counts: Counter[str], share: float, examples: Many[TaggedSentence]) -> bool:
    """Whether tags of which some do not have the form are meant to have it. One-letter tags are also parts of speech.

    Raises:
        UsageError: It is not certain.
    """
    if not form.separator:
        return share >= _TYPO
    if not any((form.mark(tag) or OUTSIDE)[0] in "BS" for tag in counts) or share < 1 - _TYPO:
        return False
    if share < _MOST:
        pairs = [(each.place(i), tag) for each in examples for i, tag in enumerate(each.tags or ())]
        place, like = next(pair for pair in pairs if form.mark(pair[1]) not in (None, OUTSIDE))
        other = next(tag for tag in counts if form.mark(tag) is None)
        name = _NAMES[form.scheme].partition(" ")[0]
        problem = (
            f"{place}: the tag {shorten(like)!r} looks like {name}, and most tags do not, such as {shorten(other)!r}"
        )
        words = sum(count for tag, count in counts.items() if tag != form.outside)
        raise UsageError(
            f"{problem}: {share * words:.0f} of {console.plural(words, 'word')} with tags", f"Choose: {_REMEDY}"
        )
    return True


def _refuse(form: TagForm, wrong: list[str], counts: Counter[str], examples: Many[TaggedSentence]) -> None:
    """Raise an error that names the first tag without the form. A tag of `labels` alone has no line."""
    place = next((each.place(i) for each in examples for i, tag in enumerate(each.tags or ()) if tag in wrong), "")
    first = next((tag for each in examples for tag in each.tags or () if tag in wrong), wrong[0])
    fitting = next(tag for tag in counts if form.mark(tag) not in (None, OUTSIDE))
    words = sum(count for tag, count in counts.items() if tag != form.outside)
    fit = words - sum(counts[tag] for tag in wrong)
    others = f"; there are {len(wrong)} such tags: {join_names(wrong)}" if len(wrong) > 1 else ""
    problem = (
        f"{place or 'task.labels'}: the tag {shorten(first)!r} does not fit {_NAMES[form.scheme]}, the scheme of {fit:,} "
        f"of {console.plural(words, 'word')} with other tags than {form.outside}, such as {shorten(fitting)!r}{others}"
    )
    raise UserError(problem, f"Correct it; {_REMEDY}")


def _by_order(
    form: TagForm,
    pairs: _Pairs,
    scheme: Scheme,
    examples: Many[TaggedSentence],
) -> TagForm:
    """Return the form with iob1 told from bio by the order of the tags, and warn of tags in an impossible order.

    Raises:
        UsageError: The order of the tags contradicts the scheme.
    """
    if form.scheme == "io":
        return form
    if form.strict:
        require_complete(form, examples)
        return form
    bad, other = (_breaks(form, pairs, rules) for rules in ("bio", "iob1"))
    if (scheme == "iob1" and other and not bad) or (scheme == "bio" and bad and not other):
        fits, against = ("bio", other) if scheme == "iob1" else ("iob1", bad)
        place = _first(against, examples)
        raise UsageError(f'task.scheme is "{scheme}", and the tags are {_NAMES[fits]}: {place}', "Name that, or none")
    if bad and not other:
        return replace(form, scheme="iob1")
    if bad and scheme != "iob1":
        found = f"{console.plural(sum(pairs[pair] for pair in bad), 'place')}, first {_first(bad, examples)}"
        console.warn(f"I without B before it begins an entity, as for conlleval: {found}")
    return replace(form, scheme=scheme or "bio")


def _are_broken(form: TagForm, pairs: _Pairs) -> bool:
    """Whether many of the entities of a strict scheme are incomplete."""
    begun = sum(count for pair, count in pairs.items() if (_marks(form, pair)[1][0]) in "BS")
    return sum(pairs[pair] for pair in _breaks(form, pairs, "strict")) > (1 - _TYPO) * begun


def _marks(form: TagForm, pair: tuple[str | None, str | None]) -> tuple[TagMark, TagMark]:
    """Return the marks of two tags that follow each other. The ends of a sentence are outside of entities."""
    before, after = ((None if tag is None else form.mark(tag)) or OUTSIDE for tag in pair)
    return before, after


def _breaks(
    form: TagForm, pairs: _Pairs, rules: Literal["bio", "iob1", "strict"]
) -> set[tuple[str | None, str | None]]:
    """Return the pairs of tags that cannot follow each other."""
    found = set()
    for pair in pairs:
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
            found.add(pair)
    return found


def _first(pairs: set[tuple[str | None, str | None]], examples: Many[TaggedSentence]) -> str:
    """Return the place of the first pair, with its tags."""
    for example in examples:
        tags = example.tags or ()
        for i, pair in enumerate(zip((None, *tags), (*tags, None), strict=True)):
            if pair in pairs:
                before, after = (repr(tag) for tag in pair)
                if pair[1] is None:
                    return f"{example.place(i - 1)}, {before} at the end of the sentence"
                return f"{example.place(i)}, {after} " + (
                    f"after {before}" if pair[0] else "at the start of the sentence"
                )
    raise ValueError("the pairs are those of other examples")
