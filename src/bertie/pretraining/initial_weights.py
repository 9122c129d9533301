"""Initial weights of a pre-training: random, or from another model whose vocabulary may be extended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from bertie.base import config as configuration
from bertie.base import console, runtime, seeding
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.find import list_checkpoints
from bertie.checkpoints.read import Checkpoint, load_weights, read_checkpoint
from bertie.checkpoints.training_state import load_optimizer
from bertie.checkpoints.vocabulary_growth import grown, rows_by_entry
from bertie.corpus.shards import Shards
from bertie.model.attention.attention import AttentionKind
from bertie.model.encoder import EncoderConfig, build_encoder, with_dropout
from bertie.model.encoders.electra import build_generator
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.objectives import AnyObjective
from bertie.objectives.heads import build_heads, objectives_of
from bertie.objectives.initialization import Pending, begin_vectors
from bertie.pretraining.growth import become_identity, require_identity
from bertie.pretraining.recipe import PretrainConfig
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.distributed import Ranks


def model_size(config: PretrainConfig, start: Checkpoint | None, out: Path, ranks: Ranks) -> EncoderConfig:
    """Return the size of the model: the size in the recipe or, except for dropout, of the checkpoint to continue from."""
    if not config.init_from:
        return config.model
    size = start.config if start else config.model
    models = (size, config.model)
    sizes = [f"{console.plural(model.num_hidden_layers, 'layer')} of {model.hidden_size}" for model in models]
    if sizes[0] != sizes[1]:
        console.info(f"the model has the size of {config.init_from}: {sizes[0]}, not {sizes[1]} as in the recipe")
    if ranks.first and start is None:  # a resumed run has saved the size, and its initial checkpoint may be gone
        size = configuration.build(EncoderConfig, configuration.read(out / "config.toml")["model"], "model")
    attention_dropout = getattr(config.model, "attention_probs_dropout_prob", 0.0)
    size = with_dropout(size, config.model.hidden_dropout_prob, attention_dropout)
    return configuration.build(EncoderConfig, ranks.broadcast(configuration.plain(size)), "model")


def new_model(
    size: EncoderConfig,
    objectives: tuple[AnyObjective, ...],
    seed: int,
    attention: AttentionKind = "automatic",
    teacher: Checkpoint | None = None,
) -> Model:
    """Build an encoder and the heads of the objectives, with BERT's random initialization.

    Args:
        size: The size of the model.
        objectives: The objectives, each with a head.
        seed: The random seed, which alone determines the weights.
        attention: The attention implementation.
        teacher: The teacher of a distillation, which training needs.
    """
    encoder = build_encoder(size, attention)
    generator_size = next(filter(None, (objective.generator(size) for objective in objectives)), None)
    generator = build_generator(generator_size, encoder, attention)
    model = Model(encoder, build_heads(objectives, encoder, generator), generator=generator)
    runtime.reseed_torch(seed, seeding.WEIGHTS)
    initialize_weights(model, size.initializer_range)
    if teacher is not None:
        for objective in objectives:
            objective.connect_teacher(model, teacher, attention)
    return model


@contextmanager
def counted_weights(objectives: tuple[AnyObjective, ...], model: Model, shards: Shards) -> Iterator[Callable[[], None]]:
    """Count what the initial weights of the objectives depend on, beside the block.

    The block gets a function that waits for the counts, and then sets the weights in place. The model is on the CPU then.
    """
    random, begun = torch.get_rng_state(), dict[str, Pending]()
    with ExitStack() as stack:
        for objective in objectives:
            if (words := objective.counted(model)) is not None:
                begun[objective.kind] = stack.enter_context(begin_vectors(words, shards.train))

        def set_weights() -> None:
            torch.set_rng_state(random)  # the block may have drawn numbers
            for objective in objectives:
                objective.initialize(model, shards, begun.get(objective.kind))

        yield set_weights


def read_teacher(config: PretrainConfig, tokenizer: Tokenizer | None) -> Checkpoint | None:
    """Read the teacher that an objective of a recipe names; None if no objective has one.

    Args:
        config: The recipe.
        tokenizer: The tokenizer of the training text; None: it is not known yet, and is not compared.

    Raises:
        UsageError: There is no such model, or it does not fit the student, the text or the settings.
        UserError: The model is damaged.
    """
    longest = max(phase.layout.max_length for phase in config.resolved_phases)
    teachers = (
        objective.read_teacher(config.model, longest, bool(config.init_from), tokenizer, f"--objectives.{number}")
        for number, objective in enumerate(config.objectives)
    )
    return next(filter(None, teachers), None)


def vocabulary_weights(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the weights of a checkpoint that have one row per vocabulary entry."""
    objectives = tuple(objectives_of(checkpoint))
    return rows_by_entry(checkpoint.config, lambda size: new_model(size, objectives, 0))


