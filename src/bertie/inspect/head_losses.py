"""The loss of the model's own head on a few batches: what heads are important for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from bertie import seeding
from bertie.batches.collate import collate
from bertie.contracts import MicroBatch, Sequence
from bertie.errors import UserError
from bertie.inspect.attention import require_transformer
from bertie.model.electra import GENERATOR_HEAD, fill_masks
from bertie.model.model import Model
from bertie.model.vocabulary_heads import FillsMasks, MaskedLMHead
from bertie.objectives import AnyObjective, CausalLM
from bertie.objectives.heads import objectives_named
from bertie.objectives.objective import Generates
from bertie.predict.predictor import Predictor
from bertie.pretraining.feed import label_row
from bertie.tasks import Task
from bertie.tasks.data.rows import valid_examples
from bertie.tasks.inference import head_index

MASKS, EXAMPLES = 0, 2  # numbers of the random streams after seeding.INSPECT
BATCHES = 16  # number of batches, for the standard errors, if there are as many texts
EXAMPLES_AT_ONCE = 256  # labeled examples that are encoded together


@dataclass(frozen=True, eq=False)
class HeadLosses:
    """Batches with targets, and the head whose loss is measured."""

    model: Model
    """The encoder with this head, in eval mode."""
    kind: str
    """Kind of the head."""
    batches: list[MicroBatch]
    """The batches."""
    texts: int
    """Number of sequences in them."""
    tokens: int
    """Number of tokens in them."""


def text_losses(predictor: Predictor, sequences: list[Sequence], seed: int) -> HeadLosses:
    """Return batches for the loss of pre-training: masked language modeling as in the objective mlm (with ELECTRA's
    generator: replaced tokens), or the next token in a causal model.

    Args:
        predictor: The model.
        sequences: Texts.
        seed: Random seed of the masks.

    Raises:
        UserError: The model has no head of pre-training, or its tokenizer has no mask token.
    """
    kind, model, objectives = _pretraining_head(predictor)
    batches = []
    for number, group in enumerate(_groups([[sequence] for sequence in sequences], len(sequences))):
        batch = collate(group, predictor.max_length)
        stream = (seeding.INSPECT, MASKS, number)
        batch, targets = label_row(batch, objectives, predictor.tokenizer, seed, *stream)
        if model is not predictor.model and predictor.model.generator is not None:
            batches.append(_filled(predictor.model, MicroBatch.of(batch, targets)))
        else:
            batches.append(MicroBatch.of(batch, {kind: next(iter(targets.values()))}))
    return HeadLosses(model, kind, batches, len(sequences), sum(map(len, sequences)))


def _pretraining_head(predictor: Predictor) -> tuple[str, Model, tuple[AnyObjective, ...]]:
    """Return the kind of the head, a model with it, and the objectives that make its targets. Raises UserError."""
    model, config = predictor.model, require_transformer(predictor.model.encoder).config
    if predictor.task is not None:
        raise UserError(f"the model was fine-tuned for the task {predictor.task.kind}: give --task-data FILE")
    if config.causal:
        masked = next((kind for kind, head in model.heads.items() if isinstance(head, FillsMasks)), None)
        if masked is not None:  # XLM's head, with a bias
            return masked, model, (CausalLM(),)
        if config.embedding_width == config.hidden_size:
            clm = CausalLM()  # its head has no weights of its own, so a checkpoint does not name it
            return clm.kind, Model(model.encoder, {clm.kind: clm.head(config, model.encoder)}).eval(), (clm,)
    objectives = tuple(objectives_named(model.kinds))
    if model.generator is not None:
        for objective in objectives:
            if isinstance(objective, Generates):
                own = Model(model.encoder, {objective.kind: model.heads[objective.kind]}).eval()
                return objective.kind, own, objectives
    for objective in objectives:
        if objective.traits.predicts_text and objective.kind in model.encoder_heads:
            assert predictor.tokenizer.mask_id >= 0  # raises UserError if there is no mask token
            return objective.kind, model, (objective,)
    raise UserError("the model has no trained head whose loss could be measured")


@torch.no_grad()  # inference mode would forbid gradients of what is computed from the result
def _filled(model: Model, micro: MicroBatch) -> MicroBatch:
    """Let ELECTRA's generator replace the masked tokens, once for all measurements."""
    assert model.generator is not None
    micro = micro.tensors(model.device)
    return fill_masks(model.generator, cast(MaskedLMHead, model.heads[GENERATOR_HEAD]), micro)[1]


