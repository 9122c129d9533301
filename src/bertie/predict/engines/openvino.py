"""The OpenVINO engine: fp32, bf16, or int8 by post-training quantization with NNCF (fp32 or bf16 between the int8 parts).

S  sequences    L  length of the longest one    D  hidden size
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
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


@dataclass(frozen=True)
class OpenVinoEngine:
    """The OpenVINO engine, see the top of the file."""

    kind: Literal["openvino"] = "openvino"
    precision: Literal["fp32", "bf16", "int8"] = "fp32"

    def require(self) -> None:
        """Raise UsageError if a package or the instructions for the precision are missing."""
        cpu.require(engine_name(self.kind, self.precision), self.precision, "openvino", "openvino")

    def build(self, encoder: TransformerEncoder, exported: Exported | None) -> nn.Module:
        """Compile the graph of an exported model, or without one the graph of the encoder, which takes some seconds."""
        graph = _core().read_model(exported.graph) if exported else convert(Graph(Model(encoder, {})))
        return GridEncoder(encoder, _Compiled(_states_only(graph), self.precision))


def convert(graph: Graph) -> Any:
    """Convert a graph to an OpenVINO model, fp32, with the names of its inputs and outputs."""
    library = _library()
    with quietly():
        model = library.convert_model(export(graph))
    for ports, names in ((model.inputs, graph.inputs), (model.outputs, graph.outputs)):
        for port, name in zip(ports, names, strict=True):
            port.get_tensor().set_names({name})
    return model


def quantize(model: Any, grids: list[tuple[np.ndarray, np.ndarray, np.ndarray]], numbers: list[str]) -> Any:
    """Quantize weights and the inputs of matrix products to int8, with ranges measured on some grids.

    numbers: outputs that are computed in fp32 from the inputs of their layer: `Graph.numbers`.
    """
    cpu.require_packages("openvino-int8", "openvino", "nncf")
    _core()  # before NNCF's own
    with quietly():
        import nncf

        names = [next(iter(port.get_names())) for port in model.inputs]
        named = [dict(zip(INPUTS, grid, strict=True)) for grid in grids]
        data = nncf.Dataset([{name: arrays[name] for name in names} for arrays in named])
        adds = [port.get_node().input_value(0).get_node() for port in model.outputs if port.get_any_name() in numbers]
        kept = nncf.IgnoredScope([node.input_value(0).get_node().get_friendly_name() for node in adds])
        return nncf.quantize(
            model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(grids), ignored_scope=kept
        )


def save(model: Any, path: Path) -> None:
    """Write PATH.xml and PATH.bin."""
    _library().save_model(model, path, compress_to_fp16=False)


def outputs(path: Path) -> Callable[..., list[np.ndarray]]:
    """Return a function that computes all outputs of a file in fp32, from the same arrays as an engine."""
    return _Compiled(_core().read_model(path), "fp32").all_outputs


def _library() -> Any:
    # OpenVINO and NNCF report their use to their makers unless they lack this package.
    sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
    import openvino

    return openvino


@cache
def _core() -> Any:
    """The one core of the process.

    A core gives signal handlers a stack of its own, and the one before back when it ends. Where several end in another order
    than a stack, the handlers are left with one that is gone, and the next signal ends the process.
    """
    return _library().Core()


def _states_only(model: Any) -> Any:
    """Return the model without the outputs of the heads, which torch computes."""
    [states] = [port for port in model.outputs if STATES in port.get_names()]
    return _library().Model([states.get_node()], model.get_parameters(), "encoder")


class _Compiled:
    """A compiled model. Each thread has its own request."""

    def __init__(self, model: Any, precision: str):
        hint = "bf16" if precision == "bf16" or (precision == "int8" and cpu.has(cpu.BF16)) else "f32"
        settings = {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "INFERENCE_PRECISION_HINT": hint,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        self.compiled = _core().compile_model(model, "CPU", settings)
        self.names = [next(iter(port.get_names())) for port in model.inputs]
        self.requests = threading.local()

    def __call__(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the first output."""
        return self.all_outputs(input_ids, attention_mask, token_type_ids)[0]

    def all_outputs(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Return all outputs, in order."""
        request = getattr(self.requests, "own", None)
        if request is None:
            request = self.requests.own = self.compiled.create_infer_request()
        grids = dict(zip(INPUTS, arrays, strict=True))
        results = request.infer({name: grids[name] for name in self.names}, share_inputs=True)
        return [results[i] for i in range(len(results))]
