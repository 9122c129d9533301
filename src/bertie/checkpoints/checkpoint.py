"""A checkpoint in memory: what was read from a model folder, and its weights copied into a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bertie.base import console
from bertie.base.errors import UserError
from bertie.checkpoints.families import family_named
from bertie.files.model_folder import ModelFolder
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig, spell_entries
from bertie.model.encoders.electra import GENERATOR_HEAD, generator_sizes
from bertie.model.head_facts import HeadShape
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import Tokenizer

ABOVE_ENCODER = ("heads.", "reading.", "generator.")  # prefixes of weights that do not belong to the encoder


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model folder that was read and checked."""

    folder: Path
    config: EncoderConfig
    weights: dict[str, Tensor]
    """Weights under bertie's names. The pooler's names start with `pooler.`."""
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    """Class names of the classification head, if any."""
    task: dict[str, Any]
    """Contents of task.json, the task for which the model was fine-tuned. Empty for models of other libraries."""
    generator: TransformerConfig | None = None
    """Configuration of the generator, which a pre-training of ELECTRA saves with the encoder."""
    problem_type: str = ""
    """What config.json says of the outputs of a classifier: regression, single_label_classification, … Empty: nothing."""
    model_type: str = ""
    """Name of its family."""
    skipped: Tensor | None = None
    """First rows of the matrix of positions, which no token uses, in families that have such rows."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Contents of config.json, or of Google's file with the keys of config.json."""
    unclear: tuple[HeadShape, ...] = ()
    """What the head of a task could be, if config.json names no class and the labels do not tell."""
    files: tuple[Path, ...] = ()
    """The files with its weights (`weights_files`)."""
    contents: ModelFolder | None = None
    """Its small files, as they were read. None: it was not read."""

    @property
    def small_files(self) -> ModelFolder:
        """The small files of the folder."""
        return self.contents or ModelFolder(self.folder)

    @property
    def where(self) -> Path:
        """The file with its weights, or the folder if they are in several, for messages."""
        return self.files[0] if len(self.files) == 1 else self.folder

    @property
    def heads(self) -> frozenset[str]:
        """Names of the heads with weights: the kind of the objective or the task, or else the `HeadShape`."""
        return frozenset(name.split(".")[1] for name in self.weights if name.startswith("heads."))

    def warn_of_training(self) -> None:
        """Warn of dropout probabilities in config.json that training does not obey."""
        family = family_named(self.model_type)
        lost = []
        for name, ours in (family.settings.training_only if family else {}).items():
            value = self.settings.get(name)
            if name in self.settings and value != (self.config.hidden_dropout_prob if ours is None else ours):
                lost.append(f"{name} {str(value)[:20]}")
        if lost:
            console.warn(
                f"{self.folder}/config.json: {', '.join(lost)}: bertie has no such dropout of its own, and trains with "
                "hidden_dropout_prob"
            )

    def without_weights(self) -> Checkpoint:
        """Return only what the files say beside the weights."""
        return replace(self, weights={})

    def without_heads(self) -> Checkpoint:
        """Return only the encoder and the pooler, from which another task can start."""
        return self._without(ABOVE_ENCODER)

    def with_head(self, shape: str | None, kind: str) -> Checkpoint:
        """Return the checkpoint with a head of another library, which has the name of its shape, as that of a task."""
        old = f"heads.{shape}."
        weights = {
            f"heads.{kind}.{name.removeprefix(old)}" if name.startswith(old) else name: tensor
            for name, tensor in self.weights.items()
        }
        return replace(self, weights=weights)

    def without_generator(self) -> Checkpoint:
        """Return the checkpoint without its generator and the masked-LM head, whose size is the generator's."""
        return self._without(("generator.", f"heads.{GENERATOR_HEAD}."))

    def _without(self, prefixes: tuple[str, ...]) -> Checkpoint:
        weights = {name: tensor for name, tensor in self.weights.items() if not name.startswith(prefixes)}
        return replace(self, weights=weights, generator=None)


def shape_error(folder: Path, name: str, size: tuple[int, ...], found: Tensor | None) -> UserError:
    """Return the error that a tensor has another shape than the model's, or is missing."""
    actual = "nothing" if found is None else f"shape {tuple(found.shape)}"
    return UserError(f"{folder}: {name} should be {size}, the checkpoint has {actual}")


def _replaces(tensor: Tensor, other: Tensor) -> bool:
    """Whether another tensor can take the place of one: it is of the same kind, and alone in its memory."""
    return (
        (tensor.dtype, tensor.device) == (other.dtype, other.device)
        and other.is_contiguous()
        and other.untyped_storage().nbytes() == other.nbytes
    )


@dataclass(frozen=True)
class LoadResult:
    """Outcome of `load_weights`."""

    initialized: tuple[str, ...]
    """Modules of the model without weights in the checkpoint. They keep their initial weights."""
    dropped: tuple[str, ...]
    """Heads of the checkpoint that the model does not have, and "generator" if its generator is another one."""


def load_weights(model: Model, checkpoint: Checkpoint, move: bool = False) -> LoadResult:
    """Copy the weights of a checkpoint into a model, by name, and set the spelling of its entries if it reads characters.

    Heads that the checkpoint lacks keep their initial weights. A head with another number of outputs belongs to another
    task: it is not loaded, and the result names it. So is a generator of another size, with its head.

    Args:
        model: The model.
        checkpoint: The checkpoint.
        move: Take the tensors out of the checkpoint instead of copying them, so that they need no memory twice.

    Raises:
        UserError: The checkpoint's encoder does not fit the model.
    """
    own = None if model.generator is None else generator_sizes(model.generator.config)
    theirs = None if checkpoint.generator is None else generator_sizes(checkpoint.generator)
    weights = checkpoint.weights if own == theirs else checkpoint.without_generator().weights
    initialized, used = set(), set()
    parameters = dict(model.named_parameters()) if move else {}
    for name, tensor in model.state_dict().items():
        source = name if name in weights else name.split(".", 2)[-1]  # heads.X.pooler.w -> pooler.w
        found = weights.get(source)
        is_head = name.startswith(ABOVE_ENCODER)
        if found is not None and found.shape == tensor.shape:
            if (parameter := parameters.get(name)) is not None and source not in used and _replaces(tensor, found):
                parameter.data = found
            else:
                tensor.copy_(found)
            used.add(source)
            if move and source == name:  # a pooler may have several places
                del weights[name]
        elif is_head:
            initialized.add(name.rsplit(".", 1)[0])
        else:
            raise shape_error(checkpoint.folder, name, tuple(tensor.shape), found)
    unused = sorted(checkpoint.weights.keys() - used)
    if layers := [name for name in unused if name.startswith("encoder.")]:
        raise UserError(
            f"{checkpoint.folder}: config.json describes a model without {layers[0]}, which is in the weights"
        )
    spell_entries(model.encoder, checkpoint.tokenizer)
    dropped = {name.split(".")[1] for name in unused if name.startswith("heads.")}
    dropped |= {"generator" for name in unused if name.startswith("generator.")}
    return LoadResult(tuple(sorted(initialized)), tuple(sorted(dropped)))
