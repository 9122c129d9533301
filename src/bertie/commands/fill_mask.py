"""bertie fill-mask"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tyro.conf import Positional

from bertie import console
from bertie.commands.common import Output, OutputFlags
from bertie.predict.predictor import load


@dataclass(frozen=True)
class Args:
    """Guess the words at [MASK]."""

    run: Positional[str]
    """A pre-trained run."""
    text: Positional[str]
    """A text with one [MASK] or more."""
    top_k: int = 5
    """Guesses for each."""
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    guesses = load(args.run).fill_mask(args.text, args.top_k)
    for place in guesses:
        console.info("  ".join(f"{guess.token} {guess.probability:.3f}" for guess in place))
    return {"masks": [[asdict(guess) for guess in place] for place in guesses]}
