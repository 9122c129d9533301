"""Convert a model: for an engine, for transformers, or for sentence-transformers. The result is compared with its source."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertie import console, runtime, storage
from bertie.checkpoints import hub, sentence_transformers_format
from bertie.checkpoints.checkpoint import Checkpoint
from bertie.checkpoints.families import family_of
from bertie.checkpoints.find import TASK_FILE, find_model_folder
from bertie.checkpoints.folder import write_manifest, write_model
from bertie.checkpoints.model_card import About, CardFacts, CardResults, metadata_of, write_card
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.sentence_transformers_format import MODULES, SentenceEmbedding, embedding_of
from bertie.checkpoints.sentence_transformers_reader import REMEDY
from bertie.checkpoints.tensorflow import folder as google
from bertie.checkpoints.weight_files import TENSORFLOW_INDEX
from bertie.contracts import Sequence
from bertie.errors import UsageError, UserError
from bertie.model.initialization import no_weights
from bertie.predict import compare_libraries, export_checks, transformers_js
from bertie.predict.answers import compare
from bertie.predict.conversion import LIBRARIES, Conversion, ExportPrecision, ExportTarget
from bertie.predict.engines import choose, cpu, files
from bertie.predict.engines.files import Exported
from bertie.predict.export_checks import ModelResults
from bertie.predict.export_engines import write_engine
from bertie.predict.load import build, load
from bertie.predict.predictor import Predictor
from bertie.tasks.task_json import to_task_json

CHECKED_IN: dict[ExportTarget, compare_libraries.Library] = {
    "hf": "transformers",
    "sentence-transformers": "sentence-transformers",
}
"""The libraries that compute from the result, too, if they are installed. Engines are checked as the model is loaded."""
CALIBRATION_SEQUENCES = 128
"""Sequences on which activations are measured."""
CHECKED_SEQUENCES = 32
"""Sequences on which the result is compared with its source."""


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
        out: The folder to write, outside the source. `load` reads it again, with the engine that it was made for.
        to: What to write.
        precision: Precision of the engine.
        data: Labeled examples, such as the dev set: both models are scored on them. For a model without a task: texts,
            whose vectors are compared. Required for int8.
        calibration: Examples or texts on which int8 measures the ranges of activations. None: `data`.
        max_loss: Largest allowed loss of the metric of the task, from 0 to 1.
        threads: Processor threads; 0: all that this process may use.
        push: Repository of the Hugging Face Hub to upload the result to: OWNER/NAME, or NAME for one of your own. It must be
            new or empty.
        public: Whether everybody sees the repository.
        card: Facts for the model card, in place of those in the source's.

    Returns:
        {"out", "engine", "precision"}, and what was measured:

        - "seconds", "check_seconds": times. "memory": peak memory of the process before the check, in bytes.
        - "difference", "cosine": the largest difference of the hidden states relative to their largest value, and their
            smallest cosine. "outputs": the difference of each output of the graph.
        - "compared": what else was compared (`Compared.to_json`). "not_checked": the library that cannot be used, or "".
        - With `data`, "scores", "source_scores": those of both models; "metric": that of the task; "loss": how much of it is
            lost.
        - With `push`, "pushed": the address of the repository.

    Raises:
        UsageError: The target does not suit the model, a package is missing, or int8 lacks data.
        UserError: The result differs from the source too much, and nothing is written; or the upload failed.
    """
    out, started = Path(out), time.monotonic()
    storage.require_fresh(out, "the conversion")
    _require(to, precision, data)
    hub.require_repo(push, public)
    runtime.use_threads(threads)
    job = _job(source, out, to, precision, calibration or data)
    found = _write(job, out, data, max_loss, card, started)
    pushed = {} if push is None else {"pushed": hub.push(out, push, public)}
    return {"out": str(out), "engine": job.engine, "precision": precision, **found, **pushed}


def _write(
    job: Conversion,
    out: Path,
    data: str | Path | None,
    max_loss: float,
    card: CardFacts,
    started: float,
) -> dict[str, Any]:
    """Write the folder and compare it with its source. Returns what `convert` returns. started: the time of its call."""
    with storage.atomic_folder(out) as folder:
        predictor = None if job.to in ("hf", "sentence-transformers") else job.load()
        _write_files(job, folder, predictor)
        job.checkpoint.weights.clear()
        exported = write_engine(job, folder, predictor)
        written, memory = time.monotonic(), runtime.peak_memory()
        before = export_checks.measure(predictor or job.load(), job.checked, data)
        del predictor  # so that only one model is in memory
        result = _compare(job, before, folder, out, exported, data, max_loss)
        checked = time.monotonic()
        _write_card(job, folder, card, data, result)
        write_manifest(folder, transformers_js.FILES.values() if job.to == "transformers.js" else ())
    seconds = time.monotonic() - checked + written - started
    times = {"seconds": round(seconds, 2), "check_seconds": round(checked - written, 2)}
    return {**times, "memory": memory, **result}


def _job(
    source: str | Path,
    out: Path,
    to: ExportTarget,
    precision: ExportPrecision,
    data: str | Path | None,
) -> Conversion:
    """Read the source. data: what activations are measured on, and hidden states compared."""
    place = find_model_folder(source)
    _require_outside(out, place, Path(source))
    checkpoint = read_checkpoint(place, mapped=True)
    with no_weights():
        checkpoint, model = build(checkpoint)
    _require_heads(checkpoint, model)
    _require_kept(model, to)
    real = export_checks.sequences(model, data)
    inputs = _spread(real, CALIBRATION_SEQUENCES), _spread(real, CHECKED_SEQUENCES)
    return Conversion(place, checkpoint, model, to, precision, *inputs)


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


