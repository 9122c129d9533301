"""A family of Hugging Face checkpoints: a table of module names, and the conversion of its configuration.

One table serves both directions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertie.base.errors import UserError
from bertie.checkpoints.families.settings import Settings
from bertie.model.head_facts import HeadShape

LAYER = "{n}"
NORM = re.compile(r"(norm\w*|ln_\w+)\.(gamma|beta)$", re.IGNORECASE)
POSITIONS, WORDS = "encoder.embeddings.position", "encoder.embeddings.word"
TASK_SHAPES: tuple[HeadShape, ...] = ("text", "choice", "tokens", "start_end")
CLASSES: dict[HeadShape, str] = {
    "masked": "ForMaskedLM",
    "text": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "tokens": "ForTokenClassification",
    "start_end": "ForQuestionAnswering",
}
"""How Hugging Face's classes for a head are usually called, after the name of the family."""
Names = dict[str | tuple[str, ...], str]
"""Hugging Face's names of modules, and bertie's. Several names: bertie joins these modules along the first dimension."""
OUT: Names = {"classifier": "out"}
TASK_HEADS: dict[HeadShape, Names] = {
    **{"text": OUT, "choice": OUT, "tokens": OUT},
    "start_end": {"qa_outputs": "out"},
}
"""The usual modules of the heads of tasks."""


def architectures(prefix: str, *shapes: HeadShape) -> dict[frozenset[str], str]:
    """Return the class of the bare encoder, and those for one head of these shapes, if they have the usual names."""
    return {frozenset(): f"{prefix}Model"} | {frozenset({shape}): prefix + CLASSES[shape] for shape in shapes}


def joined(parent: str, *names: str) -> tuple[str, ...]:
    """Return the names of modules that bertie joins to one."""
    return tuple(f"{parent}.{name}" for name in names)


class Module(NamedTuple):
    """A row of the table: a module of bertie and its counterpart."""

    ours: str
    """bertie's name."""
    theirs: tuple[str, ...]
    """Hugging Face's name; several, if bertie joins them along the first dimension."""


