"""The attention probabilities of a model, batch by batch, where they are computed. Nothing of their size is kept.

S  sequences of a batch    L  length of the longest one, in tokens    N  heads of a layer
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bertie.base import console
from bertie.base.contracts import Batch, Hidden, Sequence
from bertie.base.errors import UserError
from bertie.model.attention.attention import Padding, padding_of
from bertie.model.attention.probabilities import visible_attention
from bertie.model.attention.window import Attention, AttentionInput
from bertie.model.encoder import Encoder
from bertie.model.layers import Layer
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.predict.engines.cuda import HalfEncoder
from bertie.predict.engines.torch_engine import PackedEncoder
from bertie.tasks.inference import infer, require_finite

BATCH_TOKENS = 2048  # bounds the probabilities of a layer: at most BATCH_TOKENS × N × L numbers


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences of similar length that are encoded together. Cell [s, i] of a grid is token i of sequence s."""

    sequences: list[Sequence]
    """The sequences."""
    indices: list[int]
    """Their numbers among all sequences."""
    batch: Batch
    """The packed batch, as tensors."""

    @cached_property
    def padding(self) -> Padding:
        """The mapping between packed tokens and grid cells."""
        return padding_of(self.batch.ragged, len(self.batch.input_ids))

    @property
    def valid(self) -> Bool[Tensor, "S L"]:
        """bool [S, L]: false past the end of a sequence."""
        return self.padding.valid

    @cached_property
    def input_ids(self) -> Int[Tensor, "S L"]:
        """int64 [S, L]: the tokens; -1 past the end of a sequence."""
        return self.batch.input_ids[self.padding.rows].masked_fill(~self.valid, -1)


SeeLayer = Callable[[Group, int, Tensor], None]
"""Receives the probabilities of one layer, counted from 0, for a group: [S, N, L, L]. Rows are queries, columns are keys;
both are 0 past the end of a sequence. The tensor is valid only during the call."""
SeeHidden = Callable[[Group, Hidden], None]
"""Receives the hidden states of all layers, packed, after the probabilities of the group."""


def read_attention(
    model: Model,
    sequences: list[Sequence],
    see: SeeLayer,
    see_hidden: SeeHidden | None = None,
    title: str = "attention",
) -> None:
    """Encode sequences and show the attention probabilities of every layer to `see`.

    Args:
        model: The model. Without gradients, in eval mode.
        sequences: The sequences, in any order. They are grouped by length.
        see: Receives the probabilities.
        see_hidden: Receives the hidden states.
        title: Name of the work in the progress bar.

    Raises:
        UserError: The model has no attention, or its hidden states are not finite.
    """
    transformer = require_transformer(model.encoder)

    def read(group: Group) -> None:
        with observed(transformer, partial(see, group)):
            hidden = transformer(group.batch, all_layers=see_hidden is not None)
        require_finite(hidden.last)
        if see_hidden is not None:
            see_hidden(group, hidden)

    _by_groups(model, sequences, read, title)


def read_hidden(model: Model, sequences: list[Sequence], see_hidden: SeeHidden, title: str) -> None:
    """Encode sequences with any encoder and show the hidden states of all layers. Arguments as in `read_attention`."""
    _by_groups(model, sequences, lambda group: see_hidden(group, model.encoder(group.batch, all_layers=True)), title)


def _by_groups(model: Model, sequences: list[Sequence], read: Callable[[Group], None], title: str) -> None:
    index_of = {id(sequence): index for index, sequence in enumerate(sequences)}
    with console.progress(title, len(sequences), "sequences", passing=True) as bar:

        def compute(batch: Batch, members: list[Sequence]) -> list[None]:
            read(Group(members, [index_of[id(member)] for member in members], batch))
            bar.advance(len(members))
            return [None] * len(members)

        infer(model, sequences, compute, BATCH_TOKENS)


def shows_attention(encoder: nn.Module) -> bool:
    """Whether `attention_in` can read the attention of an encoder: a Transformer that torch computes."""
    own = isinstance(encoder, TransformerEncoder) and not encoder.config.disentangled
    return own or isinstance(encoder, PackedEncoder | HalfEncoder)


def attention_in(model: Model, sequences: list[Sequence]) -> list[Float[np.ndarray, "layers N L L"]]:
    """Return all attention probabilities of each sequence, as the engine of the model computes them.

    They are layers × N × L² numbers per sequence, so use `read_attention` for more than a few.

    Args:
        model: A model whose encoder `shows_attention`.
        sequences: The sequences, in any order.

    Raises:
        UserError: The hidden states are not finite.
    """

    def compute(batch: Batch, members: list[Sequence]) -> list[np.ndarray]:
        seen: dict[int, list[np.ndarray]] = defaultdict(list)

        def see(layer: int, probabilities: Tensor) -> None:
            first = len(seen[layer])
            for given, member in zip(probabilities, members[first:], strict=False):
                size = len(member)
                seen[layer].append(given[:, :size, :size].to("cpu", torch.float32, copy=True).numpy())

        with _visible(model.encoder, see) as encoder:
            hidden: Hidden = encoder(batch)
        require_finite(hidden.last)
        return [np.stack([seen[layer][number] for layer in sorted(seen)]) for number in range(len(members))]

    return infer(model, sequences, compute, BATCH_TOKENS)


