"""The tasks of GLUE (Wang et al. 2019): a table of their files, labels and metrics, and functions that read the files.

Folders and files have the names of GLUE's own download.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bertie.base import console
from bertie.base.errors import UsageError, UserError, did_you_mean, naming
from bertie.examples.left_out import valid_examples
from bertie.examples.rows import read_rows
from bertie.examples.texts import Example, cola_columns
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.heads.text_pooling import for_one_text
from bertie.tasks.classify import Classify
from bertie.tasks.prediction_files import index_of, require_once
from bertie.tasks.regress import Regress
from bertie.tasks.scoring import labeled_examples


@dataclass(frozen=True)
class SubmissionFile:
    """One file of a leaderboard submission, NAME.tsv, and the dev and test files that belong to it."""

    name: str
    """The name of the file without suffix."""
    metrics: tuple[str, ...]
    """The official metrics."""
    dev: tuple[str, ...] = ("dev.tsv", "dev-subset.tsv")
    """Possible names of the dev file; the first one that exists is used."""
    test: tuple[str, ...] = ("test.tsv",)
    """Possible names of the test file; the first one that exists is used."""
    folder: str = ""
    """The folder of the files, if the task has another one."""
    averaged: bool = True
    """Whether it counts in GLUE's average."""


@dataclass(frozen=True)
class GlueTask:
    """One task of GLUE."""

    name: str
    """The name of the task, and of its run folder."""
    folder: str
    """The folder of its files in GLUE's download."""
    task: Classify | Regress
    """The fine-tuning task."""
    columns: tuple[str, ...]
    """The columns of its texts, for messages."""
    parts: tuple[SubmissionFile, ...]
    """Its submission files; the dev file of the first one is used during fine-tuning."""
    train: tuple[str, ...] = ("train.tsv", "train-subset.tsv")
    """Possible names of the training file; the first one that exists is used."""
    from_mnli: bool = False
    """Whether --from-mnli starts it from the fine-tuned MNLI model."""


