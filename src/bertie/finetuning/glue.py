"""GLUE (Wang et al. 2019) in one call: nine tasks and the diagnostic, their official metrics, the submission files."""

from __future__ import annotations

import hashlib
import io
import statistics
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bertie.base import console, storage
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.folder import MANIFEST
from bertie.checkpoints.read import Checkpoint, read_checkpoint
from bertie.examples.texts import Example
from bertie.finetuning.finetune import Finetuned, finetune
from bertie.finetuning.glue_tasks import SUBMISSION, TASKS, SubmissionFile, TaskFiles, available_tasks, indexed_examples
from bertie.finetuning.recipe import FinetuneConfig, read_recipe
from bertie.tasks.predictions import ClassPrediction, NumberPrediction
from bertie.tasks.scoring import labeled_examples

MAX_STSB_SCORE = 5.0  # the scores of STS-B are 0 to 5
ARCHIVE = "submission.zip"


def glue(
    folder: str | Path,
    model: str | Path | Checkpoint,
    out: str | Path,
    config: FinetuneConfig | str | dict[str, Any] = "classify",
    *,
    tasks: Sequence[str] = (),
    from_mnli: bool = False,
    threads: int = 0,
) -> dict[str, Any]:
    """Fine-tune a checkpoint on every task of GLUE, score each on its dev examples, and predict the test examples.

    Each task is a run of `finetune` in out/NAME. When you call this function again, finished runs are read back and the
    others resume. It also writes out/submission/NAME.tsv for every test file, out/submission.zip if the leaderboard
    needs no other file, and out/scores.json.

    Args:
        folder: The folder of GLUE's download, with CoLA, SST-2 and so on in it. Tasks without files are reported and
            skipped.
        model: The checkpoint to start from: a run, a checkpoint folder, a hub id, or a `Checkpoint` in memory.
        out: The folder to write.
        config: The configuration for all tasks, as for `finetune`. Of its task, only `truncation`, `doc_stride` and
            `pooling` are used.
        tasks: Names of `TASKS`; empty for all.
        from_mnli: Start RTE, MRPC and STS-B from the fine-tuned MNLI model, as the BERT literature does.
        threads: Number of processor threads, as for `finetune`.

    Returns:
        The content of scores.json, {"scores": {"MRPC": {"f1": …, "accuracy": …}, …}, "tasks": {"mrpc": mean of its
        metrics, …}, "average": mean over the tasks, "missing": [files that the leaderboard needs and submission/ does
        not have]}, and "submission": the path of the archive or None.

    Raises:
        UserError: An example cannot be used. Training and dev files are checked before anything is trained.
        UsageError: The folder, a task name or the configuration is wrong.
    """
    folder, out = Path(folder), Path(out)
    config = read_recipe(config)
    available = available_tasks(folder, tasks, config)
    checkpoint = model if isinstance(model, Checkpoint) else read_checkpoint(model)
    if config.metric:
        raise UsageError(f"metric is {config.metric!r}, but each task of GLUE has its own: remove it")
    if from_mnli:
        _require_mnli(available, out, config)
        available.sort(key=lambda files: files.of.name != "mnli")
    scores: dict[str, dict[str, float]] = {}
    for files in available:
        start = out / "mnli" if from_mnli and files.of.from_mnli else checkpoint
        scores |= _run_task(files, start, out, config, threads)
    for name in ("scores.json", ARCHIVE):
        storage.remove_leftovers(out, name)
    result = {**_averaged(scores), "missing": _packed(out)}
    storage.write_json(out / "scores.json", result)
    _print_table(result)
    if missing := result["missing"]:
        console.info(f"no {ARCHIVE}: the leaderboard also needs {', '.join(missing)}")
    else:
        console.info(f"for the leaderboard: {out / ARCHIVE}")
    return {**result, "submission": None if missing else str(out / ARCHIVE)}


def _run_task(
    files: TaskFiles, start: Path | Checkpoint, out: Path, config: FinetuneConfig, threads: int
) -> dict[str, dict[str, float]]:
    """Fine-tune on one task, write its submission files, and return the scores of each dev file by its name."""
    run, dev = out / files.of.name, next(iter(files.labeled.values()))
    console.info(f"{files.of.folder}: {files.train.name}, {dev.name} → {run}")
    settings = replace(config, task=files.task, metric=next(iter(files.labeled)).metrics[0])
    done = finetune(settings, files.train, start, run, dev=dev, threads=threads)
    scores = _scores(files, done, run, config.strict)
    _predictions(files, done, run)
    return scores


def _require_mnli(available: list[TaskFiles], out: Path, config: FinetuneConfig) -> None:
    if config.from_scratch:
        raise UsageError("--from-mnli does not work with --from-scratch: remove one of them")
    if not any(files.of.name == "mnli" for files in available) and not (out / "mnli" / MANIFEST).is_file():
        raise UsageError(f"--from-mnli needs MNLI among the tasks, or a finished run of it in {out / 'mnli'}")


