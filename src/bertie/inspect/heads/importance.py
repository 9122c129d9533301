"""How much the loss depends on each head: its gradient (Michel et al. 2019, section 4.1), and masking (section 3.2).

S  sequences of a batch    N  heads of a layer
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertie.base import console, seeding
from bertie.base.contracts import Loss, MicroBatch, Sequence
from bertie.base.errors import UserError
from bertie.batches.collate import collate
from bertie.examples.left_out import valid_examples
from bertie.inspect.attention import below_known, gated, head_names, require_transformer
from bertie.inspect.tables import HEAD, InputFacts, InputFindings, Table
from bertie.inspect.texts import TextFile
from bertie.model.encoders.electra import GENERATOR_HEAD, fill_masks
from bertie.model.heads.vocabulary_heads import FillsMasks, MaskedLMHead
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.objectives import AnyObjective, CausalLM
from bertie.objectives.heads import objectives_named
from bertie.objectives.label_row import label_row
from bertie.predict.predictor import Predictor
from bertie.tasks.inference import head_index
from bertie.tasks.task import Task
from bertie.tokenizers.batching import up_to

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

    @property
    def encoder(self) -> TransformerEncoder:
        """The encoder."""
        return require_transformer(self.model.encoder)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of layers, and of heads in a layer."""
        return self.encoder.config.num_hidden_layers, self.encoder.config.num_attention_heads

    def loss(self, micro: MicroBatch) -> Loss:
        """Compute the loss of a batch of tensors."""
        return self.model(micro)[self.kind]


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
    return HeadLosses(model, kind, batches)


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
            return clm.kind, Model(model.encoder, {clm.kind: clm.head(model.encoder)}).eval(), (clm,)
    objectives = tuple(objectives_named(model.kinds))
    if model.generator is not None:
        for objective in objectives:
            if objective.generator(model.encoder.config) is not None:
                discriminator = Model(model.encoder, {objective.kind: model.heads[objective.kind]}).eval()
                return objective.kind, discriminator, objectives
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
    chosen = list(up_to(units, max_tokens, lambda unit: sum(map(len, unit))))
    if not chosen:
        raise UserError(f"{path}: no example has a label that the model knows")
    most = len(chosen) // 2 if task.unit == "batch" else len(chosen)  # such a loss compares the examples of a batch
    batches = []
    for sequences in _groups(chosen, most):
        batch = collate(sequences, predictor.max_length)
        index, _ = head_index(task, sequences, predictor.model.encoder.config.pooled_token)
        batches.append(MicroBatch.of(batch, {task.kind: task.targets(batch, sequences, index)}))
    return HeadLosses(predictor.model, task.kind, batches)


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
    return list(up_to(chain.from_iterable(blocks), max_tokens))


def _groups(units: list[list[Sequence]], most: int) -> list[list[Sequence]]:
    """Split units into at most `most` batches of consecutive ones.

    Neighbors in a file are often alike. A standard error over such batches takes that into account.
    """
    parts = np.array_split(np.arange(len(units)), max(1, min(BATCHES, most)))
    return [[sequence for i in part for sequence in units[i]] for part in parts]


MEANING = {
    **HEAD,
    "importance": "mean size of the gradient of a text's loss with respect to a gate on the head, per prediction",
    "importance_in_layer": "the same, divided by the root of the sum of squares in the layer",
    "loss_without": "mean loss with the head masked (cross-entropy: in nats)",
    "loss_increase": "mean loss with the head masked minus the mean loss of the whole model",
    "standard_error": "standard error of the increase, over batches",
}


def inspect_importance(
    predictor: Predictor, text: TextFile | None, task_data: Path | None, max_tokens: int, seed: int
) -> InputFindings:
    """Measure how much the loss depends on each head. A model without a trained head is skipped, with a line that says so.

    Args:
        predictor: The model.
        text: Texts for the loss of pre-training.
        task_data: Labeled examples, for the loss of a fine-tuned model. They go before `text`.
        max_tokens: Most tokens of the texts.
        seed: Random seed of the masks, and of the sample of the examples.

    Raises:
        UserError: `task_data` does not fit the model, or its loss is not finite.
    """
    if task_data is not None:
        losses = task_losses(predictor, task_data, max_tokens, seed)
    else:
        assert text is not None
        sequences = first_sequences(text.blocks(), max_tokens)  # outside of `try`: a file without texts is an error
        try:
            losses = text_losses(predictor, sequences, seed)
        except UserError as error:
            console.info(f"importance of the heads: skipped, because {error}")
            return InputFindings("loss", {"skipped": str(error)}, [])
    table, facts = importance_table(losses)
    return InputFindings("loss", facts, [table], _summary(table, facts))


def _summary(table: Table, facts: InputFacts) -> list[str]:
    increase, error = (np.asarray(table.columns[name]) for name in ("loss_increase", "standard_error"))
    most = int(increase.argmax())
    head = f"{table.columns['layer'][most]}.{table.columns['head'][most]}"
    certainty = f"{error[most]:.4f}" if np.isfinite(error[most]) else "unknown: too few texts"
    lines = [
        f"{facts['kind']} loss {facts['loss']:.4f} on {console.plural(int(facts['predictions']), 'prediction')}; without head "
        f"{head} {increase[most]:+.4f} (standard error {certainty})"
    ]
    if np.isfinite(error).all():
        few = f"{(increase < 2 * error).sum()} of {len(increase)} heads"
        lines.append(f"{few}: without one of them, the loss rises by less than 2 standard errors")
    return lines


