"""bertie next-sentence"""

from __future__ import annotations

from dataclasses import dataclass

from bertie.base import console
from bertie.commands.flags import JsonResult, Positional
from bertie.predict.load import load
from bertie.predict.sentence_pairs import pair_objective

MEANINGS = {
    "next sentence": "probability that B follows A, and is not from another document",
    "sentence order": "probability that B follows A, and A does not follow B (sentence order prediction: the model was not "
    "trained on unrelated sentences)",
}


@dataclass(frozen=True)
class Args:
    """Predict whether text B follows text A, with the head for next sentence prediction."""

    run: Positional[str]
    """A pre-trained run with the objective nsp, or a model's folder or hub id."""
    a: Positional[str]
    """The first text."""
    b: Positional[str]
    """The second text."""


def run(args: Args) -> JsonResult:
    predictor = load(args.run)
    [probability] = predictor.next_sentence([(args.a, args.b)]).tolist()
    objective = pair_objective(predictor.folder)
    console.result(f"{probability:.4f}  {MEANINGS[objective]}")
    return {"objective": objective, "probability": probability}
