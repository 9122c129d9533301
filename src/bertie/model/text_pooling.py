"""The poolings of texts, by the name that a task gives them: what stands for a text, or for a pair of texts.

To add one, write a file with a module as `pooled_texts.py` says, and add its name here, twice.
"""

from __future__ import annotations

from typing import Literal, cast

from bertie.errors import UsageError
from bertie.model.encoder import EncoderConfig
from bertie.model.max_texts import AttendingTexts, MaxTexts
from bertie.model.pooled_texts import LateText, MeanText, PoolingFacts, TextPool, TokenText

TextPooling = Literal["token", "mean", "late", "max", "attention"]
"""token: the state of one token. mean: the mean of all tokens. late: the mean of what the head's dense layer and its activation
make of them. max: the maximum of each dimension over the tokens; the texts
of a pair are encoded separately. attention: the tokens of each text of a pair first attend to the other text."""
TaskPooling = Literal["model", TextPooling]
"""model: as the configuration of the model says, which for BERT is token."""
POOLINGS: dict[TextPooling, type[TextPool]] = {
    "token": TokenText,
    "mean": MeanText,
    "late": LateText,
    "max": MaxTexts,
    "attention": AttendingTexts,
}


def resolve_pooling(pooling: TaskPooling, config: EncoderConfig) -> TextPooling:
    """Return the pooling of a task with the pooling of the model in place of "model"."""
    return config.classifier_pooling if pooling == "model" else pooling


def pooling_facts(pooling: TaskPooling | None) -> PoolingFacts:
    """Return what other files ask a pooling: of "model", what all that a model can name answer. None: of a token."""
    return POOLINGS["token" if pooling in (None, "model") else pooling].facts


def for_one_text(pooling: TaskPooling) -> TaskPooling:
    """Return the pooling that takes the place of this one for single texts: itself, unless it is between two texts."""
    return cast(TaskPooling, pooling_facts(pooling).for_one_text or pooling)


def require_bilstm(pooling: TaskPooling | None, lstm_hidden_size: int) -> None:
    """Raise a UsageError if the pooling needs a BiLSTM between encoder and head, and there is none."""
    facts = pooling_facts(pooling)
    if facts.bilstm == "needed" and not lstm_hidden_size:
        raise UsageError(
            f'task.pooling is "{pooling}", whose second BiLSTM has the size of the first, and lstm_hidden_size is 0: set it, or '
            'set task.pooling to "max"'
        )
