"""Load a model for inference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from bertie.base import console, runtime, storage
from bertie.base.config import kinds
from bertie.base.errors import UsageError, UserError, join_names, naming
from bertie.base.own_code import code_allowed
from bertie.checkpoints import sentence_transformers_reader
from bertie.checkpoints.families.family import TASK_SHAPES
from bertie.checkpoints.find import ENGINE, TASK_FILE, find_model_folder, root_of, run_of, run_settings
from bertie.checkpoints.huggingface import classes_of
from bertie.checkpoints.read import Checkpoint, load_weights, read_checkpoint, unused_weights_allowed
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding, embedding_of
from bertie.model.encoder import build_encoder, with_language
from bertie.model.encoders.electra import build_generator
from bertie.model.initialization import Uninitialized
from bertie.model.model import Model
from bertie.model.pooling import Pooling
from bertie.objectives.heads import build_heads, objectives_of
from bertie.predict.engines import choose
from bertie.predict.engines.files import EngineName
from bertie.predict.engines.files import read as read_exported
from bertie.predict.predictor import Predictor
from bertie.tasks import AnyTask
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.task import build_head
from bertie.tasks.task_json import features_from_json, task_from_json, with_pooling
from bertie.tokenizers.added_tokens import entry_ids, with_tokens


def load(
    source: str | Path,
    *,
    task: AnyTask | None = None,
    language: str = "",
    threads: int = 0,
    engine: EngineName | None = None,
    pooling: Pooling | None = None,
    allow_unused: bool = False,
    allow_code: bool = False,
) -> Predictor:
    """Load a model for inference.

    Args:
        source: A run, a checkpoint folder, a BERT folder in Hugging Face's format, or a hub id.
        task: Replaces the task of the model, to read other columns or to change limits. The model needs a head for it,
            with the same labels.
        language: Language of the texts, for a model with language embeddings. Empty: the one that the model was
            fine-tuned in, or else the first of its languages.
        threads: Processor threads; 0: all that this process may use.
        engine: The engine that computes the encoder (`EngineName`). None: the engine that a converted model was made
            for, and for other models "plain": torch in fp32, as in training.
        pooling: How to pool tokens into the vector of a text, for a model whose files name no pooling. None: for such a
            model, a pooling that suits its encoder, usually the mean.
        allow_unused: Ignore weights without a place in the model, such as the weights of an adapter, instead of refusing them.
        allow_code: Import the code that the folder names, such as the module of its task: only for folders that you trust.
            Not needed for a module that your program has imported.

    Returns:
        The model. With the engines plain, auto and cuda, it is on the GPU if there is one.

    Raises:
        UsageError: There is no model at `source`, `task` has other labels than the model, the model does not know
            `language`, its files name another `pooling`, or the engine cannot run here.
        UserError: The model is damaged.
    """
    runtime.use_threads(threads)
    if engine is not None and (wanted := choose.named(engine)) is not None:
        wanted.require()  # before the weights are read
    with unused_weights_allowed(allow_unused):
        checkpoint = read_checkpoint(source, None if task is None else task.facts.shape)
    exported = read_exported(checkpoint.contents) if checkpoint.contents.has(ENGINE) else None
    checkpoint = replace(checkpoint, config=with_language(checkpoint.config, language))
    with code_allowed(allow_code):
        checkpoint, loaded = build(checkpoint, task, pooling)
    model = loaded.model
    result = load_weights(model, checkpoint, move=True)
    if result.initialized:
        raise UserError(f"{checkpoint.where} lacks the weights of {', '.join(result.initialized)}")
    chosen: EngineName = engine or (exported.engine if exported else "plain")
    if chosen in ("plain", "auto", "cuda"):
        model.to(runtime.device())
    if chosen != "plain":
        chosen = choose.use(model, chosen, exported)
    return replace(loaded, engine=chosen)


def build(
    checkpoint: Checkpoint, task: AnyTask | None = None, pooling: Pooling | None = None
) -> tuple[Checkpoint, Predictor]:
    """Build the model of a checkpoint, without its weights.

    Args:
        checkpoint: The checkpoint.
        task: As in `load`.
        pooling: As in `load`.

    Returns:
        The checkpoint, with the names that the model has for its heads, and the model.

    Raises:
        UsageError: As `load`.
        UserError: The files contradict each other.
    """
    task = choose_task(task, checkpoint)
    checkpoint = _with_tokens_of(task, checkpoint)
    contents, named = checkpoint.contents, None
    if root_of(contents) is not None:  # before a large model is built
        named = sentence_transformers_reader.read(contents, checkpoint.config.hidden_size)
    with Uninitialized():
        encoder = build_encoder(checkpoint.config)
        generator = build_generator(checkpoint.generator, encoder)
        heads = build_heads(objectives_of(checkpoint), encoder, generator)
        features = None
        if task is not None:
            features = features_from_json(checkpoint.task, task, checkpoint.config, checkpoint.folder / TASK_FILE)
            width = features.width if features else checkpoint.config.hidden_size
            heads[task.kind] = build_head(task, checkpoint.config, width)
            checkpoint = checkpoint.with_head(task.facts.shape, task.kind)
    model = Model(encoder, heads, features, generator).eval()
    if task is not None and task.facts.shape == "vectors":
        named = _as_trained(named, model)
    if named and pooling and named.pooling != (pooling,):
        theirs = " and ".join(named.pooling)
        raise UsageError(f"--pooling {pooling}: the files of {checkpoint.folder} name the pooling {theirs}: omit it")
    how = named or SentenceEmbedding((pooling or encoder.config.text_vector,))
    return checkpoint, Predictor(
        checkpoint.folder, checkpoint.tokenizer, model, task, trained_length(checkpoint), text_embedding=how
    )


def _as_trained(files: SentenceEmbedding | None, model: Model) -> SentenceEmbedding | None:
    """Return the computation of vectors that the files describe, with the pooling of the model's head."""
    head = embedding_of(model)
    if files and head and files.pooling != head.pooling:
        return files.with_pooling(head.pooling[0])
    return files or head


