"""GLUE (Wang et al. 2019) in one call: nine tasks and the diagnostic, their official metrics, the leaderboard's files."""

from __future__ import annotations

import hashlib
import io
import statistics
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bertie import config as configuration
from bertie import console, storage
from bertie.checkpoints.folder import MANIFEST, Checkpoint, read_checkpoint
from bertie.errors import UsageError, UserError
from bertie.finetuning.finetune import Finetuned, finetune
from bertie.finetuning.glue_tasks import SUBMISSION, TASKS, SubmissionFile, TaskFiles, available_tasks, indexed_examples
from bertie.finetuning.recipe import FinetuneConfig
from bertie.tasks.data.rows import valid_examples
from bertie.tasks.data.texts import Example
from bertie.tasks.inference import predictions
from bertie.tasks.predictions import ClassPrediction, NumberPrediction

MAX_STSB_SCORE = 5.0  # of STS-B's scores; the lowest is 0
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
    """Fine-tune a checkpoint on every task of a GLUE folder, score each on its dev examples, predict for the leaderboard.

    tasks: names of `TASKS`; empty: all. What the folder lacks is said and left out. from_mnli: RTE, MRPC and STS-B start
    from the model of MNLI. config: for all tasks; of its task only `long` and `step` count.

    Each task is a run of `finetune` in out/NAME: called again, finished ones are left alone, the others resume. Beside
    them: submission/NAME.tsv of every test file, submission.zip if those are all that the leaderboard wants, and
    scores.json: {"scores": {"MRPC": {"f1": …, "accuracy": …}, …}, "tasks": {"mrpc": mean of its metrics, …},
    "average": mean of those, "missing": [names of files that are not in submission/]}. Returns that and "submission", the
    archive's path or None.
    Errors: UsageError, UserError; what is wrong with a training or dev file, before anything is trained.
    """
    folder, out = Path(folder), Path(out)
    config = config if isinstance(config, FinetuneConfig) else configuration.load(FinetuneConfig, config, "finetune")
    checkpoint = model if isinstance(model, Checkpoint) else read_checkpoint(model)
    found = available_tasks(folder, tasks, config)
    if config.metric:
        raise UsageError(f"metric is {config.metric!r}, and each task of GLUE has its own: leave it out")
    if from_mnli:
        _require_mnli(found, out, config)
        found.sort(key=lambda files: files.of.name != "mnli")
    scores: dict[str, dict[str, float]] = {}
    for files in found:
        of, run, dev = files.of, out / files.of.name, next(iter(files.labelled.values()))
        console.info(f"{of.folder}: {files.train.name}, {dev.name} → {run}")
        start = out / "mnli" if from_mnli and of.from_mnli else checkpoint
        settings = replace(config, task=files.task, metric=next(iter(files.labelled)).metrics[0])
        done = finetune(settings, files.train, dev, start, run, threads=threads)
        scores |= _scores(files, done, settings, run)
        _predictions(files, done, settings, run, out)
    for name in ("scores.json", ARCHIVE):
        storage.remove_leftovers(out, name)
    result = {**_averaged(scores), "missing": _packed(out)}
    storage.write_json(out / "scores.json", result)
    _say_table(result)
    archive = None if result["missing"] else str(out / ARCHIVE)
    lacks = f"no {ARCHIVE}: the leaderboard wants {', '.join(result['missing'])} too"
    console.info(f"for the leaderboard: {archive}" if archive else lacks)
    return {**result, "submission": archive}


def _require_mnli(found: list[TaskFiles], out: Path, config: FinetuneConfig) -> None:
    if config.from_scratch:
        raise UsageError("--from-mnli and --from-scratch exclude each other")
    if not any(files.of.name == "mnli" for files in found) and not (out / "mnli" / MANIFEST).is_file():
        raise UsageError(f"--from-mnli, but MNLI is not among the tasks and {out / 'mnli'} is no finished run of it")


def _scores(files: TaskFiles, done: Finetuned, config: FinetuneConfig, run: Path) -> dict[str, dict[str, float]]:
    """By part. The first was scored by fine-tuning."""
    first, *others = files.labelled
    found = {first: done.scores}
    for part in others:
        path = files.labelled[part]
        make = partial(_evaluated, path, done, config)
        found[part] = _once(run, f"{part.name} scores", done, path, make, partial(_scored, part))
    return {part.name: {metric: scores[metric] for metric in part.metrics} for part, scores in found.items()}


def _scored(part: SubmissionFile, scores: Any) -> bool:
    return isinstance(scores, dict) and all(type(scores.get(metric)) is float for metric in part.metrics)


