"""The ONNX engine: ONNX Runtime in fp32, or in int8 with ranges that it measures at each call."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.predict.engines import cpu
from bertie.predict.engines.files import Exported, engine_name
from bertie.predict.engines.graph import INPUTS, STATES, Graph, export, quietly
from bertie.predict.engines.grids import GridEncoder

OPSET = 18


@dataclass(frozen=True)
class OnnxEngine:
    """The ONNX engine, see the top of the file."""

    kind: Literal["onnx"] = "onnx"
    precision: Literal["fp32", "int8"] = "fp32"

    def require(self) -> None:
        """Raise UsageError if a package or the instructions for the precision are missing."""
        cpu.require(engine_name(self.kind, self.precision), self.precision, "onnx", "onnxruntime")

    def build(self, encoder: TransformerEncoder, exported: Exported | None) -> nn.Module:
        """Start a session with an exported model, or without one with the graph of the encoder, which takes some seconds."""
        if exported is not None:
            return GridEncoder(encoder, OnnxSession(exported.graph))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            write(Graph(Model(encoder, {})), path)
            return GridEncoder(encoder, OnnxSession(path))


def write(graph: Graph, path: Path) -> None:
    """Write a graph to one ONNX file, fp32, with a dynamic number and length of sequences."""
    cpu.require_packages("onnx", "onnx", "onnx", "onnxscript")
    with quietly():
        program = torch.onnx.export(
            export(graph),
            (),
            input_names=list(graph.inputs),
            output_names=graph.outputs,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    _name_dimensions(program.model)
    program.save(path, external_data=False)


def quantize(
    path: Path, out: Path, numbers: list[str], operators: tuple[str, ...] = ("MatMul",), signed: bool = True
) -> None:
    """Write a copy of an ONNX file in which operators with weights are int8, with one scale per output of a product.

    Args:
        path: The file.
        out: The copy; it may replace the file.
        numbers: Outputs that are computed in fp32 from the inputs of their layer: `Graph.numbers`.
        operators: The operators.
        signed: Whether the weights are. Sums of signed ones saturate on processors without int8 instructions.
    """
    import onnx  # pyright: ignore[reportMissingImports]
    from onnxruntime.quantization import QuantType, quantize_dynamic  # pyright: ignore[reportMissingImports]

    weights = QuantType.QInt8 if signed else QuantType.QUInt8
    with quietly():
        quantize_dynamic(
            path,
            out,
            op_types_to_quantize=list(operators),
            per_channel=True,
            weight_type=weights,
            nodes_to_exclude=_computing(onnx.load(path), numbers),
        )


def _computing(model: Any, outputs: list[str]) -> list[str]:
    """Return the names of the nodes that compute outputs of a model, also once its quantizer has split them."""
    return [
        node.name + end
        for node in model.graph.node
        for end in ("", "_MatMul")
        if not {*outputs}.isdisjoint(node.output)
    ]


def halve(path: Path, out: Path, numbers: list[str]) -> None:
    """Write a copy of an ONNX file that computes in fp16. Its outputs remain fp32. numbers: as for `quantize`."""
    import onnx  # pyright: ignore[reportMissingImports]
    from onnxruntime.transformers.float16 import (  # pyright: ignore[reportMissingImports]
        convert_float_to_float16,
    )

    with quietly():
        model = onnx.load(path)
        kept = _computing(model, numbers)
        model = convert_float_to_float16(model, keep_io_types=True, node_block_list=kept)
    made = {name: node for node in model.graph.node for name in node.output}
    for output in numbers:  # which the library casts to fp16 and back
        node = made[output]
        while node.op_type == "Cast":
            model.graph.node.remove(node)
            node = made[node.input[0]]
        node.output[0] = output
    onnx.save(model, out)


def _name_dimensions(model: Any) -> None:
    """Give the dynamic dimensions of inputs and outputs the names that other exporters use."""
    import onnx_ir  # pyright: ignore[reportMissingImports]

    first, second = model.graph.inputs[0].shape
    names = {str(first): "batch_size", str(second): "sequence_length"}
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = onnx_ir.Shape([names.get(str(size), size) for size in value.shape])


class OnnxSession:
    """A session of ONNX Runtime with a file. Several threads may call it at once."""

    def __init__(self, path: Path):
        import onnxruntime  # pyright: ignore[reportMissingImports]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.used = {port.name for port in self.session.get_inputs()}
        self.run_options = onnxruntime.RunOptions()
        # Without the heads, which torch computes.
        self.run_options.only_execute_path_to_fetches = True

    def __call__(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the last hidden states."""
        return self.outputs(input_ids, attention_mask, token_type_ids, names=[STATES])[0]

    def outputs(self, *grids: np.ndarray, names: list[str] | None = None) -> list[np.ndarray]:
        """Return outputs from the same arrays. names: which; None for all."""
        inputs = {name: array for name, array in zip(INPUTS, grids, strict=True) if name in self.used}
        return [np.asarray(output) for output in self.session.run(names, inputs, self.run_options)]
