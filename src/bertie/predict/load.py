"""Load a model for inference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bertie.base import runtime
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.checkpoint import Checkpoint, load_weights
from bertie.checkpoints.find import ENGINE, TASK_FILE
from bertie.checkpoints.read import read_checkpoint, unused_weights_allowed
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding, embedding_of
from bertie.checkpoints.sentence_transformers_reader import read as read_embedding
from bertie.model.encoder import build_encoder, with_language
from bertie.model.encoders.electra import build_generator
from bertie.model.initialization import Uninitialized
from bertie.model.model import Model
from bertie.model.pooling import Pooling
from bertie.objectives.heads import build_heads, objectives_named
from bertie.predict.checkpoint_task import choose_task, trained_length, with_tokens_of
from bertie.predict.engines import choose
from bertie.predict.engines.files import EngineName
from bertie.predict.engines.files import read as read_exported
from bertie.predict.predictor import Predictor
from bertie.tasks import AnyTask
from bertie.tasks.task import build_head
from bertie.tasks.task_json import features_from_json


def load(
    source: str | Path,
    *,
    task: AnyTask | None = None,
    language: str = "",
    threads: int = 0,
    engine: EngineName | None = None,
    pooling: Pooling | None = None,
    allow_unused: bool = False,
) -> Predictor:
    """Load a model for inference.

    Args:
        source: A run, a checkpoint folder, a BERT folder in Hugging Face's format, or a hub id.
        task: Replaces the task of the model, to read other columns or to change limits. The model needs a head for it,
            with the same labels.
        language: Language of the texts, for a model with language embeddings. Empty: the one that the model was
            fine-tuned in, or else the first of its languages.
        threads: Processor threads; 0: all that this process may use.
        engine: What computes the encoder (`EngineName`). None: the engine that a converted model was made for, and for
            other models "plain": torch in fp32, as in training.
        pooling: How to pool tokens into the vector of a text, for a model whose files do not say it. None: for such a model
            what suits its encoder, usually the mean.
        allow_unused: Ignore weights without a place in the model, such as those of an adapter, instead of refusing them.

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
    exported = read_exported(checkpoint.small_files) if checkpoint.small_files.has(ENGINE) else None
    checkpoint = replace(checkpoint, config=with_language(checkpoint.config, language))
    checkpoint, loaded = build(checkpoint, task, pooling)
    model = loaded.model
    result = load_weights(model, checkpoint, move=True)
    if result.initialized:
        raise UserError(f"{checkpoint.where} lacks the weights of {', '.join(result.initialized)}")
    model.to(choose.device(engine or (exported.engine if exported else None)))
    return replace(loaded, engine=choose.use(model, engine, exported))


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
    checkpoint = with_tokens_of(task, checkpoint)
    embedding = read_embedding(checkpoint.small_files, checkpoint.config.hidden_size)  # before a large model is built
    with Uninitialized():
        encoder = build_encoder(checkpoint.config)
        generator = build_generator(checkpoint.generator, encoder)
        heads = build_heads(objectives_named(checkpoint.heads), encoder, generator)
        features = None
        if task is not None:
            features = features_from_json(checkpoint.task, task, checkpoint.config, checkpoint.folder / TASK_FILE)
            width = features.width if features else checkpoint.config.hidden_size
            heads[task.kind] = build_head(task, checkpoint.config, width)
            checkpoint = checkpoint.with_head(task.facts.shape, task.kind)
    model = Model(encoder, heads, features, generator).eval()
    named, length = _as_trained(embedding, embedding_of(model)), trained_length(checkpoint)
    if named and pooling and named.pooling != (pooling,):
        theirs = " and ".join(named.pooling)
        raise UsageError(f"--pooling {pooling}: the files of {checkpoint.folder} name the pooling {theirs}: omit it")
    how = named or SentenceEmbedding((pooling or encoder.config.text_vector,))
    return checkpoint, Predictor(checkpoint.folder, checkpoint.tokenizer, model, task, length, text_embedding=how)


def _as_trained(files: SentenceEmbedding | None, head: SentenceEmbedding | None) -> SentenceEmbedding | None:
    """Return how the files say that vectors are computed, but with the pooling of the head, if the model has one."""
    if files and head and files.pooling != head.pooling:
        return files.with_pooling(head.pooling[0])
    return files or head
