"""Training and testing of probes. All probes of a model share the passes over the treebank.

Adam treats every weight on its own, and the losses of probes are added. A probe therefore learns the same as if it were
trained alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import Protocol

import torch
from torch import Tensor, nn

from bertie import console
from bertie.inspect.probe_data import WordBatch, WordReader
from bertie.inspect.tables import Table

HELD_OUT_EVERY = 10  # every tenth training sentence serves to choose a layer


class ProbeSet(Protocol):
    """Probes that are trained and tested together."""

    @property
    def learning_rates(self) -> list[tuple[Iterator[nn.Parameter], float]]:
        """The weights with their learning rates."""
        ...

    def loss(self, batch: WordBatch) -> Tensor:
        """Return the sum of the losses of all probes."""
        ...

    def hold_out(self, batch: WordBatch) -> None:
        """Receive a batch of held-out training sentences, after training."""
        ...

    def test(self, batch: WordBatch) -> None:
        """Receive a batch of test sentences. Keep only counts."""
        ...

    def tables(self) -> list[Table]:
        """Return the results, after the last batch."""
        ...


def split(sentences: int) -> tuple[list[int], list[int]]:
    """Split the numbers of training sentences into those to train on and those held out.

    With fewer than ten sentences, all are in both parts.
    """
    numbers = list(range(sentences))
    held_out = numbers[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return (numbers, numbers) if not held_out else (sorted(set(numbers) - set(held_out)), held_out)


def fit(reader: WordReader, numbers: Many[int], probes: Many[ProbeSet], epochs: int, seed: int, title: str) -> None:
    """Train probes with Adam. The learning rates fall linearly to 0.

    Args:
        reader: Reads the training sentences.
        numbers: The sentences to train on.
        probes: The probes.
        epochs: Passes over the sentences.
        seed: Random seed of the order of the sentences.
        title: Name of the work in the progress bar.
    """
    groups = [{"params": list(weights), "lr": rate} for each in probes for weights, rate in each.learning_rates]
    optimizer = torch.optim.Adam(groups)
    steps = sum(len(reader.shuffled(numbers, seed, epoch)) for epoch in range(epochs))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    with console.progress(title, epochs * len(numbers), "sentences", passing=True) as bar:
        for epoch in range(epochs):
            for members in reader.shuffled(numbers, seed, epoch):
                batch = reader.read(members)
                optimizer.zero_grad()
                torch.stack([each.loss(batch) for each in probes]).sum().backward()
                optimizer.step()
                schedule.step()
                bar.advance(len(members))


@torch.no_grad()
def measure(train: WordReader, held_out: Many[int], test: WordReader, probes: Many[ProbeSet], title: str) -> None:
    """Show the held-out training sentences and then the test sentences to the probes.

    Args:
        train: Reads the training sentences.
        held_out: Those that are held out.
        test: Reads the test sentences.
        probes: The trained probes.
        title: Name of the work in the progress bar.
    """
    count = len(test.treebank.sentences)
    with console.progress(title, len(held_out) + count, "sentences", passing=True) as bar:
        for batch in train.batches(held_out):
            for each in probes:
                each.hold_out(batch)
            bar.advance(len(batch.numbers))
        for batch in test.batches(range(count)):
            for each in probes:
                each.test(batch)
            bar.advance(len(batch.numbers))
