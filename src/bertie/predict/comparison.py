"""What a comparison with another program found, and the texts that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertie.console import plural
from bertie.predict.engines.graph import quietly
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import special_tokens

TOLERANCE = 1e-4
"""Largest difference of numbers in fp32, relative to the largest value: two programs add them up in different orders."""
SHOWN_TOKENS = 20
"""Added tokens of a vocabulary that are written into a text."""
TEXTS = (
    "The court, as Smith (2004) has shown, didn't rule on it for the first time.",
    "Ein Märchen über Zürich: Straße, Größe und naïve Café-Besucher im Jahr 1899.",
    "İstanbul'da IŞIK, ﬁrst ﬂight; Ωmega ſtraße ǅungla",
    "Η δίκη άρχισε στις εννέα το πρωί και ο μάρτυρας απάντησε.",
    "Она не знает ответа, Ёлка й й Й.",
    "最高法院昨天作出了判决。東京の夏は暑いです。カタカナ ｱｲｳ ＡＢＣ１２３",
    "한국어는 띄어쓰기를 합니다. 각",
    "उसने कहा कि यह किताब अच्छी है। क्षत्रिय",
    "ผู้พิพากษาอ่านหนังสือเล่มใหม่ทุกวัน ກາສາລາວ",
    "هذا كتابٌ جديد، ولا أعرفُ كاتبَه. שָׁלוֹם עולם",
    "cafe\u0301 na\u0308ive A\u030a \u1e9b\u0323 \u00c5 \u212b",
    "I :( 5 stars, would NOT buy again!!! http://example.org/a?b=c#d #fail @you 😂👩\u200d👩\u200d👧🏽 🇬🇷",
    "CC(=O)OC1=CC=CC=C1C(=O)O and N-acetyl-p-aminophenol, 3.14e-10 1,000,000",
    "``quotes'' \u201cof\u201d \u2018many\u2019 «kinds» … — – - \u00ad soft\u00adhyphen",
    "  two  blanks \t a tab\n\na line\r\nbreak\u00a0no-break\u2003em\u3000wide \u2028line ",
    "zero\u200bwidth \ufeffmark \u202eright-to-left\u202c \x00 \x07 \x7f \ufffd \ue000",
    "<s>struck</s> <b>bold</b> <pad> <unk> &amp; [brackets] ##pieces ▁under Ġspace </w>",
    "a" * 150 + " " + "文" * 60,
    "_snake_case__ camelCaseWord x=y+z; if(a[0]!='b'){c->d++;}",
    "",
    " ",
    ".",
)
"""Ordinary and hostile texts in many scripts."""
ORDINARY = slice(0, 9)
"""Those of them that are sentences."""
LONG = " ".join(TEXTS[ORDINARY]) * 4


@dataclass(frozen=True)
class ComparedTexts:
    """What is compared for the vocabulary of a model."""

    plain: list[str]
    """Texts that every program should read in the same way."""
    with_roles: list[str]
    """Texts in which a special token such as [SEP] is written, which is text in bertie."""
    pairs: list[tuple[str, str]]
    """Pairs of plain texts, of which at most one is too long."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_length: int) -> ComparedTexts:
        """Return the texts for a tokenizer: the fixed ones, and those with its own tokens.

        Args:
            tokenizer: The tokenizer.
            max_length: Tokens in the longest sequence.
        """
        roles = tokenizer.special.names().values()
        added = [token for token in tokenizer.user_tokens if token.strip()][:SHOWN_TOKENS]
        own = [f"the {token} acme{token}b, {token.lower()} and {token.upper()}." for token in added]
        found = [*TEXTS, LONG, *own, *[" ".join(added)] * bool(added)]
        plain = [text for text in found if not any(role in text for role in roles)]
        with_roles = [text for text in found if text not in plain]
        with_roles += [f"a {role} b{role}c" for role in dict.fromkeys(roles)]
        sentences = [text for text in plain if text in TEXTS[ORDINARY]]
        pairs = list(zip(sentences, [*sentences[1:], *sentences[:1]], strict=True))
        pairs += [("short", LONG), (LONG, "short")]
        half = (max_length - special_tokens(tokenizer, 2)) / 2
        return cls(plain, with_roles, [pair for pair in pairs if min(map(len, tokenizer.encode([*pair]))) <= half])


@dataclass(frozen=True)
class Difference:
    """The input for which two programs differ most, and what they give."""

    text: str
    ours: str
    theirs: str


