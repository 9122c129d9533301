"""All of GLUE in one call, on synthetic files in the layouts of its download."""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.read import read_checkpoint
from bertie.cli import main
from bertie.finetuning import glue as glue_module
from bertie.finetuning.finetune import Finetuned
from bertie.finetuning.glue import glue
from bertie.finetuning.glue_tasks import SUBMISSION, TASKS
from bertie.tasks import Classify, Regress, Span

CONFIG = fine_tuning(1)
WORDS = {
    "CoLA": ("0", "1"),
    "SST-2": ("0", "1"),
    "MRPC": ("0", "1"),
    "QQP": ("0", "1"),
    "MNLI": ("contradiction", "entailment", "neutral"),
    "QNLI": ("entailment", "not_entailment"),
    "RTE": ("entailment", "not_entailment"),
    "WNLI": ("0", "1"),
}
PARSES = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
SCORED = "index genre filename year old_index source1 source2 sentence1 sentence2"
# Columns of each file in GLUE's download; a leading "-" means that the file has no header.
LAYOUTS = {
    "CoLA/train.tsv": "- label mark sentence",
    "CoLA/dev.tsv": "- label mark sentence",
    "CoLA/test.tsv": "index|sentence",
    "SST-2/train.tsv": "sentence|label",
    "SST-2/dev.tsv": "sentence|label",
    "SST-2/test.tsv": "index|sentence",
    "MRPC/train.tsv": "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "MRPC/dev.tsv": "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "MRPC/test.tsv": "index|#1 ID|#2 ID|#1 String|#2 String",
    "STS-B/train.tsv": f"{SCORED} score".replace(" ", "|"),
    "STS-B/dev.tsv": f"{SCORED} score".replace(" ", "|"),
    "STS-B/test.tsv": SCORED.replace(" ", "|"),
    "QQP/train.tsv": "id|qid1|qid2|question1|question2|is_duplicate",
    "QQP/dev.tsv": "id|qid1|qid2|question1|question2|is_duplicate",
    "QQP/test.tsv": "id|question1|question2",
    "MNLI/train.tsv": f"{PARSES} sentence1 sentence2 label1 gold_label".replace(" ", "|"),
    "MNLI/dev_matched.tsv": f"{PARSES} sentence1 sentence2 label1 label2 gold_label".replace(" ", "|"),
    "MNLI/dev_mismatched.tsv": f"{PARSES} sentence1 sentence2 label1 label2 gold_label".replace(" ", "|"),
    "MNLI/test_matched.tsv": f"{PARSES} sentence1 sentence2".replace(" ", "|"),
    "MNLI/test_mismatched.tsv": f"{PARSES} sentence1 sentence2".replace(" ", "|"),
    "QNLI/train.tsv": "index|question|sentence|label",
    "QNLI/dev.tsv": "index|question|sentence|label",
    "QNLI/test.tsv": "index|question|sentence",
    "RTE/train.tsv": "index|sentence1|sentence2|label",
    "RTE/dev.tsv": "index|sentence1|sentence2|label",
    "RTE/test.tsv": "index|sentence1|sentence2",
    "WNLI/train.tsv": "index|sentence1|sentence2|label",
    "WNLI/dev.tsv": "index|sentence1|sentence2|label",
    "WNLI/test.tsv": "index|sentence1|sentence2",
    "diagnostic/diagnostic.tsv": "index|sentence1|sentence2",
    "diagnostic/diagnostic-full.tsv": "Lexical Semantics|Logic|Domain|Premise|Hypothesis|Label",
}
TEXTS = ("sentence", "sentence1", "#1 String", "question1", "question", "Premise")
SECOND = ("sentence2", "#2 String", "question2", "Hypothesis")
LABELS = ("label", "Quality", "is_duplicate", "gold_label", "Label")


def table(name: str, columns: str, texts: list[str], count: int) -> str:
    """`count` rows; the first word determines the label."""
    folder = name.split("/")[0]
    words = WORDS.get(folder, WORDS["MNLI"])
    headless = columns.startswith("- ")
    header = columns.split(" " if headless else "|")

    def cell(column: str, i: int) -> str:
        if column in LABELS:
            return words[i % len(words)]
        if column in ("index", "id"):
            return str(i)
        if column == "score":
            return f"{i % 6}.000"
        if column in TEXTS and not (column == "sentence" and "question" in header):
            return f"{('and', 'in', 'of')[i % len(words)]} {texts[i][:20]}"
        if column in SECOND or column == "sentence":
            return texts[i + 1][:20]
        return "" if column == "mark" else "x"

    lines = [] if headless else [header]
    lines += [[cell(column, i) for column in header] for i in range(count)]
    return "".join("\t".join(line) + "\n" for line in lines)


