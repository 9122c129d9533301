"""Micro-batches of one shape, for work that is recorded once and repeated, such as a CUDA graph.

The rows of pre-training have the same number of tokens. The numbers of sequences, predictions and query rows differ. They
are padded with parts that change neither losses nor gradients: sequences without tokens, predictions of weight 0, and query
rows that no head uses.

T, S, Q, P: as in `contracts`
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertie.base.contracts import FILLER, Batch, MicroBatch, Ragged

MULTIPLE = 64  # of query rows, as tiles of matrix products have


@dataclass(frozen=True)
class Capacity:
    """Sizes of a padded micro-batch."""

    tokens: int
    """T, which is not padded."""
    max_seqlen: int
    """`Ragged.max_seqlen`."""
    arrays: frozenset[str]
    """Names of the arrays of the batch."""
    sequences: int
    """S."""
    predictions: dict[str, int]
    """P by head."""
    rows: int
    """Q. As many as all predictions can use."""

    @classmethod
    def of(cls, micro: MicroBatch) -> Capacity:
        """Return sizes that fit a micro-batch of NumPy arrays, and others with half as many sequences again.

        The number of predictions of a head is the same for all micro-batches: it depends on T only. One prediction per sequence
        is the exception. The sizes are rounded, so that most micro-batches of a run give the same.
        """
        tokens, count, longest = len(micro.batch.input_ids), len(micro.batch.example), micro.batch.ragged.max_seqlen
        fewest = max(8, tokens // longest)  # sequences without filler
        sequences = fewest * -(-(count + count // 2) // fewest)
        sizes = {name: len(target.weight) for name, target in micro.targets.items()}
        predictions = {name: sequences if size == count else size for name, size in sizes.items()}
        # A prediction may have several query rows.
        used = sum(predictions[name] * (len(t.index) // len(t.weight)) for name, t in micro.targets.items())
        rows = min(tokens, MULTIPLE * -(-used // MULTIPLE))
        return cls(tokens, longest, frozenset(micro.batch.arrays), sequences, predictions, rows)

    def fits(self, micro: MicroBatch) -> bool:
        """Return whether a micro-batch of NumPy arrays can be padded to these sizes."""
        batch, sizes = micro.batch, {name: len(target.weight) for name, target in micro.targets.items()}
        return (
            (len(batch.input_ids), batch.ragged.max_seqlen) == (self.tokens, self.max_seqlen)
            and self.arrays == frozenset(batch.arrays)
            and sizes.keys() == self.predictions.keys()
            and len(batch.example) <= self.sequences
            and len(micro.rows) <= self.rows
            and all(size <= self.predictions[name] for name, size in sizes.items())
        )


def padded(micro: MicroBatch, capacity: Capacity) -> MicroBatch:
    """Return a micro-batch of NumPy arrays, padded to these sizes, which it fits. It has the same losses and gradients."""
    batch, sequences = micro.batch, capacity.sequences
    cu_seqlens = batch.ragged.cu_seqlens
    full = replace(
        batch,
        pair_label=_extended(batch.pair_label, sequences, -1),
        example=_extended(batch.example, sequences, FILLER),
        ragged=Ragged(_extended(cu_seqlens, sequences + 1, cu_seqlens[-1]), batch.ragged.max_seqlen),
    )
    # Rows that no head uses: the first ones. Repeated rows could make the queries of a sequence more than `max_seqlen`.
    used = np.zeros(capacity.tokens, bool)
    used[micro.rows] = True
    used[np.flatnonzero(~used)[: capacity.rows - len(micro.rows)]] = True
    moved = (np.cumsum(used) - 1)[micro.rows]
    targets = {name: _padded_targets(t, moved, capacity.predictions[name]) for name, t in micro.targets.items()}
    return MicroBatch(full, targets, np.flatnonzero(used))


def _padded_targets(targets: Any, moved: np.ndarray, count: int) -> Any:
    """Return targets with `count` predictions. moved: new numbers of the query rows."""
    predictions = len(targets.weight)
    arrays = {name: moved[array] if name == "index" else array for name, array in vars(targets).items()}
    return replace(targets, **{name: _extended(a, len(a) // predictions * count, 0) for name, a in arrays.items()})


def _extended(array: np.ndarray, size: int, value: int) -> np.ndarray:
    if len(array) == size:
        return array
    longer = np.full((size, *array.shape[1:]), value, array.dtype)
    longer[: len(array)] = array
    return longer


def arrays_of(micro: MicroBatch) -> dict[str, Any]:
    """Return the arrays of a micro-batch by name: "input_ids", "cu_seqlens", "rows", "mlm.label", …"""
    arrays = micro.batch.arrays | {"cu_seqlens": micro.batch.ragged.cu_seqlens, "rows": micro.rows}
    return arrays | {
        f"{head}.{name}": array for head, targets in micro.targets.items() for name, array in vars(targets).items()
    }


def with_arrays(micro: MicroBatch, arrays: dict[str, Any]) -> MicroBatch:
    """Return a micro-batch with other arrays in place of its own, named as `arrays_of` names them."""
    batch: dict[str, Any] = {name: arrays[name] for name in micro.batch.arrays}
    targets = {
        head: replace(target, **{name: arrays[f"{head}.{name}"] for name in vars(target)})
        for head, target in micro.targets.items()
    }
    ragged = Ragged(arrays["cu_seqlens"], micro.batch.ragged.max_seqlen)
    return MicroBatch(Batch(**batch, ragged=ragged), targets, arrays["rows"])
