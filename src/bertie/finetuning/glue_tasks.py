"""The tasks of GLUE (Wang et al. 2019) and their files: a table that says all there is to know of a task, and who reads by it.

Folders and files are named as GLUE's own download names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertie import console
from bertie.errors import UsageError, UserError
from bertie.finetuning.recipe import FinetuneConfig
from bertie.tasks.classify import Classify
from bertie.tasks.data.prediction_files import index_of, require_once
from bertie.tasks.data.rows import rows, valid_examples
from bertie.tasks.data.texts import Example, headless
from bertie.tasks.regress import Regress


@dataclass(frozen=True)
class SubmissionFile:
    """What the leaderboard takes as one file, NAME.tsv. dev, test: names of files; the first one that is there counts."""

    name: str
    metrics: tuple[str, ...]
    dev: tuple[str, ...] = ("dev.tsv", "dev-subset.tsv")
    test: tuple[str, ...] = ("test.tsv",)
    folder: str = ""
    """Where its files are, if not in the task's folder."""
    averaged: bool = True
    """Whether it counts in GLUE's average."""


@dataclass(frozen=True)
class GlueTask:
    """name: its run folder; folder: that of its files; columns: of its texts, for messages. The first part is trained towards."""

    name: str
    folder: str
    task: Classify | Regress
    columns: tuple[str, ...]
    parts: tuple[SubmissionFile, ...]
    train: tuple[str, ...] = ("train.tsv", "train-subset.tsv")
    from_mnli: bool = False
    """Whether the MNLI model is a usual start for it: --from-mnli."""


_YES_NO = Classify(labels=("0", "1"))
_ENTAILED = Classify(labels=("entailment", "not_entailment"))
_THREE = Classify(labels=("contradiction", "entailment", "neutral"))
_ONE, _PAIR = ("sentence",), ("sentence1", "sentence2")
_MNLI = (
    SubmissionFile("MNLI-m", ("accuracy",), ("dev_matched.tsv", "dev_matched-subset.tsv"), ("test_matched.tsv",)),
    SubmissionFile(
        "MNLI-mm", ("accuracy",), ("dev_mismatched.tsv", "dev_mismatched-subset.tsv"), ("test_mismatched.tsv",)
    ),
    SubmissionFile(
        "AX",
        ("matthews",),
        ("diagnostic-full.tsv", "diagnostic.tsv"),
        ("diagnostic.tsv", "diagnostic-full.tsv"),
        folder="diagnostic",
        averaged=False,
    ),
)
TASKS = (
    GlueTask("cola", "CoLA", _YES_NO, _ONE, (SubmissionFile("CoLA", ("matthews",)),)),
    GlueTask("sst2", "SST-2", _YES_NO, _ONE, (SubmissionFile("SST-2", ("accuracy",)),)),
    GlueTask(
        "mrpc",
        "MRPC",
        _YES_NO,
        ("#1 String", "#2 String"),
        (SubmissionFile("MRPC", ("f1", "accuracy")),),
        from_mnli=True,
    ),
    GlueTask("stsb", "STS-B", Regress(), _PAIR, (SubmissionFile("STS-B", ("pearson", "spearman")),), from_mnli=True),
    GlueTask("qqp", "QQP", _YES_NO, ("question1", "question2"), (SubmissionFile("QQP", ("f1", "accuracy")),)),
    GlueTask("mnli", "MNLI", _THREE, _PAIR, _MNLI),
    GlueTask("qnli", "QNLI", _ENTAILED, ("question", "sentence"), (SubmissionFile("QNLI", ("accuracy",)),)),
    GlueTask("rte", "RTE", _ENTAILED, _PAIR, (SubmissionFile("RTE", ("accuracy",)),), from_mnli=True),
    GlueTask("wnli", "WNLI", _YES_NO, _PAIR, (SubmissionFile("WNLI", ("accuracy",)),)),
)
SUBMISSION = tuple(f"{part.name}.tsv" for task in TASKS for part in task.parts)


@dataclass(frozen=True)
class TaskFiles:
    """Of a task that can be trained. task: with the settings asked for; labelled, unlabelled: to score on and to predict."""

    of: GlueTask
    task: Classify | Regress
    train: Path
    labelled: dict[SubmissionFile, Path]
    unlabelled: dict[SubmissionFile, Path]


def available_tasks(folder: Path, names: Sequence[str], config: FinetuneConfig) -> list[TaskFiles]:
    """The tasks whose files are there and can be read; what is not there is said.

    Errors: UsageError, UserError: the training and dev files are read whole, so that what is wrong is found now.
    """
    chosen = _chosen(names)
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}; give the one that GLUE's download makes, with CoLA, SST-2 … in it")
    found = []
    for of in chosen:
        files, lacks = _files(folder, of, _settled(of, config))
        if files is not None:
            bare = _check(files, config.strict)
            labelled = {part: path for part, path in files.labelled.items() if part not in bare}
            found.append(replace(files, labelled=labelled))
            lacks += [f"no labels in {files.labelled[part].name}" for part in bare]
        if lacks:
            console.info(f"{of.folder}: {'; '.join(lacks)}")
    if not found:
        wanted = ", ".join(of.folder for of in chosen)
        raise UsageError(f"{folder} holds no task of GLUE: looked for train.tsv and a dev file in {wanted}")
    return found


