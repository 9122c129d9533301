"""A loss that compares the texts of a whole batch: the same for any split into micro-batches and any number of ranks, with the
memory of one micro-batch, and never with a known positive among the negatives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from bertie.base import runtime
from bertie.base.contracts import ComparedBatch, Sequence
from bertie.examples.texts import Example
from bertie.finetuning.micro_batches import DevBatches, MicroBatcher
from bertie.finetuning.recipe import read_recipe
from bertie.model import model as model_file
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.tasks.embed import Embed
from bertie.tasks.known_positives import with_relation
from bertie.training.distributed import SINGLE_PROCESS, Ranks

TASK = Embed()
LENGTH = 24


def units_of(count: int, task: Embed = TASK, seed: int = 0) -> list[list[Sequence]]:
    """Pairs with a hard negative, of random tokens and lengths."""
    rng = np.random.default_rng(seed)

    def text(number: int, part: int) -> Sequence:
        ids = rng.integers(1, 400, rng.integers(3, LENGTH)).astype(np.int32)
        return Sequence(ids, np.zeros_like(ids), ids > 0, example=number, part=part)

    return task.training_units(with_relation([text(number, part) for number in range(count) for part in range(3)]))


def model_of(size: TransformerConfig, dtype: torch.dtype, dropout: float = 0.0) -> Model:
    size = replace(size, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model = Model(build_encoder(size), {TASK.kind: TASK.head(size, size.hidden_size)})
    runtime.reseed_torch(0, 1)
    initialize_weights(model, 0.3)
    return model.to(dtype).train()


def batcher(row_tokens: int) -> MicroBatcher:
    config = read_recipe({"extends": "embed", "max_length": LENGTH, "training": {"row_tokens": row_tokens}})
    return MicroBatcher(config, TASK, 0, "first", 1)


def gradient(model: Model, work: Any) -> Tensor:
    model.zero_grad()
    runtime.reseed_torch(7, 7)
    loss = model(work.tensors())[TASK.kind]
    loss.total.backward()
    return gradients(model)


def gradients(model: Model) -> Tensor:
    """Of all weights: 0 for those that the loss does not depend on."""
    return torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in model.parameters()])


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_split_does_not_change_the_gradient(tiny_config: TransformerConfig, dtype: torch.dtype, most: float) -> None:
    model, units = model_of(tiny_config, dtype), units_of(12)
    whole = batcher(10_000).compared(units)
    expected = gradient(model, whole)
    sequences = [sequence for unit in units for sequence in unit]
    plain = batcher(10_000).micro_batch(sequences)
    assert torch.equal(gradient(model, plain), expected)  # one part: as without parts, to the bit
    for row_tokens in (1, 50, 200):
        split = batcher(row_tokens).compared(units)
        assert len(split.parts) > 2
        assert difference(gradient(model, split), expected) <= most


def test_dropout_is_replayed(tiny_config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recomputed activations drop the same elements: the gradient is that of one graph of all parts."""
    model, split = model_of(tiny_config, torch.float64, dropout=0.3), batcher(50).compared(units_of(8))
    found, again = gradient(model, split), gradient(model, split)
    assert torch.equal(found, again)
    monkeypatch.setattr(model_file, "checkpoint", lambda call, *inputs, **_: call(*inputs))
    assert difference(found, gradient(model, split)) <= 1e-12
    assert difference(found, gradient(model, batcher(200).compared(units_of(8)))) > 0.01


class ThreadRanks(Ranks):
    """Ranks that are threads of one process."""

    def connect(self, barrier: threading.Barrier, places: list[Tensor | None]) -> ThreadRanks:
        self.__dict__.update(barrier=barrier, places=places)
        return self

    def sum_inplace(self, tensor: Tensor) -> None:
        own: Any = self
        own.places[self.rank] = tensor.clone()
        own.barrier.wait()
        total = sum(own.places)
        own.barrier.wait()
        tensor.copy_(total)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("units", [2, 9])