def trained_length(checkpoint: Checkpoint) -> int:
    """Return the length in tokens of the longest sequence that a run was trained on.

    Later position embeddings are untrained. For other models, return the limit in the files of sentence-transformers or
    of the tokenizer, or else the number of position embeddings.

    Raises:
        UserError: The files of the model contradict each other.
    """
    folder, positions = checkpoint.folder, checkpoint.config.max_position_embeddings
    settings = checkpoint.task or run_settings(folder)
    where = folder / TASK_FILE if checkpoint.task else run_of(folder) / "config.toml"
    phases = settings.get("phases", [])
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
        raise UserError(f"{where}: phases is {str(phases)[:60]}: expected tables")
    phases = [phase for phase in phases if phase.get("max_length") != 0]  # 0: as in the layout
    parts = [settings, settings.get("layout"), *phases]
    limits = [part["max_length"] for part in parts if isinstance(part, dict) and "max_length" in part]
    longest = checkpoint.tokenizer.longest or positions
    if longest < 4:
        raise UserError(f"{folder}/tokenizer_config.json: model_max_length is {longest}: bertie reads 4 tokens or more")
    if root_of(checkpoint.contents) is not None:
        longest = sentence_transformers_reader.max_sequence_length(checkpoint.contents) or longest
    default = min(positions, longest)
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
    head, shipped = _foreign_head(checkpoint), kinds(AnyTask).values()
    with naming(checkpoint.folder):
        tasks = [task for kind in shipped if head and (task := kind.from_head(head)) is not None]
    if checkpoint.unclear:
        classes = " or ".join(f'"{name}"' for name in classes_of(checkpoint.config, checkpoint.unclear))
        problem = "config.json names no class (architectures), and its head may be for texts or for tokens"
        others = [kind.beside_head for kind in shipped if kind.beside_head]
        remedies = [f"add {classes} to it as architectures", *others]
        raise UserError(f"{checkpoint.folder}: {problem}: {'; '.join(remedies)}")
    if head is None:
        return None
    if not tasks:
        output = f"{console.plural(head.outputs, 'output')} and the problem_type {head.problem_type!r}"
        console.warn(f"{checkpoint.folder}: no task of bertie has a head ({head.shape}) with {output}: it is ignored")
        return None
    task = with_pooling(tasks[0], checkpoint.config)
    if checkpoint.tokenizer.truncates_left and getattr(task, "truncation", "") == "head":
        task = replace(cast(Any, task), truncation="tail")
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
                checkpoint.contents, len(outputs)
            )
            return ForeignHead(shape, len(outputs), checkpoint.labels, checkpoint.problem_type, activation or "")
    return None


