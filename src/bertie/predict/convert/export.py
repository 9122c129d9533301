"""Convert a model: for an engine, for transformers, or for sentence-transformers. The result is compared with its source.

`convert` reads the source (conversion.py), writes the folder, and for an engine its files (export_engines.py). It loads the
folder again, compares it (export_checks.py), and adds the card. transformers_js.py adds and compares its own files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from bertie.base import console, runtime, storage
from bertie.checkpoints import hub, sentence_transformers_format
from bertie.checkpoints.find import TASK_FILE
from bertie.checkpoints.folder import write_manifest, write_model
from bertie.checkpoints.model_card import About, CardFacts, CardResults, metadata_of, write_card
from bertie.checkpoints.sentence_transformers_format import MODULES
from bertie.checkpoints.tensorflow import folder as google
from bertie.predict.convert import compare_bertie, export_checks, transformers_js, verify
from bertie.predict.convert.comparison import Probe, run, standardized
from bertie.predict.convert.conversion import Conversion, ExportPrecision, ExportTarget, require_possible
from bertie.predict.convert.export_checks import Measurements, ModelResults
from bertie.predict.convert.export_engines import write_engine
from bertie.predict.engines import files
from bertie.predict.engines.files import Exported
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.tasks.task_json import to_task_json

CHECKED_IN: dict[ExportTarget, verify.Library] = {
    "hf": "transformers",
    "sentence-transformers": "sentence-transformers",
}
"""The libraries that compute from the result, too, if they are installed. Engines are checked as the model is loaded."""


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
        public: Whether anyone can see the repository.
        card: Facts for the model card, in place of the facts in the source's card.

    Returns:
        {"out", "engine", "precision"}, and what was measured:

        - "seconds", "check_seconds": times. "memory": peak memory of the process before the check, in bytes.
        - "difference", "cosine": the largest difference of the hidden states relative to their largest value, and their
            smallest cosine. "outputs": the difference of each output of the graph.
        - "compared": what else was compared (`Compared.to_json`). "not_checked": the library that cannot be used, or "".
        - With `data`, "scores", "source_scores": the scores of both models; "metric": the metric of the task; "loss":
            how much it loses.
        - With `push`, "pushed": the address of the repository.

    Raises:
        UsageError: The target does not suit the model, a package is missing, or int8 lacks data.
        UserError: The result differs from the source too much, and nothing is written; or the upload failed.
    """
    out, started = Path(out), time.monotonic()
    storage.require_fresh(out, "the conversion")
    require_possible(to, precision, data)
    hub.require_repo(push, public)
    runtime.use_threads(threads)
    job = Conversion.of(source, out, to, precision, data, calibration, max_loss)
    with storage.atomic_folder(out) as folder:
        measured = _write(job, folder, card, started)
    pushed = {} if push is None else {"pushed": hub.push(out, push, public)}
    return {"out": str(out), "engine": job.engine, "precision": precision, **measured, **pushed}


def _write(job: Conversion, folder: Path, card: CardFacts, started: float) -> Measurements:
    """Write the folder and compare it with its source. Return what was measured. started: the time of the call."""
    predictor = None if job.to in ("hf", "sentence-transformers") else job.load_with_scale()
    _write_files(job, folder, predictor)
    job.checkpoint.weights.clear()
    exported = write_engine(job, folder, predictor)
    written, memory = time.monotonic(), runtime.peak_memory()
    predictor = job.load() if predictor is None or standardized(job.checkpoint.folder) else predictor
    before = export_checks.measure(predictor, job.checked, job.data)
    converted = cache(partial(_load, folder, exported))
    with console.silenced():  # of texts that are truncated on purpose
        probes = [*compare_bertie.probes(predictor, converted, job.checked)]
    del predictor  # so that only one model is in memory
    measured = _compare(job, before, probes, converted, exported)
    if exported is not None:
        files.write(replace(exported, measured=measured))
    if job.to == "transformers.js":
        measured |= transformers_js.write(before, folder, job.checked, job.data, job.max_loss)
    checked = time.monotonic()
    _write_card(job, folder, card, measured)
    write_manifest(folder, transformers_js.FILES.values() if job.to == "transformers.js" else ())
    seconds = time.monotonic() - checked + written - started
    return {"seconds": round(seconds, 2), "check_seconds": round(checked - written, 2), "memory": memory, **measured}


