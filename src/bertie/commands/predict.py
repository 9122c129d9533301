"""bertie predict"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base.errors import UsageError, raise_error
from bertie.commands.common import print_lines, require_one_input, require_stdout
from bertie.commands.evaluate import defaults as defaults
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
from bertie.predict.load import load
from bertie.predict.shared import shared
from bertie.tasks import AnyTask
from bertie.tasks.aggregation import Strategy
from bertie.tasks.predictions import prediction_to_json
from bertie.training.sharing import shared_work

SHARED = True


@dataclass(frozen=True)
class Args:
    """Predict with a fine-tuned model. Prints one JSON object per line, in input order."""

    run: Positional[str]
    """A fine-tuned run, or a fine-tuned model's folder or hub id."""
    text: Positional[list[str]]
    """Texts; each argument is one text, or with --one-example a part of the only example."""
    task: AnyTask
    one_example: bool = False
    """The texts are the parts of one example: a pair of texts, a question and its context, a context and its endings, or the
    words of a sentence."""
    input: Path | None = None
    """File with examples, of any size, in a format that `bertie finetune` reads; labels are not needed. -: stdin, one
    text per line; -.jsonl, -.csv or -.tsv: rows from stdin."""
    aggregation_strategy: Strategy | None = None
    """How a tagger's predictions for subwords become entities, by the names of transformers' pipeline. words (default):
    the first subword of a word gives its tag, as in training. first, average, max: words as transformers splits them, tagged
    by their first subword, the mean of their subwords, or the most certain one. simple: subwords are tagged and joined. none:
    every subword by itself."""
    strict: bool = False
    """Fail at the first unreadable row, instead of printing {"error": …} for it."""
    how: Flat[ModelOptions] = ModelOptions()


def run(args: Args) -> JsonResult:
    require_one_input(args.text, args.input)
    if args.one_example and not args.text:
        raise UsageError("--one-example applies only to texts on the command line: remove it, or remove --input")
    require_stdout("predictions")
    with shared_work(args) as share:
        model = shared(load(args.run, task=args.task, **vars(args.how)), share)
        strategy = args.aggregation_strategy
        if not share.first:
            model.predict([], strategy)
            return {}
        inputs = [args.text] if args.one_example else args.text
        predictions = model.predict_file(args.input, strategy) if args.input else model.predict_stream(inputs, strategy)
        results = map(raise_error, predictions) if args.strict else predictions
        return print_lines(results, prediction_to_json, args.input, "examples", "prediction")
