"""Write the files of an engine beside a converted model: a graph, or the ranges of activations for int8."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from bertie import console
from bertie.checkpoints.folder import save_tensors
from bertie.contracts import Batch, Sequence
from bertie.errors import UsageError
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.predict import export_checks
from bertie.predict.conversion import Conversion
from bertie.predict.engines import files, onnx, openvino
from bertie.predict.engines.calibration import measure
from bertie.predict.engines.files import Exported
from bertie.predict.engines.graph import Graph
from bertie.predict.predictor import Predictor
from bertie.tasks.inference import infer


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
    if job.to == "torch":
        exported = _write_activations(job, model, exported) if job.precision == "int8" else exported
    else:
        graph, path = Graph(model), exported.graph
        path.parent.mkdir()
        write = _write_onnx if job.to == "onnx" else _write_openvino
        differences, paths = write(job, graph, path)
        names = tuple(each.relative_to(folder).as_posix() for each in paths)
        exported = replace(exported, files=names, measured={"outputs": differences})
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


Written = tuple[dict[str, float], list[Path]]
"""The largest difference of each output of a graph in fp32 from torch, relative to the largest value, and the files."""


def _write_onnx(job: Conversion, graph: Graph, path: Path) -> Written:
    onnx.write(graph, path)
    differences = export_checks.graph_differences(graph, onnx.outputs(path), job.checked)
    if job.precision == "int8":
        exact = path.rename(path.with_name("exact.onnx"))
        onnx.quantize(exact, path)
        exact.unlink()
    return differences, [path]


def _write_openvino(job: Conversion, graph: Graph, path: Path) -> Written:
    converted = openvino.convert(graph)
    openvino.save(converted, path)
    differences = export_checks.graph_differences(graph, openvino.outputs(path), job.checked)
    if job.precision == "int8":
        console.info(f"quantizing with {console.plural(len(job.calibration), 'sequence')}, which takes minutes")
        converted = openvino.quantize(converted, [export_checks.grid([each]) for each in job.calibration])
        openvino.save(converted, path)
    return differences, [path, path.with_suffix(".bin")]
