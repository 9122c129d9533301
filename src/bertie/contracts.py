"""The arrows of the map: what one room hands to the next.

    T  packed tokens of a batch, sequences laid end to end, no padding
    S  sequences in the batch
    P  predicted positions
    Q  rows of the last layer (T, or only the rows that a head reads)
    D  hidden size

Arrays are NumPy in the loader and tensors of the same names on the device (`Batch.tensors`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Array = Any  # np.ndarray in the loader, Tensor on the device


FILLER = -2  # Sequence.example of what only fills a row up


@dataclass(frozen=True)
class Document:
    """One document of raw text. `source` says where it came from, for error messages: "wiki.jsonl:17"."""

    text: str
    source: str


@dataclass(frozen=True, eq=False)
class Sequence:
    """What the model reads as one unit, special tokens included. n = tokens.

    input_ids, token_type_ids: int32 [n]; word_starts: bool [n], true where a word begins (special tokens count as words);
    offsets: int32 [n, 2], characters in the source text, (0, 0) for special tokens, or None where nobody asked.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    word_starts: np.ndarray
    offsets: np.ndarray | None = None
    kind: int = -1  # what the layout decided; for pairs 0 = B follows A, 1 = B is from elsewhere (BERT's labels)
    example: int = -1  # which example this came from
    part: int = 0  # which window or choice of that example
    target: Any = None  # the task's gold label
    weight: float = 1.0  # what it counts of its example: one of n windows counts 1/n
    truncated: int = 0  # tokens of the example that found no room
    hidden_states: np.ndarray | None = None  # float32, what a frozen encoder says of it: `BertModel.states`

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, eq=False)
class Ragged:
    """Where the sequences lie in T: sequence s is cu_seqlens[s] : cu_seqlens[s + 1].

    cu_seqlens: int32 [S + 1], first 0, last T. max_seqlen: an upper bound on the lengths that stays the same from
    batch to batch (the layout's), so that nothing is compiled twice.
    """

    cu_seqlens: Array
    max_seqlen: int

    @cached_property
    def lengths(self) -> Array:
        """int32 [S]: tokens in each sequence."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]


@dataclass(frozen=True, eq=False)
class Batch:
    """input_ids, token_type_ids, position_ids, word_starts: [T]; kind, example: [S]. Positions restart in every sequence."""

    input_ids: Array
    token_type_ids: Array
    position_ids: Array
    word_starts: Array
    kind: Array
    example: Array
    ragged: Ragged

    def tensors(self, device: torch.device | str = "cpu") -> Batch:
        """The same batch as int64 tensors (word_starts: bool) on `device`."""
        ragged = Ragged(_move(self.ragged.cu_seqlens, device), self.ragged.max_seqlen)
        names = ("input_ids", "token_type_ids", "position_ids", "word_starts", "kind", "example")
        return Batch(**{name: _move(getattr(self, name), device) for name in names}, ragged=ragged)


@dataclass(frozen=True, eq=False)
class Targets:
    """What to predict, and where. index: int64 [P], rows of `Hidden.last`; label: int64 [P], or float32; weight: float32 [P].

    weight 0 marks filler: what is predicted in masked rows keeps P the same for a given row size.
    """

    index: Array
    label: Array
    weight: Array

    def tensors(self, device: torch.device | str = "cpu") -> Targets:
        return Targets(**{name: _move(getattr(self, name), device) for name in ("index", "label", "weight")})


@dataclass(frozen=True, eq=False)
class PairTargets:
    """Texts to be told apart, or to be as near as they are scored. index: int64 [P], rows of `Hidden.last`; label: int64 [P],
    the text that a row is of, from 0; weight: float32 [B], of each pair.

    first, second: int64 [B], the numbers of the texts of each pair. score: float32 [B], the cosines that are wanted, where
    `scored`.
    """

    index: Array
    label: Array
    weight: Array
    first: Array
    second: Array
    score: Array
    scored: bool

    def tensors(self, device: torch.device | str = "cpu") -> PairTargets:
        names = ("index", "label", "weight", "first", "second", "score")
        return PairTargets(**{name: _move(getattr(self, name), device) for name in names}, scored=self.scored)


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """One forward and backward pass: a batch, what each head is to predict, and the rows of the last layer they read.

    rows: int64 [Q], sorted positions in T; the targets' `index` counts in these rows. states: what a frozen encoder says,
    where that is known already.
    """

    batch: Batch
    targets: dict[str, Any]  # Targets, or a head's own kind of them, with an index and weights too
    rows: Array
    hidden_states: Array | None = None

    @classmethod
    def of(cls, batch: Batch, targets: dict[str, Any], multiple: int = 1) -> MicroBatch:
        """From targets whose `index` counts in T (NumPy). multiple: of which Q is one, as T must be; other rows fill it up."""
        rows = np.unique(np.concatenate([target.index for target in targets.values()]))
        if missing := -len(rows) % multiple:
            others = np.setdiff1d(np.arange(len(batch.input_ids)), rows)
            rows = np.sort(np.concatenate([rows, others[:missing]]))
        inside = {name: replace(t, index=np.searchsorted(rows, t.index)) for name, t in targets.items()}
        return cls(batch, inside, rows)

    @property
    def counts(self) -> dict[str, float]:
        """What each loss is a sum over, known before it is computed."""
        return {name: float(target.weight.sum()) for name, target in self.targets.items()}

    @property
    def tokens(self) -> int:
        """Real tokens: filler is not counted (NumPy)."""
        return int(self.batch.ragged.lengths[self.batch.example != FILLER].sum())

    def tensors(self, device: torch.device | str = "cpu") -> MicroBatch:
        targets = {name: target.tensors(device) for name, target in self.targets.items()}
        states = None if self.hidden_states is None else _move(self.hidden_states, device)
        return MicroBatch(self.batch.tensors(device), targets, _move(self.rows, device), states)


def _move(array: Array, device: torch.device | str) -> Tensor:
    """A tensor on `device`: whole numbers as int64, others as float32. The host does not wait for a GPU to take it."""
    import torch

    tensor = torch.as_tensor(array)
    if tensor.dtype != torch.bool:
        tensor = tensor.float() if tensor.is_floating_point() else tensor.long()
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":  # without pinning, it would
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True, eq=False)
class Hidden:
    """What the encoder gives. last: [Q, D]; layers: embeddings and every layer's output, each [T, D], where asked for."""

    last: Tensor
    layers: tuple[Tensor, ...] | None = None


@dataclass(frozen=True, eq=False)
class Loss:
    """A sum and what it is a sum over, never a mean: so accumulation and data parallelism are exact.

    total: scalar, differentiable; count: scalar; hits: how many predictions were right, NaN where the head cannot say.
    """

    total: Tensor
    count: Tensor
    hits: Tensor
