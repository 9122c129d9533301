"""Replace the encoder of a model by an engine, as the user names it or as a measurement on this machine finds best."""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeGuard, cast, get_args

import numpy as np
import torch
from torch import nn

from bertie.base import config as configuration
from bertie.base import runtime, storage
from bertie.base.contracts import Batch, Sequence
from bertie.base.errors import UsageError, UserError
from bertie.base.threads import cache_folder
from bertie.batches.collate import collate
from bertie.model.encoder import Encoder
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.predict.engines import Engine, cpu
from bertie.predict.engines.cuda import CudaEngine
from bertie.predict.engines.files import EngineName, Exported

_LENGTHS = (96, 64, 64, 64, 48, 48, 32, 32, 24, 24, 16, 16)
"""Lengths in tokens of the sequences that candidates are measured on."""


def named(name: EngineName) -> Engine | None:
    """Return the engine of a name; None for `plain`, which is no engine.

    Raises:
        UsageError: There is no such name.
    """
    configuration.build(EngineName, name, "engine")
    kind, _, precision = name.partition("-")
    kinds = {engine.kind: engine for engine in get_args(Engine)}
    if kind not in kinds:
        return None
    return configuration.build(Engine, {"kind": kind} | ({"precision": precision} if precision else {}), "engine")


def use(model: Model, name: EngineName, exported: Exported | None) -> EngineName:
    """Replace the encoder of a loaded model.

    Args:
        model: The model, on its device, in evaluation mode.
        name: The engine.
        exported: The engine in the folder of the model, if it is a converted one.

    Returns:
        The name of the engine, never "auto".

    Raises:
        UsageError: The engine does not exist, cannot run on this machine, or does not suit the model.
    """
    encoder: Encoder = model.encoder
    if name == "auto":
        name = fastest(encoder, exported) if _runs(encoder) else "plain"
    engine = named(name)
    if engine is None:
        return name
    if not isinstance(encoder, TransformerEncoder) or not _runs(encoder):
        kind = "disentangled" if isinstance(encoder, TransformerEncoder) else encoder.config.kind
        raise UsageError(f"the engine {name} runs only Transformers, but this model is {kind}: use the engine plain")
    model.encoder = cast(Encoder, build(engine, name, encoder, exported))
    return name


def _runs(encoder: Encoder) -> TypeGuard[TransformerEncoder]:
    """Return whether engines compute an encoder."""
    return isinstance(encoder, TransformerEncoder) and not encoder.config.disentangled


def build(engine: Engine, name: EngineName, encoder: TransformerEncoder, exported: Exported | None) -> nn.Module:
    """Build an engine.

    Raises:
        UsageError: It cannot run on this machine, or it needs a converted model.
    """
    engine.require()
    suiting = exported if exported is not None and exported.engine == name else None
    if suiting is None and engine.precision == "int8":
        raise UsageError(
            f"the engine {name} needs a converted model: run `bertie convert RUN FOLDER --to {engine.kind} "
            "--precision int8 --data FILE` and load FOLDER"
        )
    if not isinstance(engine, CudaEngine) and next(encoder.parameters()).is_cuda:
        encoder.cpu()
    return engine.build(encoder, suiting)


def fastest(encoder: TransformerEncoder, exported: Exported | None) -> EngineName:
    """Return the fastest engine of those that need no preparation, and the one of a converted model.

    Measures for a second or two and remembers the result on disk. int8 is a candidate only as a converted model, whose
    accuracy was measured. With a GPU, the result is always "cuda".
    """
    if next(encoder.parameters()).is_cuda:
        return "cuda"
    candidates = _candidates(exported)
    path = cache_folder() / "engines.json"
    key = _key(encoder, candidates)
    known = _read(path)
    if known.get(key) in candidates:
        return cast(EngineName, known[key])
    batch = _batch(encoder.config.vocab_size, encoder.config.max_position_embeddings)
    seconds = {name: _seconds(engine, name, encoder, exported, batch) for name, engine in candidates.items()}
    best: EngineName = min(candidates, key=lambda name: seconds[name])
    with suppress(OSError, UserError):  # a read-only file system: measure again at the next start
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_json(path, _read(path) | {key: best})
    return best


def _candidates(exported: Exported | None) -> dict[EngineName, Engine]:
    names: list[EngineName] = ["torch", "torch-bf16", *([exported.engine] if exported else [])]
    candidates: dict[EngineName, Engine] = {}
    for name in names:
        with suppress(UsageError):  # of another machine
            if (engine := named(name)) is not None:
                engine.require()
                candidates[name] = engine
    return candidates


def _seconds(
    engine: Engine, name: EngineName, encoder: TransformerEncoder, exported: Exported | None, batch: Batch
) -> float:
    built = build(engine, name, encoder, exported)
    with torch.inference_mode():
        return runtime.shortest_seconds(lambda: built(batch), times=3)


def _key(encoder: TransformerEncoder, candidates: dict[EngineName, Engine]) -> str:
    """Return everything that the result depends on, as a string."""
    libraries = {"openvino": "openvino", "onnx": "onnxruntime"}
    packages = sorted({libraries.get(engine.kind, "torch") for engine in candidates.values()})
    versions = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    sizes = {name: value for name, value in asdict(encoder.config).items() if isinstance(value, int | str)}
    return "; ".join([cpu.name(), f"{torch.get_num_threads()} threads", *versions, " ".join(candidates), str(sizes)])


def _read(path: Path) -> dict[str, Any]:
    try:
        return storage.read_json(path)
    except (OSError, UserError):  # there is none yet, or it is damaged
        return {}


def _batch(vocab_size: int, longest: int) -> Batch:
    """Return sequences of typical lengths, as tensors."""
    sequences = []
    for length in (min(length, longest) for length in _LENGTHS):
        ids = np.arange(length, dtype=np.int32) * 7919 % vocab_size
        sequences.append(Sequence(ids, np.zeros_like(ids), np.ones(length, bool)))
    return collate(sequences, max(len(sequence) for sequence in sequences)).tensors()