def test_ranks_compute_the_same_gradient(tiny_config: TransformerConfig, count: int, units: int) -> None:
    """Hard negatives included; with 2 units, the first of 3 ranks has none."""
    pairs = units_of(units)
    expected = gradient(model_of(tiny_config, torch.float64), batcher(10_000).compared(pairs))
    barrier, places = threading.Barrier(count), [None] * count
    models = [model_of(tiny_config, torch.float64) for _ in range(count)]

    def run(rank: int) -> None:
        ranks, model = ThreadRanks(rank, count).connect(barrier, places), models[rank]
        model.heads[TASK.kind].gather = ranks.gathered
        work = batcher(60).compared(pairs, ranks)
        model(work.tensors())[TASK.kind].total.backward()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert difference(torch.stack([*map(gradients, models)]).sum(0), expected) <= 1e-12


def examples_of(*rows: tuple[str, ...]) -> list[Example]:
    return [Example(*row[:2], None, f"f:{number}") for number, row in enumerate(rows)]


@pytest.mark.parametrize("positives", ["pairs", None, "all"])
def test_positives_of_a_query(small_tokenizer: Any, small_texts: list[str], positives: Any) -> None:
    """Pairs: each once. By default, the query with one of its positives in each epoch. All: with all, which share its weight."""
    a, b, c, p, q, r = (text[:40] for text in small_texts[:6])
    task = Embed(positives=positives)
    sequences = task.encode(examples_of((a, p), (a, q), (b, q), (c, r)), small_tokenizer, 64)
    units = task.training_units(sequences)
    assert [len(unit) for unit in units] == ([2, 2, 2, 2] if positives == "pairs" else [3, 2, 2])
    drawn = [[task.drawn(unit, number) for unit in units] for number in (0.0, 0.99)]
    texts = [[len(unit) for unit in each] for each in drawn]
    assert texts == {"pairs": [[2] * 4] * 2, None: [[2] * 3] * 2, "all": [[3, 2, 2]] * 2}[positives]
    assert (drawn[0][0] != drawn[1][0]) == (positives is None)
    dev = DevBatches(batcher(1000), cast(Any, SimpleNamespace(task=task, dev_sequences=sequences)), {0, 1, 2, 3})
    assert [sum(map(len, part)) for part in dev.parts] == [sum(texts[0])]  # the dev loss reads what a step would
    flat = [sequence for unit in drawn[0] for sequence in unit]
    targets = task.targets(None, flat, np.zeros(0, np.int64))
    assert targets.weight.tolist() == ([0.5, 0.5, 1, 1] if positives == "all" else [1] * len(targets.first))
    contrasted = [{int(targets.second[j]) for j in np.flatnonzero(~row)} for row in targets.masked]
    for row, first, own in zip(contrasted, targets.first, targets.own, strict=True):
        others = row - {int(targets.second[own])}
        known = flat[first].target.positives
        assert not {flat[i].target.number for i in others} & set(known.tolist())


def test_known_positives_are_no_negatives_outside_of_the_batch(small_tokenizer: Any, small_texts: list[str]) -> None:
    """a has the positives p and q. A batch with (a, p) and (b, q) does not contrast a with q, though (a, q) is not there; nor
    with a text that equals it."""
    a, b, p, q = (text[:40] for text in small_texts[:4])
    task = Embed(positives="pairs")
    sequences = task.encode(examples_of((a, p), (a, q), (b, q), (b, a)), small_tokenizer, 64)
    units = task.training_units(sequences)
    targets = task.targets(None, [*units[0], *units[2], *units[3]], np.zeros(0, np.int64))
    assert targets.masked.tolist() == [[False, True, True], [False, False, True], [False, True, False]]


def test_compared_texts_have_counts_and_tokens(tiny_config: TransformerConfig) -> None:
    work: ComparedBatch = batcher(60).compared(units_of(5), SINGLE_PROCESS)
    assert work.counts == {"embed": 5.0}
    assert work.tokens == sum(len(sequence) for unit in units_of(5) for sequence in unit)
    gather: Callable[..., Tensor] = model_of(tiny_config, torch.float32).heads["embed"].gather  # pyright: ignore
    assert gather(torch.ones(2, 2), ()).shape == (2, 2)
