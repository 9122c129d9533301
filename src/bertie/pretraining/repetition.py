"""Warnings of runs that read their text too often."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from bertie.base import console
from bertie.training.run_folder import read_metrics

FEW_EPOCHS = 4  # up to which repeated text is almost as good as new text (Muennighoff et al. 2023)
ENOUGH_EPOCHS = 16  # after which another epoch is worth less than 1/e of new text (the same, R*_D = 15.4)
MANY_EPOCHS = 40  # as often, BERT read its text (Devlin et al. 2018, appendix A.2)
ROSE = 0.05  # nats above the lowest held-out loss, more than the noise of evaluations on one set
BY_HEART = 0.5  # of the held-out loss: a training loss below shows that a model recalls its text


def warn_of_repetition(epochs: float, text: str = "the text") -> None:
    """Warn if a run reads a text more often than BERT's did."""
    if epochs > MANY_EPOCHS:
        console.warn(
            f"the run reads {text or 'the text'} {epochs:,.0f} times, more often than BERT's {MANY_EPOCHS}: add text"
        )


def warn_of_overfitting(run: Path, epochs: float, baseline: float) -> None:
    """Warn if a run had too little text: its held-out loss rose at the end, or is worse than word frequencies.

    Args:
        run: The run folder. Nothing is checked if it has no masked-LM losses.
        epochs: How often it has read the text.
        baseline: The held-out loss of a unigram model of the training text, in nats.
    """
    training, evaluations = (
        [record for record in read_metrics(run, split) if record.get("mlm_loss") is not None]
        for split in ("train", "eval")
    )
    if epochs <= FEW_EPOCHS or not training or not evaluations:
        return
    best = min(evaluations, key=lambda record: record["mlm_loss"])
    fitted = fmean(record["mlm_loss"] for record in training[-max(1, len(training) // 10) :])
    loss = evaluations[-1]["mlm_loss"]
    if loss <= min(best["mlm_loss"] + ROSE, baseline):
        return
    result = " and memorized it" if fitted < BY_HEART * loss else ", which is too little for this run"
    console.warn(
        f"the model read its text {epochs:,.0f} times{result} (training loss {fitted:.2f}, held-out loss {loss:.2f}, lowest "
        f"{best['mlm_loss']:.2f} after step {best['step']:,}, unigram model {baseline:.2f}): add text, or stop earlier"
    )