@contextmanager
def _visible(encoder: nn.Module, see: Callable[[int, Tensor], None]) -> Iterator[nn.Module]:
    """Yield an encoder that shows its attention, sequence after sequence."""
    if isinstance(encoder, PackedEncoder):
        yield encoder.observed(see)
        return
    shown = encoder.uncompiled() if isinstance(encoder, HalfEncoder) else encoder
    assert isinstance(shown, TransformerEncoder | HalfEncoder)
    with observed(shown, see):
        yield shown


def require_transformer(encoder: Encoder) -> TransformerEncoder:
    """Return the encoder if its attention can be read.

    Raises:
        UserError: It has no attention.
    """
    if not isinstance(encoder, TransformerEncoder) or not shows_attention(encoder):
        kind = "disentangled" if isinstance(encoder, TransformerEncoder) else encoder.config.kind
        raise UserError(f"the model is of the kind {kind}, whose heads cannot be inspected: use a Transformer")
    return encoder


@contextmanager
def observed(encoder: TransformerEncoder | HalfEncoder, see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Show the probabilities of every layer to `see(layer, probabilities)` while the block runs the encoder."""
    with _attention_replaced(encoder, lambda layer, _: partial(visible_attention, partial(see, layer))):
        yield


@contextmanager
def gated(
    encoder: TransformerEncoder, gates: Float[Tensor, "layers N"] | Float[Tensor, "layers S N"]
) -> Iterator[None]:
    """Multiply the output of every head by its gate while the block runs the encoder. 0 masks a head.

    Gates may differ between the sequences of the batch, so that each sequence has gradients of its own. The gradient of the
    loss with respect to a gate measures the importance of the head (Michel et al. 2019, section 4.1).
    """

    def with_gates(layer: int, attend: Attention) -> Attention:
        def attend_gated(x: AttentionInput) -> Tensor:
            own = gates[layer]
            if own.ndim == 2:
                own = torch.repeat_interleave(own, x.queries.lengths, 0, output_size=len(x.q))
            return attend(x) * own[..., None]

        return attend_gated

    with _attention_replaced(encoder, with_gates):
        yield


@contextmanager
def below_known(encoder: TransformerEncoder, states: Many[Tensor]) -> Iterator[None]:
    """Skip the embeddings and the lowest layers while the block runs the encoder on the batch of these states.

    Args:
        encoder: The encoder.
        states: Outputs of the embeddings and of the layers to skip, lowest first, each [T, D]: the first part of
            `Hidden.layers`. At least one layer must remain.
    """
    parts = [encoder.embeddings, *encoder.layers]
    forwards = [*(lambda *_, known=known: known for known in states), *(part.forward for part in parts[len(states) :])]
    try:
        for part in set(parts):
            part.forward = _in_turn(part, parts, forwards)  # an attribute of the instance hides the method
        yield
    finally:
        for part in parts:
            vars(part).pop("forward", None)


@contextmanager
def _attention_replaced(
    encoder: TransformerEncoder | HalfEncoder, replacement: Callable[[int, Attention], Attention]
) -> Iterator[None]:
    attentions = [cast(Layer, layer).attention for layer in encoder.layers]
    before = {attention: attention.attend for attention in attentions}
    replaced = [replacement(layer, attention.attend) for layer, attention in enumerate(attentions)]
    try:
        for attention in before:
            attention.attend = _in_turn(attention, attentions, replaced)
        yield
    finally:
        for attention, attend in before.items():
            attention.attend = attend


def _in_turn(
    module: nn.Module, modules: Many[nn.Module], functions: Many[Callable[..., Tensor]]
) -> Callable[..., Tensor]:
    """Return a function that calls those of a module, one after the other. A module may be in several layers."""
    turns = cycle([function for each, function in zip(modules, functions, strict=True) if each is module])
    return lambda *args, **settings: next(turns)(*args, **settings)


def head_names(encoder: TransformerEncoder) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns `layer` and `head` of a table with one row per head, both counted from 1."""
    layers, heads = encoder.config.num_hidden_layers, encoder.config.num_attention_heads
    return np.repeat(np.arange(1, layers + 1), heads), np.tile(np.arange(1, heads + 1), layers)
