"""The job of `convert`: its source and its target, read and checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from bertie.base import config as configuration
from bertie.base.contracts import Sequence
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.families import family_of
from bertie.checkpoints.find import TENSORFLOW_INDEX, find_model_folder
from bertie.checkpoints.read import Checkpoint, read_checkpoint
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding, embedding_of
from bertie.checkpoints.sentence_transformers_reader import REMEDY
from bertie.model.initialization import no_weights
from bertie.predict.convert.compared_texts import sequences
from bertie.predict.engines import choose, cpu, files
from bertie.predict.engines.files import EngineName
from bertie.predict.load import build, load
from bertie.predict.predictor import Predictor

ExportTarget = Literal["torch", "openvino", "onnx", "hf", "sentence-transformers", "transformers.js", "tf"]
"""torch, openvino, onnx: for an engine of bertie; the graph of the last two also runs without bertie. hf: a checkpoint for
transformers. sentence-transformers: the same with the files that describe text vectors. transformers.js: the same as hf with
ONNX files in fp32, fp16 and q8. tf: a checkpoint for Google's code."""
LIBRARIES = ("hf", "sentence-transformers", "transformers.js", "tf")
"""The targets without an engine."""
ExportPrecision = Literal["fp32", "bf16", "int8"]
CALIBRATION_SEQUENCES = 128
"""Sequences on which activations are measured."""
CHECKED_SEQUENCES = 32
"""Sequences on which the result is compared with its source."""


@dataclass(frozen=True)
class Conversion:
    """A conversion, and the inputs on which the result is compared with its source."""

    out: Path
    """The folder that the result will have."""
    to: ExportTarget
    precision: ExportPrecision
    data: str | Path | None
    """Labeled examples or texts, on which both models are scored."""
    max_loss: float
    """Largest allowed loss of the metric of the task."""
    place: Path
    """The source, as `find_model_folder` returns it."""
    checkpoint: Checkpoint
    """Its files. The weights are mapped where their format allows it."""
    model: Predictor
    """The source, without weights."""
    calibration: list[Sequence]
    checked: list[Sequence]

    @classmethod
    def of(
        cls,
        source: str | Path,
        out: Path,
        to: ExportTarget,
        precision: ExportPrecision,
        data: str | Path | None,
        calibration: str | Path | None,
        max_loss: float,
    ) -> Conversion:
        """Read the source. Arguments as in `convert`.

        Raises:
            UsageError: The target cannot hold the model, or the result would be in its source.
            UserError: bertie has no task for a head of the source, which the result would lack.
        """
        place = find_model_folder(source)
        _require_outside(out, place, Path(source))
        checkpoint = read_checkpoint(place, mapped=True)
        with no_weights():
            checkpoint, model = build(checkpoint)
        checkpoint, model = _with_scale(checkpoint, model)
        if lost := sorted(checkpoint.heads - model.model.kinds):
            problem = f"holds a head ({', '.join(lost)}) for which bertie has no task"
            raise UserError(f"{checkpoint.where} {problem}, and the result would lack it: convert the encoder alone")
        _require_kept(model, to)
        real = sequences(model, calibration or data)
        inputs = _spread(real, CALIBRATION_SEQUENCES), _spread(real, CHECKED_SEQUENCES)
        return cls(out, to, precision, data, max_loss, place, checkpoint, model, *inputs)

    @property
    def engine(self) -> EngineName | None:
        """The engine that the result is for; None for other libraries."""
        return None if self.to in LIBRARIES else files.engine_name(self.to, self.precision)

    @property
    def exact(self) -> bool:
        """Whether the result must compute the same as the source."""
        return self.precision == "fp32"

    def load(self) -> Predictor:
        """Load the source, to compute with it."""
        return load(self.place, threads=torch.get_num_threads(), engine="plain")

    def load_with_scale(self) -> Predictor:
        """Load the source, to write its modules: its output layer has the scale of its numbers."""
        predictor = self.load()
        task: Any = predictor.task
        if task is not None and task.number_scale.mean:
            out: Any = predictor.model.heads[task.kind].out
            out.weight.data, out.bias.data = task.number_scale.in_layer(out.weight.data, out.bias.data)
            predictor = replace(predictor, task=task.without_scale())
        return predictor


