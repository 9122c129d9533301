"""The examples: every row of their data is read, and their scripts run, with a model of a few steps."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.system.test_serve import process

import bertie
from bertie.commands.parser import parse
from bertie.corpus import readers
from bertie.tasks import AnyTask, Choose, Classify, Embed, MultiLabel, Regress, Relate, Span, Tag

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = EXAMPLES / "data"
REVIEWS = {"reviews.csv": 3, "reviews.fr.csv": 2, "reviews.ja.csv": 2, "reviews.th.csv": 2}
TASKS: dict[str, tuple[AnyTask, int]] = {  # with the number of labels, 0 for numbers
    **{name: (Classify(), classes) for name, classes in REVIEWS.items()},
    "topics.csv": (MultiLabel(), 6),
    "pairs.csv": (Regress(), 51),
    "search.jsonl": (Embed(), 0),
    "search": (Embed(), 0),
    "entities.conll": (Tag(), 7),
    "relations.jsonl": (Relate(), 5),
    "questions.json": (Span(), 2),
    "choices.csv": (Choose(), 4),
}
TEXTS = ("text.jsonl", "text.fr.jsonl", "text.ja.jsonl")


@pytest.mark.parametrize("name", TASKS)
def test_a_task_reads_every_row_of_its_data(name: str) -> None:
    task, labels = TASKS[name]
    found = bertie.inspect_data(task, DATA / name)
    assert found["examples"] >= 60
    assert (found["skipped"], len(found["labels"])) == (0, labels)


@pytest.mark.parametrize("name", TEXTS)
def test_a_corpus_has_documents(name: str) -> None:
    documents = list(readers.read([DATA / name]))
    assert len({document.text for document in documents}) == len(documents) >= 20


def test_the_page_of_the_data_names_all_files() -> None:
    page = (DATA / "README.md").read_text(encoding="utf-8")
    assert {"README.md", *re.findall(r"^\| `([\w.]+)/?` \|", page, re.MULTILINE)} == {
        path.name for path in DATA.iterdir()
    }
    assert {"README.md", *TASKS, *TEXTS} == {path.name for path in DATA.iterdir()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers that was trained on the text of the examples for a few steps."""
    folder, text = tmp_path_factory.mktemp("model"), DATA / "text.jsonl"
    tokenizer = bertie.train_tokenizer(text, folder / "tokenizer", vocab_size=800)
    bertie.prepare(text, tokenizer, folder / "shards", eval_share=0.1)
    bertie.pretrain({"extends": "modern-tiny", "training": {"steps": 3}}, folder / "shards", folder / "bert", threads=1)
    return folder / "bert"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def run(*words: str | Path, **variables: str) -> str:
    """Run a program in the environment of the tests and return what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


SCRIPTS = ["classify", "multi_label", "regress", "tag", "relate", "span", "choose", "embed"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains_and_predicts(name: str, model: Path, runs: Path) -> None:
    printed = run(sys.executable, EXAMPLES / f"{name}.py", "--model", model, "--out", runs / name)
    assert printed.startswith("{'")  # scores
    assert len(printed.splitlines()) >= 3
    assert (runs / name / "report.html").is_file()


@pytest.mark.slow
def test_the_vectors_are_those_of_sentence_transformers(model: Path, runs: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    if not (runs / "embed").exists():
        run(sys.executable, EXAMPLES / "embed.py", "--model", model, "--out", runs / "embed")
    printed = run(sys.executable, EXAMPLES / "load_in_sentence_transformers.py", "--model", runs / "embed")
    assert float(printed.split()[-1]) < 1e-5


@pytest.mark.slow
def test_a_search_finds_passages_and_updates_its_index(model: Path, runs: Path) -> None:
    words = [sys.executable, EXAMPLES / "search.py", "--model", model, "--out", runs / "search"]
    assert " of 42 documents, " in run(*words)
    first, *lines = run(*words).splitlines()
    assert first.endswith(" 0 of them new")
    assert len(lines) == 6


@pytest.mark.slow
def test_more_pretraining_helps(model: Path, tmp_path: Path) -> None:
    steps = ["--steps", "20", "--out", tmp_path]
    printed = run(sys.executable, EXAMPLES / "continue_pretraining.py", "--model", model, *steps)
    before, after = (float(found) for found in re.findall(r"\[(\S+) ", printed))
    assert before < after < 0


@pytest.mark.slow
@pytest.mark.parametrize("language", ["french", "japanese"])
def test_another_language_begins_with_its_text(language: str, tmp_path: Path) -> None:
    printed = run(sys.executable, EXAMPLES / f"{language}.py", "--steps", "3", "--out", tmp_path / "out")
    assert ("'été'" if language == "french" else "図書館") in printed
    assert "accuracy" in printed


@pytest.mark.slow
def test_several_processes_write_one_run(model: Path, tmp_path: Path) -> None:
    run("bash", EXAMPLES / "several_processes.sh", MODEL=str(model), OUT=str(tmp_path / "out"))
    assert (tmp_path / "out" / "scores.json").is_file()


@pytest.mark.slow
def test_the_client_asks_a_server(model: Path, runs: Path) -> None:
    if not (runs / "classify").exists():
        run(sys.executable, EXAMPLES / "classify.py", "--model", model, "--out", runs / "classify")
    with process(f"reviews={runs / 'classify'}") as server:
        address = f"http://127.0.0.1:{server.port}"
        printed = run(sys.executable, EXAMPLES / "serve_docker" / "ask.py", "A good soup.", "Bad.", "--url", address)
    assert [line.split(maxsplit=1)[1] for line in printed.splitlines()] == ["A good soup.", "Bad."]


def test_the_container_serves_with_the_image_of_packaging() -> None:
    folder = EXAMPLES / "serve_docker"
    [service] = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert (folder / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert parse("serve", service["command"])
    [(run_folder, inside, mode)] = [volume.split(":") for volume in service["volumes"]]
    assert (folder / run_folder).resolve() == EXAMPLES.parent / "runs" / "examples" / "classify"
    assert (service["command"], mode) == ([f"reviews={inside}"], "ro")


def test_the_page_lists_all_examples() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    shown = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "data", "__pycache__"}
    assert set(re.findall(r"^\| \[([\w.]+)\]", page, re.MULTILINE)) == shown


@pytest.mark.parametrize("script", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_a_script_says_how_to_run_it(script: Path) -> None:
    says = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    assert re.search(rf"^ *python (\S*/)?{script.name}", says, re.MULTILINE)
