"""bertie fill-mask"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bertie.base import console
from bertie.base.errors import UsageError
from bertie.commands.flags import JsonResult, Positional
from bertie.predict.fill_mask import Filling, WordSearch
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.predict.token_model import tell_generator
from bertie.predict.word_search import Order
from bertie.tasks.predictions import rounded
from bertie.tokenizers.special_tokens import printable


@dataclass(frozen=True)
class Args:
    """Predict the tokens at [MASK]: each alone or all together, whole words, or given candidates.

    A word of several pieces is filled in piece by piece, with one mask for each piece that is still missing. Its probability
    is the product of the probabilities of its pieces. The masks tell the model how many pieces there are, so it is the
    probability among the words with this number of pieces.
    """

    run: Positional[str]
    """A pre-trained run, or a model's folder or hub id."""
    text: Positional[str]
    """Text with at least one [MASK], or <mask> for a byte-level BPE vocabulary."""
    top_k: int = 5
    """Number of predictions: per [MASK], or with --joint in total. Of --candidates without --joint, all are shown."""
    whole_words: bool = False
    """Predict words of 1 to --max-pieces pieces, in place of single pieces."""
    max_pieces: int | None = None
    """Maximum number of pieces of a word (default: 3). Needs --whole-words."""
    joint: bool = False
    """Predict all masks together, in place of each one while the others remain masks."""
    candidates: tuple[str, ...] = ()
    """Score only these words, and scale their probabilities to the sum 1. They may have several pieces."""
    order: Order | None = None
    """Order in which pieces are filled in (default: left-to-right). confidence: first the one whose best entry is most
    probable. Needs --whole-words or --joint."""
    beam: int | None = None
    """Fillings that the beam search keeps after each piece (default: 20). Needs --whole-words or --joint."""
    language: str = ""
    """Language of the text, for a model with language embeddings; empty: the first one that the model knows."""


def run(args: Args) -> JsonResult:
    searches = (args.whole_words or args.joint) and not args.candidates
    for idle, is_idle in {
        "--whole-words has no effect with --candidates": args.whole_words and args.candidates,
        "--max-pieces has no effect without --whole-words": args.max_pieces is not None and not args.whole_words,
        "--order has no effect without a search (--whole-words or --joint)": args.order is not None and not searches,
        "--beam has no effect without a search (--whole-words or --joint)": args.beam is not None and not searches,
    }.items():
        if is_idle:
            raise UsageError(f"{idle}: remove it (see bertie fill-mask --help)")
    predictor = load(args.run, language=args.language)
    result = _result(predictor, args)
    tell_generator(predictor.model)
    return rounded(result)


def _result(predictor: Predictor, args: Args) -> JsonResult:
    if args.candidates:
        groups = predictor.score_candidates(args.text, args.candidates, args.joint)
        return _joint(groups[0][: args.top_k]) if args.joint else _single(groups)
    pieces = (3 if args.max_pieces is None else args.max_pieces) if args.whole_words else 1
    beam = 20 if args.beam is None else args.beam
    how = WordSearch(args.top_k, pieces, args.whole_words, args.order or "left-to-right", beam)
    if args.joint:
        return _joint(predictor.fill_jointly(args.text, how))
    if args.whole_words:
        return _single(predictor.fill_words(args.text, how))
    predictions = predictor.fill_mask(args.text, args.top_k)
    for position in predictions:
        console.result("  ".join(f"{printable(token.token)} {token.probability:.3f}" for token in position))
    return {"masks": [[asdict(token) for token in position] for position in predictions]}


def _single(groups: list[list[Filling]]) -> JsonResult:
    """Print the fillings of each mask on a line, and return them for JSON."""
    for group in groups:
        console.result("  ".join(f"{printable(filling.words[0])} {_number(filling)}" for filling in group))
    return {
        "masks": [[{"word": f.words[0], "pieces": list(f.pieces[0]), **_scores(f)} for f in group] for group in groups]
    }


def _joint(fillings: list[Filling]) -> JsonResult:
    """Print each filling of all masks on a line, and return them for JSON."""
    for filling in fillings:
        console.result(f"{' … '.join(map(printable, filling.words))}  {_number(filling)}")
    return {"fillings": [{"words": list(f.words), "pieces": list(map(list, f.pieces)), **_scores(f)} for f in fillings]}


def _number(filling: Filling) -> str:
    return f"{filling.probability if filling.share is None else filling.share:.3g}"


def _scores(filling: Filling) -> dict[str, float]:
    share = {} if filling.share is None else {"share": filling.share}
    return {"probability": filling.probability, "log_probability": filling.log_probability, **share}
