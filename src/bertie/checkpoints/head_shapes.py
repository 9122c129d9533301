"""Which heads the weights of a checkpoint are: its class says it, or else the weights and the labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bertie.checkpoints.families.family import TASK_SHAPES, Family
from bertie.model.head_facts import HeadShape

PRETRAINED: dict[HeadShape, str] = {
    "masked": "mlm",
    "next": "clm",
    "pair": "nsp",
    "permutation": "plm",
    "replaced": "rtd",
}
"""bertie's names of heads that Hugging Face's pre-trained models have. The name of a task's head is in task.json."""
TAG = re.compile(r"O$|[BIESLUM][-_]\w")
UNIVERSAL = re.compile("ADJ|ADP|ADV|AUX|CCONJ|CONJ|DET|INTJ|NOUN|NUM|PART|PRON|PROPN|PUNCT|SCONJ|SYM|VERB|X")
UNNAMED = re.compile(r"LABEL_\d+$")
TAGGING = ("ner", "pos", "chunking")


def head_shapes(
    family: Family,
    values: dict[str, Any],
    task: dict[str, Any],
    weights: Mapping[str, Tensor],
    wanted: HeadShape | None = None,
) -> tuple[dict[str, HeadShape], tuple[HeadShape, ...]]:
    """Return the shapes of the heads that a checkpoint may have, by the names of their weights in bertie.

    A task's head has the name of the task. If task.json does not say it, its name is its shape.

    Args:
        family: Its family.
        values: Contents of config.json.
        task: Contents of task.json; empty if there is none.
        weights: Tensors under the names of Hugging Face's class with a head.
        wanted: What the head of a task computes, if nothing else says it.

    Returns:
        The shapes; and what the head of a task could be, if the files do not say it.
    """
    architecture = (values.get("architectures") or [""])[0]
    named: frozenset[str] = next(
        (shapes for shapes, name in family.architectures.items() if name == architecture), frozenset()
    )
    if task.get("kind"):  # a folder of another program, to which a task.json was added, may name no class
        own: list[HeadShape] = [shape for shape in family.heads if shape in named]
        own = own or list(_possible(family, values, weights)[:1])
        return {str(task["kind"]): shape for shape in own}, ()
    possible = () if named & {*TASK_SHAPES} else _possible(family, values, weights)
    if wanted in possible:
        possible = (wanted,)
    first = {*named, *possible[:1]}
    found: dict[str, HeadShape] = {}
    taken: set[object] = set()
    for shape in sorted(family.heads, key=lambda shape: shape not in first):  # others may be there under other names
        theirs = {row.theirs for row in family.heads[shape]}
        if taken.isdisjoint(theirs):
            taken |= theirs
            found[PRETRAINED.get(shape, shape)] = shape
    return found, possible if len(possible) > 1 else ()


def _possible(family: Family, values: dict[str, Any], weights: Mapping[str, Tensor]) -> tuple[HeadShape, ...]:
    """Return what the head of a task can be, from the modules that are there and from the labels in config.json."""
    modules = {name.rpartition(".")[0] for name in weights}
    found: list[HeadShape] = [shape for shape in TASK_SHAPES if _present(family, shape, modules)]
    if len(found) < 2:
        return tuple(found)
    [out] = [row.theirs for row in family.heads[found[0]] if row.ours == "out"]
    outputs = len(weights[f"{out}.weight"]) if f"{out}.weight" in weights and weights[f"{out}.weight"].ndim else 0
    labels = values.get("id2label")
    names = [str(name) for name in labels.values()] if isinstance(labels, dict) else []
    count = len(names) or values.get("num_labels", values.get("_num_labels", 2))
    task = str(values.get("finetuning_task") or "").lower()
    if outputs == 1:
        kept: tuple[HeadShape, ...] = ("text",) if count == 1 or values.get("problem_type") else ("choice",)
    elif (
        task in TAGGING
        or any(TAG.match(name) for name in names)
        or (names and all(UNIVERSAL.fullmatch(name) for name in names))
    ):
        kept = ("tokens",)
    elif task or values.get("problem_type") or (names and not all(UNNAMED.match(name) for name in names)):
        kept = ("text",)
    else:
        kept = ("text", "tokens")
    return tuple(shape for shape in found if shape in kept) or tuple(found)


def _present(family: Family, shape: HeadShape, modules: set[str]) -> bool:
    """Whether the output layer of a head is there, and its pooler, if the class has one."""
    rows = {row.ours: row.theirs for row in (*family.encoder, *family.heads.get(shape, ()))}
    needed: list[object] = [rows.get("out") if shape in family.heads else None]
    if shape in ("text", "choice") and "pooler" in rows:
        needed.append(rows["pooler"])
    return all(name in modules for name in needed)
