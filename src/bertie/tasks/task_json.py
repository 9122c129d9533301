"""task.json of a fine-tuned model: the task, its maximum length, and the layers that the head reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast, get_args

from bertie.base import config as configuration
from bertie.base import own_code
from bertie.base.errors import UsageError, UserError, naming
from bertie.model.encoder import EncoderConfig
from bertie.model.heads.features import FeatureExtractor
from bertie.model.heads.layer_selection import LayerSelection
from bertie.model.heads.text_pooling import pooling_facts, resolve_pooling
from bertie.tasks import AnyTask, Task

NOT_TASK_FIELDS = ("max_length", "layers", "lstm_hidden_size", "code")
"""Keys of task.json that are no fields of the task."""
_EARLIER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "usual_separator": ("separator", lambda value: value or None),
    "usual_end": ("end", lambda value: None if value == "automatic" else value),
    "usual_comments": ("has_comments", lambda value: value == "skip" if value else None),
    "counts_from_0": ("first_ending", lambda value: 0 if value else None),
}
"""Fields of task.json before there was `data_format`: what they are now."""


def with_pooling(task: AnyTask, config: EncoderConfig) -> AnyTask:
    """Return the task with the pooling of the model, if the task leaves it to the model."""
    if task.text_pooling != "model":
        return task
    return replace(cast(Any, task), pooling=resolve_pooling(task.text_pooling, config))


def to_task_json(task: Task, max_length: int, layers: LayerSelection, lstm_hidden_size: int) -> dict[str, Any]:
    """Return the content of task.json.

    Args:
        task: The fitted task.
        max_length: Most tokens of a sequence.
        layers: The layers that the head reads.
        lstm_hidden_size: Hidden size of the BiLSTM between encoder and head; 0 for none.
    """
    model = {"max_length": max_length, "layers": layers, "lstm_hidden_size": lstm_hidden_size}
    code = own_code.name_of(type(task))
    return {**configuration.plain(task), "kind": task.kind, **({"code": code} if code else {}), **model}


def task_from_json(values: dict[str, Any], where: object) -> AnyTask:
    """Build the task from the content of task.json.

    Args:
        values: The content.
        where: The file, for messages.

    Raises:
        UserError: The content is damaged, or it names code that may not be imported (`own_code`).
    """
    fields = {name: value for name, value in values.items() if name not in (*NOT_TASK_FIELDS, *_EARLIER)}
    if code := next((str(name) for key in ("code", "kind") if own_code.is_name(name := values.get(key))), ""):
        if refusal := own_code.refusal(code, f"{where}: the task"):
            raise UserError(refusal)
        with naming(where):
            own_code.find(code, Task)
        fields["kind"] = code
    if earlier := {name: read(values[key]) for key, (name, read) in _EARLIER.items() if key in values}:
        fields["data_format"] = {name: value for name, value in earlier.items() if value is not None}
    try:
        return configuration.build(AnyTask, fields, "task")
    except UsageError as error:
        raise UserError(f"{where} is damaged: {error}") from error


def features_from_json(
    values: dict[str, Any], task: Task | None, config: EncoderConfig, where: object
) -> FeatureExtractor | None:
    """Build the module between encoder and head from the content of task.json, or from a configuration of that form.

    Args:
        values: The content.
        task: The task that it describes, if any.
        config: The model's configuration.
        where: The file, for messages.

    Returns:
        The feature extractor, or None if the head reads single tokens of the last layer.

    Raises:
        UserError: The content is damaged.
        UsageError: The model has too few layers.
    """
    layers, lstm_hidden_size = values.get("layers", "last"), values.get("lstm_hidden_size", 0)
    is_size = type(lstm_hidden_size) is int and 0 <= lstm_hidden_size <= 1 << 16
    if layers not in get_args(LayerSelection) or not is_size:
        raise UserError(f"{where} is damaged: layers is {layers!r}, lstm_hidden_size {lstm_hidden_size!r}")
    own = None if task is None else task.text_pooling
    pooling, pairs = "token" if own is None else resolve_pooling(own, config), task is not None and task.paired is True
    if not pooling_facts(pooling).fits(pairs, lstm_hidden_size):
        problem = f"pooling is {pooling!r}, paired {pairs}, lstm_hidden_size {lstm_hidden_size!r}"
        raise UserError(f"{where} is damaged: {problem}")
    if (layers, lstm_hidden_size, pooling) == ("last", 0, "token"):
        return None
    return FeatureExtractor(config, layers, lstm_hidden_size, pooling, pairs)