def _evaluated(path: Path, done: Finetuned, config: FinetuneConfig) -> dict[str, float]:
    examples = valid_examples(done.task.reader.read(path), str(path), config.strict)
    return done.task.score([*predictions(done.model, done.task, done.tokenizer, config.max_length, examples)], examples)


def _predictions(files: TaskFiles, done: Finetuned, config: FinetuneConfig, run: Path, out: Path) -> None:
    """Write submission/NAME.tsv of each test file; one with rows that cannot be read is said and left out."""
    for part, path in files.unlabelled.items():
        target = out / "submission" / f"{part.name}.tsv"
        try:
            examples = indexed_examples(path, files)
        except UserError as error:
            for old in (out / ARCHIVE, target):
                old.unlink(missing_ok=True)
            console.warn(f"no {target.name}, which needs every row of {path.name}: {error}")
            continue
        write = partial(_write, target, examples, done, config)
        written = _once(run, f"{part.name} predictions", done, path, write, lambda hashed: isinstance(hashed, str))
        if not target.is_file() or storage.sha256(target) != written:  # lost or altered since
            write()


def _write(target: Path, examples: list[tuple[int, Example]], done: Finetuned, config: FinetuneConfig) -> str:
    """Returns the file's sha256."""
    target.parent.mkdir(exist_ok=True)
    storage.remove_leftovers(target.parent, target.name)
    (target.parent.parent / ARCHIVE).unlink(missing_ok=True)  # it would hold the predictions of before
    storage.write_atomic(target, "index\tprediction\n" + "".join(_lines(examples, done, config, target.name)))
    return storage.sha256(target)


def _lines(examples: list[tuple[int, Example]], done: Finetuned, config: FinetuneConfig, title: str) -> Iterator[str]:
    """Such as "17\\tentailment\\n"."""
    with console.progress(title, len(examples), "examples", passing=True) as bar:
        found = predictions(done.model, done.task, done.tokenizer, config.max_length, (text for _, text in examples))
        for (index, _), prediction in zip(examples, found, strict=True):
            yield f"{index}\t{_word(prediction)}\n"
            bar.advance(1)


def _word(prediction: ClassPrediction | NumberPrediction) -> str:
    if isinstance(prediction, NumberPrediction):
        return f"{min(max(prediction.score, 0.0), MAX_STSB_SCORE):.6f}"
    return prediction.label


def _once(
    run: Path, what: str, done: Finetuned, data: Path, make: Callable[[], Any], whole: Callable[[Any], bool]
) -> Any:
    """What `make` gives of a run's model and a file: made once, kept in the run's glue.json as long as it is `whole`."""
    path = run / "glue.json"
    known = storage.read_json(path) if path.is_file() else {}
    model = hashlib.sha256()
    for tensor in done.model.state_dict().values():
        model.update(tensor.cpu().contiguous().numpy())
    of = [model.hexdigest(), storage.sha256(data)]
    note = known.get(what)
    if isinstance(note, dict) and note.get("of") == of and whole(note.get("made")):
        return note["made"]
    known[what] = {"of": of, "made": make()}
    storage.write_json(path, known)
    return known[what]["made"]


def _averaged(scores: dict[str, dict[str, float]]) -> dict[str, Any]:
    """GLUE's average: of each task the mean of its metrics, then the mean of those. The diagnostic does not count."""
    means = {}
    for task in TASKS:
        values = [v for part in task.parts if part.averaged for v in scores.get(part.name, {}).values()]
        if values:
            means[task.name] = statistics.fmean(values)
    scores = {part.name: scores[part.name] for task in TASKS for part in task.parts if part.name in scores}
    return {"scores": scores, "tasks": means, "average": statistics.fmean(means.values())}


def _packed(out: Path) -> list[str]:
    """Pack what the leaderboard wants, if all of it is there, else return what is missing.

    The files lie in the archive without a folder; its bytes depend on theirs alone.
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


def _say_table(result: dict[str, Any]) -> None:
    console.info(f"{'GLUE, dev':10}{'score':>8}")
    for name, scores in result["scores"].items():
        told = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
        console.info(f"{name:10}{statistics.fmean(scores.values()):8.4f}  {told}")
    absent = [task.folder for task in TASKS if task.name not in result["tasks"]]
    without = f", without {', '.join(absent)}" if absent else ""
    console.info(f"{'average':10}{result['average']:8.4f}  of {len(result['tasks'])} of {len(TASKS)} tasks{without}")
