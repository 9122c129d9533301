"""The demo's report.html."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertie import storage
from bertie.console import percent, plural
from bertie.demo.compare import Comparison
from bertie.demo.corpus import DemoData
from bertie.predict.predictor import MaskPrediction
from bertie.report import Page
from bertie.tasks.metrics import mean_and_interval
from bertie.training.run_folder import read_metrics
from bertie.training.run_report import describe_machine, loss_chart


def page(
    out: Path,
    data: DemoData,
    comparison: Comparison | None,
    guesses: dict[str, list[MaskPrediction]],
    seconds: dict[str, float],
) -> str:
    """Curves, comparison and examples as one HTML file. Reads the run's metrics and the shards' manifest from `out`."""
    manifest = storage.read_json(out / "shards" / "manifest.json")
    last = read_metrics(out / "bert", "eval")[-1]
    made = Page("A BERT from start to finish", _intro(data, manifest, last))
    _learning(made, out / "bert", last, manifest)
    if comparison is not None:
        _worth(made, data, comparison)
    made.heading("What it says")
    made.paragraph("The likeliest word pieces for each gap.")
    for text, places in guesses.items():
        made.mask_predictions(text, {guess.token: guess.probability for guess in places})
    made.heading("How it was made")
    made.table(["Stage", "Seconds"], [[stage, round(time, 1)] for stage, time in seconds.items()])
    made.paragraph(describe_machine(out / "bert"))
    return made.html()


def _intro(data: DemoData, manifest: dict[str, Any], last: dict[str, Any]) -> str:
    train, size = manifest["splits"]["train"], manifest["tokenizer"]["size"]
    return (
        f"From {len(data.documents):,} documents ({train['tokens']:,} tokens to train on, {size:,} entries in the "
        f"vocabulary), {last['tokens']:,} tokens of pre-training, and {len(data.train) + len(data.test):,} labelled sentences."
    )


def _learning(made: Page, run: Path, last: dict[str, Any], manifest: dict[str, Any]) -> None:
    entropy = manifest["splits"]["eval"]["unigram_entropy"]
    made.heading("What it learned from the text")
    made.paragraph(
        "The loss at masked words, in nats. The line is the entropy of single words: a model that knows how frequent "
        "each word is, and reads nothing, cannot do better than that."
    )
    loss_chart(made, run, "mlm_loss", "Masked-LM loss", {f"entropy of words {entropy:.2f}": entropy})
    made.table(
        ["On held-out documents", "", "Without reading"],
        [
            ["masked-LM loss, nats", f"{last['mlm_loss']:.3f}", f"{entropy:.3f}"],
            ["masked words guessed right", percent(last["mlm_accuracy"]), ""],
            ["next sentence told from another", percent(last["nsp_accuracy"]), "50 %"],
        ],
    )


def _worth(made: Page, data: DemoData, comparison: Comparison) -> None:
    gain, error = comparison.gain
    sizes, seeds = comparison.examples, len(next(iter(comparison.accuracy.values())))
    made.heading("What that is worth")
    made.paragraph(
        f"{data.question} {sizes['train']:,} sentences to learn from, {sizes['held back']:,} to choose the learning rate by "
        f"and {sizes['test']:,} of other documents to be judged by; {plural(comparison.epochs, 'epoch')}, {seeds} seeds, the "
        f"same sweep of learning rates for both. Pre-training, with its start from counted word vectors, gains "
        f"{100 * gain:.1f} points (standard error {100 * error:.1f})."
    )
    scores = {}
    for start, values in comparison.accuracy.items():
        mean, _, half = mean_and_interval(values)
        scores[start] = (mean, half)
    alone = float("nan")
    scores |= {"bag of words": (comparison.bag_of_words, alone), "commonest class": (comparison.majority, alone)}
    made.score_chart(scores, "Accuracy on the test sentences")
    made.table(["Start", "Accuracy", "Each seed", "Learning rate"], comparison.table())
    rates = list(next(iter(comparison.sweep.values())))
    rows = [[start, *(values[rate] for rate in rates)] for start, values in comparison.sweep.items()]
    made.paragraph("The sweep, on held-back training sentences:")
    made.table(["Learning rate", *rates], rows)