def require_possible(to: ExportTarget, precision: ExportPrecision, data: str | Path | None) -> None:
    """Check a target and a precision. Raises UsageError if they do not go together, or a package is missing."""
    if to == "transformers.js":
        cpu.require_packages("onnx", "onnx", "onnx", "onnxruntime", "onnxscript")
    if to in LIBRARIES and precision != "fp32":
        raise UsageError(f"--to {to} chooses its precisions, and --precision is {precision}: omit it")
    if to == "onnx" and precision == "bf16":
        raise UsageError("ONNX Runtime has no bf16 on a CPU: use --precision fp32 or int8, or --to openvino")
    if precision == "int8" and data is None:
        raise UsageError("int8 changes the accuracy: give --data FILE, such as the dev set, to measure by how much")
    if to not in LIBRARIES and (engine := choose.named(files.engine_name(to, precision))):
        engine.require()


def _with_scale(checkpoint: Checkpoint, model: Predictor) -> tuple[Checkpoint, Predictor]:
    """Return a checkpoint and its model with the scale of its numbers in the output layer, instead of in task.json."""
    task: Any = model.task
    if task is None or not task.number_scale.mean:
        return checkpoint, model
    names = [f"heads.{task.kind}.out.{part}" for part in ("weight", "bias")]
    layer = task.number_scale.in_layer(*(checkpoint.weights[name] for name in names))
    weights = checkpoint.weights | dict(zip(names, layer, strict=True))
    content = checkpoint.task | {"number_scale": configuration.plain(task.without_scale())["number_scale"]}
    return replace(checkpoint, weights=weights, task=content), replace(model, task=task.without_scale())


def _require_outside(out: Path, *places: Path) -> None:
    """Check that the result is neither the source nor in it. Raises UsageError.

    Args:
        out: The result.
        *places: The source: its folder, the prefix of a TensorFlow checkpoint in its folder, or a hub id.
    """
    for place in places:
        if Path(f"{place}{TENSORFLOW_INDEX}").is_file() and not place.is_dir():
            place = place.absolute().parent
        if place.is_dir() and out.resolve().is_relative_to(place.resolve()):
            raise UsageError(f"{out} is in the source, {place}, which `convert` never changes: choose another place")


def _require_kept(model: Predictor, to: ExportTarget) -> None:
    """Check that the target holds how texts become vectors. Raises UsageError."""
    folder, kind = model.folder, model.model.encoder.config.kind
    if to == "tf" and model.text_embedding != SentenceEmbedding() and not embedding_of(model.model):
        lost = "holds no settings of sentence-transformers: pooling, modules and prompts would be lost"
        raise UsageError(f"a TensorFlow checkpoint {lost}: use --to hf, or, {REMEDY} from a copy of the folder")
    if to != "sentence-transformers":
        return
    if not family_of(model.model.encoder.config).in_transformers:
        problem = f"loads classes of transformers, and none has the structure of {folder} ({kind})"
        raise UsageError(f"sentence-transformers {problem}: `bertie embed` writes its vectors")
    if model.tokenizer.adds_around:
        problem = f"around a text, and the class of the tokenizer of {folder} does not, so sentence-transformers would"
        raise UsageError(f"bertie puts special tokens {problem} compute other vectors: `bertie embed` writes bertie's")
    if model.tokenizer.special.pad is None:
        problem = f"the tokenizer of {folder} has no padding token, without which sentence-transformers reads no text"
        raise UsageError(f"{problem}: name one of its entries as pad_token in tokenizer_config.json, or use --to hf")


def _spread(sequences: list[Sequence], count: int) -> list[Sequence]:
    """Return at most `count` of the sequences, at equal distances."""
    return [sequences[i] for i in np.linspace(0, len(sequences) - 1, min(count, len(sequences))).astype(int).tolist()]
