"""Generate text: from left to right, or by Gibbs sampling from a masked language model (Wang and Cho 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from bertie.base import config as configuration
from bertie.base import seeding
from bertie.base.config import Count, Range, check_ranges
from bertie.base.errors import UsageError, UserError
from bertie.predict.next_tokens import next_tokens
from bertie.predict.token_model import TokenModel
from bertie.predict.word_search import Pieces
from bertie.tokenizers.valid_texts import require_texts

Method = Literal["left-to-right", "gibbs"]
DEFAULT_SWEEPS = 10


@dataclass(frozen=True)
class Generation:
    """How to generate texts.

    A masked language model starts from the prompt and `length` masks. From left to right, it replaces one mask after
    the other with a token that it draws. Gibbs sampling masks one token at a time, in random order, and draws it again.
    Masked language models are not trained to generate: a causal model writes better texts. Both methods are slow,
    because every token takes a forward pass over the whole text, except for a Transformer-XL, which reads each token
    once."""

    method: Method = "left-to-right"
    """left-to-right: each token once, in order. gibbs: all tokens several times, in random order. A causal model only
    generates from left to right."""
    length: Annotated[int, Range(1, 100_000)] = 20
    """Number of tokens to generate. A causal model may end earlier."""
    count: Annotated[int, Range(1, 100_000)] = 1
    """Number of texts."""
    temperature: Annotated[float, Range(0, 1000)] = 1.0
    """Divisor of the log probabilities. Below 1, probable tokens become more probable. 0: always the most probable
    token."""
    top_k: Count = 0
    """Draw only from this many most probable tokens; 0: from all."""
    sweeps: Annotated[int | None, Range(1, 100_000)] = None
    """How often Gibbs sampling draws each token (default: 10). Needs method gibbs."""
    seed: Count = 0
    """Random seed. Text number n is the same for every `count`."""

    def __post_init__(self) -> None:
        check_ranges("", self)
        if self.sweeps is not None and self.method != "gibbs":
            raise UsageError("sweeps belong to Gibbs sampling: set method to gibbs, or omit them")
        configuration.build(Method, self.method, "method")


def generate(model: TokenModel, prompt: str, how: Generation) -> list[str]:
    """Generate texts that begin with the prompt. Special tokens are never drawn.

    Args:
        model: The model.
        prompt: The start of the texts; "" for none. Special tokens in it are plain text.
        how: The settings.

    Returns:
        `how.count` texts, the prompt included, as the tokenizer decodes them.

    Raises:
        UsageError: Gibbs sampling from a causal model.
        UserError: Prompt and length exceed what the model reads, or the model needs a prompt, because it has no token that
            starts a text.
    """
    require_texts([prompt])
    tokenizer = model.tokenizer
    [prompt_ids] = tokenizer.encode([prompt])
    if (total := len(prompt_ids) + how.length) > model.max_text:
        raise UserError(
            f"prompt and text have {total:,} tokens, but the model reads at most {model.max_text:,}: shorten the prompt, or "
            "give a lower --length"
        )
    rngs = [seeding.generator(how.seed, seeding.GENERATION, number) for number in range(how.count)]
    if not model.causal:
        texts = _fill(model, prompt_ids, how, rngs)
    elif how.method == "left-to-right":
        texts = _continue(model, prompt_ids, how, rngs)
    else:
        raise UsageError("a causal model generates from left to right: omit --method gibbs")
    return [tokenizer.decode(ids) for ids in texts]


def _fill(
    model: TokenModel, prompt_ids: np.ndarray, how: Generation, rngs: list[np.random.Generator]
) -> list[list[int]]:
    """Draw tokens at masks after the prompt. Return the tokens of each text, the prompt included."""
    tokenizer = model.tokenizer
    masks = np.full(how.length, tokenizer.mask_id, np.int32)
    before, after = tokenizer.templates.around
    start = np.concatenate([before, prompt_ids, masks, after]).astype(np.int32)
    texts = [start.copy() for _ in rngs]
    allowed = Pieces.of(tokenizer).ordinary
    for positions in zip(*(_positions(how, len(before) + len(prompt_ids), rng) for rng in rngs), strict=True):
        for text, position in zip(texts, positions, strict=True):
            text[position] = tokenizer.mask_id
        contexts = [(text.copy(), np.array([position])) for text, position in zip(texts, positions, strict=True)]
        predicted = model.log_distributions(contexts)
        for text, position, [log_p_V], rng in zip(texts, positions, predicted, rngs, strict=True):
            text[position] = draw(log_p_V, allowed, how, rng)
    return [text[len(before) : len(text) - len(after)].tolist() for text in texts]


def _positions(how: Generation, start: int, rng: np.random.Generator) -> Iterator[int]:
    """Yield the positions to draw, in order."""
    if how.method == "left-to-right":
        yield from range(start, start + how.length)
        return
    for _ in range(DEFAULT_SWEEPS if how.sweeps is None else how.sweeps):
        yield from (start + rng.permutation(how.length)).tolist()


def _continue(
    model: TokenModel, prompt_ids: np.ndarray, how: Generation, rngs: list[np.random.Generator]
) -> list[list[int]]:
    """Draw tokens after the prompt, until the token that ends a text, if there is one. Return the tokens of each text."""
    tokenizer, start = model.tokenizer, model.start
    if not start and not len(prompt_ids):
        raise UserError(f"{model.folder} has no token that starts a text: give a prompt")
    end = None if tokenizer.special.sep is None else tokenizer.sep_id
    allowed = Pieces.of(tokenizer).ordinary.copy()
    if end is not None:
        allowed[end] = True
    texts = [[*start, *prompt_ids.tolist()] for _ in rngs]
    growing, predict = list(range(len(texts))), next_tokens(model)
    for _ in range(how.length):
        for i, log_p_V in zip(growing, predict({i: texts[i] for i in growing}), strict=True):
            texts[i].append(draw(log_p_V, allowed, how, rngs[i]))
        growing = [i for i in growing if texts[i][-1] != end]
        if not growing:
            break
    return [text[len(start) : len(text) - (text[-1] == end)] for text in texts]


def draw(log_p_V: np.ndarray, allowed: np.ndarray, how: Generation, rng: np.random.Generator) -> int:
    """Draw an entry of the vocabulary with one random number.

    Args:
        log_p_V: float [V]: natural logarithms of the probabilities.
        allowed: bool [V]: entries that may be drawn.
        how: Temperature and top_k.
        rng: The generator.
    """
    entries = np.flatnonzero(allowed)
    scores = log_p_V[entries].astype(np.float64)
    uniform = rng.random()
    if how.temperature == 0:
        return int(entries[scores.argmax()])
    if 0 < how.top_k < len(entries):
        best = np.sort(np.argpartition(-scores, how.top_k - 1)[: how.top_k])
        entries, scores = entries[best], scores[best]
    weights = np.exp((scores - scores.max()) / how.temperature)
    cumulative = np.cumsum(weights)
    return int(entries[min(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"), len(entries) - 1)])
