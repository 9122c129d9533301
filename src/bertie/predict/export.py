"""Convert a model: for an engine, for transformers, or for sentence-transformers. The result is compared with its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from bertie import console, storage
from bertie.checkpoints import hub, sentence_transformers_format
from bertie.checkpoints.checkpoint import Checkpoint
from bertie.checkpoints.find import TASK_FILE
from bertie.checkpoints.folder import save_tensors, write_manifest, write_model
from bertie.checkpoints.model_card import About, CardFacts, CardResults, metadata_of, write_card
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.tensorflow import folder as google
from bertie.contracts import Batch, Sequence
from bertie.errors import UsageError, UserError
from bertie.model.transformer import TransformerEncoder
from bertie.predict import export_checks, transformers_js
from bertie.predict.engines import choose, cpu, files, onnx, openvino
from bertie.predict.engines.calibration import measure
from bertie.predict.engines.files import EngineName, Exported
from bertie.predict.engines.graph import Graph
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.tasks.inference import infer

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
    """What to convert, and on which inputs."""

    source: Predictor
    checkpoint: Checkpoint
    """The source's files, without weights."""
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
    push: str | None = None,
    public: bool = False,
    card: CardFacts = CardFacts(),
) -> dict[str, Any]:
    """Convert a model and compare the result with its source, on real inputs, before the folder gets its name.

    Args:
        source: As in `load`.
        out: The folder to write. `load` reads it again, with the engine that it was made for.
        to: What to write.
        precision: Precision of the engine.
        data: Labeled examples, such as the dev set: both models are scored on them. For a model without a task: texts,
            whose vectors are compared. Required for int8.
        calibration: Examples or texts, such as the training data, on which int8 measures the ranges of activations. Labels
            are not used. None: `data`.
        max_loss: Largest allowed loss of the metric of the task, from 0 to 1.
        threads: Processor threads; 0: all that this process may use.
        push: Repository of the Hugging Face Hub to upload the result to: OWNER/NAME. It must be new or empty.
        public: Whether everybody sees the repository.
        card: Facts for the model card, in place of those in the source's.

    Returns:
        {"out", "engine", "precision", "difference", "cosine", "outputs", "scores", "source_scores", "metric", "loss"}: the
        largest difference of the hidden states relative to their largest value; their smallest cosine; the difference of each
        output of the graph; the scores of both models with `data`; the metric of the task, and how much of it is lost.
        With `push` also "pushed", the address of the repository.

    Raises:
        UsageError: The target does not suit the model, a package is missing, or int8 lacks data.
        UserError: The result differs from the source too much, and nothing is written; or the upload failed.
    """
    out = Path(out)
    storage.require_fresh(out, "the conversion")
    _require(to, precision, data)
    hub.require_repo(push, public)
    checkpoint = read_checkpoint(source).without_weights()  # before `load`, so that the weights are not there twice
    predictor = load(source, threads=threads, engine="plain")
    real = export_checks.sequences(predictor, calibration or data)
    inputs = _spread(real, CALIBRATION_SEQUENCES), _spread(real, CHECKED_SEQUENCES)
    job = Conversion(predictor, checkpoint, to, precision, *inputs)
    with storage.atomic_folder(out) as folder:
        exported = _write(job, folder)
        result = _compare(job, folder, exported, data, max_loss)
        if exported is not None:
            files.write(replace(exported, measured=result))
        _write_card(job, folder, card, data, result)
        write_manifest(folder)
    pushed = {} if push is None else {"pushed": hub.push(out, push, public)}
    return {"out": str(out), "engine": job.engine, "precision": precision, **result, **pushed}


def _write_card(job: Conversion, folder: Path, card: CardFacts, data: str | Path | None, found: dict[str, Any]) -> None:
    """Write the model card, with what was found in the comparison."""
    if job.to == "tf":  # no format of the hub
        return
    exact, base = job.precision == "fp32", hub.hub_id(job.checkpoint.folder)
    results = None
    if data is not None and job.source.task is not None:
        # Of transformers.js, "scores" are those of one of the files.
        results = CardResults(found["source_scores" if job.to == "transformers.js" else "scores"], Path(data).name)
    relation = "" if exact and job.to != "transformers.js" else "quantized"
    text = f"Converted from {base or job.checkpoint.folder.name}."
    about = About(text, card, base, relation, results, metadata_of(job.checkpoint.folder, scores=exact))
    labels = job.checkpoint.task.get("labels") or job.checkpoint.labels
    write_card(folder, job.source.model, tuple(labels), about)


