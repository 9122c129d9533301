"""Initial weights that are counted in the corpus, for the objectives that predict with the word embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from bertie.base import console
from bertie.base.errors import UsageError
from bertie.base.threads import single_rank_threads
from bertie.corpus.shards import Shards
from bertie.corpus.token_corpus import Corpus
from bertie.model.config import TransformerConfig
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.initial_attention import CONSTANT, Special, set_initial_attention
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.tokenizers.tokenizer import Tokenizer

Vectors = Literal["random", "cooccurrence"]
Pending = Callable[[], np.ndarray]
"""Waits for co-occurrence vectors that are being computed."""

# Norm of co-occurrence vectors as initial embeddings, relative to random embeddings. 2 and 8 learn more slowly (dev/log).
COOCCURRENCE_NORM = 4.0


# With attention patterns, the initial logits grow with the hidden size. From this size on, smaller embeddings prevent that:
# otherwise, the first loss of modern-base is 24 nats instead of 7 (dev/log/2026-11-26-gpu.md).
WIDEST = 256

# The dense layer of the masked-LM head begins with this multiple of the identity. Small inputs pass GELU almost unchanged,
# and the norm that follows restores their size.
HEAD_IDENTITY = 0.3


def require_patterns(model: TransformerConfig, objectives: tuple[object, ...]) -> None:
    """Raise UsageError if masked LM cannot begin with attention patterns."""
    key = "objectives.mlm.initialization"
    for name, needed, fits in (
        ("position_embedding", "rotary", model.position_embedding == "rotary"),
        ("embedding_size", 0, model.embedding_width == model.hidden_size),
        ("mlm_transform", "true", model.mlm_transform),
        ("num_key_value_heads", 0, model.num_key_value_heads == 0),
        ("norm", "layer", model.norm == "layer"),
        ("mlm_matrix", "words", model.mlm_matrix == "words"),
        ("num_hidden_groups", 0, not model.shares_layers),
    ):
        if not fits:
            raise UsageError(f'{key} is "patterns", which needs model.{name} {needed}: set it, or another {key}')
    if any(getattr(objective, "kind", "") == "rtd" for objective in objectives):
        raise UsageError(f'{key} is "patterns", which does not work with a generator: set it to "cooccurrence"')


def set_pattern_weights(encoder: TransformerEncoder, head: MaskedLMHead, tokenizer: Tokenizer) -> None:
    """Let the first layers attend to neighbors and to equal words, and the head pass on what they add. In place.

    The first dimension of co-occurrence vectors says little but how frequent a word is. It becomes the constant that
    attention to distances needs.

    Args:
        encoder: An encoder with co-occurrence vectors as word embeddings.
        head: Its masked-LM head.
        tokenizer: For the ids of special tokens.
    """
    words = encoder.embeddings.word.weight.data
    norms = words.norm(dim=1, keepdim=True)
    norm = norms.max() * min(1.0, WIDEST / words.shape[1])
    words *= norm / norms  # special tokens, which have no co-occurrences, also get the norm of the others
    words[:, CONSTANT] = norm / words.shape[1] ** 0.5
    normalized = functional.layer_norm(words, words.shape[1:])
    normalized[:, CONSTANT] = 0
    marks = [tokenizer.cls_id, tokenizer.sep_id]
    set_initial_attention(encoder, Special(normalized[marks], normalized[tokenizer.special_ids]))
    if head.dense is not None:
        head.dense.weight.data.copy_(HEAD_IDENTITY * torch.eye(len(words[0])))


def set_output_bias(bias: torch.Tensor, corpus: Corpus) -> None:
    """Set the bias of an output layer over the vocabulary in place to the log frequencies of the corpus, plus one each."""
    counts = torch.from_numpy(corpus.frequencies(len(bias)) + 1.0)
    bias.data.copy_((counts / counts.sum()).log())


@contextmanager
def begin_vectors(embeddings: nn.Embedding, corpus: Corpus) -> Iterator[Pending]:
    """Compute co-occurrence vectors of the embeddings' shape beside the block, which gets a function that waits for them."""
    from bertie.corpus.cooccurrence import vectors_ahead  # here, because SciPy loads slowly

    console.info("counting co-occurrences for the initial word embeddings")
    with vectors_ahead(
        corpus, *embeddings.weight.shape, threads=single_rank_threads(torch.get_num_threads())
    ) as vectors:
        yield vectors


def set_cooccurrence_vectors(embeddings: nn.Embedding, corpus: Corpus, begun: Pending | None = None) -> None:
    """Set word embeddings in place to co-occurrence vectors of the corpus. Entries that do not occur keep theirs.

    Args:
        embeddings: The embeddings.
        corpus: Text to count.
        begun: What `begin_vectors` has given for these embeddings; None: compute the vectors now.
    """
    with begin_vectors(embeddings, corpus) if begun is None else nullcontext(begun) as wait:
        words, vectors = embeddings.weight.data, torch.from_numpy(wait())
    norms = vectors.norm(dim=1, keepdim=True)
    norm = COOCCURRENCE_NORM * words.norm(dim=1).mean()  # the same for all words: training learns the norms
    words.copy_(torch.where(norms > 0, vectors / norms * norm, words))


def counted_embeddings(objective: Any, model: Model) -> nn.Embedding | None:
    """Return the word embeddings that begin with co-occurrence vectors; None: none do.

    The vectors take seconds, so pre-training computes them beside other work (`begin_vectors`).
    """
    counted = getattr(objective, "initialization", "random") in ("cooccurrence", "patterns")
    return model.encoder.embeddings.word if counted else None


def initialize_embeddings(objective: Any, model: Model, shards: Shards, begun: Pending | None = None) -> None:
    """Set initial weights in place.

    Args:
        objective: The objective, whose field `initialization`, if it has one, says how.
        model: The model, whose head may share the word embeddings with its encoder.
        shards: Their training text may be counted.
        begun: Waits for the vectors of `counted`; None: they are computed now.
    """
    if (words := counted_embeddings(objective, model)) is not None:
        set_cooccurrence_vectors(words, shards.train, begun)


def initialize_output(objective: Any, model: Model, shards: Shards, begun: Pending | None = None) -> None:
    """Set the initial word embeddings as `initialize_embeddings`, and if they are counted, the bias of the head, too."""
    initialize_embeddings(objective, model, shards, begun)
    if objective.initialization == "cooccurrence":
        set_output_bias(cast(Any, model.heads[objective.kind]).bias, shards.train)
