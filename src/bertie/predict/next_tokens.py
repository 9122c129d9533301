"""Predict the token after texts that grow. A model with a memory reads every token once.

S  texts    D  hidden size    V  entries of the vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from bertie.base.contracts import Batch, Sequence
from bertie.batches.collate import collate
from bertie.model.attention.segment_memory import PART_TOKENS
from bertie.predict.token_model import TokenModel
from bertie.tasks.inference import require_finite

NextTokens = Callable[[dict[int, list[int]]], list[np.ndarray]]
"""Maps texts by number, as ids with the token that starts a text, to the natural logarithm of the probabilities of the next
token: float32 [V] for each. A text that was given before has the same tokens, and further ones after them."""


@runtime_checkable
class ReadsOn(Protocol):
    """An encoder that keeps what later tokens of a text see, such as `TransformerXlEncoder`."""

    def begin(self) -> Any:
        """Return the state before the first token of a text."""
        ...

    def read_on(self, batch: Batch, readings: list[Any], /) -> tuple[Tensor, list[Any]]:
        """Read the next tokens of some texts. Return their hidden states, and the state of each text after them."""
        ...


def next_tokens(model: TokenModel) -> NextTokens:
    """Return a function that predicts the next token of growing texts with a causal model.

    Its calls belong to one generation: it may keep what it has read.
    """
    encoder = model.model.encoder_of(model.kind)
    if isinstance(encoder, ReadsOn):
        return _Readings(model, encoder)

    def read_again(texts: dict[int, list[int]]) -> list[np.ndarray]:
        contexts = [(np.array(ids, np.int32), np.array([len(ids) - 1])) for ids in texts.values()]
        return [log_p_V for [log_p_V] in model.log_distributions(contexts)]

    return read_again


@dataclass(eq=False)
class _Readings:
    """The texts that a model has read so far."""

    model: TokenModel
    encoder: ReadsOn
    states: dict[int, tuple[int, Any]] = field(default_factory=dict[int, tuple[int, Any]])
    """For each text the number of its tokens that are read, and the encoder's state."""

    @torch.inference_mode()
    def __call__(self, texts: dict[int, list[int]]) -> list[np.ndarray]:
        self.model.model.eval()
        waiting = list(texts)
        last_SD = dict[int, Tensor]()
        while waiting:  # a long text takes several passes, so that attention needs little memory
            parts = {number: texts[number][self._read(number) :][:PART_TOKENS] for number in waiting}
            lengths = [len(part) for part in parts.values()]  # at least one is read, and PART_TOKENS together at most
            group = waiting[: max(1, int(np.searchsorted(np.cumsum(lengths), PART_TOKENS, side="right")))]
            last_SD |= dict(zip(group, self._read_on({number: parts[number] for number in group}), strict=True))
            waiting = [number for number in waiting if self._read(number) < len(texts[number])]
        x_SD = torch.stack([last_SD[number] for number in texts])
        require_finite(x_SD)
        log_p_SV = self.model.head.logits(x_SD).float().log_softmax(-1)[:, : self.model.tokenizer.size]
        return list(log_p_SV.cpu().numpy())

    def _read(self, number: int) -> int:
        return self.states[number][0] if number in self.states else 0

    def _read_on(self, parts: dict[int, list[int]]) -> Tensor:
        """Read more of some texts. Return the state of the last token of each, [S, D]."""
        starts = self.model.tokenizer.word_starts_table
        ids = [np.array(part, np.int32) for part in parts.values()]
        batch = collate([Sequence(part, np.zeros_like(part), starts[part]) for part in ids], max(map(len, ids)))
        readings = [self.states[number][1] if number in self.states else self.encoder.begin() for number in parts]
        states_TD, readings = self.encoder.read_on(batch.tensors(self.model.model.device), readings)
        for (number, part), reading in zip(parts.items(), readings, strict=True):
            self.states[number] = self._read(number) + len(part), reading
        return states_TD[batch.ragged.cu_seqlens[1:] - 1]
