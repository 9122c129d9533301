"""The demo's report.html."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bertie.base import config as configuration
from bertie.base.console import percent, plural
from bertie.base.report import Page, TextSpan
from bertie.corpus.shards import Shards, open_shards
from bertie.demo.compare import BAG_OF_WORDS, START, Comparison
from bertie.demo.corpus import DemoData
from bertie.predict.fill_mask import MaskPrediction
from bertie.retrieval.index import Hit
from bertie.tasks.evaluation.passages import marked, shortened
from bertie.tasks.metrics import mean_and_interval
from bertie.training.run_folder import read_metrics
from bertie.training.run_report import describe_machine, loss_chart


def page(
    out: Path,
    data: DemoData,
    comparison: Comparison | None,
    predictions: dict[str, list[MaskPrediction]],
    found: dict[str, list[Hit]],
    seconds: dict[str, float],
) -> str:
    """Return the report as one HTML file: learning curve, comparison, and predictions at [MASK].

    The metrics of the run and the shards are read from `out`.
    """
    shards = open_shards(out / "shards")
    last = read_metrics(out / "bert", "eval")[-1]
    report = Page("A BERT from start to finish", _intro(data, shards, last))
    _pretraining_section(report, out / "bert", last, shards)
    if comparison is not None:
        _gain_section(report, data, comparison)
    report.heading("Predictions at [MASK]")
    report.paragraph("The most probable tokens at each [MASK].")
    for text, tokens in predictions.items():
        report.mask_predictions(text, {token.token: token.probability for token in tokens})
    if found:
        report.heading("Search")
        report.paragraph(
            "The first passages for each query, by vectors that were trained on the text alone, and by its words."
        )
    for query, hits in found.items():
        texts = [shortened(marked(hit.text, "right", [(*mark, "") for mark in hit.marks])) for hit in hits]
        headings = [[TextSpan(f"{hit.heading} · ")] * bool(hit.heading) for hit in hits]
        report.passage({"query": query}, [[*before, *spans] for before, spans in zip(headings, texts, strict=True)])
    report.heading("Run time")
    report.table(["Stage", "Seconds"], [[stage, round(time, 1)] for stage, time in seconds.items()])
    report.paragraph(describe_machine(out / "bert"))
    return report.html()


def _intro(data: DemoData, shards: Shards, last: dict[str, Any]) -> str:
    pretraining = (
        f"bertie trained a vocabulary of {shards.tokenizer.size:,} entries on {len(data.documents):,} documents, and "
        f"pre-trained a small BERT for {last['tokens']:,} tokens (the training split has "
        f"{int(shards.train.document_starts[-1]):,})."
    )
    return pretraining + f" It fine-tuned the BERT on {len(data.train):,} labeled sentences." * bool(data.train)


def _pretraining_section(report: Page, run: Path, last: dict[str, Any], shards: Shards) -> None:
    loss, accuracy = baselines(shards)
    mlm = configuration.read(run / "config.toml")["objectives"][0]
    learned, tested = (percent(mlm[name]) for name in ("mlm_probability", "mlm_probability_eval"))
    report.heading("Pre-training")
    report.paragraph(
        f"Masked-LM loss per predicted token, in nats. Training predicts {learned} of the tokens, the evaluation {tested}. "
        "The dashed line is the loss of a unigram model on the held-out documents: it knows how often each token occurs in "
        "the training text, plus one, and ignores the context."
    )
    loss_chart(report, run, "mlm_loss", "Masked-LM loss", {f"unigram model {loss:.2f}": loss})
    report.table(
        ["On held-out documents", "Model", "Unigram model"],
        [
            ["masked-LM loss, nats", f"{last['mlm_loss']:.2f}", f"{loss:.2f}"],
            ["masked tokens predicted right", percent(last["mlm_accuracy"]), percent(accuracy)],
        ],
    )


def baselines(shards: Shards) -> tuple[float, float]:
    """Return the held-out loss, in nats, and accuracy of a model that knows the token counts of the training text."""
    train, held_out = (split.frequencies(shards.tokenizer.size) for split in (shards.train, shards.eval))
    return shards.unigram_loss, float(held_out[train.argmax()] / held_out.sum())


def _gain_section(report: Page, data: DemoData, comparison: Comparison) -> None:
    sizes = comparison.examples
    report.heading("The gain from pre-training")
    report.paragraph(
        f"{data.question} The classifier is fine-tuned on {sizes['train']:,} sentences for "
        f"{plural(comparison.epochs, 'epoch')}, pre-trained and from scratch. The learning rate of each is selected on "
        f"{sizes['held back']:,} other sentences of the training set. Accuracy is measured on {sizes['test']:,} "
        f"sentences of other documents, with {seeds_phrase(comparison)}. From scratch means random initial weights. Pre-training "
        f"includes the initial weights that are counted in its text. {gains(comparison)}"
    )
    scores = {start: mean_and_interval(values) for start, values in comparison.accuracy.items()}
    scores["bag of words"] = (comparison.bag_of_words, math.nan)
    scores["most frequent class"] = (comparison.majority, math.nan)
    report.score_chart(scores, "Accuracy on the test sentences", comparison.accuracy)
    report.table(["Initial weights or baseline", "Accuracy", "Accuracy per seed", "Learning rate"], comparison.table())
    rates = list(next(iter(comparison.sweep.values())))
    rows = [[start, *(values[rate] for rate in rates)] for start, values in comparison.sweep.items()]
    report.paragraph("Accuracy on the sentences that select the learning rate:")
    report.table(["Learning rate", *rates], rows)


def seeds_phrase(comparison: Comparison) -> str:
    """Return how many seeds a mean accuracy has, and whether there is an interval."""
    seeds = len(comparison.accuracy[START[False]])
    return f"{seeds} seeds (± 95 % confidence interval)" if seeds > 2 else f"{seeds} seeds, too few for an interval"


def gains(comparison: Comparison) -> str:
    """Return a sentence about the gain over both baselines, with intervals if there are enough seeds."""
    over, certain = [], len(comparison.accuracy[START[False]]) > 2
    for baseline, name in ((START[True], "training from scratch"), (BAG_OF_WORDS, "the bag of words")):
        gain, _, half = comparison.gain(baseline)
        low, high = 100 * (gain - half), 100 * (gain + half)
        over.append(f"{100 * gain:.1f} points" + f" ({low:.1f} to {high:.1f})" * certain + f" over {name}")
    about = "; 95 % confidence over seeds and test sentences" if certain else ""
    return f"The pre-trained model gains {' and '.join(over)}{about}."
