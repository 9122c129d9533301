"""What to convert into what: the job of `convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from bertie.checkpoints.checkpoint import Checkpoint
from bertie.contracts import Sequence
from bertie.predict.engines import files
from bertie.predict.engines.files import EngineName
from bertie.predict.load import load
from bertie.predict.predictor import Predictor

ExportTarget = Literal["torch", "openvino", "onnx", "hf", "sentence-transformers", "transformers.js", "tf"]
"""torch, openvino, onnx: for an engine of bertie; the graph of the last two also runs without bertie. hf: a checkpoint for
transformers. sentence-transformers: the same with the files that describe text vectors. transformers.js: the same as hf with
ONNX files in fp32, fp16 and q8. tf: a checkpoint for Google's code."""
LIBRARIES = ("hf", "sentence-transformers", "transformers.js", "tf")
"""The targets without an engine."""
ExportPrecision = Literal["fp32", "bf16", "int8"]


@dataclass(frozen=True)
class Conversion:
    """What to convert, and on which inputs."""

    place: Path
    """The source, as `find_model_folder` returns it."""
    checkpoint: Checkpoint
    """Its files. The weights are mapped where their format allows it."""
    model: Predictor
    """The source, without weights."""
    to: ExportTarget
    precision: ExportPrecision
    calibration: list[Sequence]
    checked: list[Sequence]

    @property
    def engine(self) -> EngineName | None:
        """The engine that the result is for; None for other libraries."""
        if self.to in LIBRARIES:
            return None
        return files.engine_name(self.to, self.precision)

    @property
    def exact(self) -> bool:
        """Whether the result must compute the same as the source."""
        return self.precision == "fp32"

    def load(self) -> Predictor:
        """Load the source, to compute with it."""
        return load(self.place, threads=torch.get_num_threads(), engine="plain")
