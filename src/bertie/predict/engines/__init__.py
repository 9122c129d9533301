"""Engines: what computes the encoder in prediction. The heads always run in torch.

- choose.py: the engine that the user names, or the fastest one. cpu.py: what this machine has.
- torch_engine.py: on a CPU. parts.py and linears.py have its parts of a layer, calibration.py the ranges of its int8 precision.
- cuda.py: on a GPU.
- onnx.py, openvino.py: with other libraries, from the graph of graph.py, on the padded inputs of grids.py.
- files.py: engine.json of a converted model.

An engine is a frozen dataclass with `kind` and `precision`. `require()` checks that it can run on this machine.
`build(encoder, exported)` returns a module that replaces the encoder, with the attributes `config` and `embeddings`, and
`forward(batch, rows, all_layers)` as documented in `TransformerEncoder`. It returns fp32, and several threads may call it
at once. To add an engine, add a file with such a class, its name to `Engine` and its names to `EngineName` in files.py.
"""

from __future__ import annotations

from bertie.predict.engines.cuda import CudaEngine
from bertie.predict.engines.files import EngineName, Exported
from bertie.predict.engines.onnx import OnnxEngine
from bertie.predict.engines.openvino import OpenVinoEngine
from bertie.predict.engines.torch_engine import TorchEngine

Engine = TorchEngine | OpenVinoEngine | OnnxEngine | CudaEngine

__all__ = ["Engine", "EngineName", "Exported"]
