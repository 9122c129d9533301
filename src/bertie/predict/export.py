"""Convert a model: for an engine, for transformers, or for sentence-transformers. The result is compared with its source."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from bertie import console, runtime, storage
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.checkpoint import Checkpoint
from bertie.checkpoints.find import TASK_FILE, find_model_folder
from bertie.checkpoints.folder import save_tensors, write_manifest, write_model
from bertie.checkpoints.mapped import Mapped
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.sentence_transformers_format import MODULES, SentenceEmbedding, embedding_of
from bertie.checkpoints.tensorflow import folder as google
from bertie.contracts import Batch, Sequence
from bertie.errors import UsageError, UserError
from bertie.model.meta import no_weights
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.predict import compare_libraries, export_checks
from bertie.predict.answers import compare
from bertie.predict.engines import choose, files, onnx, openvino
from bertie.predict.engines.calibration import measure
from bertie.predict.engines.files import EngineName, Exported
from bertie.predict.engines.graph import Graph
from bertie.predict.export_checks import ModelResults
from bertie.predict.load import build, load
from bertie.predict.predictor import Predictor
from bertie.tasks.inference import infer

ExportTarget = Literal["torch", "openvino", "onnx", "hf", "sentence-transformers", "tf"]
"""torch, openvino, onnx: for an engine of bertie; the graph of the last two also runs without bertie. hf: a checkpoint for
transformers. sentence-transformers: the same with the files that describe text vectors. tf: a checkpoint for Google's code."""
LIBRARIES = ("hf", "sentence-transformers", "tf")
"""The targets without an engine."""
CHECKED_IN: dict[ExportTarget, compare_libraries.Library] = {
    "hf": "transformers",
    "sentence-transformers": "sentence-transformers",
}
"""The libraries that compute from the result, too, if they are installed. Engines are checked as the model is loaded."""
ExportPrecision = Literal["fp32", "bf16", "int8"]
CALIBRATION_SEQUENCES = 128
"""Sequences on which activations are measured."""
CHECKED_SEQUENCES = 32
"""Sequences on which the result is compared with its source."""


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


def convert(
    source: str | Path,
    out: str | Path,
    to: ExportTarget,
    *,
    precision: ExportPrecision = "fp32",
    data: str | Path | None = None,
    calibration: str | Path | None = None,
    max_loss: float = 0.005,
    threads: int = 0,
) -> dict[str, Any]:
    """Convert a model and compare the result with its source, on real inputs, before the folder gets its name.

    Args:
        source: As in `load`.
        out: The folder to write, outside the source. `load` reads it again, with the engine that it was made for.
        to: What to write.
        precision: Precision of the engine.
        data: Labeled examples, such as the dev set: both models are scored on them. For a model without a task: texts,
            whose vectors are compared. Required for int8.
        calibration: Examples or texts on which int8 measures the ranges of activations. None: `data`.
        max_loss: Largest allowed loss of the metric of the task, from 0 to 1.
        threads: Processor threads; 0: all that this process may use.

    Returns:
        {"out", "engine", "precision"}, and what was measured:

        - "seconds", "check_seconds": times. "memory": peak memory of the process before the check, in bytes.
        - "difference", "cosine": the largest difference of the hidden states relative to their largest value, and their
          smallest cosine. "outputs": the difference of each output of the graph.
        - "compared": what else was compared (`Comparison.to_json`). "not_checked": the library that is not installed, or "".
        - With `data`, "scores", "source_scores": those of both models; "metric": that of the task; "loss": how much of it is
          lost.

    Raises:
        UsageError: The target does not suit the model, a package is missing, or int8 lacks data.
        UserError: The result differs from the source too much. Nothing is written.
    """
    out, started = Path(out), time.monotonic()
    storage.require_fresh(out, "the conversion")
    _require(to, precision, data)
    runtime.use_threads(threads)
    mapped = Mapped()
    job = _job(source, out, to, precision, calibration or data, mapped)
    with storage.atomic_folder(out) as folder:
        predictor = None if to in ("hf", "sentence-transformers") else job.load()
        _write_files(job, folder, predictor, mapped)
        job.checkpoint.weights.clear()
        exported = _write_engine(job, folder, predictor)
        written, memory = time.monotonic(), runtime.peak_memory()
        before = export_checks.measure(predictor or job.load(), job.checked, data)
        del predictor  # so that only one model is in memory
        result = _compare(job, before, folder, exported, data, max_loss)
        checked = time.monotonic()
        write_manifest(folder)
    seconds = time.monotonic() - checked + written - started
    times = {"seconds": round(seconds, 2), "check_seconds": round(checked - written, 2)}
    return {"out": str(out), "engine": job.engine, "precision": precision, **times, "memory": memory, **result}


def _job(
    source: str | Path,
    out: Path,
    to: ExportTarget,
    precision: ExportPrecision,
    data: str | Path | None,
    mapped: Mapped,
) -> Conversion:
    """Read the source. data: what activations are measured on, and hidden states compared."""
    place = find_model_folder(source)
    _require_outside(out, place, Path(source))
    checkpoint = read_checkpoint(place, mapped=mapped)
    with no_weights():
        checkpoint, model = build(checkpoint)
    _require_heads(checkpoint, model)
    real = export_checks.sequences(model, data)
    inputs = _spread(real, CALIBRATION_SEQUENCES), _spread(real, CHECKED_SEQUENCES)
    return Conversion(place, checkpoint, model, to, precision, *inputs)