def _scores(files: TaskFiles, done: Finetuned, run: Path, strict: bool) -> dict[str, dict[str, float]]:
    """Return the scores of each dev file by its name. `finetune` has computed the first ones."""
    by_part: dict[SubmissionFile, dict[str, float]] = {}
    for part, path in files.labeled.items():
        make = partial(_evaluated, done, path, strict)
        by_part[part] = _once(run, f"{part.name} scores", done, path, make) if by_part else done.scores
    return {part.name: {metric: scores[metric] for metric in part.metrics} for part, scores in by_part.items()}


def _evaluated(done: Finetuned, path: Path, strict: bool) -> dict[str, float]:
    examples = labeled_examples(done.task.reader, path, strict)
    return done.task.score(list(done.predict_stream(examples)), examples)


def _predictions(files: TaskFiles, done: Finetuned, run: Path) -> None:
    """Write submission/NAME.tsv for each test file. Warns of a test file with unreadable rows and skips it."""
    for part, path in files.unlabeled.items():
        target = run.parent / "submission" / f"{part.name}.tsv"
        try:
            examples = indexed_examples(path, files)
        except UserError as error:
            for old in (run.parent / ARCHIVE, target):
                old.unlink(missing_ok=True)
            console.warn(f"did not write {target.name}, because it needs every row of {path.name}: {error}")
            continue
        write = partial(_write, target, examples, done)
        written = _once(run, f"{part.name} predictions", done, path, write)
        if not target.is_file() or storage.sha256(target) != written:  # deleted or changed since
            write()


def _write(target: Path, examples: list[tuple[int, Example]], done: Finetuned) -> str:
    """Write the predictions of one test file and return the SHA-256 of the written file."""
    target.parent.mkdir(exist_ok=True)
    storage.remove_leftovers(target.parent, target.name)
    (target.parent.parent / ARCHIVE).unlink(missing_ok=True)  # it has the earlier predictions
    lines = ["index\tprediction\n"]
    with console.progress(target.name, len(examples), "examples", passing=True) as bar:
        predictions = done.predict_stream(text for _, text in examples)
        for (index, _), prediction in zip(examples, predictions, strict=True):
            lines.append(f"{index}\t{_format_prediction(prediction)}\n")
            bar.advance(1)
    storage.write_atomic(target, "".join(lines))
    return storage.sha256(target)


def _format_prediction(prediction: ClassPrediction | NumberPrediction) -> str:
    if isinstance(prediction, NumberPrediction):
        return f"{min(max(prediction.score, 0.0), MAX_STSB_SCORE):.6f}"
    return prediction.label


def _once(run: Path, what: str, done: Finetuned, data: Path, make: Callable[[], Any]) -> Any:
    """Return `make()`, or its earlier result from the run's glue.json if the model and the data file are unchanged.

    what: the key in glue.json.
    """
    path = run / "glue.json"
    known = storage.read_json(path) if path.is_file() else {}
    model = hashlib.sha256()
    for tensor in done.model.state_dict().values():
        model.update(tensor.cpu().contiguous().numpy())
    of = [model.hexdigest(), storage.sha256(data)]
    if known.get(what, {}).get("of") != of:
        known[what] = {"of": of, "made": make()}
        storage.write_json(path, known)
    return known[what]["made"]


def _averaged(scores: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the scores, each task's mean over its metrics, and GLUE's average: the mean of these means.

    The diagnostic does not count in the average.
    """
    means = {}
    for task in TASKS:
        values = [v for part in task.parts if part.averaged for v in scores.get(part.name, {}).values()]
        if values:
            means[task.name] = statistics.fmean(values)
    scores = {part.name: scores[part.name] for task in TASKS for part in task.parts if part.name in scores}
    return {"scores": scores, "tasks": means, "average": statistics.fmean(means.values())}


def _packed(out: Path) -> list[str]:
    """Write the submission archive, or return the names of the missing files.

    The archive has the files at its top level. Its bytes depend only on their content.
    """
    if missing := [name for name in SUBMISSION if not (out / "submission" / name).is_file()]:
        return missing
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in SUBMISSION:
            entry = zipfile.ZipInfo(name)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, (out / "submission" / name).read_bytes())
    storage.write_atomic(out / ARCHIVE, content.getvalue())
    return []


def _print_table(result: dict[str, Any]) -> None:
    console.result(f"{'GLUE, dev':10}{'score':>8}")
    for name, scores in result["scores"].items():
        metrics = console.scores(scores)
        console.result(f"{name:10}{statistics.fmean(scores.values()):8.4f}  {metrics}")
    absent = [task.folder for task in TASKS if task.name not in result["tasks"]]
    without = f", without {', '.join(absent)}" if absent else ""
    console.result(
        f"{'average':10}{result['average']:8.4f}  over {len(result['tasks'])} of {len(TASKS)} tasks{without}"
    )
