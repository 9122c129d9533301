"""Write the files of an engine beside a converted model: a graph, or the ranges of activations for int8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bertie.base import console
from bertie.base.contracts import Batch, Sequence
from bertie.base.errors import UsageError
from bertie.checkpoints.folder import save_tensors
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.predict.convert.conversion import Conversion
from bertie.predict.engines import files, onnx, openvino
from bertie.predict.engines.calibration import measure
from bertie.predict.engines.files import Exported
from bertie.predict.engines.graph import Graph
from bertie.predict.predictor import Predictor
from bertie.tasks.inference import infer

GridOutputs = Callable[[np.ndarray, np.ndarray, np.ndarray], list[np.ndarray]]
"""From input_ids, attention_mask and token_type_ids, int64 [S, L], to all outputs of a graph."""


def write_engine(job: Conversion, folder: Path, predictor: Predictor | None) -> Exported | None:
    """Write the files of the engine. Return them, with the differences of its graph in fp32 from torch, if it has one.

    Raises UsageError if the encoder is no Transformer.
    """
    if job.engine is None:
        return None
    assert predictor is not None
    model, exported = predictor.model.cpu(), Exported(folder, job.engine)
    if not isinstance(model.encoder, TransformerEncoder):
        raise UsageError(f"engines run Transformers, and this model is {model.encoder.config.kind}: use --to hf")
    if job.to != "torch":
        exported = _write_graph(job, Graph(model), exported)
    elif job.precision == "int8":
        exported = _write_activations(job, model, exported)
    files.write(exported)
    return exported


def _write_activations(job: Conversion, model: Model, exported: Exported) -> Exported:
    console.info(f"measuring activations of {console.plural(len(job.calibration), 'sequence')}")
    encoder = model.encoder
    assert isinstance(encoder, TransformerEncoder)

    def run(observed: nn.Module) -> None:
        def compute(batch: Batch, group: list[Sequence]) -> list[None]:
            observed(batch)
            return [None] * len(group)

        infer(model, job.calibration, compute)

    activations = measure(encoder, run)
    save_tensors(activations, exported.folder / files.ACTIVATIONS)
    return replace(exported, activations=activations, files=(files.ACTIVATIONS,))


def _write_graph(job: Conversion, graph: Graph, exported: Exported) -> Exported:
    path = exported.graph
    path.parent.mkdir()
    if job.to == "onnx":
        onnx.write(graph, path)
        differences = graph_differences(graph, onnx.OnnxSession(path).outputs, job.checked)
        if job.precision == "int8":
            onnx.quantize(path, path, graph.numbers)
    else:
        converted = openvino.convert(graph)
        openvino.save(converted, path)
        differences = graph_differences(graph, openvino.outputs(path), job.checked)
        if job.precision == "int8":
            console.info(f"quantizing with {console.plural(len(job.calibration), 'sequence')}, which takes minutes")
            grids = [grid([sequence]) for sequence in job.calibration]
            openvino.save(openvino.quantize(converted, grids, graph.numbers), path)
    names = sorted(file.relative_to(exported.folder).as_posix() for file in path.parent.iterdir())
    return replace(exported, files=tuple(names), measured={"outputs": differences})


def grid(members: list[Sequence]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return input_ids, attention_mask and token_type_ids of sequences, padded at the end."""
    shape = (len(members), max(map(len, members)))
    ids, mask, segments = (np.zeros(shape, np.int64) for _ in range(3))
    for i, member in enumerate(members):
        at = i, slice(len(member))
        ids[at], mask[at], segments[at] = member.input_ids, 1, member.token_type_ids
    return ids, mask, segments


def graph_differences(graph: Graph, computed: GridOutputs, members: list[Sequence]) -> dict[str, float]:
    """Return the largest difference of each output of a graph in another library, relative to torch's largest value.

    The grids have padding, and different sizes. Outputs at padding do not count.
    """
    worst: dict[str, float] = {}
    for group in (members[:5], members[5:6], sorted(members, key=len)[-2:]):
        if not group:
            continue
        ids, mask, segments = grid(group)
        with torch.inference_mode():
            expected = graph(*(torch.from_numpy(array) for array in (ids, mask, segments)))
        for name, theirs, ours in zip(graph.outputs, computed(ids, mask, segments), expected, strict=True):
            right = ours.numpy()
            difference = np.abs(theirs - right)
            if right.shape[:2] == mask.shape:
                difference = difference[mask == 1]
            worst[name] = max(worst.get(name, 0.0), float(difference.max() / np.abs(right).max()))
    return worst