def _write_files(job: Conversion, folder: Path, predictor: Predictor | None) -> None:
    """Write the model, its tokenizer and its settings."""
    tokenizer, length, checkpoint = job.model.tokenizer, job.model.max_length, job.checkpoint
    if job.to == "tf":
        assert predictor is not None
        google.write_model(folder, predictor.model.cpu(), tokenizer, checkpoint.labels)
        tokenizer.save(folder, length)
        task = job.model.task
        content = checkpoint.task or (task and to_task_json(task, length, "last", 0))
        if content:  # Google's files name no task
            storage.write_json(folder / TASK_FILE, content)
        return
    write_model(folder, job.model.model, tokenizer, checkpoint.task or None, source=checkpoint, max_length=length)
    has_modules = (folder / MODULES).is_file()
    scores_pairs = "sbert_ce_default_activation_function" in storage.read_json(folder / "config.json")
    if has_modules or (job.to == "sentence-transformers" and not scores_pairs):
        sentence_transformers_format.write(folder, job.model.model.encoder.config, job.model.text_embedding, length)


def _load(folder: Path, exported: Exported | None) -> Predictor:
    """Load the written folder."""
    with console.silenced():  # what is said of the source would be said of a folder that is about to be renamed
        return load(folder, threads=torch.get_num_threads(), engine=None if exported else "plain")


def _compare(
    job: Conversion,
    before: ModelResults,
    probes: list[Probe],
    converted: Callable[[], Predictor],
    exported: Exported | None,
) -> Measurements:
    """Compare the written folder with the source. Raises UserError if they differ too much."""
    after = export_checks.measure(converted(), job.checked, job.data)
    measured = export_checks.differences(before, after) | (exported.measured if exported else {})
    export_checks.require_close(job.precision, measured)
    compared, not_checked = run(probes), ""
    if (library := CHECKED_IN.get(job.to)) is not None and export_checks.can_load(converted(), job.out):
        if reason := verify.absent(library):
            not_checked = library
            console.warn(f"not checked in {library}: {reason}")
        else:
            compared += verify.compare(converted(), library)
    export_checks.require_equal(compared, exact=job.exact)
    measured |= {"compared": [comparison.to_json() for comparison in compared], "not_checked": not_checked}
    if job.data is not None:
        measured |= export_checks.compare_scores(before, after, job.model.task)
        scores = measured["source_scores"]
        console.info(
            ", ".join(f"{name} {scores[name]:.4f} → {value:.4f}" for name, value in measured["scores"].items())
        )
        remedy = "give other data with --calibration, or use another precision"
        export_checks.require_small_loss(job.precision, measured, job.max_loss, remedy)
    return measured


def _write_card(job: Conversion, folder: Path, card: CardFacts, measured: Measurements) -> None:
    """Write the model card, with the results of the comparison."""
    if job.to == "tf":  # no format of the hub
        return
    exact, base = job.exact, hub.hub_id(job.checkpoint.folder)
    results = None
    if job.data is not None and job.model.task is not None:
        # Of transformers.js, "scores" are those of one of the files.
        scores = measured["source_scores" if job.to == "transformers.js" else "scores"]
        results = CardResults(scores, Path(job.data).name)
    relation = "" if exact and job.to != "transformers.js" else "quantized"
    text = f"Converted from {base or job.checkpoint.folder.name}."
    about = About(text, card, base, relation, results, metadata_of(job.checkpoint.folder, scores=exact))
    labels = job.checkpoint.task.get("labels") or job.checkpoint.labels
    write_card(folder, job.model.model, tuple(labels), about)
