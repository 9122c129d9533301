"""The weights of a model folder under bertie's names: which head they are, and what to do with those that have no place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bertie import console
from bertie.checkpoints.families.family import Family, canonical_names, from_huggingface, untie
from bertie.checkpoints.head_shapes import head_shapes
from bertie.checkpoints.huggingface import padding_id
from bertie.checkpoints.mapped import Mapped
from bertie.checkpoints.weight_files import read_weights, require_dtype, weights_file
from bertie.errors import UserError, naming
from bertie.model.head_facts import HeadShape

ADAPTERS = re.compile(
    r"\b(lora|ia3|hada|lokr|oft|boft|vera|fourierft)_|\bprompt_encoder\.|\.base_layer\.|\bmodules_to_save\b|\badapters?\b|\bprefix_tuning\b"
)
"""Parts of names of adapters that are not merged into the weights."""
OF_VOCABULARY: tuple[HeadShape, ...] = ("masked", "permutation", "next")
_unused_allowed = ContextVar("unused_allowed", default=False)


@contextmanager
def unused_weights_allowed(allowed: bool = True) -> Iterator[None]:
    """Ignore weights without a place in the model in the block, with a warning, instead of refusing them."""
    token = _unused_allowed.set(allowed or _unused_allowed.get())
    try:
        yield
    finally:
        _unused_allowed.reset(token)


@dataclass(frozen=True)
class Unused:
    """Weights without a place in the model."""

    path: Path
    """Their file."""
    title: str
    """Name of the family."""
    names: tuple[str, ...]
    """Their names in the file."""

    @property
    def adapter(self) -> bool:
        """Whether they belong to an adapter that is not merged."""
        return any(ADAPTERS.search(name) for name in self.names)

    def refuse(self) -> None:
        """Raise a UserError if there are any, or warn if they are allowed."""
        if not self.names:
            return
        first = ", ".join(name[:100] for name in self.names[:3]) + " …" * (len(self.names) > 3)
        count = console.plural(len(self.names), "tensor")
        if self.adapter:
            problem = f"an adapter that is not merged into the weights ({count}: {first})"
            remedy = "merge it with PEFT (model.merge_and_unload().save_pretrained(OUT))"
        else:
            problem = f"{count} that no {self.title} of bertie has: {first}"
            remedy = "remove them"
        if not _unused_allowed.get():
            allow = "with --allow-unused (load(…, allow_unused=True)) bertie computes without them"
            raise UserError(f"{self.path} holds {problem}; {remedy}, or {allow}")
        console.warn(f"{self.path} holds {problem}; they are not used")


@dataclass(frozen=True, eq=False)
class NamedWeights:
    """The weights of a model folder."""

    weights: dict[str, Tensor]
    """Under bertie's names."""
    unclear: tuple[HeadShape, ...]
    """What the head of a task could be, if the files do not say it."""
    unused: Unused
    skipped: Tensor | None
    """First rows of the matrix of positions, which no token uses."""


def named_weights(
    folder: Path,
    family: Family,
    values: dict[str, Any],
    task: dict[str, Any],
    wanted: HeadShape | None,
    mapped: Mapped | None = None,
) -> NamedWeights:
    """Read the weights of a model folder.

    Args:
        folder: The folder, or the prefix of a TensorFlow checkpoint.
        family: Its family.
        values: Contents of config.json.
        task: Contents of task.json; empty if there is none.
        wanted: What its head computes, if the files do not say it.
        mapped: As in `read_weights`.

    Raises:
        UserError: The files are damaged, hold an adapter, or hold no encoder of the family.
    """
    path = weights_file(folder)
    tensors = family.read(read_weights(folder, mapped))
    with naming(path):
        original = canonical_names(family, tensors)
    tensors = {name: tensors[own] for name, own in original.items()}
    wrong = untie(family, tensors, values.get("tie_word_embeddings", True) is not False)
    heads, unclear = head_shapes(family, values, task, tensors, wanted)
    skipped = family.skipped(tensors, padding_id(family, values))
    weights, unknown = from_huggingface(family, tensors, heads, padding_id(family, values))
    unused = Unused(path, family.title, tuple(sorted(original.get(name, name) for name in unknown)))
    if unused.adapter:
        unused.refuse()
    for name, tensor in weights.items():
        if not tensor.ndim:
            raise UserError(f"{path} is damaged: {name} is a single number")
        require_dtype(path, name, tensor)
    poolers = ("pooler.", *(f"heads.{name}.pooler." for name, shape in heads.items() if shape == "pair"))
    if not any(
        name.startswith(poolers) for name in weights
    ):  # left over from pre-training, by a class without a pooler
        weights = _without(weights, heads, ("pair",))
    if wrong:
        weights = _without_vocabulary_head(path, wrong, weights, heads)
    if not any(name.startswith("encoder.embeddings.") for name in weights):
        raise UserError(
            f'{path} holds no encoder of the model_type "{family.model_type}", as its configuration says: restore the '
            "files that belong together"
        )
    return NamedWeights(weights, unclear, unused, skipped)


def _without_vocabulary_head(
    path: Path, wrong: str, weights: dict[str, Tensor], heads: dict[str, HeadShape]
) -> dict[str, Tensor]:
    """Return the weights without the head that predicts tokens, because its matrix is not the word embeddings."""
    problem = f"{path}: the head that predicts tokens has an output matrix of its own or none ({wrong})"
    if OF_VOCABULARY[0] not in heads.values() and OF_VOCABULARY[1] not in heads.values():
        raise UserError(f"{problem}, and bertie has only heads that share the word embeddings")
    console.warn(f"{problem}: this head is not used, because bertie has only heads that share the word embeddings")
    return _without(weights, heads, OF_VOCABULARY)


def _without(
    weights: dict[str, Tensor], heads: dict[str, HeadShape], shapes: tuple[HeadShape, ...]
) -> dict[str, Tensor]:
    """Return the weights without the heads of some shapes."""
    prefixes = tuple(f"heads.{name}." for name, shape in heads.items() if shape in shapes)
    return {name: tensor for name, tensor in weights.items() if not name.startswith(prefixes)}