def importance_table(losses: HeadLosses) -> tuple[Table, InputFacts]:
    """Return the table `head_importance`, and facts about it: kind of the loss, its value, batches, texts, predictions.

    Raises:
        UserError: The loss is not finite.
    """
    importance = head_importance(losses)
    whole, without, counts = masked_losses(losses)
    if not np.isfinite(whole).all():
        raise UserError("the loss is NaN or infinity: the model is damaged, or its training diverged")
    increase, error = mean_and_error(without - whole, counts)
    norms = np.sqrt((importance**2).sum(1, keepdims=True))
    in_layer, mean = importance / np.where(norms, norms, 1), without.sum(-1) / counts.sum()
    values = [*head_names(losses.encoder), *map(np.ravel, (importance, in_layer, mean, increase, error))]
    facts = {
        **{"kind": losses.kind, "loss": whole.sum() / counts.sum(), "predictions": counts.sum()},
        "texts": sum(len(micro.batch.example) for micro in losses.batches),
        "tokens": sum(len(micro.batch.input_ids) for micro in losses.batches),
        "batches": len(counts),
    }
    return Table("head_importance", dict(zip(MEANING, values, strict=True)), MEANING), facts


def head_importance(losses: HeadLosses) -> np.ndarray:
    """Return the importance of each head, float64 [layers, N].

    It is the sum over texts (or examples) of |gradient of the text's loss with respect to the head's gate|, divided by the
    number of predictions. With one prediction per text, this is the mean of Michel et al. A loss that compares texts counts
    for each of them.
    """
    (layers, heads), device = losses.shape, losses.model.device
    total, count = torch.zeros(losses.shape, dtype=torch.float64), 0.0
    dtype = losses.encoder.embeddings.word.weight.dtype
    with console.progress("importance", len(losses.batches), "batches", passing=True) as bar:
        for micro in losses.batches:
            examples = torch.as_tensor(_examples(losses, micro), device=device)
            gates = torch.ones(layers, len(examples), heads, device=device, dtype=dtype, requires_grad=True)
            with torch.enable_grad(), gated(losses.encoder, gates):
                loss = losses.loss(micro.tensors(device))
                [gradient] = torch.autograd.grad(loss.total, gates)
            by_example = torch.zeros_like(gradient).index_add_(1, examples, gradient)
            total += by_example.abs().sum(1, dtype=torch.float64).cpu()
            count += float(loss.count)
            bar.advance(1)
    return (total / count).numpy()


def _examples(losses: HeadLosses, micro: MicroBatch) -> np.ndarray:
    """Return the number, from 0, of the example of each sequence that the encoder reads."""
    example = np.asarray(micro.batch.example)
    numbers = np.arange(len(example)) if (example < 0).any() else np.unique(example, return_inverse=True)[1]
    reading = losses.model.reading
    # An encoder that reads the texts of a pair separately reads two sequences for each one.
    return np.repeat(numbers, 2) if reading is not None and reading.separate else numbers


@torch.inference_mode()
def masked_losses(losses: HeadLosses) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the loss with each head masked. The layers below the head are computed once.

    Returns:
        Sums of the losses: of the whole model, float64 [batches], and without each head, float64 [layers, N, batches].
        Number of predictions of each batch, float64 [batches].
    """
    (layers, heads), batches, device = losses.shape, len(losses.batches), losses.model.device
    whole, counts, without = np.zeros(batches), np.zeros(batches), np.zeros((layers, heads, batches))
    title = f"masking each of {layers * heads:,} heads"
    with console.progress(title, batches * layers * heads, "passes", passing=True) as bar:
        for number, batch in enumerate(losses.batches):
            micro = batch.tensors(device)
            states: list[Tensor] = []
            with _recorded(losses.encoder, states):
                loss = losses.loss(micro)
            whole[number], counts[number] = float(loss.total), float(loss.count)
            for layer in range(layers):
                with below_known(losses.encoder, states[: layer + 1]):
                    for head in range(heads):
                        gates = torch.ones(layers, heads, device=device)
                        gates[layer, head] = 0
                        with gated(losses.encoder, gates):
                            without[layer, head, number] = float(losses.loss(micro).total)
                        bar.advance(1)
    return whole, without, counts


@contextmanager
def _recorded(encoder: TransformerEncoder, states: list[Tensor]) -> Iterator[None]:
    """Append the outputs of the embeddings and of every layer but the last to `states`, while the block runs the encoder."""
    parts = [encoder.embeddings, *encoder.layers][:-1]

    def record(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        if len(states) < len(parts):
            states.append(output)

    hooks = [part.register_forward_hook(record) for part in set(parts)]  # layers may be one module
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def mean_and_error(totals: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of values whose sums and numbers are known for each batch, and its standard error.

    The error of a ratio of sums over batches follows by linearization (Cochran 1977, section 6.3). It is NaN for one batch.

    Args:
        totals: Sums, [..., batches].
        counts: Numbers of values, [batches].
    """
    mean = totals.sum(-1) / counts.sum()
    batches = len(counts)
    if batches < 2:
        return mean, np.full_like(mean, np.nan)
    residual = totals - mean[..., None] * counts
    return mean, np.sqrt((residual**2).sum(-1) * batches / (batches - 1)) / counts.sum()