def _chosen(names: Sequence[str]) -> list[GlueTask]:
    known = {task.name: task for task in TASKS}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no GLUE task {name!r}: choose from {', '.join(known)} (AX comes with mnli)")
        if list(names).count(name) > 1:
            raise UsageError(f"the task {name} is named twice")
    return [task for task in TASKS if not names or task.name in names]


def _settled(of: GlueTask, config: FinetuneConfig) -> Classify | Regress:
    """The table's task, reading long texts as the configuration says. Errors: UsageError where that says more than this."""
    asked = config.task
    if not isinstance(asked, Classify | Regress) or asked != type(asked)(
        truncation=asked.truncation, doc_stride=asked.doc_stride
    ):
        raise UsageError(
            "GLUE's columns and labels are known: of --task.* give only --task.truncation and --task.doc_stride"
        )
    return replace(of.task, truncation=asked.truncation, doc_stride=asked.doc_stride)


def _files(folder: Path, of: GlueTask, task: Classify | Regress) -> tuple[TaskFiles | None, list[str]]:
    """Its files, None where it cannot be trained; and in words what is missing."""

    def first(names: tuple[str, ...], inside: str = of.folder) -> Path | None:
        return next((folder / inside / name for name in names if (folder / inside / name).is_file()), None)

    if not (folder / of.folder).is_dir():
        return None, ["not in the folder, skipped"]
    train = first(of.train)
    labelled = {part: path for part in of.parts if (path := first(part.dev, part.folder or of.folder))}
    unlabelled = {part: path for part in of.parts if (path := first(part.test, part.folder or of.folder))}
    if train is None or of.parts[0] not in labelled:
        return None, [f"no {(of.parts[0].dev if train else of.train)[0]}, skipped"]
    taken = [train, *labelled.values()]
    lacks = [f"{path.name} in place of the whole" for path in taken if path.stem.endswith("-subset")]
    lacks += [f"no {part.dev[0]}" for part in of.parts if part not in labelled]
    lacks += [f"no {part.test[0]}" for part in of.parts if part not in unlabelled]
    return TaskFiles(of, task, train, labelled, unlabelled), lacks


def _check(files: TaskFiles, strict: bool) -> list[SubmissionFile]:
    """Read what will be trained and scored on. Returns further parts without labels: a diagnostic rarely has them."""
    _require(files.train, _labelled(files.train, files, strict), files.task.fit)
    bare = []
    for part, path in files.labelled.items():
        examples = _labelled(path, files, strict)
        if part != files.of.parts[0] and examples[0].label is None:
            bare.append(part)
        else:
            _require(path, examples, files.task.validate)
    return bare


def _require(path: Path, examples: list[Example], check: Callable[[list[Example]], Any]) -> None:
    if examples[0].label is None:
        raise UserError(f"{path} has no column of labels")
    try:
        check(examples)
    except UserError as error:  # it names the file and the row
        raise UserError(f"{path.parent}: {error}") from error


def _labelled(path: Path, files: TaskFiles, strict: bool) -> list[Example]:
    try:
        with console.silenced():  # fine-tuning tells what it skips
            examples = valid_examples(files.task.reader.read(path), str(path), strict)
    except UsageError as error:
        raise _other_columns(path, files.of) from error
    _require_texts(path, examples, files.of)
    return examples


def indexed_examples(path: Path, files: TaskFiles) -> list[tuple[int, Example]]:
    """Test examples under the file's own index where it has one, else the row's number from 0.

    Errors: UserError, also for an index that is no whole number, or there twice.
    """
    found = []
    try:
        for number, (row, example) in enumerate(zip(rows(path, headless), files.task.reader.stream(path), strict=True)):
            if isinstance(row, UserError):
                raise row
            if isinstance(example, UserError):
                raise example
            index = row.values.get("index", row.values.get("id", str(number)))
            found.append((index_of(index, row.place), example))
    except UsageError as error:
        raise _other_columns(path, files.of) from error
    if not found:
        raise UserError(f"{path}: no examples in it")
    require_once((f"index {index}" for index, _ in found), str(path))
    _require_texts(path, [example for _, example in found], files.of)
    return found


def _require_texts(path: Path, examples: list[Example], of: GlueTask) -> None:
    if any((example.text_pair is None) != (len(of.columns) == 1) for example in examples):
        raise _other_columns(path, of)


def _other_columns(path: Path, of: GlueTask) -> UserError:
    return UserError(f"{path}: not the columns of {of.folder}, which are {' and '.join(of.columns)}: take GLUE's file")
