"""Compare what two programs compute from the same inputs: a list of probes, and one function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import storage
from bertie.base.console import plural
from bertie.checkpoints.find import TASK_FILE
from bertie.predict.engines.graph import quietly

TOLERANCE = 1e-4
"""Largest difference of numbers in fp32, relative to the largest value: two programs add them up in different orders."""
SHOWN = 16
"""Items that are shown of a list."""


@dataclass(frozen=True, eq=False)
class Probe:
    """Results of bertie, and how another program computes them from the same inputs."""

    what: str
    """Name of the comparison, for people: "vectors of encode_query"."""
    inputs: Many[Any]
    """Texts, pairs, or other inputs."""
    ours: Many[Any]
    """bertie's result for each input: an array, or values of JSON. Arrays and fractional numbers may differ a little."""
    theirs: Callable[[], Many[Any]]
    """Computes the same with the other program."""
    tolerance: float = TOLERANCE
    """Largest difference that counts as equal, relative to the largest number. 0: the results must be equal."""
    by_design: str = ""
    """Why the programs may differ. Empty: they may not."""


def standardized(folder: Path) -> str:
    """Return why other libraries compute other numbers from a folder than bertie. Empty: they do not."""
    path = folder / TASK_FILE
    scaled = path.is_file() and storage.read_json(path).get("number_scale", {}).get("mean")
    return "the folder of a run gives standardized numbers: `bertie convert` gives the user's scale" if scaled else ""


@dataclass(frozen=True)
class Difference:
    """The input for which two programs differ most, and what they give."""

    text: str
    ours: str
    theirs: str


@dataclass(frozen=True)
class Compared:
    """A comparison with another program, and how far the results differ."""

    what: str
    """Name of the comparison, for people."""
    cases: int
    """Number of inputs that were compared."""
    difference: float
    """Largest difference: of numbers, relative to the largest one; with the tolerance 0, the number of inputs that differ."""
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
        distance = f"{self.difference:.0f} differ" if exact else f"{self.difference:.1e}, at most {self.tolerance:.0e}"
        lines = [f"{self.verdict:10} {self.what}: {plural(self.cases, 'input')}, {distance} ({self.reason})"]
        if self.example is not None:
            lines += [f"{'':10} {name:7} {value}" for name, value in asdict(self.example).items()]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the result for `--json`. A difference that is no number, such as one of shapes, is null."""
        difference = self.difference if np.isfinite(self.difference) else None
        return asdict(self) | {"difference": difference, "verdict": self.verdict}


def run(probes: Iterable[Probe | Compared]) -> list[Compared]:
    """Run probes, in order.

    Args:
        probes: The probes. A comparison that was not possible stands for itself.

    Returns:
        The results. If the other program failed, the comparison is among the results, and is wrong.
    """
    return [probe if isinstance(probe, Compared) else _run(probe) for probe in probes]


def _run(probe: Probe) -> Compared:
    try:
        with calling():
            theirs = probe.theirs()
    except OtherError as error:
        return not_done(probe.what, str(error))
    return compared(probe.what, probe.inputs, probe.ours, theirs, probe.tolerance, probe.by_design)


def wrong(comparisons: Iterable[Compared]) -> list[Compared]:
    """Return the comparisons that found a fault."""
    return [compared for compared in comparisons if compared.judged and not compared.equal]


def not_done(what: str, why: str, judged: bool = True) -> Compared:
    """Return the result of a comparison that was not possible. judged: whether this is a fault."""
    return Compared(what, 0, float("inf"), 0.0, shown(why), judged=judged)


def compared(
    what: str,
    inputs: Many[Any],
    ours: Many[Any],
    theirs: Many[Any],
    tolerance: float = TOLERANCE,
    by_design: str = "",
) -> Compared:
    """Compare results that were computed. Arguments as in `Probe`."""
    if len(ours) != len(theirs):
        return not_done(what, f"{len(ours)} results of bertie and {len(theirs)} of the other program")
    if tolerance == 0:
        different = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
        worst = min(different, key=lambda i: len(str(inputs[i])), default=None)
        difference, reason = float(len(different)), "equal or not"
    else:
        theirs_split = [_split(value) for value in theirs]
        scale = max((float(np.abs(numbers).max(initial=0.0)) for _, numbers in theirs_split), default=0.0) or 1.0
        distances = [_distance(_split(a), b) / scale for a, b in zip(ours, theirs_split, strict=True)]
        difference, reason = max(distances, default=0.0), "fp32 in another order, relative to the largest value"
        worst = None if difference <= tolerance else distances.index(difference)
    example = None if worst is None else Difference(shown(inputs[worst]), *_example(ours[worst], theirs[worst]))
    return Compared(what, len(inputs), difference, tolerance, by_design or reason, example, not by_design)


def _split(value: Any) -> tuple[list[Any], np.ndarray]:
    """Return the parts of a result that must be equal, such as names, and its fractional numbers, float64."""
    if isinstance(value, np.ndarray):
        return [], value.astype(np.float64).ravel()
    names, numbers = list[Any](), list[float]()
    for leaf in _leaves(value):
        (numbers if isinstance(leaf, float) else names).append(leaf)
    return names, np.array(numbers)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the keys and values of a JSON value."""
    if isinstance(value, dict):
        value = value.items()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def _distance(ours: tuple[list[Any], np.ndarray], theirs: tuple[list[Any], np.ndarray]) -> float:
    """Return the largest difference of two results. Infinity: their names or sizes differ, or a number is not finite."""
    if ours[0] != theirs[0] or len(ours[1]) != len(theirs[1]):
        return float("inf")
    return float(np.nan_to_num(np.abs(ours[1] - theirs[1]), nan=np.inf).max(initial=0.0))


def _example(ours: Any, theirs: Any) -> tuple[str, str]:
    """Return for people where two results differ first, or most if they are numbers."""
    (names, numbers), (other_names, other_numbers) = _split(ours), _split(theirs)
    if names != other_names:
        return _ends(ours, theirs) if isinstance(ours, list) and isinstance(theirs, list) else _ends(names, other_names)
    if len(numbers) != len(other_numbers):
        return f"{plural(len(numbers), 'number')}", f"{plural(len(other_numbers), 'number')}"
    place = int(np.abs(numbers - other_numbers).argmax())
    of = f" (number {place + 1} of {len(numbers)})" if len(numbers) > 1 else ""
    return f"{numbers[place]:.6g}{of}", f"{other_numbers[place]:.6g}"


def _ends(ours: list[Any], theirs: list[Any]) -> tuple[str, str]:
    """Return two lists for people, from a little before the first difference. "… " stands for what is left out."""
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    start = max(0, same - 3)
    ends = (" ".join(map(str, items[start : start + SHOWN])) for items in (ours, theirs))
    first, second = ("… " * bool(start) + shown(end) for end in ends)
    return first, second


def shown(value: Any, limit: int = 160) -> str:
    """Return a value for people, on one line and not too long."""
    text = value if isinstance(value, str) else str(value)
    return ascii(text)[1:-1][:limit] if not text.isprintable() else text[:limit]


class OtherError(Exception):
    """The other program failed. The message is one line."""


@contextmanager
def calling() -> Iterator[None]:
    """Call another program: hide what it prints, and raise `OtherError` for whatever it raises."""
    with quietly():
        try:
            yield
        except OtherError:
            raise
        except Exception as error:  # it may raise anything
            raise OtherError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from error
