"""engine.json of a converted model: the engine that its folder was made for, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from bertie.base import config as configuration
from bertie.base import storage, untrusted
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.find import ENGINE, read_tensors
from bertie.files.model_folder import ModelFolder

EngineName = Literal[
    "auto",
    "plain",
    "torch",
    "torch-bf16",
    "torch-int8",
    "openvino",
    "openvino-bf16",
    "openvino-int8",
    "onnx",
    "onnx-int8",
    "cuda",
]
"""auto: the fastest here, measured. plain: torch as in training. The others: a library and the precision, or fp32."""
ACTIVATIONS = "engine.safetensors"
GRAPHS = {"onnx": Path("onnx/model.onnx"), "openvino": Path("openvino/openvino_model.xml")}
"""The file of the graph in a converted folder, by library. sentence-transformers looks for the same names."""


def engine_name(kind: str, precision: str) -> EngineName:
    """Return the name of an engine."""
    name: Any = kind if precision == "fp32" else f"{kind}-{precision}"
    return name


@dataclass(frozen=True)
class Exported:
    """A converted model."""

    folder: Path
    engine: EngineName
    activations: dict[str, Tensor] = field(default_factory=dict)
    """For torch-int8: what `calibration.measure` returned."""
    measured: dict[str, Any] = field(default_factory=dict)
    """How the model compares with its source."""
    files: tuple[str, ...] = ()
    """Files of the engine, relative to the folder."""

    @property
    def graph(self) -> Path:
        """The file of the graph, for engines that have one."""
        return self.folder / GRAPHS[self.engine.split("-")[0]]


def write(exported: Exported) -> None:
    """Write engine.json, with the checksums of the engine's files."""
    paths = [exported.folder / name for name in exported.files]
    for path in paths:
        storage.fsync(path)
    values = {"format": 1, "engine": exported.engine, "measured": exported.measured}
    storage.write_json(exported.folder / ENGINE, values | {"files": storage.checksums(exported.folder, paths)})


def read(folder: ModelFolder) -> Exported:
    """Read the engine.json of a converted model, and compare the engine's files with their checksums.

    Raises:
        UserError: The file is damaged, or a file of the engine is.
    """
    path, values = folder / ENGINE, folder.json(ENGINE)
    try:
        if values["format"] != 1:
            raise UserError(f"{path} was written by a later version of bertie: update bertie")
        engine = configuration.build(EngineName, values["engine"], "engine")
        files, measured = values["files"], dict(values["measured"])
        untrusted.require_inside(folder.path, files)
        storage.verify(folder.path, files, "convert the model again")
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise UserError(f"{path} is damaged: convert the model again") from error
    activations = read_tensors(folder / ACTIVATIONS) if ACTIVATIONS in files else {}
    return Exported(folder.path, engine, activations, measured, tuple(files))
