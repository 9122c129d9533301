"""The held-out loss that a size reaches with a number of tokens: a curve through measured and published losses.

L(N, T) = A·N^-α + B·N^γ·T^-β, with N weights in the layers and T tokens. It has the terms of Hoffmann et al. 2022 for size
and tokens. N^γ is new: in short runs with few steps, a larger model learns less. Their third term, the lowest loss of any
model, is left out: every fit that follows the published order of sizes sets it to 0. Repeated text counts as in Muennighoff
et al. 2023. Small sizes and short runs are our own measurements (`OWN`, from benchmarks/scaling.py). A long run of a large
model ends near the losses that BERT's authors published, so the curve is drawn between the two.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from bertie.base import seeding
from bertie.model.config import TransformerConfig

OWN = Path(__file__).with_name("scaling_points.json")

BERT_TOKENS = 1_000_000 * 256 * (0.9 * 128 + 0.1 * 512)
"""Devlin et al. 2018: a million steps of 256 sequences, a tenth of them with 512 tokens instead of 128."""
BERT_TEXT = 4.3e9
"""Tokens of BERT's text, for 3.3 billion words (Devlin et al. 2018, section 3.1), with 1.3 tokens per word assumed."""
PUBLISHED = [  # layers, hidden size, perplexity of the masked LM: Devlin et al. 2018, table 6, without models of few heads
    (3, 768, 5.84),
    (6, 768, 4.68),
    (12, 768, 3.99),
    (12, 1024, 3.54),
    (24, 1024, 3.23),
]
UNIGRAM_LOSS = 7.14
"""`Shards.unigram_loss` of the own measurements."""
OWN_ERROR = 0.03  # nats, assumed: each point is a single seed
PUBLISHED_ERROR = 0.05  # nats, assumed: the differences between the published losses
OTHER_TEXT_ERROR = 0.15  # nats, assumed, the same for all published losses: another text, another recipe
REPEATED = 15.4
"""How many repetitions of a text are worth as much as new text, at most (Muennighoff et al. 2023, R*_D)."""
BATCH_TOKENS = 2048
"""The best batch size for a run of a million tokens, in tokens."""
SAMPLES = 200


class Point(NamedTuple):
    """A loss that the curve should pass near."""

    parameters: float
    tokens: float
    """`useful_tokens` of the run."""
    loss: float
    """Held-out masked-LM loss in nats."""
    published: bool


class Expected(NamedTuple):
    """A loss in nats, and the interval that holds the loss of a run with a probability of 80 %, if the curve's form is right."""

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


def expected_loss(parameters: float, tokens: float, points: tuple[Point, ...] = ()) -> Expected:
    """Return the held-out masked-LM loss to expect.

    Args:
        parameters: `layer_parameters` of the model.
        tokens: Number of `useful_tokens`.
        points: The losses to draw the curve through; none: all.
    """
    curve, others, run_errors = _fits(points or all_points())
    losses = np.array([_loss(other, parameters, tokens) for other in others]) + run_errors
    low, high = np.quantile(losses, [0.1, 0.9])
    loss = float(_loss(curve, parameters, tokens))
    return Expected(loss, min(float(low), loss), max(float(high), loss))


@functools.cache
def all_points() -> tuple[Point, ...]:
    """Return the own points with the best batch size for their recipe and tokens, and the published ones."""
    best: dict[tuple[str, int], Point] = {}
    for point in sorted(json.loads(OWN.read_text(encoding="utf-8"))["points"], key=lambda point: -point["loss"]):
        sizes = point["parameters"], point["tokens"]
        best[point["recipe"], point["tokens"]] = Point(*sizes, point["loss"], published=False)
    tokens = useful_tokens(BERT_TOKENS, BERT_TEXT)
    theirs = [Point(12 * layers * size**2, tokens, math.log(loss), True) for layers, size, loss in PUBLISHED]
    return *best.values(), *theirs


def measured_tokens() -> tuple[int, int]:
    """Return the tokens of the shortest and of the longest measured run. Beyond, the curve leads to published losses."""
    tokens = [int(point.tokens) for point in all_points() if not point.published]
    return min(tokens), max(tokens)


@functools.cache
def _fits(points: tuple[Point, ...]) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Return the curve, curves through losses that differ by their errors (bootstrap), and errors of as many new runs.

    Where the curve misses the points by more than their assumed errors, these are scaled up to the misses.
    """
    sizes, tokens, losses, published = np.array(points).T
    errors = np.where(published, PUBLISHED_ERROR, OWN_ERROR)
    curve = _fit(sizes, tokens, losses, errors)
    misses = (losses - _loss(curve, sizes, tokens)) / errors
    scale = max(1.0, math.sqrt((misses**2).sum() / (len(points) - len(curve))))
    rng = seeding.generator(0, seeding.BOOTSTRAP)
    draws = rng.normal(losses, scale * errors, (SAMPLES, len(losses)))
    draws += published * rng.normal(0, OTHER_TEXT_ERROR, (SAMPLES, 1))
    others = [_fit(sizes, tokens, draw, errors) for draw in draws]
    return curve, others, rng.normal(0, scale * OWN_ERROR, SAMPLES)


def _fit(sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray, errors: np.ndarray) -> np.ndarray:
    start = np.array([2.0, 0.2, 2.0, 0.2, 0.1])
    bounds = (np.zeros(5), np.array([np.inf, 1.0, np.inf, 1.0, 1.0]))
    fit = least_squares(lambda curve: (_loss(curve, sizes, tokens) - losses) / errors, start, bounds=bounds)
    return np.asarray(fit.x)


def _loss(curve: np.ndarray, sizes: Any, tokens: Any) -> Any:
    """Return the losses on a curve (A, α, B, β, γ), with sizes and tokens counted in millions."""
    by_size, size_power, by_tokens, token_power, slow_start = curve
    millions = sizes / 1e6
    return by_size * millions**-size_power + by_tokens * millions**slow_start * (tokens / 1e6) ** -token_power
