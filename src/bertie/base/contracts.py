"""The types that the rooms exchange: documents, sequences, packed batches, targets, hidden states, losses.

Data flows one way: `Document` → `Sequence` → `Batch` with `Targets` → `MicroBatch` → `Hidden` → `Loss`.

A batch is packed: its sequences lie end to end along one token axis, without padding. Dimensions in shapes:

    T  packed tokens of a batch
    S  sequences of a batch
    Q  query rows: positions in T at which the last layer is computed, because a head uses its output there
    P  predictions of one head
    B  text pairs of a batch
    D  hidden size

A dimension in lower case, n, is the length of a single sequence.

The loader fills these types with NumPy arrays. `tensors(device)` and `to_tensors` return the same object with torch tensors:
integers become int64, floats become float32, booleans stay booleans.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Array = Any  # np.ndarray in the loader, Tensor on the device


FILLER = -2
"""`Sequence.example` of a filler sequence: [PAD] tokens that complete a row of packed tokens."""


@dataclass(frozen=True)
class Document:
    """A document of raw text."""

    text: str
    """The text, unchanged."""
    source: str
    """File and record that hold the document, for error messages: "wiki.jsonl:17"."""
    translations: tuple[str, ...] = ()
    """The text in each language of the corpus, "" where there is none; `text` is all of them. () if the corpus has no
    languages."""


@dataclass(frozen=True, eq=False)
class Sequence:
    """One tokenized input of the model, [CLS] and [SEP] included. n: number of tokens."""

    input_ids: np.ndarray
    """int32 [n]: vocabulary ids."""
    token_type_ids: np.ndarray
    """int32 [n]: segment ids, 0 for the first text and 1 for the second."""
    word_starts: np.ndarray
    """bool [n]: true at the first subword of each word. Special tokens count as words."""
    offsets: np.ndarray | None = None
    """int32 [n, 2]: start and end of each token in the source text, in characters. (0, 0) for special tokens.
    None if the caller did not ask for offsets."""
    position_ids: np.ndarray | None = None
    """int32 [n]: positions. None: from 0 to n - 1."""
    language_ids: np.ndarray | None = None
    """int32 [n]: language of each token, as an index into the languages of the model. None: the layout has no languages."""
    pair_label: int = -1
    """Label that the layout assigns to a sentence pair: 0 if B follows A (BERT's labels), 1 if B is random or precedes A,
    -1 if there is no label."""
    example: int = -1
    """Index of the example that this sequence encodes. `FILLER` for filler sequences, -1 if there are no examples."""
    part: int = 0
    """Index of this sequence in its example: window of a long text, answer choice, or text of a pair."""
    target: Any = None
    """The task's gold label."""
    weight: float = 1.0
    """Weight in the loss. Each of n windows of an example weighs 1/n."""
    truncated: int = 0
    """Number of tokens of the example that truncation removed."""
    hidden_states: np.ndarray | None = None
    """float32: cached output of a frozen encoder for this sequence, as `Model.encoder_states` returns it."""

    def __len__(self) -> int:
        """Return n, the number of tokens."""
        return len(self.input_ids)


@dataclass(frozen=True, eq=False)
class Ragged:
    """Boundaries of the packed sequences. Sequence s occupies positions cu_seqlens[s] to cu_seqlens[s + 1] of T."""

    cu_seqlens: Array
    """int32 [S + 1]: cumulative sequence lengths in tokens. The first value is 0 and the last is T."""
    max_seqlen: int
    """Upper bound of the sequence lengths, in tokens. It is the layout's limit rather than the maximum of the batch, so
    it is the same for all batches and compiled code is reused."""
    causal: Array | None = None
    """bool [S]: whether the tokens of each sequence see only earlier ones. None: as the configuration of the model says."""

    @cached_property
    def lengths(self) -> Array:
        """int32 [S]: number of tokens of each sequence."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]

    @property
    def longest(self) -> int:
        """Length of the longest sequence, at least 1. `max_seqlen` on a GPU, where reading the lengths would make the host
        wait. Requires tensors."""
        return max(int(self.lengths.max()), 1) if self.lengths.device.type == "cpu" else self.max_seqlen

    def owners(self, tokens: int) -> Tensor:
        """Return the number of the sequence of each of the T tokens. Requires tensors."""
        import torch

        numbers = torch.arange(len(self.lengths), device=self.lengths.device)
        return torch.repeat_interleave(numbers, self.lengths, output_size=tokens)


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences packed end to end, without padding: the input of the encoder."""

    input_ids: Array
    """int32 [T]: vocabulary ids."""
    token_type_ids: Array
    """int32 [T]: segment ids."""
    position_ids: Array
    """int32 [T]: position of each token in its own sequence, from 0, or as the layout numbers them."""
    word_starts: Array
    """bool [T]: true at the first subword of each word."""
    pair_label: Array
    """int32 [S]: `Sequence.pair_label`."""
    example: Array
    """int32 [S]: `Sequence.example`."""
    ragged: Ragged
    """Boundaries of the sequences in T."""
    language_ids: Array | None = None
    """int32 [T]: language of each token. None: all are in the default language of the model."""
    order: Array | None = None
    """int32 [T]: rank of each token in the factorization order of its sequence (permutation language modeling). 0: given as
    context, visible to all tokens. 1, 2, …: predicted, in this order. None: there is no order."""

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays that the encoder and the heads read, by name: one value per token or per sequence."""
        names = ("input_ids", "token_type_ids", "position_ids", "word_starts", "pair_label", "example")
        names += ("language_ids", "order")
        return {name: array for name in names if (array := getattr(self, name)) is not None}

    def tensors(self, device: torch.device | str = "cpu") -> Batch:
        """Return this batch as tensors on `device`."""
        causal = None if self.ragged.causal is None else _move(self.ragged.causal, device)
        ragged = Ragged(_move(self.ragged.cu_seqlens, device), self.ragged.max_seqlen, causal)
        arrays: dict[str, Any] = {name: _move(array, device) for name, array in self.arrays.items()}
        return Batch(**arrays, ragged=ragged)


@dataclass(frozen=True, eq=False)
class Targets:
    """Gold labels of one head, and the positions at which the head predicts them."""

    index: Array
    """int64 [P]: positions of the predictions. They count in T until `MicroBatch.of` turns them into rows of
    `Hidden.last`."""
    label: Array
    """int64 [P]: gold classes (for a loss over groups: the group of each row), or float32 [P]: gold numbers. float32 [P, C]
    for C decisions: 0, or for what is there its weight in the loss, which is 1 by default."""
    weight: Array
    """float32 [P]: weight of each prediction in the loss. 0 marks a placeholder, which keeps P constant for a given row
    size. A loss that makes several choices over the same rows takes [P, choices]."""


@dataclass(frozen=True, eq=False)
class BoundaryTargets:
    """Tokens of spans, each predicted from the two tokens beside its span and from its position in the span."""

    index: Array
    """int64 [2P]: positions as in `Targets.index`, two per prediction: the token before the span and the one after it."""
    label: Array
    """int64 [P]: gold classes."""
    weight: Array
    """float32 [P]: weight of each prediction in the loss, as in `Targets.weight`."""
    offset: Array
    """int64 [P]: position of each predicted token in its span, from 0."""


@dataclass(frozen=True, eq=False)
class ReplacementTargets:
    """Tokens to tell apart after ELECTRA's generator has filled the masks. There is one target per token, in order: P = T."""

    index: Array
    """int64 [P]: positions as in `Targets.index`."""
    label: Array
    """int64 [P]: tokens before masking. A token that differs from it after filling is replaced."""
    weight: Array
    """float32 [P]: weight of each prediction in the loss, as in `Targets.weight`."""
    draw: Array
    """float32 [P]: uniform random number in [0, 1). At a masked token, it selects the generator's sample."""


@dataclass(frozen=True, eq=False)
class PairTargets:
    """Queries with the texts that are right or wrong for them, for a loss on the vectors of texts.

    B  pairs of a query and a positive, of all ranks    b  pairs of this rank    C  candidates    S  texts, of all ranks
    """

    index: Array
    """int64 [P]: positions of the tokens that are pooled, as in `Targets.index`."""
    label: Array
    """int64 [P]: the text to which each of these tokens belongs, from 0 and ascending."""
    weight: Array
    """float32 [b]: weight of each pair in the loss."""
    rows: Array
    """int64 [b]: numbers of the pairs of this rank."""
    first: Array
    """int64 [B]: number of each pair's query among the texts."""
    second: Array
    """int64 [C]: number of each candidate among the texts."""
    own: Array
    """int64 [B]: number of each pair's positive among the candidates."""
    group: Array
    """int64 [C]: the pair that each candidate was given with: as its positive, or as a negative of its query."""
    score: Array
    """float32 [C]: score of each candidate for its own query, if the data has scores."""
    masked: Array
    """bool [b, C]: which candidates (columns) a pair (row) is not contrasted with: texts that are there already, and other
    positives of its query. Empty for losses on scores."""
    masked_back: Array
    """bool [b, B]: which queries a pair's positive is not contrasted with. Empty: it is contrasted with none."""
    texts: int
    """Number of texts of this rank."""
    sizes: tuple[int, ...] = ()
    """Number of texts of each rank. Empty: there is one rank."""

    def of_texts(self, start: int, count: int, sizes: tuple[int, ...]) -> PairTargets:
        """Return the targets of a rank that has `count` of the texts from `start` on. sizes: number of texts of each rank."""
        here = (self.first >= start) & (self.first < start + count)
        parts = {name: getattr(self, name) for name in ("weight", "masked", "masked_back")}
        kept = {name: array[here] if len(array) else array for name, array in parts.items()}
        return replace(self, rows=self.rows[here], **kept, texts=count, sizes=sizes)


@dataclass(frozen=True, eq=False)
class RankTargets:
    """Texts to rank for queries, each in a sequence with its query.

    S  sequences
    """

    index: Array
    """int64 [S]: positions that the head reads, as in `Targets.index`."""
    label: Array
    """int64 [S]: the query of each text, from 0 and ascending."""
    weight: Array
    """float32 [S]: 1 / number of texts of the query."""
    score: Array
    """float32 [S]: gold scores, such as 1 for relevant and 0 for other texts. The first text of a query is a positive."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """The input of one forward and backward pass: a batch, the targets of each head, and the query rows they need."""

    batch: Batch
    """Packed input of the encoder."""
    targets: dict[str, Any]
    """Targets by head: `Targets`, or a head's own dataclass with `index`, `label` and `weight`. `index` counts in `rows`."""
    rows: Array
    """int64 [Q]: sorted positions in T at which the last layer is computed."""
    hidden_states: Array | None = None
    """float32: cached output of a frozen encoder (`Model.encoder_states`). None if the encoder has to run."""

    @classmethod
    def of(cls, batch: Batch, targets: dict[str, Any], multiple: int = 1) -> MicroBatch:
        """Build a micro-batch of NumPy arrays from targets whose `index` counts in T.

        Args:
            batch: The packed sequences.
            targets: Targets by head.
            multiple: Q is rounded up to a multiple of this number with rows that no head uses. T must be a multiple of
                it, too.
        """
        rows = np.unique(np.concatenate([target.index for target in targets.values()]))
        if missing := -len(rows) % multiple:
            unused = np.setdiff1d(np.arange(len(batch.input_ids)), rows)
            rows = np.sort(np.concatenate([rows, unused[:missing]]))
        reindexed = {name: replace(t, index=np.searchsorted(rows, t.index)) for name, t in targets.items()}
        return cls(batch, reindexed, rows)

    @property
    def parts(self) -> list[MicroBatch]:
        """The micro-batches that are computed one after the other: this one."""
        return [self]

    @property
    def counts(self) -> dict[str, float]:
        """Sum of the target weights by head: `Loss.count`, known before the loss is computed."""
        return {name: float(target.weight.sum()) for name, target in self.targets.items()}

    @property
    def tokens(self) -> int:
        """Number of tokens without filler. Requires NumPy arrays."""
        return int(self.batch.ragged.lengths[self.batch.example != FILLER].sum())

    def tensors(self, device: torch.device | str = "cpu") -> MicroBatch:
        """Return this micro-batch as tensors on `device`."""
        targets = {name: to_tensors(target, device) for name, target in self.targets.items()}
        hidden_states = None if self.hidden_states is None else _move(self.hidden_states, device)
        return MicroBatch(self.batch.tensors(device), targets, _move(self.rows, device), hidden_states)


@dataclass(frozen=True, eq=False)
class ComparedBatch:
    """The input of one forward and backward pass whose loss compares the texts of several micro-batches with each other."""

    parts: list[MicroBatch]
    """The texts, in order. The `label` of a part's targets numbers its own texts, and `weight` is 0 for each of them."""
    targets: dict[str, Any]
    """`PairTargets` by head, over the texts of all parts and ranks."""

    counts = MicroBatch.counts

    @property
    def tokens(self) -> int:
        """Number of tokens without filler. Requires NumPy arrays."""
        return sum(part.tokens for part in self.parts)

    def tensors(self, device: torch.device | str = "cpu") -> ComparedBatch:
        """Return this as tensors on `device`."""
        targets = {name: to_tensors(target, device) for name, target in self.targets.items()}
        return ComparedBatch([part.tensors(device) for part in self.parts], targets)


AnyMicroBatch = MicroBatch | ComparedBatch


def to_tensors(targets: Any, device: torch.device | str = "cpu") -> Any:
    """Return a dataclass with its arrays as tensors on `device`."""
    arrays = {field.name: getattr(targets, field.name) for field in fields(targets)}
    return replace(targets, **{name: _move(array, device) for name, array in arrays.items() if hasattr(array, "dtype")})


def _move(array: Array, device: torch.device | str) -> Tensor:
    """Return a tensor on `device`: integers as int64, floats as float32, booleans unchanged."""
    import torch

    tensor = torch.as_tensor(array)
    if tensor.dtype != torch.bool:
        tensor = tensor.float() if tensor.is_floating_point() else tensor.long()
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        # From pinned memory, the copy does not block the host.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True, eq=False)
class Hidden:
    """Output of the encoder."""

    last: Tensor
    """[Q, D]: output of the last layer at the query rows. [T, D] if the caller named no rows."""
    layers: tuple[Tensor, ...] | None = None
    """Output of the embeddings and of every layer, lowest first, each [T, D]. None if the caller did not ask for it."""
    batch: Batch | None = None
    """The batch that was encoded, as tensors, for heads that run a second encoder on it. None outside of `Model`."""
    rows: Tensor | None = None
    """int64 [Q]: the query rows, for the same heads. None outside of `Model`."""


@dataclass(frozen=True, eq=False)
class Loss:
    """A sum of losses with its number of terms. It is never a mean, so gradient accumulation and data parallelism are
    exact."""

    total: Tensor
    """Scalar, differentiable: weighted sum of the losses (nats for cross-entropy)."""
    count: Tensor
    """Scalar: sum of the weights. total / count is the mean loss."""
    hits: Tensor
    """Scalar: weighted number of correct predictions, for the accuracy. NaN if the loss does not define it."""
