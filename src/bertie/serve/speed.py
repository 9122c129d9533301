"""How long batches take: overhead + tokens / rate, learned from the batches that a server computes. And how far predictions
that were made from this were wrong."""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import fmean, median_low

KEPT = 8  # batches of a size that are remembered
SLOW = 2.0  # times the median of its size that a batch counts at most
RISE = 0.2  # of the difference to a request that took longer than corrected
HALF_LIFE = 5.0  # seconds after which a correction is half as large
FORGOTTEN, LEAST = 0.99, 0.01  # a size loses this share of its weight with every batch of another size, down to LEAST


class BatchSpeed:
    """The seconds of batches, as a line over their tokens. The worker's thread counts, and the event loop asks.

    Short queries cost little more than the overhead of a batch, and say little about the rate. So batches are remembered
    by size, in classes that double: thousands of short ones do not push out the few large ones. In the mean of a class, a
    batch counts at most twice the median, because another program may have held up one.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._batches: dict[int, deque[tuple[int, float]]] = {}
        self._points: dict[int, tuple[float, float]] = {}  # mean tokens and mean seconds of each class
        self._weights: dict[int, float] = {}
        self._line = (0.0, 0.0)  # seconds of a batch, and of a token: one object, because two threads use it

    def count(self, tokens: int, seconds: float) -> None:
        """Learn from a batch. One without tokens, such as an empty text without special tokens, teaches nothing."""
        if not tokens:
            return
        size = tokens.bit_length()
        kept = self._batches.setdefault(size, deque(maxlen=KEPT))
        kept.append((tokens, seconds))
        most = SLOW * median_low(s / t for t, s in kept)
        self._points[size] = fmean(t for t, _ in kept), fmean(min(s, most * t) for t, s in kept)
        self._weights = {each: max(FORGOTTEN * weight, LEAST) for each, weight in self._weights.items()} | {size: 1.0}
        self._line = self._fitted()

    def batch(self, tokens: int) -> float:
        """Return the seconds of one batch; 0 if nothing was counted yet."""
        return self._line[0] + self._line[1] * tokens

    def seconds(self, tokens: int, batch_tokens: int) -> float:
        """Return the seconds of some tokens, in batches of at most `batch_tokens`; 0 if nothing was counted yet."""
        return self._line[0] * ceil(tokens / batch_tokens) + self._line[1] * tokens

    def within(self, seconds: float) -> int:
        """Return the tokens of the largest batch that takes at most some seconds; 0 if the overhead alone takes longer."""
        overhead, each = self._line
        return max(int((seconds - overhead) / max(each, 1e-9)), 0)

    def _fitted(self) -> tuple[float, float]:
        """Return the line through the points, by least squares. Neither number is negative.

        An error of a share of a large batch counts more than the same share of a small one, but less than by its seconds.
        """
        points = [(self._weights[size] / max(s, 1e-9), t, s) for size, (t, s) in self._points.items()]
        total = sum(w for w, _, _ in points)
        mean_t, mean_s = (sum(w * point[i] for w, *point in points) / total for i in (0, 1))
        spread = sum(w * (t - mean_t) ** 2 for w, t, _ in points)
        rate = sum(w * (t - mean_t) * (s - mean_s) for w, t, s in points) / spread if spread else 0.0
        overhead = mean_s - rate * mean_t
        if rate <= 0 or overhead < 0:  # too few sizes, or noise: the largest error would be that for large batches
            return 0.0, sum(w * t * s for w, t, s in points) / sum(w * t * t for w, t, _ in points)
        return overhead, rate


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
