"""Verify a model folder: what it is, what bertie and other libraries do with it, and whether they give the same."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertie.base import console, runtime
from bertie.base.errors import UsageError
from bertie.checkpoints.families import family_of
from bertie.checkpoints.find import find_model_folder
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.read import verify as require_unaltered
from bertie.predict.convert import compare_sentence_transformers, compare_transformers
from bertie.predict.convert.comparison import Compared, run, wrong
from bertie.predict.describe import Facts, describe
from bertie.predict.engines.graph import quietly
from bertie.predict.load import load
from bertie.predict.predictor import Predictor

Library = Literal["transformers", "sentence-transformers"]
PROBES = {"transformers": compare_transformers.probes, "sentence-transformers": compare_sentence_transformers.probes}


@dataclass(frozen=True)
class Verification:
    """The result of `verify`."""

    folder: Path
    """The folder with the model."""
    facts: dict[str, Facts]
    """Facts of the model by name, in sections."""
    warnings: tuple[str, ...]
    """The warnings when bertie loads the model, such as of unknown keys."""
    against: Library | None
    """The library that it was compared with."""
    comparisons: tuple[Compared, ...]
    """The comparisons; empty without a library."""

    @property
    def problem(self) -> str:
        """The differences, on one line. Empty: none."""
        faults = wrong(self.comparisons)
        named = "; ".join(f"{it.what}{'' if it.cases else f' failed ({it.reason[:100]})'}" for it in faults)
        where = f"{self.folder} differs from {self.against} in {len(faults)} of {len(self.comparisons)} comparisons"
        return f"{where}: {named}" if faults else ""

    def lines(self) -> list[str]:
        """Return the result as lines for people."""
        lines = [str(self.folder)]
        for title, facts in self.facts.items():
            lines += [title, *(f"  {name:24} {value}" for name, value in facts.items())]
        lines += [f"warning: {text}" for text in self.warnings]
        if self.against:
            lines += [f"compared with {self.against}"]
        return lines + [f"  {line}" for comparison in self.comparisons for line in comparison.lines()]

    def to_json(self) -> dict[str, Any]:
        """Return the result for `--json`."""
        compared = [comparison.to_json() for comparison in self.comparisons]
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
    runtime.use_threads(threads)
    if against is not None:
        if reason := absent(against):
            raise UsageError(f"{against}: {reason}: pip install {against}")
        if not find_model_folder(source).is_dir():
            raise UsageError(f"{against} reads no TensorFlow checkpoint: convert it first (bertie convert --to hf)")
    with console.collected() as warnings:
        checkpoint = read_checkpoint(source)
        require_unaltered(checkpoint.folder, "others")
        if against is not None and not family_of(checkpoint.config).in_transformers:
            kind = f"{checkpoint.folder} ({checkpoint.config.kind})"
            raise UsageError(f"{against} has no class for the structure of {kind}: omit --against")
        predictor = load(source, threads=threads, engine="plain")
        facts = describe(checkpoint, predictor)
        checkpoint = checkpoint.without_weights()
        compared = compare(predictor, against) if against is not None else []
    return Verification(predictor.folder, facts, tuple(dict.fromkeys(warnings)), against, tuple(compared))


def absent(library: Library) -> str:
    """Return why a library cannot be used: its import fails. Empty: it can."""
    try:
        with quietly():
            importlib.import_module(library.replace("-", "_"))
    except Exception as error:  # what the modules of others raise while they are imported
        return f"its import fails ({type(error).__name__}: {' '.join(str(error).split())[:150]})"
    return ""


def compare(predictor: Predictor, library: Library, folder: Path | None = None) -> list[Compared]:
    """Compare what users call: tokens of ordinary and hostile texts, vectors, predictions.

    Both compute in fp32 on the CPU. The library executes no code of the folder and downloads nothing.

    Args:
        predictor: The model. It is moved to the CPU.
        library: The other library, which is installed.
        folder: What the library loads. None: the model's folder.

    Returns:
        The comparisons, in order. One that was not possible, such as with a folder that the library does not load, is
        among them, and is wrong.

    Raises:
        UserError: The model computes NaN or infinity.
    """
    predictor.model.cpu()
    return run(PROBES[library](predictor, folder or predictor.folder))
