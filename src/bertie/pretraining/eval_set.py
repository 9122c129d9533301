"""The evaluation set of pre-training: held-out sequences with fixed masks."""

from __future__ import annotations

from bertie.base import seeding
from bertie.base.contracts import MicroBatch, Sequence
from bertie.base.errors import UserError
from bertie.batches.collate import collate, join
from bertie.batches.layouts import Layout
from bertie.corpus.token_corpus import Corpus
from bertie.objectives import AnyObjective
from bertie.objectives.label_row import label_row
from bertie.tokenizers.batching import up_to
from bertie.tokenizers.tokenizer import Tokenizer

EVAL_ROW_TOKENS = 4096  # tokens per micro-batch of an evaluation, independent of the rows of training


def eval_batches(
    objectives: tuple[AnyObjective, ...], layout: Layout, corpus: Corpus, tokenizer: Tokenizer, max_tokens: int
) -> list[MicroBatch]:
    """Build the evaluation set: held-out text, with the same masks for every step, run and seed.

    Objectives with a schedule label it as at the start of the run (progress 0).

    Args:
        objectives: The objectives, which mask and label.
        layout: The layout of the sequences.
        corpus: The held-out documents.
        tokenizer: The tokenizer of the corpus.
        max_tokens: Most tokens; the set has at least one sequence.

    Raises:
        UserError: If the documents are too short for a single sequence.
    """
    groups: list[list[Sequence]] = [[]]
    tokens = 0
    epoch = layout.epoch(corpus, tokenizer, 0, 0)
    spans = (span for window in range(epoch.windows) for span in epoch.window(window))
    for sequence in up_to(map(epoch.sequence, spans), max_tokens):
        if groups[-1] and tokens + len(sequence) > EVAL_ROW_TOKENS:
            groups.append([])
            tokens = 0
        groups[-1].append(sequence)
        tokens += len(sequence)
    if not groups[0]:
        raise UserError("the held-out documents have only one token each: prepare more text")
    batches = [collate(group, layout.max_length) for group in groups]
    stream = seeding.EVAL_LABELS
    return [
        join([label_row(batch, objectives, tokenizer, 0, stream, i, held_out=True)]) for i, batch in enumerate(batches)
    ]
