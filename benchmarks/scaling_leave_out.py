"""How well the curve of `bertie plan` expects a loss that it was not drawn through.

    python benchmarks/scaling_leave_out.py

Leaves out each loss alone, then the longest own run of every size together. Prints the loss, the expected one with its 80 %
interval, and the difference. Takes seconds.
"""

from __future__ import annotations

from bertie.pretraining import scaling
from bertie.pretraining.scaling import Point


def main() -> None:
    points = scaling.all_points()
    print(f"each alone: {sum(show((point,)) for point in points)} of {len(points)} in their intervals\n")
    own = [point for point in points if not point.published]
    longest = {point.parameters: point for point in sorted(own, key=lambda point: point.tokens)}
    print(f"the longest runs together: {show(tuple(longest.values()))} of {len(longest)} in their intervals")


def show(left_out: tuple[Point, ...]) -> int:
    """Print what a curve through all other points expects, and return how many losses are in their intervals."""
    others, inside = tuple(point for point in scaling.all_points() if point not in left_out), 0
    for point in left_out:
        expected = scaling.expected_loss(point.parameters, point.tokens, others)
        inside += expected.low <= point.loss <= expected.high
        print(
            f"{point.parameters / 1e6:7.1f} M parameters, {point.tokens / 1e6:9.1f} M tokens: loss {point.loss:.3f}, "
            f"expected {expected.loss:.3f} ({expected.low:.3f} to {expected.high:.3f}), {point.loss - expected.loss:+.3f}"
        )
    return inside


if __name__ == "__main__":
    main()
