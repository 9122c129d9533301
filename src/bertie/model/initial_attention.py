"""Initial weights with which heads of the first layers attend to neighbors and to equal words. For rotary positions.

A masked word depends on the words beside it more than on anything else, and what two sentences have to do with each other
depends on the words that are in both. A model with random weights needs millions of tokens to find the former, and billions
to find the latter. Here, both are there from the first step:

- *Neighbors*: heads attend to the previous token, to the next one, or to wider surroundings on either side.
- *Equal words*: heads attend to other places where the same word is, or a similar one. If there is none, they attend to
  [CLS] and [SEP], so that a model can read whether there is one.

With rotary positions, each pair of dimensions of queries and keys turns with the position, at its own speed. If queries and
keys are the same for all tokens, attention depends on the distance d alone: pair r adds a_r cos(θ_r (d − c)) to the score,
which is highest at the distance c. Queries and keys are the same if they read a dimension of the hidden states that is the
same for all tokens. In word embeddings, such a dimension does not change the predictions, since it adds the same number to
all logits. The slowest pairs hardly turn within a text. There, queries and keys compare words, wherever they are.

H  head size    R  pairs of dimensions of a head: H / 2    D  hidden size    N  dimensions with which a head compares words
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bertie.model.layers import Layer, SelfAttention
from bertie.model.positions import rotary_angles
from bertie.model.transformer import TransformerEncoder

CONSTANT = 0
"""The dimension that is the same for all tokens."""


class Focus(NamedTuple):
    """A distance at which the attention of a head is highest, for all tokens alike."""

    distance: int
    """The distance, negative to the left."""
    score: float
    """The score there. Far away it is about 0."""


HeadPattern = Focus | Literal["equal"]
"""Target of a head's attention: tokens at a distance, or equal words."""

PATTERNS: tuple[tuple[HeadPattern, ...], ...] = (
    ("equal", Focus(-1, 6.0), Focus(1, 6.0), "equal"),
    (Focus(1, 6.0), Focus(-1, 6.0), Focus(3, 2.0), Focus(-3, 2.0)),
)
"""Patterns of the heads of the first layers, in turn. Only the first layer reads words that are nothing but words."""

EQUAL = 12.0  # score of an equal word
NONE = 7.0  # score of [CLS] and [SEP]
SLOWEST = 0.1  # radians per token: slower pairs do not distinguish neighbors, and amplify differences between tokens
OTHERS = 0.1  # factor of the random weights that remain in queries and keys


class Special(NamedTuple):
    """Normalized embeddings of special tokens, whose dimension CONSTANT is 0."""

    marks: Float[Tensor, "2 D"]
    """Those of [CLS] and [SEP]."""
    all: Float[Tensor, "S D"]
    """Those of all special tokens."""


def set_initial_attention(encoder: TransformerEncoder, special: Special) -> None:
    """Set queries, keys, values and outputs of the first layers in place.

    Args:
        encoder: An encoder with rotary positions. The dimension CONSTANT of its normalized embeddings should be 1.
        special: Embeddings of special tokens.
    """
    config = encoder.config
    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    for number, (layer, patterns) in enumerate(zip(layers, PATTERNS, strict=False)):
        base = config.rotary_base if config.window(number) is None else config.local_rotary_base
        _set_queries_and_keys(layer.attention, patterns, base, special)
        _copy_values(layer.attention)


def hold_equal_words(encoder: TransformerEncoder, marks: list[int], optimizer: torch.optim.Optimizer) -> None:
    """Keep the heads for equal words as they are in all steps of an optimizer, if the encoder has such heads by then.

    What their queries and keys depend on gets no gradients and stays as it is: their weights, the embeddings of [CLS] and
    [SEP], and the dimension CONSTANT of the word embeddings. Biases and segments, which no shipped recipe combines with
    these heads, are trained.

    Masked LM hardly needs these heads. Without a gradient that says more than noise, an optimizer such as Adam, which
    scales small gradients up, would change them at random, until they find nothing, and weight decay would fade them out.

    Args:
        encoder: The encoder. Its weights may be loaded later, before the first backward pass.
        marks: Vocabulary ids of [CLS] and [SEP].
        optimizer: Its optimizer.
    """
    held = _Held(encoder, marks)
    for parameter in {parameter for parameter, _ in held.parts}:
        parameter.register_post_accumulate_grad_hook(held.drop_gradient)
    optimizer.register_step_pre_hook(lambda *_: held.keep())
    optimizer.register_step_post_hook(lambda *_: held.put_back())