@dataclass(frozen=True)
class Compared:
    """What was compared with another program, and how far they differ."""

    what: str
    """What was compared, for people: "vectors of encode_query"."""
    cases: int
    """Number of texts or pairs that were compared."""
    difference: float
    """Largest difference: of numbers, relative to the largest one; of tokens or names, the number of texts that differ."""
    tolerance: float
    """Largest difference that counts as equal."""
    reason: str
    """Why this tolerance; if the comparison was not possible or is not judged, why."""
    example: Difference | None = None
    """The largest difference, if they differ."""
    judged: bool = True
    """Whether a difference is a fault. False: the programs differ by design."""

    @property
    def equal(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= self.tolerance

    @property
    def verdict(self) -> str:
        """The result in words: "equal", "DIFFERENT", "by design"; "FAILED" or "not done" if nothing was compared."""
        if not self.cases and not self.equal:
            return "FAILED" if self.judged else "not done"
        return "equal" if self.equal else "DIFFERENT" if self.judged else "by design"

    def lines(self) -> list[str]:
        """Return the result as lines for people."""
        if not self.cases and not self.equal:
            return [f"{self.verdict:10} {self.what}: {self.reason}"]
        exact = self.tolerance == 0
        found = f"{self.difference:.0f} differ" if exact else f"{self.difference:.1e}, at most {self.tolerance:.0e}"
        lines = [f"{self.verdict:10} {self.what}: {plural(self.cases, 'input')}, {found} ({self.reason})"]
        if self.example is not None:
            lines += [f"{'':10} {name:7} {value}" for name, value in asdict(self.example).items()]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the result for `--json`. A difference that is no number, such as one of shapes, is null."""
        difference = self.difference if np.isfinite(self.difference) else None
        return asdict(self) | {"difference": difference, "verdict": self.verdict}


def shown(value: Any, limit: int = 160) -> str:
    """Return a value for people, on one line and not too long."""
    text = value if isinstance(value, str) else str(value)
    return ascii(text)[1:-1][:limit] if not text.isprintable() else text[:limit]


def equal_or_not(
    what: str,
    texts: Many[Any],
    ours: Many[Any],
    theirs: Many[Any],
    show: Callable[[Any], str] = shown,
    by_design: str = "",
) -> Compared:
    """Compare values that are equal or not, such as ids.

    Args:
        what: What they are, for people.
        texts: The inputs.
        ours: bertie's value for each.
        theirs: That of the other program.
        show: Returns a value for people.
        by_design: Why they may differ. Empty: they may not.
    """
    different = [number for number, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    example = None
    if different:
        first = min(different, key=lambda number: len(str(texts[number])))
        example = Difference(
            shown(texts[first]), *(start + show(value) for start, value in _ends(ours[first], theirs[first]))
        )
    reason = by_design or "equal or not"
    return Compared(what, len(texts), float(len(different)), 0.0, reason, example, not by_design)


def _ends(ours: Any, theirs: Any) -> list[tuple[str, Any]]:
    """Return two values; of lists, the ends from a little before the first difference. "… " stands for what is left out."""
    if not isinstance(ours, list) or not isinstance(theirs, list):
        return [("", ours), ("", theirs)]
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    start = max(0, same - 3)
    return [("… " * bool(start), ours[start:]), ("… " * bool(start), theirs[start:])]


def close(
    what: str, texts: Many[Any], ours: Many[np.ndarray], theirs: Many[np.ndarray], by_design: str = ""
) -> Compared:
    """Compare arrays of numbers. Arguments as in `equal_or_not`."""
    scale = max((float(np.abs(each).max()) for each in theirs if each.size), default=0.0) or 1.0
    found = [_distance(a, b) / scale for a, b in zip(ours, theirs, strict=True)]
    worst = max(range(len(found)), key=found.__getitem__, default=None)
    difference = 0.0 if worst is None else found[worst]
    example = None
    if worst is not None and not difference <= TOLERANCE:
        example = Difference(shown(texts[worst]), *_most_different(ours[worst], theirs[worst]))
    reason = by_design or "fp32 in another order, relative to the largest value"
    return Compared(what, len(texts), difference, TOLERANCE, reason, example, not by_design)


def _distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference of two arrays. Infinity: they have other sizes, or a number is not finite."""
    if ours.size != theirs.size:
        return float("inf")
    difference = np.abs(ours.astype(np.float64).ravel() - theirs.astype(np.float64).ravel())
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))


def _most_different(ours: np.ndarray, theirs: np.ndarray) -> tuple[str, str]:
    if ours.size != theirs.size:
        return f"shape {list(ours.shape)}", f"shape {list(theirs.shape)}"
    place = int(np.abs(ours.ravel() - theirs.ravel()).argmax())
    of = f" (number {place + 1} of {ours.size})" if ours.size > 1 else ""
    return f"{ours.ravel()[place]:.6g}{of}", f"{theirs.ravel()[place]:.6g}"


def not_done(what: str, why: str, judged: bool = True) -> Compared:
    """Return what a comparison that was not possible says. judged: whether this is a fault."""
    return Compared(what, 0, float("inf"), 0.0, shown(why), judged=judged)


class OtherError(Exception):
    """The other program failed. The message is one line."""


@contextmanager
def calling() -> Iterator[None]:
    """Call another program: hide what it prints, and raise `OtherError` for whatever it raises."""
    with quietly():
        try:
            yield
        except Exception as error:  # it may raise anything
            raise OtherError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from error


def attempt(what: str, compute: Callable[[], list[Compared]]) -> list[Compared]:
    """Return comparisons, or that they were not possible because the other program failed."""
    try:
        return compute()
    except OtherError as error:
        return [not_done(what, str(error))]
