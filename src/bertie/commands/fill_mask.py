"""bertie fill-mask"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tyro.conf import Positional

from bertie import console
from bertie.commands.common import Output, OutputFlags
from bertie.predict.predictor import load
from bertie.text.special_tokens import printable


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
    predictor = load(args.run, language=args.language)
    predictions = predictor.fill_mask(args.text, args.top_k)
    if predictor.model.generator is not None:
        console.info("predictions of the generator, because an ELECTRA itself predicts no tokens")
    for position in predictions:
        console.info("  ".join(f"{printable(token.token)} {token.probability:.3f}" for token in position))
    return {"masks": [[asdict(token) for token in position] for position in predictions]}