def read_initial_checkpoint(source: str | Path, tokenizer: Tokenizer, layers: int = 0) -> Checkpoint:
    """Read a checkpoint to continue from, and extend its vocabulary if `tokenizer` has additional entries.

    The vector of an additional entry is the mean of the vectors of the pieces that the old vocabulary splits it into.

    Args:
        source: A run folder, checkpoint folder or hub id.
        tokenizer: The tokenizer of the training text: the checkpoint's, or one with entries appended to it.
        layers: The layers that it shall have (`deepened`). 0: those that it has.

    Raises:
        UsageError: If the tokenizer differs in any other way, or if the checkpoint does not exist or has more layers.
        UserError: If the checkpoint is damaged.
    """
    checkpoint = deepened(read_checkpoint(source), layers)
    checkpoint.warn_of_training()
    old = checkpoint.tokenizer
    if (old.vocabulary, old.rules, old.merges) != (tokenizer.vocabulary[: old.size], tokenizer.rules, tokenizer.merges):
        raise UsageError(
            f"the text was prepared with a different vocabulary from {source}'s: prepare it with --tokenizer {source}, or "
            "with an extension of its vocabulary"
        )
    pieces = [old.split_entry(word) for word in tokenizer.vocabulary[old.size :]]
    return grown(checkpoint, tokenizer, pieces, vocabulary_weights(checkpoint) if pieces else ())


def deepened(checkpoint: Checkpoint, layers: int) -> Checkpoint:
    """Return a checkpoint with so many layers, of which the additional ones are the identity. 0: as many as it has."""
    before = checkpoint.config.num_hidden_layers
    if layers in (0, before):
        return checkpoint
    if layers < before:
        raise UsageError(f"init_layers is {layers}, and {checkpoint.folder} has {before}: give more, or 0")
    require_identity("more init_layers", checkpoint.config)
    config = replace(checkpoint.config, num_hidden_layers=layers)
    model = new_model(config, (), seed=0)
    become_identity(model.encoder, before)
    return replace(checkpoint, config=config, weights=model.state_dict() | checkpoint.weights)


def load_initial_weights(start: Checkpoint, model: Model) -> str:
    """Load the weights of a checkpoint, as far as the model has them.

    Returns:
        A message that names the checkpoint, the heads that were dropped, and those with random initial weights.
    """
    loaded = load_weights(model, start)
    message = [f"continuing from {start.folder}"]
    initialized = {name.split(".")[1] if name.startswith("heads.") else "generator" for name in loaded.initialized}
    for label, names in (("dropped", {*loaded.dropped}), ("randomly initialized", initialized)):
        heads = sorted(names - {"generator"})
        parts = ["generator"] if "generator" in names else []
        parts += [f"{', '.join(heads)} head{'s' * (len(heads) > 1)}"] if heads else []
        message += [f"{label}: {' and '.join(parts)}"] if parts else []
    return "; ".join(message)


def load_initial_optimizer(start: Checkpoint, model: Model, optimizer: torch.optim.Optimizer, kind: str) -> str:
    """Load the optimizer state of a checkpoint, or of the newest checkpoint in a run folder.

    Args:
        start: The checkpoint that the weights were loaded from.
        model: The model.
        optimizer: The optimizer to change in place.
        kind: The kind of the optimizer, which the checkpoint must have, too.

    Returns:
        A message that names the folder of the state.

    Raises:
        UsageError: If the checkpoint has no optimizer state, or of another kind.
        UserError: If the run of the checkpoint is damaged.
    """
    candidates = (start.folder, *reversed(list_checkpoints(start.folder)))
    folders = [path for path in candidates if (path / "training_state").is_dir()]
    if not folders:
        raise UsageError(f"{start.folder} contains no optimizer state: omit --init-optimizer")
    saved_kind = _optimizer_kind(folders[0])
    if saved_kind != kind:
        raise UsageError(f"{folders[0]} was trained with {saved_kind}, not {kind}: omit --init-optimizer")
    load_optimizer(folders[0], model, optimizer, grown=vocabulary_weights(start))
    return f"loaded the optimizer state of {folders[0]}"


def _optimizer_kind(checkpoint: Path) -> str:
    """Return the kind of optimizer of a checkpoint, according to the run folder that contains it."""
    recipe = checkpoint.resolve().parents[1] / "config.toml"
    if checkpoint.resolve().parent.name != "checkpoints" or not recipe.is_file():
        raise UsageError(
            f"the kind of its optimizer is unknown, because {checkpoint} is not inside a run folder: omit --init-optimizer"
        )
    try:
        return str(configuration.read(recipe)["optimizer"]["kind"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{recipe} is damaged: it has no optimizer.kind") from error
