"""Verify a model folder: what it is, what bertie and other libraries do with it, and whether they give the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie import console, runtime
from bertie.checkpoints.checkpoint import Checkpoint
from bertie.checkpoints.families import family_of
from bertie.checkpoints.find import find_model_folder
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.read import verify as require_unaltered
from bertie.errors import UsageError
from bertie.predict.compare_libraries import Library, compare, require, wrong
from bertie.predict.comparison import Compared
from bertie.predict.describe import Facts, describe
from bertie.predict.load import load


@dataclass(frozen=True)
class Verification:
    """What `verify` found."""

    folder: Path
    """The folder with the model."""
    facts: dict[str, Facts]
    """What it is, in sections: facts by name."""
    warnings: tuple[str, ...]
    """What bertie warns of when it loads the model, such as unknown keys."""
    against: Library | None
    """The library that it was compared with."""
    comparisons: tuple[Compared, ...]
    """What was compared; empty without a library."""

    @property
    def problem(self) -> str:
        """What is wrong, on one line. Empty: nothing."""
        found = wrong(list(self.comparisons))
        if not found:
            return ""
        named = "; ".join(each.what if each.cases else f"{each.what} failed ({each.reason[:100]})" for each in found)
        return (
            f"{self.folder} differs from {self.against} in {len(found)} of {len(self.comparisons)} comparisons: {named}"
        )

    def lines(self) -> list[str]:
        """Return the result as lines for people."""
        lines = [str(self.folder)]
        for title, facts in self.facts.items():
            lines += [title, *(f"  {name:24} {value}" for name, value in facts.items())]
        lines += [f"warning: {text}" for text in self.warnings]
        if self.against:
            lines += [f"compared with {self.against}"]
        return lines + [f"  {line}" for each in self.comparisons for line in each.lines()]

    def to_json(self) -> dict[str, Any]:
        """Return the result for `--json`."""
        compared = [each.to_json() for each in self.comparisons]
        values = {"folder": str(self.folder), "facts": self.facts, "warnings": list(self.warnings)}
        return values | {"against": self.against, "comparisons": compared, "right": not self.problem}


def verify(source: str | Path, against: Library | None = None, *, threads: int = 0) -> Verification:
    """Describe a model folder, and compare the model with what another library computes from it.

    Args:
        source: As in `load`.
        against: The library. None: the model is only loaded and described.
        threads: Processor threads; 0: all that this process may use.

    Raises:
        UsageError: There is no model at `source`, or the library cannot be used or does not read its format.
        UserError: bertie refuses the model, or it is damaged.
    """
    if against is not None:
        require(against)
    runtime.use_threads(threads)
    if against is not None and not find_model_folder(source).is_dir():
        raise UsageError(
            f"{against} reads no TensorFlow checkpoint: convert it first (bertie convert {source} OUT --to hf)"
        )
    with console.collected() as warnings:
        checkpoint = read_checkpoint(source)
        require_unaltered(checkpoint.folder, "others")
        _require_class(checkpoint, against)
        predictor = load(source, threads=threads, engine="plain")
        facts = describe(checkpoint, predictor)
        checkpoint = checkpoint.without_weights()
        found = compare(predictor, against) if against is not None else []
    return Verification(predictor.folder, facts, tuple(dict.fromkeys(warnings)), against, tuple(found))


def _require_class(checkpoint: Checkpoint, against: Library | None) -> None:
    """Raise UsageError if a library has no class for the encoder, so that there is nothing to compare."""
    if against is not None and not family_of(checkpoint.config).in_transformers:
        raise UsageError(
            f"{against} has no class for the structure of {checkpoint.folder} ({checkpoint.config.kind}), so there is nothing to "
            "compare: omit --against"
        )
