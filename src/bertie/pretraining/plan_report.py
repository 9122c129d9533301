"""The table that `bertie plan` prints."""

from __future__ import annotations

from dataclasses import dataclass

from bertie.base import console
from bertie.corpus.shards import Shards
from bertie.pretraining import scaling
from bertie.pretraining.repetition import ENOUGH_EPOCHS, FEW_EPOCHS

CLOSE = 0.05
"""Nats by which two runs of the same recipe may differ (the own error of `scaling`, scaled up to the misses)."""


@dataclass(frozen=True)
class Outlook:
    """What a recipe would reach in the time."""

    recipe: str
    parameters: int
    """Those of the layers, without embeddings and heads."""
    tokens_per_second: float
    """Speed of the steps, filler included."""
    timed: bool
    """Whether steps were timed. Otherwise, the speed follows from the number of operations."""
    tokens: float
    """Tokens of all steps, filler included."""
    epochs: float
    batch_size: int
    """Sequences per step."""
    steps: int
    loss: float
    """Expected held-out masked-LM loss in nats, with BERT's masks."""
    low: float
    """Lower end of the interval that holds the loss with a probability of 80 %."""
    high: float


def report(outlooks: list[Outlook], left_out: dict[str, str], best: Outlook, shards: Shards, title: str) -> None:
    """Print the table and what to know about it.

    Args:
        outlooks: Its rows.
        left_out: Reasons by recipe.
        best: The row with the lowest loss.
        shards: The text.
        title: Time and device.
    """
    text = int(shards.train.document_starts[-1])
    console.result(
        f"\n{title}, {_amount(text)} tokens of text\n\n"
        "recipe        parameters      tokens/s          tokens  epochs  sequences/step  held-out loss (80 % interval)"
    )
    for each in outlooks:
        speed = ("" if each.timed else "about ") + f"{each.tokens_per_second:,.0f}"
        console.result(
            f"{each.recipe:<12}{each.parameters / 1e6:>10.1f} M{speed:>14}{_amount(each.tokens):>16}{_epochs(each.epochs):>8}"
            f"{each.batch_size:>16,}  {_loss(each)}"
        )
    for line in reasons(left_out):
        console.result(f"left out: {line}")
    _, longest = scaling.measured_tokens()
    console.result(
        "\nParameters are those of the layers, without embeddings. Losses are in nats, with BERT's masks (15 % of the "
        "tokens), on\nthe Simple English Wikipedia (30,000 vocabulary entries; counting its words gives a held-out loss of "
        f"{scaling.UNIGRAM_LOSS:.2f}).\nYours has {shards.tokenizer.size:,} entries and "
        f"{shards.unigram_loss:.2f}: the more these differ, the less the losses apply.\n`bertie pretrain` "
        "reports the loss with the masks of the recipe (30 %), which is higher."
    )
    if best.tokens > longest:
        console.result(
            f"The longest measured run has {_amount(longest)} tokens. The losses of longer ones are estimated from it and "
            "from\nthose that BERT's authors published."
        )
    if close := [each.recipe for each in outlooks if each is not best and each.loss - best.loss < CLOSE]:
        console.result(
            f"{', '.join(close)}: as good as {best.recipe}, since the loss differs by less than {CLOSE} nats."
        )
    if any(each.epochs > FEW_EPOCHS for each in outlooks):
        console.result(
            f"After more than {FEW_EPOCHS} epochs, only the lower end of the interval is shown, because no such run was "
            "measured:\nthe held-out loss of a model that reads a short text too often rises."
        )
    if best.loss > shards.unigram_loss:
        console.warn(
            f"a loss of {best.loss:.2f} nats is more than the {shards.unigram_loss:.2f} nats of counting words in your "
            "training text, so the curve does not fit it: the text is too short, or unlike the one that was measured"
        )
    if best.epochs > ENOUGH_EPOCHS:
        steps = int(best.steps * ENOUGH_EPOCHS / best.epochs)
        console.warn(
            f"too little text for this time: {best.recipe} would read it {best.epochs:,.0f} times, and after "
            f"{ENOUGH_EPOCHS} times it learns little and may get worse: add text, or stop after {steps:,} steps "
            f"(--training.steps {steps} in place of --budget)"
        )


def _loss(outlook: Outlook) -> str:
    if outlook.epochs > FEW_EPOCHS:
        return f"at least {outlook.low:.2f}"
    return f"{outlook.loss:.2f} ({outlook.low:.2f} to {outlook.high:.2f})"


def reasons(left_out: dict[str, str]) -> list[str]:
    """Return each reason once, after the recipes that are left out for it."""
    return [
        f"{', '.join(name for name in left_out if left_out[name] == reason)}: {reason}"
        for reason in dict.fromkeys(left_out.values())
    ]


def _epochs(count: float) -> str:
    return f"{count:.0f}" if count >= 10 else f"{count:.2g}"


def _amount(count: float) -> str:
    """Return a count with three digits: "1.51 billion"."""
    for size, unit in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= 0.9995 * size:
            return f"{count / size:#.3g} {unit}".replace(". ", " ")
    return f"{count:.0f}"
