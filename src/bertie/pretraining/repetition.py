"""Warnings of runs that read their text too often."""

from __future__ import annotations

from bertie import console

FEW_EPOCHS = 4  # up to which repeated text is almost as good as new text (Muennighoff et al. 2023)
MANY_EPOCHS = 40  # as often, BERT read its text (Devlin et al. 2018, appendix A.2)


def warn_of_repetition(epochs: float) -> None:
    """Warn if a run reads its text more often than BERT's did."""
    if epochs > MANY_EPOCHS:
        console.warn(
            f"the run reads the text {epochs:,.0f} times, which is more than the {MANY_EPOCHS} times of BERT's paper: add "
            "text, or train for a shorter time"
        )


def warn_of_overfitting(epochs: float, loss: float, entropy: float) -> None:
    """Warn if a model has learned its text by heart.

    Args:
        epochs: How often it has read the text.
        loss: Its held-out masked-LM loss.
        entropy: The unigram entropy of the held-out text.
    """
    if epochs > FEW_EPOCHS and loss > entropy:
        console.warn(
            f"the model has read its text {epochs:,.0f} times and learned it by heart: on held-out text, it predicts worse "
            f"(mlm_loss {loss:.2f}) than counting words would ({entropy:.2f}): add text, or train for a shorter time"
        )
