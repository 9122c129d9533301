"""The task and the longest sequence of a checkpoint, from its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from bertie.base import config as configuration
from bertie.base import console, storage, untrusted
from bertie.base.errors import UsageError, UserError, join_names, naming
from bertie.checkpoints import sentence_transformers_reader
from bertie.checkpoints.checkpoint import Checkpoint
from bertie.checkpoints.families.family import TASK_SHAPES
from bertie.checkpoints.find import TASK_FILE, find_model_folder, list_checkpoints
from bertie.checkpoints.huggingface import classes_of
from bertie.checkpoints.read import read_checkpoint
from bertie.tasks import AnyTask
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.task import AddsTokens, Calibratable, added_tokens
from bertie.tasks.task_json import task_from_json, with_pooling
from bertie.tokenizers.added_tokens import entry_ids, with_tokens


def trained_length(checkpoint: Checkpoint) -> int:
    """Return the length in tokens of the longest sequence that a run was trained on.

    Later position embeddings are untrained. For other models, return the limit in the files of sentence-transformers or
    of the tokenizer, or else the number of position embeddings.

    Raises:
        UserError: The files of the model contradict each other.
    """
    folder, positions = checkpoint.folder, checkpoint.config.max_position_embeddings
    settings = checkpoint.task or run_settings(folder)
    where = folder / TASK_FILE if checkpoint.task else _run_folder(folder) / "config.toml"
    phases = settings.get("phases", [])
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
        raise UserError(f"{where}: phases is {str(phases)[:60]}: expected tables")
    phases = [phase for phase in phases if phase.get("max_length") != 0]  # 0: as in the layout
    parts = [settings, settings.get("layout"), *phases]
    limits = [part["max_length"] for part in parts if isinstance(part, dict) and "max_length" in part]
    longest = checkpoint.tokenizer.longest or positions
    if longest < 4:
        raise UserError(f"{folder}/tokenizer_config.json: model_max_length is {longest}: bertie reads 4 tokens or more")
    default = min(positions, sentence_transformers_reader.max_sequence_length(checkpoint.small_files) or longest)
    limit = max(limits, default=default) if all(type(limit) is int for limit in limits) else limits
    if type(limit) is not int or not 4 <= limit <= positions:
        raise UserError(f"{where}: max_length is {limit!r}: the model reads 4 to {positions} tokens")
    return limit


def checkpoint_task(checkpoint: Checkpoint) -> AnyTask | None:
    """Return the task of a checkpoint: from task.json, or for models of others from the head and the labels."""
    if checkpoint.task:
        task = with_pooling(task_from_json(checkpoint.task, checkpoint.folder / TASK_FILE), checkpoint.config)
        _require_outputs(checkpoint, task.kind, task.labels)
        return task
    head = _foreign_head(checkpoint)
    with naming(checkpoint.folder):
        found = [task for kind in get_args(AnyTask) if head and (task := kind.from_head(head)) is not None]
    if checkpoint.unclear:
        classes = " or ".join(f'"{name}"' for name in classes_of(checkpoint.config, checkpoint.unclear))
        problem = "config.json names no class (architectures), and its head may be for texts or for tokens"
        others = [kind.beside_head for kind in get_args(AnyTask) if isinstance(kind, AddsTokens)]
        remedies = [f"add {classes} to it as architectures", *others]
        raise UserError(f"{checkpoint.folder}: {problem}: {'; '.join(remedies)}")
    if head is None:
        return None
    if not found:
        what = f"{console.plural(head.outputs, 'output')} and the problem_type {head.problem_type!r}"
        console.warn(f"{checkpoint.folder}: no task of bertie has a head ({head.shape}) with {what}: it is ignored")
        return None
    task = with_pooling(found[0], checkpoint.config)
    _require_outputs(checkpoint, head.shape, task.labels)
    return task


def _foreign_head(checkpoint: Checkpoint) -> ForeignHead | None:
    """Return the head that another library has trained for a task. Raises UserError if its output layer is missing."""
    for shape in TASK_SHAPES:
        if shape in checkpoint.heads:
            outputs = checkpoint.weights.get(f"heads.{shape}.out.weight")
            if outputs is None:
                raise UserError(f"{checkpoint.where} lacks the output layer of its head ({shape})")
            # Other shapes are no cross-encoders.
            activation = shape == "text" and sentence_transformers_reader.score_activation(
                checkpoint.small_files, len(outputs)
            )
            return ForeignHead(shape, len(outputs), checkpoint.labels, checkpoint.problem_type, activation or "")
    return None


def choose_task(task: AnyTask | None, checkpoint: Checkpoint) -> AnyTask | None:
    """Return `task` with what the checkpoint's was trained with: its labels, its pooling, a parameter that was tuned.

    Returns the task of the checkpoint if `task` is None.

    Raises:
        UsageError: `task` has other labels than the head, or another pooling.
    """
    if task is not None and added_tokens(task) and not checkpoint.task:
        _require_outputs(checkpoint, task.facts.shape or "", task.labels)
        return task
    own = checkpoint_task(checkpoint)
    if task is None or own is None or task.kind != own.kind:
        return task or own
    trained: Any = own
    task = _with_pooling(task.as_trained(trained), own)
    if not task.labels and own.labels:
        task = replace(task, labels=own.labels)
    renamed = not checkpoint.task and len(task.labels) == len(own.labels)  # LABEL_0 … of other models
    if task.labels != own.labels and not renamed:
        labels = join_names(own.labels)
        raise UsageError(f"task.labels: the model was trained with {labels}, in this order: use these labels")
    tuned = trained.tuned if isinstance(trained, Calibratable) else None
    return replace(task, **{tuned: getattr(own, tuned)}) if tuned and getattr(task, tuned) in (None, ()) else task


def with_tokens_of(task: AnyTask | None, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with a tokenizer that matches the tokens of a task. Raises UserError if it has no such entries."""
    if not (tokens := added_tokens(task)):
        return checkpoint
    with naming(checkpoint.folder):
        entry_ids(checkpoint.tokenizer, tokens)
        return replace(checkpoint, tokenizer=with_tokens(checkpoint.tokenizer, tokens))


