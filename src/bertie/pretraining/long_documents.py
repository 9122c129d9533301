"""Models that read in segments and remember the text before them: whole documents as held-out sequences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bertie.base.errors import UsageError
from bertie.batches.contiguous import DocSentences
from bertie.batches.layouts import Layout
from bertie.corpus.token_corpus import Corpus
from bertie.model.attention.segment_memory import reads_documents
from bertie.model.encoder import EncoderConfig

SPECIAL_TOKENS = 2  # of a sequence of one document


def held_out_layout(model: EncoderConfig, layout: Layout, held_out: Corpus) -> Layout:
    """Return the layout of the evaluation set.

    A model that reads in segments reads a held-out document from its beginning to its end, as one sequence, however long it
    is. For other models, it is the layout of training.

    Args:
        model: The configuration of the encoder.
        layout: The layout of training.
        held_out: The held-out documents.
    """
    if not reads_documents(model):
        return layout
    assert isinstance(layout, DocSentences)  # the recipe was checked
    return replace(layout, max_length=max(layout.max_length, _longest(held_out) + SPECIAL_TOKENS), short_seq_prob=0.0)


def require_long_documents(model: EncoderConfig, train: Corpus) -> None:
    """Raise UsageError if no document has a second segment, so that a memory would never be used."""
    segment, memory = getattr(model, "segment_length", 0), getattr(model, "memory_length", 0)
    if not memory:
        return
    if (longest := _longest(train) + SPECIAL_TOKENS) <= segment:
        raise UsageError(
            f"model.segment_length {segment} holds the longest training document ({longest:,} tokens): lower it, or set "
            "model.memory_length to 0"
        )


def _longest(corpus: Corpus) -> int:
    """Return the number of tokens of the longest document."""
    return int(np.diff(corpus.document_starts).max(initial=0))