def choose_task(task: AnyTask | None, checkpoint: Checkpoint) -> AnyTask | None:
    """Return `task` with the labels, the pooling and the tuned parameter of the checkpoint's task.

    Returns the task of the checkpoint if `task` is None.

    Raises:
        UsageError: `task` has other labels than the head, or another pooling.
    """
    if task is not None and task.added_tokens and not checkpoint.task:
        _require_outputs(checkpoint, task.facts.shape or "", task.labels)
        return task
    trained: Any = checkpoint_task(checkpoint)
    if task is None or trained is None or task.kind != trained.kind:
        return task or trained
    task = _with_pooling(task.as_trained(trained), trained)
    if not task.labels and trained.labels:
        task = replace(task, labels=trained.labels)
    renamed = not checkpoint.task and len(task.labels) == len(trained.labels)  # LABEL_0 … of other models
    if task.labels != trained.labels and not renamed:
        labels = join_names(trained.labels)
        raise UsageError(f"task.labels: the model was trained with {labels}, in this order: use these labels")
    tuned = trained.tuned
    return replace(task, **{tuned: getattr(trained, tuned)}) if tuned and getattr(task, tuned) in (None, ()) else task


def _with_tokens_of(task: AnyTask | None, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with a tokenizer that matches the tokens of a task. Raises UserError if it has no such entries."""
    if task is None or not (tokens := task.added_tokens):
        return checkpoint
    with naming(checkpoint.folder):
        entry_ids(checkpoint.tokenizer, tokens)
        return replace(checkpoint, tokenizer=with_tokens(checkpoint.tokenizer, tokens))


def _with_pooling(task: AnyTask, trained: AnyTask) -> AnyTask:
    """Return `task` with the pooling that the model was trained with."""
    if task.text_pooling in (None, trained.text_pooling) or trained.text_pooling in (None, "model"):
        return task
    if task.text_pooling != "model":
        raise UsageError(f'task.pooling: the model was trained with "{trained.text_pooling}": use it')
    return replace(cast(Any, task), pooling=trained.text_pooling)


def _require_outputs(checkpoint: Checkpoint, name: str, labels: tuple[str, ...]) -> None:
    outputs = checkpoint.weights.get(f"heads.{name}.out.weight")
    if labels and outputs is not None and len(labels) != len(outputs):
        where = "task.json" if checkpoint.task else "config.json"
        problem = f"{where} names {len(labels)} labels and the head has {len(outputs)} outputs"
        raise UserError(f"{checkpoint.folder}: {problem}")


class NoTaskError(UserError):
    """A model that was not fine-tuned for a task."""


def read_task(source: str | Path) -> AnyTask:
    """Read the task that a model was fine-tuned for.

    Args:
        source: As in `load.load`.

    Raises:
        UsageError: There is no model at `source`.
        NoTaskError: The model was not fine-tuned for a task.
        UserError: The model is damaged.
    """
    folder = find_model_folder(source)
    if (path := folder / TASK_FILE).is_file():
        return task_from_json(storage.read_json(path), path)
    checkpoint = read_checkpoint(folder)
    task = checkpoint_task(checkpoint)
    if task is None:
        raise NoTaskError(f"{checkpoint.folder} was not fine-tuned for a task: run `bertie finetune` first")
    return task
