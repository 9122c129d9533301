"""The labels of a row, by all objectives of a recipe. Those with a share divide its sequences among them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bertie.base import seeding
from bertie.base.contracts import Batch, Targets
from bertie.objectives import AnyObjective
from bertie.objectives.objective import Labeling
from bertie.tokenizers.tokenizer import Tokenizer


def label_row(
    batch: Batch,
    objectives: tuple[AnyObjective, ...],
    tokenizer: Tokenizer,
    seed: int,
    *stream: int,
    progress: float = 0.0,
    held_out: bool = False,
) -> tuple[Batch, dict[str, Any]]:
    """Let every objective corrupt a row and set its targets, as a pure function of the seed, stream and progress.

    Args:
        batch: A packed row.
        objectives: The objectives, in order. Each sees the row as the one before returned it.
        tokenizer: The tokenizer of the corpus.
        seed: The random seed.
        *stream: Purpose and key of the random numbers.
        progress: Fraction of the run that is complete, in [0, 1). The evaluation set keeps 0, so that the losses of
            different steps are comparable.
        held_out: Whether the row belongs to the evaluation set.
    """
    targets, notes = dict[str, Any](), dict[str, Any]()
    sharing, owners_S = [objective for objective in objectives if objective.share < 1], np.zeros(0, np.int64)
    if sharing:  # the evaluation set has as many sequences of each
        shares = [1 / len(sharing) if held_out else objective.share for objective in sharing]
        rng = seeding.generator(seed, *stream, len(objectives))
        owners_S = rng.choice(len(sharing), len(batch.ragged.lengths), p=shares)
        reads_left = np.array([objective.traits.reads_left for objective in sharing])
        batch = replace(batch, ragged=replace(batch.ragged, causal=reads_left[owners_S]))
    for number, objective in enumerate(objectives):
        labeling = Labeling(tokenizer, seeding.generator(seed, *stream, number), progress, held_out, notes)
        before = batch
        batch, targets[objective.kind], notes[objective.kind] = objective.label(batch, labeling)
        if objective in sharing:
            own_T = np.repeat(owners_S == sharing.index(objective), before.ragged.lengths)
            batch = replace(batch, input_ids=np.where(own_T, batch.input_ids, before.input_ids))
            targets[objective.kind] = _of_tokens(targets[objective.kind], own_T)
    return batch, targets


def _of_tokens(targets: Targets, own_T: np.ndarray) -> Targets:
    """Return the targets of some tokens, without placeholders."""
    kept = (targets.weight > 0) & own_T[targets.index]
    return Targets(targets.index[kept], targets.label[kept], targets.weight[kept])
