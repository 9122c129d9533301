"""What 64 GPUs would exchange, how long that would take, and when a GPU's memory would be too small: arithmetic, no measurement.

    python benchmarks/many_gpus.py [--gpus 64] [--per-node 8] [--vocabulary 30000]

Prints the tables of dev/measurements/many-gpus.md, which names the assumptions. Change the constants below to change them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, replace

from bertie.base import config
from bertie.model.initialization import no_weights
from bertie.model.matrices import HasMatrices
from bertie.objectives import MaskedLM
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig

RECIPES = ("base", "modern-base", "large", "modern-large")
MEASURED = {"base": 591_876, "modern-base": 454_674}  # tokens/s of one H100 (dev/log/2026-11-27-gpu.md)
SAME_SHAPE = {"large": "base", "modern-large": "modern-base"}  # not measured: assumed to reach the same FLOPS
TOKENS = 32_768  # of a GPU in a step, as measured
BYTES = 4  # of a gradient: bertie exchanges fp32
BACKWARD = 2 / 3  # of the time of a step, in which the exchange is hidden
NVLINK = 300e9  # bytes/s that a ring reaches within a node of H100s (450e9 are on the data sheet)
LINE_SHARE = 0.8  # of the line rate that a ring reaches between nodes
GIGABITS = (50, 100, 400, 3200)  # of a node; 3200 are 400 for each of 8 GPUs
MEMORY = 80e9
USABLE = 0.9  # of it, as bertie's search for a micro-batch assumes
ACTIVATIONS = 20e9  # bytes that shall remain for activations
STATE = 4 + 4 + 8 + 2  # bytes per weight: fp32 weight and gradient, AdamW's two moments, bf16 copy of autocast


@dataclass(frozen=True)
class Size:
    """What a recipe exchanges in a step."""

    name: str
    weights: int
    embeddings: int  # of the words: their gradients are complete when the backward pass ends
    matrices: Counter[tuple[int, ...]]  # that Muon trains: how many of each kind, whose last two numbers are the shape
    seconds: float  # of a step on one GPU

    @property
    def gradients(self) -> int:
        return BYTES * self.weights

    def updates(self, gpus: int) -> int:
        """Return the bytes that an all-gather of Muon's updates has, empty places included (`Ranks.gather_rows`)."""
        places = {kind: min(gpus * -(-count // gpus), 2 * count) for kind, count in self.matrices.items()}
        return BYTES * sum(count * rows * columns for (_, rows, columns), count in places.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=30_000)
    args = parser.parse_args()
    sizes = [size_of(name, args.vocabulary) for name in RECIPES]
    print(
        "\n\n".join((bytes_table(sizes, args.gpus), time_table(sizes, args.gpus, args.per_node), memory_table(sizes)))
    )


def size_of(name: str, vocabulary: int) -> Size:
    """Count the weights of a recipe, and estimate the time of its step."""
    weights, words, matrices, operations = counts(name, vocabulary)
    measured = SAME_SHAPE.get(name, name)
    return Size(
        name, weights, words, matrices, operations / counts(measured, vocabulary)[3] * TOKENS / MEASURED[measured]
    )


def counts(name: str, vocabulary: int) -> tuple[int, int, Counter[tuple[int, ...]], float]:
    """Return the weights of a recipe, those of its word embeddings, its matrices, and its products per token."""
    recipe = config.load(PretrainConfig, name, "pretrain")
    with no_weights():
        model = new_model(replace(recipe.model, vocab_size=vocabulary), recipe.objectives, 0)
    layers = [layer for layer in model.encoder.modules() if isinstance(layer, HasMatrices)]
    matrices = Counter[tuple[int, ...]]()
    for weight, number in (pair for layer in layers for pair in layer.matrices().items()):
        matrices[number, len(weight) // number, weight.shape[1]] += number
    trained = sum(count * rows * columns for (_, rows, columns), count in matrices.items())
    words = vocabulary * recipe.model.hidden_size
    [masked] = [objective for objective in recipe.objectives if isinstance(objective, MaskedLM)]
    return model.size, words, matrices, trained + masked.mlm_probability * words


def ring(size: float, gpus: int, rate: float) -> float:
    """Return the seconds of a ring all-reduce: each link carries 2 (G - 1) / G times the bytes."""
    return 2 * (gpus - 1) / gpus * size / rate


def bytes_table(sizes: list[Size], gpus: int) -> str:
    """Return what a step exchanges, by recipe."""
    head = ("Recipe", "Weights, million", "Gradients, MB", "of them word embeddings, MB", "Muon's updates, MB")
    head += (f"as {gpus} GPUs gather them, MB",)
    rows = [
        (
            size.name,
            f"{size.weights / 1e6:.1f}",
            f"{size.gradients / 1e6:,.0f}",
            f"{BYTES * size.embeddings / 1e6:.0f}",
            f"{size.updates(1) / 1e6:,.0f}",
            f"{size.updates(gpus) / 1e6:,.0f}, or {size.updates(gpus) / 2 / size.gradients:.0%} more traffic",
        )
        for size in sizes
    ]
    return table(head, rows)


def time_table(sizes: list[Size], gpus: int, per_node: int) -> str:
    """Return the time of the exchange and the share of the step that nothing hides, by recipe and network."""
    head = ("Recipe", "Step of one GPU", "Exchange within a node", *(f"{rate} Gb/s per node" for rate in GIGABITS))
    rows = []
    for size in sizes:
        within = ring(size.gradients, per_node, NVLINK)
        cells = [size.name, f"{1000 * size.seconds:.0f} ms", f"{1000 * within:.1f} ms"]
        for rate in GIGABITS:
            speed = LINE_SHARE * rate * 1e9 / 8
            whole, last = (ring(n, gpus, speed) for n in (size.gradients, BYTES * size.embeddings))
            open_seconds = max(whole - BACKWARD * size.seconds, last)
            cells.append(f"{1000 * whole:,.0f} ms; {size.seconds / (size.seconds + open_seconds):.0%}")
        rows.append(tuple(cells))
    return table(head, rows)


def memory_table(sizes: list[Size]) -> str:
    """Return the memory for weights, gradients and optimizer, and the size that a GPU would no longer hold."""
    rows = [(size.name, f"{size.weights / 1e6:.0f}", f"{STATE * size.weights / 1e9:.1f} GB") for size in sizes]
    most = (USABLE * MEMORY - ACTIVATIONS) / STATE
    largest = f"the largest, with {ACTIVATIONS / 1e9:.0f} GB for activations"
    rows.append((largest, f"{most / 1e6:,.0f}", f"{STATE * most / 1e9:.1f} GB"))
    return table(("Recipe", "Weights, million", f"Memory of {MEMORY / 1e9:.0f} GB that they take"), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))


if __name__ == "__main__":
    main()