class _Held:
    """Parts of parameters that an optimizer shall not change."""

    def __init__(self, encoder: TransformerEncoder, marks: list[int]):
        word = encoder.embeddings.word.weight
        self.word = word
        self.parts: list[tuple[Tensor, Any]] = [(word, (slice(None), CONSTANT)), *((word, mark) for mark in marks)]
        self.kept: list[Tensor] = []
        layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
        width = encoder.config.hidden_size
        for layer, patterns in zip(layers, PATTERNS, strict=False):
            attention = layer.attention
            size = width // attention.heads
            equal = [number for number in range(attention.heads) if patterns[number % len(patterns)] == "equal"]
            starts = [start + number * size for start in (0, width) for number in equal]  # of queries, of keys
            self.parts += [(attention.qkv.weight, slice(start, start + size)) for start in starts]

    @cached_property
    def there(self) -> bool:
        """Whether the encoder began with attention patterns: only then is a dimension the same for all tokens."""
        constant = self.word.detach()[:, CONSTANT].float()
        return bool(constant.min() > 0 and constant.max() < 1.001 * constant.min())

    def drop_gradient(self, parameter: Tensor) -> None:
        """Set the gradient of the parts of a parameter to 0."""
        assert parameter.grad is not None
        for other, part in self.parts if self.there else ():
            if other is parameter:
                parameter.grad[part] = 0

    def keep(self) -> None:
        """Remember the parts before a step."""
        self.kept = [parameter.detach()[part].clone() for parameter, part in self.parts] if self.there else []

    def put_back(self) -> None:
        """Undo what the step did to them."""
        for (parameter, part), value in zip(self.parts, self.kept, strict=False):
            parameter.detach()[part] = value


def _set_queries_and_keys(
    attention: SelfAttention, patterns: tuple[HeadPattern, ...], base: float, special: Special
) -> None:
    queries, keys, _ = attention.qkv.weight.data.chunk(3)
    queries *= OTHERS
    keys *= OTHERS
    size = len(queries) // attention.heads
    speeds = rotary_angles(torch.ones(1, dtype=torch.long), size, base)[0]
    comparisons = _comparisons(attention.heads, max(2 * (len(speeds) // 2 - 1), 0), special)
    for number, (q_HD, k_HD) in enumerate(zip(queries.split(size), keys.split(size), strict=True)):
        pattern = patterns[number % len(patterns)]
        if isinstance(pattern, Focus):
            _attend_to_distance(q_HD, k_HD, speeds, pattern)
        else:
            _attend_to_equal_words(q_HD, k_HD, speeds, comparisons[number], special)


def _attend_to_distance(q_HD: Tensor, k_HD: Tensor, speeds_R: Tensor, focus: Focus) -> None:
    length_R = _lengths(abs(focus.score), speeds_R)
    turned = torch.pi * (focus.score < 0) - focus.distance * speeds_R
    q_HD[:, CONSTANT] = torch.cat([length_R, torch.zeros_like(length_R)])
    k_HD[:, CONSTANT] = torch.cat([length_R * turned.cos(), length_R * turned.sin()])


def _lengths(score: float, speeds_R: Tensor) -> Tensor:
    """Return the lengths of query and key in each pair that give a score at the distance where they are parallel."""
    weights = torch.where(speeds_R > SLOWEST, speeds_R.sqrt(), 0.0)
    return (score * weights / weights.sum() * math.sqrt(2 * len(speeds_R))).sqrt()


def _attend_to_equal_words(
    q_HD: Tensor, k_HD: Tensor, speeds_R: Tensor, comparison_ND: Tensor, special: Special
) -> None:
    """Compare words in the slowest pairs. A word is not compared with itself: the fast pairs lower the score nearby."""
    root = math.sqrt(len(q_HD))  # scores are divided by it
    _attend_to_distance(q_HD, k_HD, speeds_R, Focus(0, -EQUAL))
    slowest = speeds_R.argsort()[: len(comparison_ND) // 2 + 1]
    mark, pairs = slowest[0], slowest[1:]
    rows = torch.cat([pairs, pairs + len(speeds_R)])
    for weights in (q_HD, k_HD):
        weights[rows] = math.sqrt(EQUAL * root / max(len(rows), 1)) * comparison_ND
    q_HD[mark, CONSTANT] = math.sqrt(NONE * root)
    k_HD[mark] = math.sqrt(NONE * root) * (special.marks / special.marks.square().sum(1, keepdim=True)).sum(0)


def _comparisons(heads: int, dimensions: int, special: Special) -> Tensor:
    """Return random orthonormal rows for each head, orthogonal to special tokens and to the constant dimension."""
    width = special.all.shape[1]
    constant = torch.eye(width)[[CONSTANT]]
    ignored = torch.linalg.qr(torch.cat([constant, special.all]).T)[0]
    random_HDN = torch.randn(heads, width, dimensions)
    return torch.linalg.qr(random_HDN - ignored @ (ignored.T @ random_HDN))[0].mT


def _copy_values(attention: SelfAttention) -> None:
    """Let each head add a part of what it reads: its projection on a random subspace. The parts are orthogonal."""
    values: Tensor = attention.qkv.weight.data.chunk(3)[2]
    nn.init.orthogonal_(values)
    attention.out.weight.data.copy_(values.T)