def _require(to: ExportTarget, precision: ExportPrecision, data: str | Path | None) -> None:
    if to in LIBRARIES and precision != "fp32":
        raise UsageError(f"--to {to} keeps the weights as they are, and --precision is {precision}: omit it")
    if to == "onnx" and precision == "bf16":
        remedy = "use --precision fp32 or int8, or --to openvino"
        raise UsageError(f"ONNX Runtime does not compute in bf16 on a CPU: {remedy}")
    if precision == "int8" and data is None:
        raise UsageError("int8 changes the accuracy: give --data FILE, such as the dev set, to measure by how much")
    if to not in LIBRARIES and (engine := choose.named(files.engine_name(to, precision))):
        engine.require()


def _require_outside(out: Path, *places: Path) -> None:
    """Check that the result is neither the source nor in it. Raises UsageError."""
    for place in places:
        if place.is_dir() and out.resolve().is_relative_to(place.resolve()):
            raise UsageError(f"{out} is in the source, {place}, which `convert` never changes: choose another place")


def _require_heads(checkpoint: Checkpoint, model: Predictor) -> None:
    """Check that bertie has all heads of the source. Raises UserError."""
    if lost := sorted(checkpoint.heads - model.model.kinds):
        problem = f"holds a head ({', '.join(lost)}) for which bertie has no task"
        raise UserError(f"{checkpoint.where} {problem}, and the result would lack it: convert the encoder alone")


def _spread(sequences: list[Sequence], count: int) -> list[Sequence]:
    """Return at most `count` of the sequences, at equal distances."""
    return [sequences[i] for i in np.linspace(0, len(sequences) - 1, min(count, len(sequences))).astype(int).tolist()]


def _write_files(job: Conversion, folder: Path, predictor: Predictor | None, mapped: Mapped) -> None:
    """Write the model, its tokenizer and its settings. Say what the target cannot hold."""
    tokenizer, how, length = job.model.tokenizer, job.model.text_embedding, job.model.max_length
    config, checkpoint = job.model.model.encoder.config, job.checkpoint
    if job.to == "tf":
        assert predictor is not None
        google.write_model(folder, predictor.model.cpu(), tokenizer, checkpoint.labels)
        tokenizer.save(folder, length)
        if checkpoint.task:
            storage.write_json(folder / TASK_FILE, checkpoint.task)
        if how != SentenceEmbedding() and not embedding_of(job.model.model):
            console.warn(
                "a TensorFlow checkpoint holds no settings of sentence-transformers: its pooling and prompts are lost"
            )
        return
    about = f"Converted from {job.model.folder.name}."
    write_model(folder, job.model.model, tokenizer, checkpoint.task or None, about, checkpoint, length, mapped)
    scores_pairs = "sbert_ce_default_activation_function" in storage.read_json(folder / "config.json")
    is_cross_encoder = scores_pairs and not (folder / MODULES).is_file()
    if (folder / MODULES).is_file() or (job.to == "sentence-transformers" and not is_cross_encoder):
        sentence_transformers_format.write(folder, config, how, length)


def _write_engine(job: Conversion, folder: Path, predictor: Predictor | None) -> Exported | None:
    """Write the files of the engine. Return them, with the differences of its graph in fp32 from torch, if it has one."""
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


def _compare(
    job: Conversion,
    before: ModelResults,
    folder: Path,
    exported: Exported | None,
    data: str | Path | None,
    max_loss: float,
) -> dict[str, Any]:
    """Compare the written folder, loaded afresh, with the source. Raises UserError if they differ too much."""
    converted = load(folder, threads=torch.get_num_threads(), engine=None if exported else "plain")
    after = export_checks.measure(converted, job.checked, data)
    found = export_checks.differences(before, after) | (exported.measured if exported else {})
    export_checks.require_close(job.precision, found)
    compared = compare(before.answers, after.answers)
    not_checked = ""
    if (library := CHECKED_IN.get(job.to)) is not None and export_checks.can_load(converted, folder):
        if importlib.util.find_spec(library.replace("-", "_")) is None:
            not_checked = library
            console.warn(f"not checked in {library}: not installed")
        else:
            compared += compare_libraries.compare(export_checks.as_library_sees(converted), library, folder)
    export_checks.require_equal(compared, exact=job.exact)
    found |= {"compared": [each.to_json() for each in compared], "not_checked": not_checked}
    if data is not None:
        found |= export_checks.compare_scores(before, after, job.model.task)
        scores = found["source_scores"]
        shown = [f"{name} {scores[name]:.4f} → {value:.4f}" for name, value in found["scores"].items()]
        console.info(", ".join(shown))
        if found["loss"] > max_loss:
            raise UserError(
                f"{job.precision} loses {found['loss']:.4f} of {found['metric']}, more than {max_loss:g}: allow it with "
                "--max-loss, give other data with --calibration, or use another precision"
            )
    if exported is not None:
        files.write(replace(exported, measured=found))
    return found
