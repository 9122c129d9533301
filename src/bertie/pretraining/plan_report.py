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
    """The result of a recipe in the given time."""

    recipe: str
    parameters: int
    """Weights in the layers, without embeddings and heads."""
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
    text, (_, longest) = int(shards.train.document_starts[-1]), scaling.measured_tokens()
    console.result(
        f"\n{title}, {_amount(text)} tokens of text\n\n"
        "recipe        parameters      tokens/s          tokens  epochs  sequences/step  held-out loss (80 % interval)"
    )
    for row in outlooks:
        speed = ("" if row.timed else "about ") + f"{row.tokens_per_second:,.0f}"
        console.result(
            f"{row.recipe:<12}{row.parameters / 1e6:>10.1f} M{speed:>14}{_amount(row.tokens):>16}{_epochs(row.epochs):>8}"
            f"{row.batch_size:>16,}  {_loss(row)}"
        )
    notes = [f"left out: {line}" for line in reasons(left_out)]
    notes.append(
        "\nParameters are the weights in the layers. Losses are in nats, with BERT's masks (15 % of the tokens; the recipes "
        "mask 30 %,\nso `bertie pretrain` reports more), on the Simple English Wikipedia: 30,000 entries, counting its words "
        f"gives {scaling.UNIGRAM_LOSS:.2f}.\nYours has {shards.tokenizer.size:,} entries and {shards.unigram_loss:.2f}: the "
        "more these differ, the less the losses apply."
    )
    if best.tokens > longest:
        notes.append(
            f"Beyond {_amount(longest)} tokens, losses are estimated from the ones that BERT's authors published."
        )
    if close := [row.recipe for row in outlooks if row is not best and row.loss - best.loss < CLOSE]:
        notes.append(f"{', '.join(close)}: as good as {best.recipe}, the loss differs by less than {CLOSE} nats.")
    if any(row.epochs > FEW_EPOCHS for row in outlooks):
        notes.append(
            f"After more than {FEW_EPOCHS} epochs, only the lower end of the interval is shown: no such run was measured."
        )
    for note in notes:
        console.result(note)
    if best.loss > shards.unigram_loss:
        console.warn(
            f"a loss of {best.loss:.2f} nats is more than the {shards.unigram_loss:.2f} nats of counting words in your "
            "training text: the text is too short, or unlike the one that was measured"
        )
    if best.epochs > ENOUGH_EPOCHS:
        steps = int(best.steps * ENOUGH_EPOCHS / best.epochs)
        console.warn(
            f"{best.recipe} would read the text {best.epochs:,.0f} times, and learns little after {ENOUGH_EPOCHS}: add text, "
            f"or give --training.steps {steps} in place of --budget"
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