@dataclass(frozen=True)
class Family:
    """A family of Hugging Face checkpoints."""

    model_type: str
    """`model_type` in config.json."""
    title: str
    """Its name for people."""
    base: str
    """Prefix of the encoder's names. A bare encoder has none."""
    encoder: Names
    """The modules of the encoder, without the prefix. `{n}` stands for the number of a layer."""
    architectures: dict[frozenset[str], str]
    """Hugging Face's class for the shapes of the heads. `frozenset()` is the class of the bare encoder."""
    settings: Settings
    """How config.json describes an encoder."""
    represents: Callable[[Any, frozenset[str]], bool] = lambda *_: True
    """Whether the class for heads of these shapes computes what bertie's heads on an encoder of this configuration do."""
    without_head: str | None = None
    """The class whose head is the encoder's own matrix, so that a folder of this class may hold the encoder alone."""
    heads: dict[HeadShape, Names] = field(default_factory=dict)
    """The modules of a head of each shape, with bertie's names in the head. The pooler of any head is `pooler`. Where two
    shapes use the same name, the name of the class decides which head it is, or else the first one."""
    transposed: str = "^$"
    """Pattern of the names of matrices that Hugging Face stores transposed."""
    kept: tuple[str, ...] = ("heads.", "reading.", "generator.")
    """Prefixes of names that have no counterpart and are the same in both."""
    ignored: str = r"(position_ids|token_type_ids|inv_freq)$"
    """Pattern of the names of tensors that are derived from others or from the configuration."""
    tied: dict[str, str] = field(default_factory=dict)
    """Names of tensors that the masked-LM head shares, and of those that they are."""
    positions_after_padding: bool = False
    """Whether the first position has the number pad_token_id + 1. The rows of the matrix before it are not used."""
    pad_id: int | None = None
    """Vocabulary id of the padding token that Hugging Face's class assumes. None: config.json says it."""
    in_transformers: bool = True
    """Whether transformers has its classes, so that other libraries load it."""
    reads_last_place: bool = False
    """Whether heads for texts that read the last token read the last place of a padded batch in Hugging Face's classes."""
    derived: Callable[[Any], dict[str, Tensor]] = lambda _: {}
    """Tensors, under bertie's names, that Hugging Face's classes need and bertie's encoder does not have."""
    without_derived: Callable[[Any, dict[str, Tensor]], Any] = lambda config, _: config
    """Removes such tensors from the weights that were read, and returns the configuration of the remaining encoder."""
    read: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda weights: weights
    """Turns Hugging Face's tensors into tensors of modules, before the table applies, if the classes have other parameters."""
    write: Callable[[Any, dict[str, Tensor]], dict[str, Tensor]] = lambda _, weights: weights
    """The reverse of `read`, after the table was applied, for an encoder of this configuration."""

    @property
    def needs_padding(self) -> bool:
        """Whether the id of the padding token changes what the class computes."""
        return self.positions_after_padding or self.pad_id is not None

    def skipped_rows(self, module: str, pad_id: int) -> int:
        """Return the number of rows at the beginning of Hugging Face's matrix that no token uses."""
        return pad_id + 1 if self.positions_after_padding and module == POSITIONS else 0

    @property
    def positions(self) -> str:
        """Hugging Face's name of the matrix of positions."""
        return next(f"{self.base}{theirs}.weight" for theirs, ours in self.encoder.items() if ours == POSITIONS)

    def skipped(self, weights: dict[str, Tensor], pad_id: int) -> Tensor | None:
        """Return the rows of the matrix of positions that no token uses. None: there are none."""
        rows = self.skipped_rows(POSITIONS, pad_id)
        matrix = weights.get(self.positions) if rows else None
        return None if matrix is None else matrix[:rows].clone()

    def with_skipped(self, weights: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        """Return the matrix of positions, by its name in weights to write, with such rows."""
        name = self.positions if self.positions in weights else self.positions.removeprefix(self.base)
        if name not in weights or weights[name].shape[1:] != rows.shape[1:]:
            return {}
        return {name: torch.cat([rows.to(weights[name].dtype), weights[name][len(rows) :]])}

    def modules(self, heads: Mapping[str, HeadShape], layers: Iterable[int]) -> list[Module]:
        """Return the table for heads, given by their names, and for layers."""
        rows = [
            Module(
                ours.replace(LAYER, str(n)), tuple(self.base + name.replace(LAYER, str(n)) for name in _each(theirs))
            )
            for theirs, ours in self.encoder.items()
            for n in (layers if LAYER in ours else [0])
        ]
        for name, shape in heads.items():
            for theirs, part in self.heads.get(shape, {}).items():
                ours = part if part == "pooler" else f"heads.{name}.{part}".rstrip(".")
                rows.append(Module(ours, _each(theirs)))
        return rows


def to_huggingface(
    family: Family, weights: dict[str, Tensor], heads: Mapping[str, HeadShape], pad_id: int = 0
) -> dict[str, Tensor]:
    """Convert the names of a state dict to Hugging Face's.

    Weights without a counterpart keep bertie's names, which the classes of Hugging Face ignore. A bare encoder has no prefix.

    Args:
        family: The family.
        weights: State dict of a `Model`.
        heads: Shapes of the heads with weights, by kind, if Hugging Face has a class for them. Empty if it does not
            represent the model.
        pad_id: Vocabulary id of the padding token.

    Raises:
        ValueError: If two heads have a pooler, which are one module in Hugging Face's classes.
    """
    poolers = {name.split(".")[1] for name in weights if re.match(r"heads\.\w+\.pooler\.", name)}
    if heads and len(poolers) > 1:
        raise ValueError(f"the heads {', '.join(sorted(poolers))} each have a pooler, and a checkpoint holds only one")
    table = {row.ours: row for row in family.modules(heads, _layers_of(weights, r"encoder\.layers\.(\d+)\."))}
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        module, leaf = re.sub(r"^heads\.\w+\.pooler\.", "pooler.", name).rsplit(".", 1)
        row = table.get(module)
        if row is None or name.startswith("reading.") or (name.startswith("heads.") and not heads):
            renamed[name] = tensor.contiguous()
        else:
            skipped = tensor.new_zeros(family.skipped_rows(module, pad_id), *tensor.shape[1:])
            whole = torch.cat([skipped, tensor]) if len(skipped) else tensor
            renamed |= _split(family, row, leaf, whole)
    return renamed if heads else {name.removeprefix(family.base): tensor for name, tensor in renamed.items()}


def from_huggingface(
    family: Family, weights: dict[str, Tensor], heads: Mapping[str, HeadShape], pad_id: int = 0
) -> tuple[dict[str, Tensor], list[str]]:
    """Convert Hugging Face's weights to bertie's names. Other prefixes are accepted (`_unwrapped`).

    Args:
        family: The family.
        weights: Tensors by Hugging Face's names. They are removed, so that those that are joined take no memory twice.
        heads: Shapes of the heads that the checkpoint may have, by the names that they get.
        pad_id: Vocabulary id of the padding token.

    Returns:
        The weights, with the pooler as `pooler.*`, and the names that do not belong to the family.
    """
    original = canonical_names(family, weights)
    cleaned = {name: weights.pop(old) for name, old in original.items()}
    numbered = {
        family.base + name.split(LAYER)[0] for theirs in family.encoder for name in _each(theirs) if LAYER in name
    }
    layers = _layers_of(cleaned, f"(?:{'|'.join(map(re.escape, sorted(numbered)))})(\\d+)\\.") if numbered else []
    renamed: dict[str, Tensor] = {}
    names: dict[str, Module] = {}
    for row in _rows_of(family.modules(heads, layers), cleaned):
        if len(row.theirs) == 1:
            names[row.theirs[0]] = row
            continue
        for leaf in ("weight", "bias"):
            parts = [cleaned[f"{name}.{leaf}"] for name in row.theirs if f"{name}.{leaf}" in cleaned]
            joinable = [tensor for tensor in parts if tensor.is_floating_point()]  # joining would convert integers
            if len(joinable) == len(row.theirs) and len({tensor.shape for tensor in joinable}) == 1:
                renamed[f"{row.ours}.{leaf}"] = torch.cat([cleaned.pop(f"{name}.{leaf}") for name in row.theirs])
        for name in row.theirs:  # names of tensors that were not joined, for the error message of a later check
            names[name] = Module(f"{row.ours.rpartition('.')[0]}.{name.rpartition('.')[2]}", (name,))
    unknown = []
    for name in list(cleaned):
        tensor = cleaned.pop(name)
        module, _, leaf = name.rpartition(".")
        if re.search(family.ignored, name):
            continue
        if row := names.get(module):
            rows = family.skipped_rows(row.ours, pad_id)
            renamed[f"{row.ours}.{leaf}"] = _transposed(family, name, tensor[rows:] if rows else tensor)
        elif name.startswith(family.kept):
            renamed[name] = tensor
        else:
            unknown.append(original[name])
    return renamed, unknown


def canonical_names(family: Family, weights: Iterable[str]) -> dict[str, str]:
    """Return the names in a file by the names in Hugging Face's class with a head. Raises UserError as `_unwrapped`."""
    starts = tuple({name.split(".")[0] + "." for theirs in family.encoder for name in _each(theirs)})
    anchors = tuple(f"{theirs}.weight" for theirs, ours in family.encoder.items() if ours == WORDS)
    if not anchors:
        return {name: name for name in weights}
    return {new: name for name, new in _unwrapped(weights, family.base, anchors, starts).items()}


def untie(family: Family, weights: dict[str, Tensor], tied: bool) -> str:
    """Remove tensors that are the same as others from weights under the names of Hugging Face's class with a head.

    If only the copy is there, it is the original.

    Args:
        family: The family.
        weights: The tensors. They are changed.
        tied: Whether config.json says that the class ties them.

    Returns:
        The name of a tensor that differs from the one that it should be, or that its class needs and lacks; or "".
    """
    wrong = ""
    for copy, source in family.tied.items():
        duplicate, original = weights.pop(copy, None), weights.get(source)
        if duplicate is None:
            head = copy.removesuffix(".weight").removesuffix(".decoder") + "."
            if not tied and copy.endswith(".weight") and any(name.startswith(head) for name in weights):
                wrong = wrong or copy
        elif original is None:
            weights[source] = duplicate
        elif original.shape != duplicate.shape or not torch.equal(original, duplicate.to(original.dtype)):
            wrong = copy
    return wrong


def _rows_of(rows: list[Module], weights: Iterable[str]) -> list[Module]:
    """Return one row per module of bertie: the last whose counterpart has weights.

    The pooler of a classification head may have another name than the encoder's.
    """
    present = {name.rpartition(".")[0] for name in weights}
    chosen: dict[str, Module] = {}
    for row in rows:
        if row.ours not in chosen or row.theirs[0] in present:
            chosen[row.ours] = row
    return list(chosen.values())


def _each(theirs: str | tuple[str, ...]) -> tuple[str, ...]:
    return (theirs,) if isinstance(theirs, str) else theirs


def _layers_of(weights: Iterable[str], pattern: str) -> list[int]:
    return sorted({int(match[1]) for name in weights if (match := re.match(pattern, name))})


def _split(family: Family, row: Module, leaf: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors of Hugging Face that a tensor of bertie becomes, by their names."""
    parts = tensor.chunk(len(row.theirs)) if len(row.theirs) > 1 else (tensor,)
    names = (f"{their}.{leaf}" for their in row.theirs)
    return {name: _transposed(family, name, part).contiguous() for name, part in zip(names, parts, strict=True)}


def _transposed(family: Family, name: str, tensor: Tensor) -> Tensor:
    """Return a tensor, with its name in Hugging Face's files, as the other library stores it."""
    return tensor.t().contiguous() if tensor.ndim == 2 and re.search(family.transposed, name) else tensor


def _unwrapped(names: Iterable[str], base: str, anchors: tuple[str, ...], starts: tuple[str, ...]) -> dict[str, str]:
    """Return the names of Hugging Face's class with a head, by the names in a file of a program that wraps a model.

    The prefix of the encoder is what stands before the name of its word embeddings. What is beside the encoder under the
    wrapper is a head.

    Args:
        names: Names in the file.
        base: Prefix of the encoder in the class with a head, such as "bert.".
        anchors: Names of the word embeddings in the bare encoder.
        starts: Beginnings of the names in the bare encoder.

    Raises:
        UserError: There are several encoders and none has the name of the class, or two names become one.
    """
    leaves = {"gamma": "weight", "beta": "bias"}  # as in TensorFlow
    spelled = {name: NORM.sub(lambda match: f"{match[1]}.{leaves[match[2].lower()]}", name) for name in names}
    prefix = _prefix(spelled.values(), base, anchors)
    outer = prefix.removesuffix(base) if base and prefix.endswith(base) else re.sub(r"[^.]+\.$", "", prefix)
    sources: dict[str, str] = {}
    result: dict[str, str] = {}
    for name, new in spelled.items():
        canonical = new
        if new.startswith(prefix) and new.removeprefix(prefix).startswith(starts):
            canonical = base + new.removeprefix(prefix)
        elif new.startswith(prefix) and prefix != base:
            canonical = new.removeprefix(prefix)
        elif prefix not in ("", base) and new.startswith(outer):
            canonical = new.removeprefix(outer)
        if canonical in sources:
            raise UserError(f"two tensors are the same weights: {sources[canonical][:200]} and {name[:200]}")
        sources[canonical] = name
        result[name] = canonical
    return result


def _prefix(names: Iterable[str], base: str, anchors: tuple[str, ...]) -> str:
    """Return the prefix of the encoder."""
    prefixes = {name.removesuffix(anchor) for name in names for anchor in anchors if name.endswith(anchor)}
    prefixes = {prefix for prefix in prefixes if not prefix or prefix.endswith(".")}
    usual = [prefix for prefix in (base, "") if prefix in prefixes or not prefixes]
    if not usual and len(prefixes) > 1:
        several = ", ".join(repr(prefix[:60]) for prefix in sorted(prefixes)[:3])
        raise UserError(f"there are several encoders, with the prefixes {several}: keep the weights of one of them")
    return usual[0] if usual else prefixes.pop()