def _require_heads(checkpoint: Checkpoint, model: Predictor) -> None:
    """Check that bertie has all heads of the source. Raises UserError."""
    if lost := sorted(checkpoint.heads - model.model.kinds):
        problem = f"holds a head ({', '.join(lost)}) for which bertie has no task"
        raise UserError(f"{checkpoint.where} {problem}, and the result would lack it: convert the encoder alone")


def _require_kept(model: Predictor, to: ExportTarget) -> None:
    """Check that the target holds how texts become vectors. Raises UsageError."""
    if to == "sentence-transformers":
        _require_sentence_transformers(model)
    if to == "tf" and model.text_embedding != SentenceEmbedding() and not embedding_of(model.model):
        lost = "holds no settings of sentence-transformers: pooling, modules and prompts would be lost"
        raise UsageError(f"a TensorFlow checkpoint {lost}: use --to hf, or, {REMEDY} from a copy of the folder")


def _require_sentence_transformers(model: Predictor) -> None:
    """Check that sentence-transformers can compute the same vectors. Raises UsageError."""
    if not family_of(config := model.model.encoder.config).in_transformers:
        raise UsageError(
            f"sentence-transformers loads classes of transformers, and none has the structure of {model.folder} ({config.kind}): "
            "`bertie embed` writes its vectors"
        )
    if model.tokenizer.adds_around:
        raise UsageError(
            f"bertie puts special tokens around a text, and the class of the tokenizer of {model.folder} does not, so "
            "sentence-transformers would compute other vectors: `bertie embed` writes bertie's"
        )
    if model.tokenizer.special.pad is None:
        problem = (
            f"the tokenizer of {model.folder} has no padding token, without which sentence-transformers reads no text"
        )
        raise UsageError(f"{problem}: name one of its entries as pad_token in tokenizer_config.json, or use --to hf")


def _spread(sequences: list[Sequence], count: int) -> list[Sequence]:
    """Return at most `count` of the sequences, at equal distances."""
    return [sequences[i] for i in np.linspace(0, len(sequences) - 1, min(count, len(sequences))).astype(int).tolist()]


def _write_files(job: Conversion, folder: Path, predictor: Predictor | None) -> None:
    """Write the model, its tokenizer and its settings. Say what the target cannot hold."""
    tokenizer, how, length = job.model.tokenizer, job.model.text_embedding, job.model.max_length
    config, checkpoint = job.model.model.encoder.config, job.checkpoint
    if job.to == "tf":
        assert predictor is not None
        google.write_model(folder, predictor.model.cpu(), tokenizer, checkpoint.labels)
        tokenizer.save(folder, length)
        task = job.model.task
        if content := checkpoint.task or (
            task and to_task_json(task, length, "last", 0)
        ):  # Google's files name no task
            storage.write_json(folder / TASK_FILE, content)
        return
    write_model(folder, job.model.model, tokenizer, checkpoint.task or None, source=checkpoint, max_length=length)
    scores_pairs = "sbert_ce_default_activation_function" in storage.read_json(folder / "config.json")
    is_cross_encoder = scores_pairs and not (folder / MODULES).is_file()
    if (folder / MODULES).is_file() or (job.to == "sentence-transformers" and not is_cross_encoder):
        sentence_transformers_format.write(folder, config, how, length)


def _compare(
    job: Conversion,
    before: ModelResults,
    folder: Path,
    out: Path,
    exported: Exported | None,
    data: str | Path | None,
    max_loss: float,
) -> dict[str, Any]:
    """Compare the written folder, loaded afresh, with the source. Raises UserError if they differ too much.

    The folder gets the name `out` later.
    """
    with console.silenced():  # what is said of the source would be said of a folder that is about to be renamed
        converted = load(folder, threads=torch.get_num_threads(), engine=None if exported else "plain")
    after = export_checks.measure(converted, job.checked, data)
    found = export_checks.differences(before, after) | (exported.measured if exported else {})
    export_checks.require_close(job.precision, found)
    compared = compare(before.answers, after.answers)
    not_checked = ""
    if (library := CHECKED_IN.get(job.to)) is not None and export_checks.can_load(converted, out):
        if reason := compare_libraries.absent(library):
            not_checked = library
            console.warn(f"not checked in {library}: {reason}")
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
    if job.to == "transformers.js":
        found |= transformers_js.write(before, folder, job.checked, data, max_loss)
    return found


def _write_card(job: Conversion, folder: Path, card: CardFacts, data: str | Path | None, found: dict[str, Any]) -> None:
    """Write the model card, with what was found in the comparison."""
    if job.to == "tf":  # no format of the hub
        return
    exact, base = job.exact, hub.hub_id(job.checkpoint.folder)
    results = None
    if data is not None and job.model.task is not None:
        # Of transformers.js, "scores" are those of one of the files.
        results = CardResults(found["source_scores" if job.to == "transformers.js" else "scores"], Path(data).name)
    relation = "" if exact and job.to != "transformers.js" else "quantized"
    text = f"Converted from {base or job.checkpoint.folder.name}."
    about = About(text, card, base, relation, results, metadata_of(job.checkpoint.folder, scores=exact))
    labels = job.checkpoint.task.get("labels") or job.checkpoint.labels
    write_card(folder, job.model.model, tuple(labels), about)
