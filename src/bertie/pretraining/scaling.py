"""The held-out loss that a size reaches with a number of tokens: a curve through measured and published losses.

L(N, T) = E + A·N^-α + B·N^γ·T^-β, with N weights in the layers and T tokens. That is the form of Hoffmann et al. 2022,
except for N^γ: in short runs with few steps, a larger model learns less. Repeated text counts as in Muennighoff et al. 2023.
Small sizes and short runs are our own measurements (`POINTS`, from benchmarks/scaling.py). A long run of a large model ends
near the losses that BERT's authors published, so the curve is drawn between the two.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from bertie import seeding
from bertie.model.config import TransformerConfig

POINTS = Path(__file__).with_name("scaling_points.json")

BERT_TOKENS = 1_000_000 * 256 * (0.9 * 128 + 0.1 * 512)
"""Devlin et al. 2018: a million steps of 256 sequences, a tenth of them with 512 tokens instead of 128."""
PUBLISHED = [  # layers, hidden size, perplexity of the masked LM: Devlin et al. 2018, table 6, without those of few heads
    (3, 768, 5.84),
    (6, 768, 4.68),
    (12, 768, 3.99),
    (12, 1024, 3.54),
    (24, 1024, 3.23),
]
PUBLISHED_ERROR = 0.15  # nats, assumed: another text, another recipe
SMALLEST_ERROR = 0.03  # nats, assumed: each point is a single seed
REPEATED = 15.4
"""How many repetitions of a text are worth as much as new text, at most (Muennighoff et al. 2023, R*_D)."""
BATCH_TOKENS = 2048
"""The best batch size for a run of a million tokens, in tokens."""
SAMPLES = 200


class Expected(NamedTuple):
    """A loss in nats, and the interval that holds it with a probability of 80 %, if the curve has the right form."""

    loss: float
    low: float
    high: float


def layer_parameters(model: TransformerConfig) -> int:
    """Return the weights of the matrices in the layers, without embeddings and heads."""
    width = model.hidden_size
    feed_forward = width * model.intermediate_size * (3 if model.gated else 2)
    return model.num_hidden_layers * (4 * width * width + feed_forward)


def useful_tokens(tokens: float, text: float) -> float:
    """Return the number of tokens of new text that are worth as much as `tokens` read from a text of `text` tokens."""
    if tokens <= text:
        return tokens
    repetitions = tokens / text - 1
    return text * (1 + REPEATED * (1 - math.exp(-repetitions / REPEATED)))


def batch_size(tokens: float, length: int) -> int:
    """Return the number of sequences per step for a run: a power of 2, proportional to the root of its tokens.

    Zhang et al. 2024 found that the batch size up to which larger ones save steps grows with the tokens to the power of
    0.47, and hardly with the size of the model. benchmarks/scaling.py measured where it is for short runs.

    Args:
        tokens: `useful_tokens` of the whole run.
        length: Tokens of a sequence.
    """
    return int(2 ** max(round(math.log2(BATCH_TOKENS * math.sqrt(tokens / 1e6) / length)), 0))


def expected_loss(parameters: float, tokens: float) -> Expected:
    """Return the held-out masked-LM loss to expect.

    Args:
        parameters: `layer_parameters` of the model.
        tokens: Number of `useful_tokens`.
    """
    curve, others = _fits()
    losses = np.array([_loss(each, parameters, tokens) for each in others])
    low, high = np.quantile(losses, [0.1, 0.9])
    loss = float(_loss(curve, parameters, tokens))
    return Expected(loss, min(float(low), loss), max(float(high), loss))


def measured_tokens() -> int:
    """Return the tokens of the longest measured run: beyond, the curve leads to published losses."""
    return max(point["tokens"] for point in _points())


@functools.cache
def _points() -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = json.loads(POINTS.read_text(encoding="utf-8"))["points"]
    return points


@functools.cache
def _fits() -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the parameters of the curve, and those of curves through losses that differ by their errors (bootstrap)."""
    own = [(point["parameters"], point["tokens"], point["loss"]) for point in _best_batch_sizes()]
    theirs = [(12 * layers * size**2, BERT_TOKENS, math.log(loss)) for layers, size, loss in PUBLISHED]
    sizes, tokens, losses = np.array(own + theirs).T
    errors = np.array([SMALLEST_ERROR] * len(own) + [PUBLISHED_ERROR] * len(theirs))
    curve = _fit(sizes, tokens, losses, errors)
    residuals = (losses - _loss(curve, sizes, tokens))[: len(own)]
    errors[: len(own)] = max(SMALLEST_ERROR, float(residuals.std()))
    rng = seeding.generator(0, seeding.BOOTSTRAP)
    draws = rng.normal(losses, errors, (SAMPLES, len(losses)))
    draws[:, len(own) :] += rng.normal(0, PUBLISHED_ERROR, (SAMPLES, 1))  # of the text, the same for all of them
    return curve, [_fit(sizes, tokens, draw, errors) for draw in draws]


def _best_batch_sizes() -> list[dict[str, Any]]:
    """Return the points with the lowest loss for their recipe and number of tokens."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for point in sorted(_points(), key=lambda point: -point["loss"]):
        best[point["recipe"], point["tokens"]] = point
    return list(best.values())


def _fit(sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray, errors: np.ndarray) -> np.ndarray:
    start = np.array([1.0, 1.0, 0.3, 1.0, 0.3, 0.1])
    bounds = (np.zeros(6), np.array([1.2, np.inf, 1.0, np.inf, 1.0, 1.0]))
    found = least_squares(lambda curve: (_loss(curve, sizes, tokens) - losses) / errors, start, bounds=bounds)
    return np.asarray(found.x)


def _loss(curve: np.ndarray, sizes: Any, tokens: Any) -> Any:
    """Return the losses on a curve (E, A, α, B, β, γ), with sizes and tokens counted in millions."""
    floor, by_size, size_power, by_tokens, token_power, slow_start = curve
    millions = sizes / 1e6
    return floor + by_size * millions**-size_power + by_tokens * millions**slow_start * (tokens / 1e6) ** -token_power
