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
    """Predict the tokens at [MASK]."""

    run: Positional[str]
    """A pre-trained run, or a model's folder or hub id."""
    text: Positional[str]
    """Text with at least one [MASK], or <mask> for a byte-level BPE vocabulary."""
    top_k: int = 5
    """Number of predictions per [MASK]."""
    language: str = ""
    """Language of the text, for a model with language embeddings; empty: the first one that the model knows."""
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    predictions = load(args.run, language=args.language).fill_mask(args.text, args.top_k)
    for position in predictions:
        console.info("  ".join(f"{token.token} {token.probability:.3f}" for token in position))
    return {"masks": [[asdict(token) for token in position] for position in predictions]}
