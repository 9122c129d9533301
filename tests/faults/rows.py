"""Which rows of the training text each rank computes, in every attempt (a start of all ranks together).

Names of attempts sort as they began. The file ATTEMPT-RANK.rows has a line for each row, from just before the rank computes
it: step, epoch, step of the epoch, number of the row, SHA-256 of all its arrays. A micro-batch has to be one row.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertie.batches.loader import Step
    from bertie.training.distributed import Ranks


def record(folder: Path, now: Callable[[], float] = time.time) -> None:
    """Record the rows of this process from now on. now: a clock that no test has changed."""
    from bertie.training import trainer

    train_steps = trainer.train_steps
    folder.mkdir(parents=True, exist_ok=True)

    def patched(
        model: Any, stream: Iterable[Step], optimizer: Any, schedule: Any, settings: Any, first: int, ranks: Ranks
    ) -> Iterator[Any]:
        attempt = ranks.broadcast(f"{int(1e6 * now())}")
        path = folder / f"{attempt}-{ranks.rank}.rows"
        return train_steps(model, _recorded(stream, first, path), optimizer, schedule, settings, first, ranks)

    trainer.train_steps = patched


def _recorded(stream: Iterable[Step], first: int, path: Path) -> Iterator[Step]:
    with open(path, "a") as file:
        for step, work in enumerate(stream, first):
            at = work.position
            lines = [[step, at.epoch, at.step, row, found] for row, found in _hashes(work).items()]
            file.write("".join(json.dumps(line) + "\n" for line in lines))
            file.flush()
            yield work


def _hashes(work: Step) -> dict[int, str]:
    """Of each micro-batch, by the number of its row in the step."""
    from bertie.training.records import batch_arrays

    found: dict[int, Any] = {}
    for name, array in sorted(batch_arrays(work).items()):
        number, _, what = name.partition(".")
        line = f"{what} {array.dtype} {array.shape} ".encode() + array.tobytes()
        found.setdefault(int(number), hashlib.sha256()).update(line)
    return {number: digest.hexdigest() for number, digest in found.items()}


@dataclass
class Attempt:
    """The rows that the ranks of one attempt were given to compute."""

    first: int
    """Its first step, from 0: as many steps were done when it began."""
    rows: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict[int, list[tuple[Any, ...]]])
    """Of each step: (row, epoch, step of the epoch, hash), sorted."""


def attempts(folder: Path) -> list[Attempt]:
    """The attempts that began a step, in order."""
    found: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("*.rows")):
        found.setdefault(path.stem.split("-")[0], []).extend(map(json.loads, whole_lines(path)))
    result = []
    for _, lines in sorted(found.items()):
        if lines:
            attempt = Attempt(min(line[0] for line in lines))
            for step, epoch, epoch_step, row, digest in lines:
                attempt.rows.setdefault(step, []).append((row, epoch, epoch_step, digest))
            attempt.rows = {step: sorted(rows) for step, rows in sorted(attempt.rows.items())}
            result.append(attempt)
    return result


def whole_lines(path: Path) -> list[str]:
    """The lines of a file, without one that a kill has torn."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def steps_begun(folder: Path, known: set[str]) -> int:
    """How many steps the ranks have begun in an attempt whose name is not known."""
    for path in folder.glob("*.rows"):
        if path.stem.split("-")[0] not in known:
            lines = whole_lines(path)
            return json.loads(lines[-1])[0] - json.loads(lines[0])[0] + 1 if lines else 0
    return 0


def wrong_rows(folder: Path, alone: Path) -> list[str]:
    """What differs from the rows of one process: of each step that counts, each row has to be computed once, as there.

    Of an attempt, the steps before the first one of the next attempt count. The others are those that a kill undid: they
    may lack rows.
    """
    [expected], found = attempts(alone), attempts(folder)
    ends = [*(attempt.first for attempt in found[1:]), len(expected.rows)]
    wrong, done = [], 0
    for number, (attempt, end) in enumerate(zip(found, ends, strict=True)):
        if attempt.first > done:
            wrong.append(f"attempt {number} begins after {attempt.first} steps, and {done} were done")
        done = max(attempt.rows) + 1
        for step in range(attempt.first, end):
            if attempt.rows.get(step) != expected.rows[step]:
                wrong.append(f"attempt {number} has other rows in step {step}")
        for step in range(end, done):
            if not set(attempt.rows.get(step, ())) <= set(expected.rows.get(step, ())):
                wrong.append(f"attempt {number} has another row in step {step}, which a kill undid")
    return wrong if found else ["there are no rows"]