@pytest.fixture(scope="module")
def whole(small_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of GLUE, including labels of the diagnostic. Copy it to change it."""
    folder = tmp_path_factory.mktemp("glue")
    for name, columns in LAYOUTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(table(name, columns, small_texts, 24 if "train" in name else 12))
    return folder


@pytest.fixture
def some(whole: Path, tmp_path: Path) -> Path:
    """CoLA, STS-B and RTE, to change."""
    for name in ("CoLA", "STS-B", "RTE"):
        shutil.copytree(whole / name, tmp_path / "some" / name)
    return tmp_path / "some"


@pytest.fixture(scope="module")
def done(whole: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("done") / "out"
    return out, glue(whole, start, out, CONFIG, threads=1)


def written(folder: Path) -> dict[str, str]:
    """The hash of every file, except for files that depend on time or machine."""
    times = ("environment.json", "metrics.jsonl", "report.html", "manifest.json", "counters.json", ".lock")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in times]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_scores_are_the_official_metrics_of_each_task(done: tuple[Path, dict[str, Any]], whole: Path) -> None:
    out, result = done
    metrics = {name: set(scores) for name, scores in result["scores"].items()}
    assert metrics == {
        "CoLA": {"matthews"},
        "SST-2": {"accuracy"},
        "MRPC": {"f1", "accuracy"},
        "STS-B": {"pearson", "spearman"},
        "QQP": {"f1", "accuracy"},
        "MNLI-m": {"accuracy"},
        "MNLI-mm": {"accuracy"},
        "AX": {"matthews"},
        "QNLI": {"accuracy"},
        "RTE": {"accuracy"},
        "WNLI": {"accuracy"},
    }
    for name, run, data in (
        ("MRPC", "mrpc", "MRPC/dev.tsv"),
        ("STS-B", "stsb", "STS-B/dev.tsv"),
        ("MNLI-mm", "mnli", "MNLI/dev_mismatched.tsv"),
        ("AX", "mnli", "diagnostic/diagnostic-full.tsv"),
    ):
        scores = bertie.load(out / run, threads=1).evaluate(whole / data)["scores"]
        assert result["scores"][name] == {metric: pytest.approx(scores[metric]) for metric in result["scores"][name]}


def test_average_is_over_tasks_not_over_metrics(done: tuple[Path, dict[str, Any]]) -> None:
    _, result = done
    scores = result["scores"]
    assert list(result["tasks"]) == [task.name for task in TASKS]
    assert result["tasks"]["stsb"] == pytest.approx((scores["STS-B"]["pearson"] + scores["STS-B"]["spearman"]) / 2)
    both = (scores["MNLI-m"]["accuracy"] + scores["MNLI-mm"]["accuracy"]) / 2
    assert result["tasks"]["mnli"] == pytest.approx(both)  # AX does not count
    assert result["average"] == pytest.approx(statistics.fmean(result["tasks"].values()))


def test_submission_has_the_files_of_the_leaderboard(done: tuple[Path, dict[str, Any]], whole: Path) -> None:
    out, result = done
    assert result["missing"] == []
    assert result["submission"] == str(out / "submission.zip")
    assert set(SUBMISSION) == {path.name for path in (out / "submission").iterdir()}
    for name in SUBMISSION:
        header, *lines = (out / "submission" / name).read_text().splitlines()
        assert header == "index\tprediction"
        index, words = zip(*(line.split("\t") for line in lines), strict=True)
        assert index == tuple(map(str, range(12)))
        title = name.removesuffix(".tsv")
        if title == "STS-B":
            assert all(0 <= float(word) <= 5 for word in words)
        else:
            assert set(words) <= set(WORDS.get(title, WORDS["MNLI"]))
    for name, run, data in (("RTE", "rte", "RTE/test.tsv"), ("AX", "mnli", "diagnostic/diagnostic.tsv")):
        labels = [prediction.label for prediction in bertie.load(out / run, threads=1).predict_file(whole / data)]
        lines = (out / "submission" / f"{name}.tsv").read_text().splitlines()[1:]
        assert [line.split("\t")[1] for line in lines] == labels
    with zipfile.ZipFile(out / "submission.zip") as archive:
        assert archive.namelist() == list(SUBMISSION)
        for name in SUBMISSION:
            assert archive.read(name) == (out / "submission" / name).read_bytes()


def test_predictions_of_stsb_are_clipped_to_its_scale(whole: Path, start: Path, tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    stsb = shutil.copytree(whole / "STS-B", tmp_path / "some" / "STS-B")
    for name in ("train.tsv", "dev.tsv"):
        lines = (stsb / name).read_text().splitlines()
        far = ["\t".join([*line.split("\t")[:-1], str(-40 - i % 2)]) for i, line in enumerate(lines[1:])]
        (stsb / name).write_text("\n".join([lines[0], *far]) + "\n")
    long = replace(CONFIG, training=replace(CONFIG.training, steps=60, learning_rate=3e-2))
    glue(tmp_path / "some", start, tmp_path / "out", long, threads=1)
    lines = (tmp_path / "out" / "submission" / "STS-B.tsv").read_text().splitlines()
    assert lines[1:] == [f"{i}\t0.000000" for i in range(12)]


def test_second_call_trains_nothing(
    done: tuple[Path, dict[str, Any]], whole: Path, start: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(done[0], tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    again = glue(whole, start, out, CONFIG, threads=1)
    assert {**again, "submission": None} == {**done[1], "submission": None}
    changed = {path.name for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert changed == {"scores.json", "submission.zip"}
    assert written(out) == written(done[0])


@pytest.mark.parametrize(
    ("what", "number"),
    [("finetune", 2), pytest.param("predict_stream", 2, marks=pytest.mark.slow), ("predict_stream", 6)],
)
def test_interrupted_glue_resumes_to_the_same_result(
    done: tuple[Path, dict[str, Any]],
    whole: Path,
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    number: int,
) -> None:
    owner = glue_module if what == "finetune" else Finetuned
    act, out, calls, tasks = getattr(owner, what), tmp_path / "out", [], ("cola", "stsb", "mnli")

    def interrupted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == number:
            raise KeyboardInterrupt
        return act(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, what, interrupted)
        with pytest.raises(KeyboardInterrupt):
            glue(whole, start, out, CONFIG, tasks=tasks, threads=1)
    assert not (out / "scores.json").exists()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert before
    result = glue(whole, start, out, CONFIG, tasks=tasks, threads=1)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert result["scores"] == {name: done[1]["scores"][name] for name in result["scores"]}
    again, undisturbed = written(out), written(done[0])
    assert "submission/AX.tsv" in again
    assert {name: undisturbed[name] for name in again if name != "scores.json"} == {
        name: hashed for name, hashed in again.items() if name != "scores.json"
    }


def test_lost_or_changed_submission_file_is_restored(
    done: tuple[Path, dict[str, Any]], whole: Path, start: Path
) -> None:
    out, before = done[0], written(done[0])
    (out / "submission" / "RTE.tsv").unlink()
    (out / "submission" / "CoLA.tsv").write_text("index\tprediction\n")
    glue(whole, start, out, CONFIG, threads=1)
    assert written(out) == before


def test_archive_is_removed_if_a_file_is_missing(
    done: tuple[Path, dict[str, Any]], whole: Path, start: Path, tmp_path: Path
) -> None:
    folder, out = shutil.copytree(whole, tmp_path / "glue"), shutil.copytree(done[0], tmp_path / "out")
    test = folder / "SST-2" / "test.tsv"
    test.write_text(test.read_text() + "12\n")
    assert glue(folder, start, out, CONFIG, tasks=["sst2"], threads=1)["missing"] == ["SST-2.tsv"]
    assert not (out / "submission.zip").exists()


def test_changed_test_file_is_predicted_again_with_its_own_index(
    done: tuple[Path, dict[str, Any]], some: Path, start: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(done[0] / "rte", out / "rte")
    glue(some, start, out, CONFIG, tasks=["rte"], threads=1)
    first = (out / "submission" / "RTE.tsv").read_text().splitlines()
    header, *lines = (some / "RTE" / "test.tsv").read_text().splitlines()
    (some / "RTE" / "test.tsv").write_text("\n".join([header, *reversed(lines)]) + "\n")
    glue(some, start, out, CONFIG, tasks=["rte"], threads=1)
    again = (out / "submission" / "RTE.tsv").read_text().splitlines()
    assert again == [first[0], *reversed(first[1:])]


def test_missing_files_are_reported_and_skipped(
    done: tuple[Path, dict[str, Any]], whole: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = shutil.copytree(whole, tmp_path / "glue"), tmp_path / "out"
    for name in ("cola", "mrpc", "stsb", "rte"):  # so that they are not trained again
        shutil.copytree(done[0] / name, out / name)
    shutil.rmtree(folder / "SST-2")
    (folder / "CoLA" / "test.tsv").unlink()
    (folder / "QNLI" / "dev.tsv").unlink()
    (folder / "WNLI" / "train.tsv").unlink()
    (folder / "QQP" / "train.tsv").rename(folder / "QQP" / "train-subset.tsv")
    (folder / "MNLI" / "dev_mismatched.tsv").unlink()
    (folder / "diagnostic" / "diagnostic-full.tsv").unlink()
    result = glue(folder, start, out, CONFIG, threads=1)
    output = capsys.readouterr().err.splitlines()
    for line in (
        "SST-2: not in the folder, skipped",
        "CoLA: no test.tsv",
        "QNLI: no dev.tsv, skipped",
        "WNLI: no train.tsv, skipped",
        "QQP: using the subset train-subset.tsv",
        "MNLI: no dev_mismatched.tsv; no labels in diagnostic.tsv",
    ):
        assert line in output
    assert set(result["scores"]) == {"CoLA", "MRPC", "STS-B", "QQP", "MNLI-m", "RTE"}
    assert result["missing"] == ["CoLA.tsv", "SST-2.tsv", "QNLI.tsv", "WNLI.tsv"]
    assert result["submission"] is None
    assert not (out / "submission.zip").exists()
    assert "no submission.zip: the leaderboard also needs CoLA.tsv, SST-2.tsv, QNLI.tsv, WNLI.tsv" in output
    assert any(line.endswith("over 6 of 9 tasks, without SST-2, QNLI, WNLI") for line in output)
    assert json.loads((out / "scores.json").read_text()) == {k: v for k, v in result.items() if k != "submission"}


def test_archive_is_written_after_the_last_of_separate_calls(
    done: tuple[Path, dict[str, Any]], whole: Path, start: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(done[0], tmp_path / "out")
    for path in (out / "rte", out / "submission" / "RTE.tsv", out / "submission.zip"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert glue(whole, start, out, CONFIG, tasks=["cola"], threads=1)["missing"] == ["RTE.tsv"]
    assert glue(whole, start, out, CONFIG, tasks=["rte"], threads=1)["missing"] == []
    assert (out / "submission.zip").read_bytes() == (done[0] / "submission.zip").read_bytes()


def test_from_mnli_starts_three_tasks_from_the_mnli_run(
    whole: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, started = glue_module.finetune, {}

    def noted(config: Any, train_file: Any, model: Any, out: Path, **named: Any) -> Any:
        started[out.name] = model if isinstance(model, Path) else model.folder
        return train(config, train_file, model, out, **named)

    monkeypatch.setattr(glue_module, "finetune", noted)
    out = tmp_path / "out"
    tasks = ("cola", "mnli", "mrpc", "stsb", "rte")
    result = glue(whole, start, out, CONFIG, tasks=tasks, from_mnli=True, threads=1)
    mnli = dict.fromkeys(("mrpc", "stsb", "rte"), out / "mnli")
    assert next(iter(started)) == "mnli"
    assert started == {task: mnli.get(task, start) for task in tasks}
    assert capsys.readouterr().err.count("; dropped its classify head") == 3
    assert list(result["scores"])[:3] == ["CoLA", "MRPC", "STS-B"]  # in GLUE's order, whichever was trained first
    with pytest.raises(UsageError, match="was made from other data or another model"):
        glue(whole, start, out, CONFIG, tasks=tasks, threads=1)


def test_run_of_another_task_gives_encoder_and_pooler_but_not_its_head(
    done: tuple[Path, dict[str, Any]], whole: Path, start: Path
) -> None:
    no_training = replace(CONFIG, training=replace(CONFIG.training, steps=1, learning_rate=1e-30))
    mnli, base = read_checkpoint(done[0] / "mnli").weights, read_checkpoint(start).weights
    shared = [name for name in mnli if not name.startswith("heads.")]
    assert not all(torch.equal(mnli[name], base[name]) for name in shared)
    for task, folder in ((Classify(), "RTE"), (Regress(), "STS-B")):
        files, config = (whole / folder / "train.tsv", whole / folder / "dev.tsv"), replace(no_training, task=task)
        found = bertie.finetune(config, files[0], done[0] / "mnli", dev=files[1], threads=1).model.state_dict()
        fresh = bertie.finetune(config, files[0], start, dev=files[1], threads=1).model.state_dict()
        assert all(torch.equal(found[name], mnli[name]) for name in shared if name.startswith("encoder."))
        assert torch.equal(found[f"heads.{task.kind}.pooler.weight"], mnli["pooler.weight"])
        assert torch.equal(found[f"heads.{task.kind}.out.weight"], fresh[f"heads.{task.kind}.out.weight"])


def test_from_mnli_needs_mnli_or_a_finished_run_of_it(some: Path, whole: Path, start: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--from-mnli needs MNLI among the tasks, or a finished run of it in .*/mnli"):
        glue(some, start, tmp_path / "out", CONFIG, from_mnli=True, threads=1)
    with pytest.raises(UsageError, match="--from-mnli does not work with --from-scratch"):
        glue(whole, start, tmp_path / "out", replace(CONFIG, from_scratch=True), from_mnli=True, threads=1)
    assert not (tmp_path / "out").exists()


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced("RTE/dev.tsv", "\tlabel", "\tnote"), "RTE: dev.tsv:2: no label"),
        (replaced("STS-B/train.tsv", "\tscore", "\tnote"), "STS-B: train.tsv:2: no "),
        (
            replaced("RTE/dev.tsv", "\tsentence2", "\tother"),
            "RTE/dev.tsv: not the columns of RTE: expected sentence1 and",
        ),
        (replaced("RTE/dev.tsv", "sentence1\tsentence2", "sentence\tx"), "RTE/dev.tsv: not the columns of RTE"),
        (replaced("RTE/dev.tsv", "not_entailment", "no"), "RTE: dev.tsv:3: .*'no'.*; the classes are entailment, not"),
        (lambda folder: (folder / "RTE" / "train.tsv").write_bytes(b"\xff\x00\n"), "RTE/train.tsv:1: not UTF-8"),
        (lambda folder: (folder / "RTE" / "train.tsv").write_text(""), "RTE/train.tsv is empty"),
        (lambda folder: (folder / "CoLA" / "dev.tsv").write_text("one\ttwo\n"), "CoLA/dev.tsv: "),
    ],
)
def test_bad_files_are_refused_before_anything_is_trained(
    some: Path, start: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    change(some)
    with pytest.raises(UserError, match=message):
        glue(some, start, tmp_path / "out", CONFIG, threads=1)
    assert not (tmp_path / "out").exists()


def test_malformed_rows_of_training_are_skipped_unless_strict(
    some: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(some / "RTE" / "train.tsv", "a") as file:
        file.write("24\tonly this\n")
    with pytest.raises(UserError, match=r"RTE/train.tsv:26: 2 columns, but the first line has 4"):
        glue(some, start, tmp_path / "out", replace(CONFIG, strict=True), tasks=["rte"], threads=1)
    glue(some, start, tmp_path / "out", CONFIG, tasks=["rte"], threads=1)
    assert capsys.readouterr().err.count("1 of 25 rows are skipped") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            replaced("RTE/test.tsv", "\tsentence2", "\tother"),
            "not the columns of RTE: expected sentence1 and sentence2",
        ),
        (replaced("RTE/test.tsv", "sentence1\tsentence2", "sentence\tx"), "not the columns of RTE"),
        (replaced("RTE/test.tsv", "\n5\t", "\n5 "), "RTE/test.tsv:7: 2 columns, but the first line has 3"),
        (lambda folder: (folder / "RTE" / "test.tsv").write_text("index\tsentence1\tsentence2\n"), "no examples"),
        (replaced("RTE/test.tsv", "\n5\t", "\nx\t"), "RTE/test.tsv:7: the index is 'x', but must be a number from 0"),
        (replaced("RTE/test.tsv", "\n5\t", "\n\t"), "RTE/test.tsv:7: the index is '', but must be a number from 0"),
        (replaced("RTE/test.tsv", "\n5\t", "\n4\t"), "RTE/test.tsv: index 4 occurs twice"),
    ],
)
def test_bad_test_file_gets_no_submission_file(
    done: tuple[Path, dict[str, Any]],
    some: Path,
    start: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], None],
    message: str,
) -> None:
    change(some)
    shutil.copytree(done[0] / "rte", tmp_path / "out" / "rte")  # so that nothing is trained
    result = glue(some, start, tmp_path / "out", CONFIG, tasks=["rte"], threads=1)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "did not write RTE.tsv" in line]
    assert message in line
    assert not (tmp_path / "out" / "submission" / "RTE.tsv").exists()
    assert "RTE.tsv" in result["missing"]
    assert result["scores"]["RTE"]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (["sst-3"], "no GLUE task 'sst-3' .*did you mean 'sst2'"),
        (["mnli"], "has no task of GLUE: looked for train.tsv and a dev file in MNLI"),
    ],
)
def test_wrong_tasks_are_refused(some: Path, start: Path, tmp_path: Path, tasks: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        glue(some, start, tmp_path / "out", CONFIG, tasks=tasks, threads=1)


def test_task_settings_without_effect_are_refused(some: Path, start: Path, tmp_path: Path) -> None:
    for task in (Classify(text="sentence"), Classify(labels=("a", "b")), Span()):
        with pytest.raises(UsageError, match=r"set only --task.truncation, --task.doc-stride and --task.pooling"):
            glue(some, start, tmp_path / "out", replace(CONFIG, task=task), threads=1)
    windows = replace(CONFIG, task=Regress(truncation="windows", doc_stride=16))
    result = glue(some, start, tmp_path / "out", windows, tasks=["rte"], threads=1)
    assert set(result["scores"]) == {"RTE"}
    assert json.loads((tmp_path / "out" / "rte" / "task.json").read_text())["truncation"] == "windows"


def test_glue_with_restarts_and_a_configuration_file(
    some: Path, whole: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores are those on the report half; mismatched MNLI, which is not used for selection, is scored completely."""
    shutil.copytree(whole / "MNLI", some / "MNLI")
    (tmp_path / "mine.toml").write_text('extends = "classify"\nmax_length = 24\n[optimizer]\nkind = "bert_adam"\n')
    out = tmp_path / "out"
    flags = f"--config {tmp_path / 'mine.toml'} --restarts 2 --seed 3 --training.steps 2 --threads 1 --json"
    argv = ["glue", str(some), "--model", str(start), "--out", str(out), "--tasks", "mnli", "rte", *flags.split()]
    assert main(argv) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["seeds"] == [3, 4]
    for name, part in (("rte", "RTE"), ("mnli", "MNLI-m")):
        assert 'kind = "bert_adam"' in (out / name / "config.toml").read_text()
        sweep = json.loads((out / name / "sweep.json").read_text())
        [best] = [run for run in sweep["runs"] if run["name"] == sweep["best"]]
        assert result["scores"][part]["accuracy"] == best["report_scores"]["accuracy"]
    again = bertie.load(out / "mnli", threads=1).evaluate(some / "MNLI" / "dev_mismatched.tsv")
    assert again["examples"] == 12
    assert result["scores"]["MNLI-mm"]["accuracy"] == again["scores"]["accuracy"]


def test_command_prints_a_table_and_json(
    some: Path, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    flags = "--max-length 24 --training.epochs 1 --max-train-examples 16 --seed 3 --threads 1 --json"
    argv = ["glue", str(some), "--model", str(start), "--out", out, "--tasks", "rte", "stsb", *flags.split()]
    assert main(argv) == 0
    output = capsys.readouterr()
    result = json.loads(output.out.splitlines()[-1])
    assert (result["run"], result["seeds"], result["submission"]) == (out, [3], None)
    assert list(result["scores"]) == ["STS-B", "RTE"]
    rte = next(line for line in output.err.splitlines() if line.startswith("RTE  "))
    accuracy = f"{result['scores']['RTE']['accuracy']:.4f}"
    assert rte.split() == ["RTE", f"{result['tasks']['rte']:.4f}", "accuracy", accuracy]
    for folder, message in ((tmp_path / "nosuch", "no such folder"), (tmp_path / "out", "has no task of GLUE")):
        assert main(["glue", str(folder), "--model", str(start), "--out", out]) == 2
        assert message in capsys.readouterr().err