_YES_NO = Classify(labels=("0", "1"))
_ENTAILED = Classify(labels=("entailment", "not_entailment"))
_THREE = Classify(labels=("contradiction", "entailment", "neutral"))
_ONE, _PAIR = ("sentence",), ("sentence1", "sentence2")
_ACCURACY, _MATTHEWS, _F1 = ("accuracy",), ("matthews",), ("f1", "accuracy")
_FULL, _TEST = "diagnostic-full.tsv", "diagnostic.tsv"
_MNLI = (
    SubmissionFile("MNLI-m", _ACCURACY, ("dev_matched.tsv", "dev_matched-subset.tsv"), ("test_matched.tsv",)),
    SubmissionFile("MNLI-mm", _ACCURACY, ("dev_mismatched.tsv", "dev_mismatched-subset.tsv"), ("test_mismatched.tsv",)),
    SubmissionFile("AX", _MATTHEWS, (_FULL, _TEST), (_TEST, _FULL), folder="diagnostic", averaged=False),
)
TASKS = (
    GlueTask("cola", "CoLA", _YES_NO, _ONE, (SubmissionFile("CoLA", _MATTHEWS),)),
    GlueTask("sst2", "SST-2", _YES_NO, _ONE, (SubmissionFile("SST-2", _ACCURACY),)),
    GlueTask("mrpc", "MRPC", _YES_NO, ("#1 String", "#2 String"), (SubmissionFile("MRPC", _F1),), from_mnli=True),
    GlueTask("stsb", "STS-B", Regress(), _PAIR, (SubmissionFile("STS-B", ("pearson", "spearman")),), from_mnli=True),
    GlueTask("qqp", "QQP", _YES_NO, ("question1", "question2"), (SubmissionFile("QQP", _F1),)),
    GlueTask("mnli", "MNLI", _THREE, _PAIR, _MNLI),
    GlueTask("qnli", "QNLI", _ENTAILED, ("question", "sentence"), (SubmissionFile("QNLI", _ACCURACY),)),
    GlueTask("rte", "RTE", _ENTAILED, _PAIR, (SubmissionFile("RTE", _ACCURACY),), from_mnli=True),
    GlueTask("wnli", "WNLI", _YES_NO, _PAIR, (SubmissionFile("WNLI", _ACCURACY),)),
)
SUBMISSION = tuple(f"{part.name}.tsv" for task in TASKS for part in task.parts)


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task that can be trained."""

    of: GlueTask
    """The task of GLUE."""
    task: Classify | Regress
    """The fine-tuning task, with the truncation and pooling of the configuration."""
    train: Path
    """The training file."""
    labeled: dict[SubmissionFile, Path]
    """The dev files, to score on."""
    unlabeled: dict[SubmissionFile, Path]
    """The test files, to predict."""


def available_tasks(folder: Path, names: Sequence[str], config: FinetuneConfig) -> list[TaskFiles]:
    """Return the tasks whose files exist, and report what is missing.

    Reads the training and dev files completely, so that errors in them are found before training.

    Args:
        folder: The folder of GLUE's download.
        names: Names of tasks; empty for all.
        config: The configuration for all tasks.

    Raises:
        UserError: A training or dev file cannot be used.
        UsageError: The folder has no task, a name is unknown, or the configuration sets columns or labels.
    """
    selected = _select(names)
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}; give the folder of GLUE's download, with CoLA, SST-2 … in it")
    available = []
    for of in selected:
        files, notes = _files(folder, of, _configured(of, config))
        if files is not None:
            without_labels = _check(files, config.strict)
            labeled = {part: path for part, path in files.labeled.items() if part not in without_labels}
            available.append(replace(files, labeled=labeled))
            notes += [f"no labels in {files.labeled[part].name}" for part in without_labels]
        if notes:
            console.info(f"{of.folder}: {'; '.join(notes)}")
    if not available:
        expected = ", ".join(of.folder for of in selected)
        raise UsageError(f"{folder} has no task of GLUE: looked for train.tsv and a dev file in {expected}")
    return available


def _select(names: Sequence[str]) -> list[GlueTask]:
    known = [task.name for task in TASKS]
    for name in names:
        if name not in known:
            listed = f"(of {', '.join(known)}; AX comes with mnli)"
            raise UsageError(f"there is no GLUE task {name!r} {listed}{did_you_mean(name, known)}")
    return [task for task in TASKS if not names or task.name in names]


def _configured(of: GlueTask, config: FinetuneConfig) -> Classify | Regress:
    """Return the table's task with the truncation and pooling of the configuration.

    A single text has another pooling, if the pooling of pairs is between two texts.

    Raises UsageError if the configuration sets other fields.
    """
    asked = config.task
    if not isinstance(asked, Classify | Regress) or asked != type(asked)(
        truncation=asked.truncation, doc_stride=asked.doc_stride, pooling=asked.pooling
    ):
        raise UsageError(
            "GLUE determines its tasks: of --task.*, set only --task.truncation, --task.doc-stride and --task.pooling"
        )
    pooling = for_one_text(asked.pooling) if of.columns == _ONE else asked.pooling
    return replace(of.task, truncation=asked.truncation, doc_stride=asked.doc_stride, pooling=pooling)


def _files(folder: Path, of: GlueTask, task: Classify | Regress) -> tuple[TaskFiles | None, list[str]]:
    """Return the files of a task, or None if it cannot be trained, and notes on what is missing."""

    def first(names: tuple[str, ...], inside: str = of.folder) -> Path | None:
        return next((folder / inside / name for name in names if (folder / inside / name).is_file()), None)

    if not (folder / of.folder).is_dir():
        return None, ["not in the folder, skipped"]
    train = first(of.train)
    labeled = {part: path for part in of.parts if (path := first(part.dev, part.folder or of.folder))}
    unlabeled = {part: path for part in of.parts if (path := first(part.test, part.folder or of.folder))}
    if train is None or of.parts[0] not in labeled:
        return None, [f"no {(of.parts[0].dev if train else of.train)[0]}, skipped"]
    used = [train, *labeled.values()]
    notes = [f"using the subset {path.name}" for path in used if path.stem.endswith("-subset")]
    notes += [f"no {part.dev[0]}" for part in of.parts if part not in labeled]
    notes += [f"no {part.test[0]}" for part in of.parts if part not in unlabeled]
    return TaskFiles(of, task, train, labeled, unlabeled), notes


def _check(files: TaskFiles, strict: bool) -> list[SubmissionFile]:
    """Check the training and dev files.

    Returns the parts after the first whose dev file has no labels: the diagnostic's rarely has.
    """
    examples, without_labels = _labeled_examples(files.train, files, strict), []
    with naming(files.train.parent):  # before the file and the row
        files.task.fit(examples)
    for part, path in files.labeled.items():
        columns = files.task.reader.columns(path)
        if part != files.of.parts[0] and columns and "label" not in columns:
            without_labels.append(part)
            continue
        examples = _labeled_examples(path, files, strict)
        with naming(path.parent):
            files.task.validate(examples)
    return without_labels


def _labeled_examples(path: Path, files: TaskFiles, strict: bool) -> list[Example]:
    try:
        with console.silenced():  # fine-tuning will report skipped rows
            examples = labeled_examples(files.task.reader, path, strict)
    except UsageError as error:
        raise _other_columns(path, files.of) from error
    _require_texts(path, examples, files.of)
    return examples


def indexed_examples(path: Path, files: TaskFiles) -> list[tuple[int, Example]]:
    """Read the test examples with their indices: the file's index column, or else the row number from 0.

    Args:
        path: The test file.
        files: The files of the task.

    Raises:
        UserError: A row cannot be read, or an index is not a number or occurs twice.
    """
    try:
        rows = valid_examples(read_rows(path, cola_columns), str(path), strict=True)
        examples = valid_examples(files.task.reader.stream(path), str(path), strict=True)
    except UsageError as error:
        raise _other_columns(path, files.of) from error
    named = [row.values.get("index", row.values.get("id", str(number))) for number, row in enumerate(rows)]
    indices = [index_of(index, row.place) for index, row in zip(named, rows, strict=True)]
    require_once((f"index {index}" for index in indices), str(path))
    _require_texts(path, examples, files.of)
    return list(zip(indices, examples, strict=True))


def _require_texts(path: Path, examples: list[Example], of: GlueTask) -> None:
    if any((example.text_pair is None) != (len(of.columns) == 1) for example in examples):
        raise _other_columns(path, of)


def _other_columns(path: Path, of: GlueTask) -> UserError:
    expected = f"{' and '.join(of.columns)}, and a label unless it is a test file"
    return UserError(f"{path}: not the columns of {of.folder}: expected {expected}, as in GLUE's download")
