"""How long batches take: overhead + tokens / rate, learned from the batches that a server computes. And how far predictions
that were made from this were wrong."""

from __future__ import annotations

from math import ceil

import numpy as np

NEW = 0.2  # weight of a batch in the mean of its size
SLOW = 2.0  # times the mean of its size that a batch counts at most, because another program may have held it up
RISE = 0.2  # of the difference to a request that took longer than corrected
HALF_LIFE = 5.0  # seconds after which a correction is half as large


class BatchSpeed:
    """The seconds of batches, as a line over their tokens. The worker's thread counts, and the event loop asks.

    Short queries cost little more than the overhead of a batch, and say little about the rate. So the line goes through
    means by size, in classes that double: thousands of short batches do not push out the few large ones.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._means: dict[int, tuple[float, float]] = {}  # tokens and seconds of each class
        self._line = (0.0, 0.0)  # seconds of a batch, and of a token: one object, because two threads use it

    def count(self, tokens: int, seconds: float) -> None:
        """Learn from a batch. One without tokens, such as an empty text without special tokens, teaches nothing."""
        if tokens:
            size = tokens.bit_length()
            t, s = self._means.get(size, (tokens, seconds))
            self._means[size] = t + NEW * (tokens - t), s + NEW * (min(seconds, SLOW * s) - s)
            self._line = _line([*self._means.values()])

    def batch(self, tokens: int) -> float:
        """Return the seconds of one batch; 0 if nothing was counted yet."""
        return self._line[0] + self._line[1] * tokens

    def seconds(self, tokens: int, batch_tokens: int) -> float:
        """Return the seconds of some tokens, in batches of at most `batch_tokens`; 0 if nothing was counted yet."""
        return self._line[0] * ceil(tokens / batch_tokens) + self._line[1] * tokens

    def within(self, seconds: float) -> int:
        """Return the tokens of the largest batch that takes at most some seconds; 0 if the overhead alone takes longer."""
        overhead, rate = self._line
        return max(int((seconds - overhead) / max(rate, 1e-9)), 0)


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return overhead and seconds of a token by least squares. An error counts by its share of the seconds, and by these."""
    tokens, seconds = np.array(points).T
    rate, overhead = np.polyfit(tokens, seconds, 1, w=np.maximum(seconds, 1e-9) ** -0.5) if len(points) > 1 else (0, 0)
    if rate <= 0 or overhead < 0:  # a single size, or noise: the largest batches matter most
        t, s = max(points)
        return 0.0, s / t
    return float(overhead), float(rate)


class Correction:
    """How many times as long as predicted requests take, at least 1: the worst of the last seconds.

    It rises with every request that takes even longer, and falls back over time. So it forgets a disturbance also if nothing
    is admitted that would show its end.
    """

    def __init__(self) -> None:
        """Begin without a correction."""
        self._excess, self._at = 0.0, 0.0

    def factor(self, now: float) -> float:
        """Return it. now: seconds of `time.monotonic`."""
        return 1.0 + self._excess * 0.5 ** ((now - self._at) / HALF_LIFE)

    def observe(self, predicted: float, measured: float, now: float) -> None:
        """Learn from a request: its predicted and its measured seconds."""
        before = self.factor(now)
        self._excess, self._at = before - 1.0 + RISE * max(measured / predicted - before, 0.0), now