def task_losses(predictor: Predictor, path: Path, max_tokens: int, seed: int) -> HeadLosses:
    """Return batches for the loss of the model's task on labeled examples.

    Args:
        predictor: A fine-tuned model.
        path: The examples, in a format that the task reads.
        max_tokens: Most tokens. If there are more, a random sample of the examples is used.
        seed: Random seed of the sample.

    Raises:
        UserError: The model was not fine-tuned, or no example has a known label.
        UsageError: There is no such file, or its columns are unclear.
    """
    task = predictor.task
    if task is None:
        raise UserError("the model was not fine-tuned for a task: omit --task-data, or give another model")
    examples = valid_examples(task.reader.read(path), str(path))
    task.validate(examples)
    order = seeding.generator(seed, seeding.INSPECT, EXAMPLES).permutation(len(examples))
    units = _encoded(predictor, task, [examples[i] for i in order])
    chosen = list(_first_tokens(units, max_tokens))
    if not chosen:
        raise UserError(f"{path}: no example has a label that the model knows")
    most = len(chosen) // 2 if task.unit == "batch" else len(chosen)  # such a loss compares the examples of a batch
    batches = [_task_batch(predictor, task, group) for group in _groups(chosen, most)]
    sequences = [sequence for unit in chosen for sequence in unit]
    return HeadLosses(predictor.model, task.kind, batches, len(sequences), sum(map(len, sequences)))


def _encoded(predictor: Predictor, task: Task, examples: list[Any]) -> Iterator[list[Sequence]]:
    """Yield the sequences with a target of each example, lazily."""
    for start in range(0, len(examples), EXAMPLES_AT_ONCE):
        part = examples[start : start + EXAMPLES_AT_ONCE]
        units: dict[int, list[Sequence]] = {}
        for sequence in task.training_sequences(task.encode(part, predictor.tokenizer, predictor.max_length)):
            units.setdefault(sequence.example, []).append(replace(sequence, example=start + sequence.example))
        yield from units.values()


def first_sequences(blocks: Iterable[list[Sequence]], max_tokens: int) -> list[Sequence]:
    """Return the first sequences, up to `max_tokens` tokens but at least one."""
    return [unit[0] for unit in _first_tokens(([sequence] for block in blocks for sequence in block), max_tokens)]


def _first_tokens(units: Iterable[list[Sequence]], max_tokens: int) -> Iterator[list[Sequence]]:
    """Yield the first units, up to `max_tokens` tokens but at least one."""
    tokens = 0
    for unit in units:
        size = sum(map(len, unit))
        if tokens and tokens + size > max_tokens:
            return
        tokens += size
        yield unit


def _groups(units: list[list[Sequence]], most: int) -> list[list[Sequence]]:
    """Split units into at most `most` batches of consecutive ones.

    Neighbors in a file are often alike. A standard error over such batches takes that into account.
    """
    parts = np.array_split(np.arange(len(units)), max(1, min(BATCHES, most)))
    return [[sequence for i in part for sequence in units[i]] for part in parts]


def _task_batch(predictor: Predictor, task: Task, sequences: list[Sequence]) -> MicroBatch:
    batch = collate(sequences, predictor.max_length)
    index, _ = head_index(task, sequences, predictor.model.encoder.config.pooled_token)
    return MicroBatch.of(batch, {task.kind: task.targets(batch, sequences, index)})