def _require(to: ExportTarget, precision: ExportPrecision, data: str | Path | None) -> None:
    if to == "transformers.js":
        cpu.require_packages("onnx", "onnx", "onnx", "onnxruntime", "onnxscript")
        if precision != "fp32":
            raise UsageError(f"--to {to} writes fp32, fp16 and q8, and --precision is {precision}: omit it")
    if to in LIBRARIES and precision != "fp32":
        raise UsageError(f"--to {to} keeps the weights as they are, and --precision is {precision}: omit it")
    if to == "onnx" and precision == "bf16":
        remedy = "use --precision fp32 or int8, or --to openvino"
        raise UsageError(f"ONNX Runtime does not compute in bf16 on a CPU: {remedy}")
    if precision == "int8" and data is None:
        raise UsageError("int8 changes the accuracy: give --data FILE, such as the dev set, to measure by how much")
    if to not in LIBRARIES and (engine := choose.named(files.engine_name(to, precision))):
        engine.require()


def _spread(sequences: list[Sequence], count: int) -> list[Sequence]:
    """Return at most `count` of the sequences, at equal distances."""
    return [sequences[i] for i in np.linspace(0, len(sequences) - 1, min(count, len(sequences))).astype(int).tolist()]


def _write(job: Conversion, folder: Path) -> Exported | None:
    """Write the model. Return the files of its engine, with the differences of its graph in fp32 from torch, if it has one."""
    model, tokenizer = job.source.model.cpu(), job.source.tokenizer
    if job.to == "tf":
        google.write_model(folder, model, tokenizer, job.checkpoint.labels)
        if job.checkpoint.task:
            storage.write_json(folder / TASK_FILE, job.checkpoint.task)
    else:
        write_model(folder, model, tokenizer, job.checkpoint.task or None, source=job.checkpoint)
    tokenizer.save(folder, job.source.max_length)
    how = job.source.text_embedding
    if job.to == "sentence-transformers" or (folder / sentence_transformers_format.MODULES).is_file():
        sentence_transformers_format.write(folder, model.encoder.config, how, job.source.max_length)
    if job.engine is None:
        return None
    if not isinstance(model.encoder, TransformerEncoder):
        raise UsageError(f"engines run Transformers, and this model is {model.encoder.config.kind}: use --to hf")
    exported = Exported(folder, job.engine)
    if job.to == "torch":
        return _write_activations(job, exported) if job.precision == "int8" else exported
    graph, path = Graph(model), exported.graph
    path.parent.mkdir()
    write = _write_onnx if job.to == "onnx" else _write_openvino
    differences, paths = write(job, graph, path)
    names = tuple(each.relative_to(folder).as_posix() for each in paths)
    return replace(exported, files=names, measured={"outputs": differences})


def _write_activations(job: Conversion, exported: Exported) -> Exported:
    console.info(f"measuring activations of {console.plural(len(job.calibration), 'sequence')}")
    model = job.source.model
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
    differences = export_checks.graph_differences(graph, openvino.outputs(converted), job.checked)
    if job.precision == "int8":
        console.info(f"quantizing with {console.plural(len(job.calibration), 'sequence')}, which takes minutes")
        converted = openvino.quantize(converted, [export_checks.grid([each]) for each in job.calibration])
    openvino.save(converted, path)
    return differences, [path, path.with_suffix(".bin")]


def _compare(
    job: Conversion, folder: Path, exported: Exported | None, data: str | Path | None, max_loss: float
) -> dict[str, Any]:
    """Compare the written folder with the source. Raises UserError if they differ too much."""
    if job.to == "transformers.js":
        return transformers_js.write(job.source, folder, job.checked, data, max_loss)
    if exported is None:
        found: dict[str, Any] = export_checks.other_library(job.source, folder, job.to, job.checked)
        converted = load(folder)
    else:
        converted = replace(load(folder, engine="plain"), engine=exported.engine)
        choose.use(converted.model, exported.engine, exported)
        found = export_checks.hidden_differences(job.source, converted, job.checked) | exported.measured
    export_checks.require_close(job.precision, found)
    if data is not None:
        found |= export_checks.compare_scores(job.source, converted, data)
        before = found["source_scores"]
        shown = [f"{name} {before[name]:.4f} → {value:.4f}" for name, value in found["scores"].items()]
        console.info(", ".join(shown))
        if found["loss"] > max_loss:
            raise UserError(
                f"{job.precision} loses {found['loss']:.4f} of {found['metric']}, more than {max_loss:g}: allow it with "
                "--max-loss, give other data with --calibration, or use another precision"
            )
    return found
