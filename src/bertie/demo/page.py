"""The demo's report.html."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertie import storage
from bertie.console import percent, plural
from bertie.demo.compare import Comparison
from bertie.demo.corpus import DemoData
from bertie.predict.fill_mask import MaskPrediction
from bertie.report import Page
from bertie.tasks.metrics import mean_and_interval
from bertie.training.run_folder import read_metrics
from bertie.training.run_report import describe_machine, loss_chart


def page(
    out: Path,
    data: DemoData,
    comparison: Comparison | None,
    predictions: dict[str, list[MaskPrediction]],
    seconds: dict[str, float],
) -> str:
    """Return the report as one HTML file: learning curve, comparison, and predictions at [MASK].

    The metrics of the run and the manifest of the shards are read from `out`.
    """
    manifest = storage.read_json(out / "shards" / "manifest.json")
    last = read_metrics(out / "bert", "eval")[-1]
    report = Page("A BERT from start to finish", _intro(data, manifest, last))
    _pretraining_section(report, out / "bert", last, manifest)
    if comparison is not None:
        _gain_section(report, data, comparison)
    report.heading("Predictions at [MASK]")
    report.paragraph("The most probable tokens at each [MASK].")
    for text, tokens in predictions.items():
        report.mask_predictions(text, {token.token: token.probability for token in tokens})
    report.heading("Run time")
    report.table(["Stage", "Seconds"], [[stage, round(time, 1)] for stage, time in seconds.items()])
    report.paragraph(describe_machine(out / "bert"))
    return report.html()


def _intro(data: DemoData, manifest: dict[str, Any], last: dict[str, Any]) -> str:
    train, size = manifest["splits"]["train"], manifest["tokenizer"]["size"]
    pretraining = (
        f"bertie trained a vocabulary of {size:,} entries on {len(data.documents):,} documents, and pre-trained a small "
        f"BERT for {last['tokens']:,} tokens (the training split has {train['tokens']:,})."
    )
    return pretraining + f" It fine-tuned the BERT on {len(data.train):,} labeled sentences." * bool(data.train)


def _pretraining_section(report: Page, run: Path, last: dict[str, Any], manifest: dict[str, Any]) -> None:
    entropy = manifest["splits"]["eval"]["unigram_entropy"]
    report.heading("Pre-training")
    report.paragraph(
        "Masked-LM loss per predicted token, in nats. The dashed line is the unigram entropy: the loss of a model that "
        "knows the frequency of every token and ignores the context."
    )
    loss_chart(report, run, "mlm_loss", "Masked-LM loss", {f"unigram entropy {entropy:.2f}": entropy})
    report.table(
        ["On held-out documents", "Model", "Baseline without context"],
        [
            ["masked-LM loss, nats", f"{last['mlm_loss']:.3f}", f"{entropy:.3f}"],
            ["masked-LM accuracy", percent(last["mlm_accuracy"]), ""],
            ["next-sentence accuracy", percent(last["nsp_accuracy"]), "50 %"],
        ],
    )


def _gain_section(report: Page, data: DemoData, comparison: Comparison) -> None:
    gain, error = comparison.gain
    sizes, seeds = comparison.examples, len(next(iter(comparison.accuracy.values())))
    report.heading("The gain from pre-training")
    report.paragraph(
        f"{data.question} The classifier is fine-tuned on {sizes['train']:,} sentences for "
        f"{plural(comparison.epochs, 'epoch')}, pre-trained and from scratch. The learning rate of each is selected on "
        f"{sizes['held back']:,} other sentences of the training set. Accuracy is measured on {sizes['test']:,} "
        f"sentences of other documents, with {seeds} seeds. Pre-training, including its initial embeddings from word "
        f"co-occurrences, gains {100 * gain:.1f} points of accuracy (standard error {100 * error:.1f})."
    )
    scores = {}
    for start, values in comparison.accuracy.items():
        mean, _, half = mean_and_interval(values)
        scores[start] = (mean, half)
    no_interval = float("nan")
    scores["bag of words"] = (comparison.bag_of_words, no_interval)
    scores["most frequent class"] = (comparison.majority, no_interval)
    report.score_chart(scores, "Accuracy on the test sentences")
    report.table(["Initial weights or baseline", "Accuracy", "Accuracy per seed", "Learning rate"], comparison.table())
    rates = list(next(iter(comparison.sweep.values())))
    rows = [[start, *(values[rate] for rate in rates)] for start, values in comparison.sweep.items()]
    report.paragraph("Accuracy on the sentences that select the learning rate:")
    report.table(["Learning rate", *rates], rows)