def _with_pooling(task: AnyTask, own: AnyTask) -> AnyTask:
    """Return `task` with the pooling that the model was trained with."""
    if task.text_pooling in (None, own.text_pooling) or own.text_pooling in (None, "model"):
        return task
    if task.text_pooling != "model":
        raise UsageError(f'task.pooling: the model was trained with "{own.text_pooling}": use it')
    return replace(cast(Any, task), pooling=own.text_pooling)


def _require_outputs(checkpoint: Checkpoint, name: str, labels: tuple[str, ...]) -> None:
    outputs = checkpoint.weights.get(f"heads.{name}.out.weight")
    if labels and outputs is not None and len(labels) != len(outputs):
        where = "task.json" if checkpoint.task else "config.json"
        problem = f"{where} names {len(labels)} labels and the head has {len(outputs)} outputs"
        raise UserError(f"{checkpoint.folder}: {problem}")


def task_json(folder: Path) -> AnyTask:
    """Read the task.json of a model folder."""
    return task_from_json(storage.read_json(folder / TASK_FILE), folder / TASK_FILE)


def read_task(source: str | Path) -> AnyTask:
    """Read the task that a model was fine-tuned for.

    Args:
        source: As in `load.load`.

    Raises:
        UsageError: There is no model at `source`.
        UserError: The model is damaged, or was not fine-tuned for a task.
    """
    folder = find_model_folder(source)
    if (folder / TASK_FILE).is_file():
        return task_json(folder)
    checkpoint = read_checkpoint(folder)
    task = checkpoint_task(checkpoint)
    if task is None:
        raise UserError(f"{checkpoint.folder} was not fine-tuned for a task: run `bertie finetune` first")
    return task


def run_settings(folder: Path) -> dict[str, Any]:
    """Read the config.toml of a run or of the run of a checkpoint; {} for other folders."""
    path = _run_folder(folder) / "config.toml"
    untrusted.require_content(path)
    return configuration.read(path) if path.is_file() else {}


def _run_folder(folder: Path) -> Path:
    """Return the run of a checkpoint folder; other folders as they are."""
    folder = folder.resolve()
    return folder.parent.parent if folder in list_checkpoints(folder.parent.parent) else folder
