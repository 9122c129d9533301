"""The poolings of texts, by the name that a task gives them: what stands for a text, or for a pair of texts.

To add one, write a module as `pooled_texts.py` says, and add its name here, twice.
"""

from __future__ import annotations

from typing import Literal, cast

from bertie.base.errors import UsageError
from bertie.model.encoder import EncoderConfig
from bertie.model.heads.max_texts import AttendingTexts, EsimTexts, MaxTexts
from bertie.model.heads.pooled_texts import (
    BothOrders,
    LateText,
    MeanText,
    PoolingFacts,
    TextPool,
    TextVectors,
    TokenText,
)

TextPooling = Literal["token", "mean", "late", "max", "attention", "vectors", "esim", "both_orders"]
"""token: the state of one token ([CLS], or the last one if the model is causal). mean: the mean of all tokens. late: the mean of
the outputs of the head's dense layer and activation for them, as in EuroBERT. max: the maximum of each dimension over the tokens.
attention: the same for pairs whose texts attend to each other, with a second BiLSTM (GLUE's baselines). esim: another form of it
(ESIM). vectors: fixed features, the encoder's vector u of a text, or |u − v| and u ∗ v of a pair (Skip-thoughts). With the last
four, the texts of a pair are encoded separately. both_orders: the sum of the states of the token for the pair in
both orders (GPT)."""
TaskPooling = Literal["model", TextPooling]
"""model: the pooling in the configuration of the model; for BERT, token."""
POOLINGS: dict[TextPooling, type[TextPool]] = {
    "token": TokenText,
    "mean": MeanText,
    "late": LateText,
    "max": MaxTexts,
    "attention": AttendingTexts,
    "vectors": TextVectors,
    "esim": EsimTexts,
    "both_orders": BothOrders,
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
    """Raise a UsageError if the pooling needs a BiLSTM between encoder and head, and there is none, or the reverse."""
    if pooling_facts(pooling).bilstm == ("none" if lstm_hidden_size else "needed"):
        size = f"lstm_hidden_size is {lstm_hidden_size}: " + ("set it to 0" if lstm_hidden_size else "set it")
        raise UsageError(
            f'task.pooling is "{pooling}", which reads {"no" if lstm_hidden_size else "a"} BiLSTM, but {size}, '
            'or set task.pooling to "max"'
        )
