"""Checkpoints whose vocabulary gets additional entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bertie.checkpoints.read import Checkpoint
from bertie.model.encoder import EncoderConfig, build_encoder
from bertie.model.initialization import no_weights
from bertie.model.model import Model
from bertie.tokenizers.added_tokens import with_tokens
from bertie.tokenizers.tokenizer import Tokenizer


def rows_by_entry(config: EncoderConfig, build: Callable[[EncoderConfig], nn.Module]) -> tuple[str, ...]:
    """Return the names of the weights of a model that have one row per vocabulary entry. build: makes the model."""
    with no_weights():
        shapes = [
            {name: weight.shape for name, weight in build(sized).state_dict().items()}
            for sized in (replace(config, vocab_size=entries) for entries in (1000, 1001))
        ]
    return tuple(name for name, shape in shapes[0].items() if shape != shapes[1][name])


def grown(checkpoint: Checkpoint, tokenizer: Tokenizer, pieces: list[list[int]], names: tuple[str, ...]) -> Checkpoint:
    """Return a checkpoint with additional entries: the vector of each is the mean of the vectors of some others.

    Args:
        checkpoint: The checkpoint.
        tokenizer: Its tokenizer, with the additional entries at the end.
        pieces: The ids of the old entries for each additional one.
        names: The weights that grow (`rows_by_entry`).
    """
    size = checkpoint.tokenizer.size

    def extended(rows: Tensor) -> Tensor:
        return torch.cat([rows[:size], *(rows[ids].mean(0, keepdim=True) for ids in pieces)])

    weights = {name: extended(tensor) if name in names else tensor for name, tensor in checkpoint.weights.items()}
    config = replace(checkpoint.config, vocab_size=tokenizer.size)
    return replace(checkpoint, weights=weights, tokenizer=tokenizer, config=config)


def with_added_tokens(checkpoint: Checkpoint, tokens: Iterable[str]) -> Checkpoint:
    """Return the checkpoint to train with tokens that are matched in a text as a whole. Its heads do not grow.

    The vector of a new entry is the mean of the vectors of the pieces that its text had.
    """
    old = checkpoint.tokenizer
    tokenizer = with_tokens(old, tokens)
    new = tokenizer.vocabulary[old.size :]
    if not new:
        return replace(checkpoint, tokenizer=tokenizer)
    names = rows_by_entry(checkpoint.config, lambda config: Model(build_encoder(config), {}))
    return grown(checkpoint, tokenizer, [ids.tolist() for ids in old.encode(new)], names)
