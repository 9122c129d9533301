"""What a model was fine-tuned for, as its task.json says it: the task, its longest sequence, and what the head reads."""

from __future__ import annotations

from typing import Any, get_args

from bertie import config as configuration
from bertie.errors import UsageError, UserError
from bertie.model.config import BertConfig
from bertie.model.features import FeatureExtractor
from bertie.model.layer_selection import Layers
from bertie.tasks import AnyTask, Task

_BESIDE = ("max_length", "layers", "lstm_hidden_size")


def to_task_json(task: Task, max_length: int, layers: Layers, lstm_hidden_size: int) -> dict[str, Any]:
    """As JSON has it."""
    return {
        **configuration.plain(task),
        "max_length": max_length,
        "layers": layers,
        "lstm_hidden_size": lstm_hidden_size,
    }


def task_from_json(said: dict[str, Any], where: object) -> AnyTask:
    """where: the file, for messages. Errors: UserError where it is damaged."""
    try:
        return configuration.build(
            AnyTask, {name: value for name, value in said.items() if name not in _BESIDE}, "task"
        )
    except UsageError as error:
        raise UserError(f"{where} is damaged: {error}") from error


def features_from_json(said: dict[str, Any], config: BertConfig, where: object) -> FeatureExtractor | None:
    """None: the last layer. Errors: as `task_of`."""
    layers, lstm_hidden_size = said.get("layers", "last"), said.get("lstm_hidden_size", 0)
    if layers not in get_args(Layers) or type(lstm_hidden_size) is not int or not 0 <= lstm_hidden_size <= 1 << 16:
        raise UserError(f"{where} is damaged: layers is {layers!r}, lstm_hidden_size {lstm_hidden_size!r}")
    return None if layers == "last" and not lstm_hidden_size else FeatureExtractor(config, layers, lstm_hidden_size)
