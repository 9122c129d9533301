"""The commands on the pages, the routes through the code, and every shipped recipe."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bertie
from bertie import cli
from bertie.base import config
from bertie.batches.loader import Position
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import read_checkpoint
from bertie.checkpoints.training_state import Counters, copied_tensors, save_state
from bertie.cli import HELP, VERBS, main
from bertie.commands.parser import parse
from bertie.corpus.shards import open_shards
from bertie.model.encoder import build_encoder
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.feed import Feed
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig, with_vocab_size
from bertie.tasks import Classify
from bertie.tasks.task import build_head
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.length import StepCount
from bertie.training.loop import LoopSettings, train_steps

README = Path(__file__).resolve().parents[2] / "README.md"
DESIGN = README.parent / "docs" / "explanation" / "design.md"


def documented() -> dict[str, list[str]]:
    """Return the `bertie …` lines of the README, the guides, the recipes and the examples, by file."""
    root = README.parent
    found: dict[str, list[str]] = {}
    texts = [path for folder in ("docs", "examples") for path in sorted((root / folder).rglob("*.md"))]
    texts = [path for path in texts if path.parent.name != "reference"]  # their words in capitals stand for values
    scripts = [path for pattern in ("recipes/*.sh", "examples/**/*.sh", "examples/*.py") for path in root.glob(pattern)]
    for path in (README, *texts, *sorted(scripts)):
        text = path.read_text()
        blocks = "\n".join(text.split("```")[1::2]) if path.suffix == ".md" else text
        blocks = re.sub(r"\$\{\w+:\+[^}]*\}", "", blocks.replace("\\\n", " "))  # ${STEPS:+value if it is set}
        blocks = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", blocks)  # ${RATE:-value if it is not set}
        before = r"(?:# +|\$ |\[.*\|\| |torchrun .*-m )?"
        lines = re.findall(rf"^\s*{before}bertie ([a-z].*?)(?: > .*)?$", blocks, re.MULTILINE)
        found.setdefault(path.name, []).extend(lines)
    return found


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in documented().items() for line in lines])
def test_documented_commands_parse(name: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The flags of predict and evaluate depend on the task of the run.
    monkeypatch.setattr("bertie.commands.evaluate.read_task", lambda _: Classify())
    monkeypatch.syspath_prepend(str(README.parent / "examples"))  # whose tasks a page names
    if "my.toml" in line:  # a recipe of the reader's own
        monkeypatch.chdir(tmp_path)
        (tmp_path / "my.toml").write_text('extends = "mini"')
    verb, argv = cli._verb(shlex.split(line, comments=True))
    assert parse(verb, argv), name


def test_every_guide_has_commands() -> None:
    have = {name for name, lines in documented().items() if lines}
    assert {"README.md", "glue.md", "fine-tuning.md", "corpora.md", "vectors.md", "own-text.sh"} <= have


def test_table_of_the_rooms_is_complete() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", DESIGN.read_text(), re.MULTILINE))
    source = README.parent / "src" / "bertie"
    assert listed == {path.name for path in source.iterdir() if path.is_dir() and path.name != "__pycache__"}


def route(title: str) -> list[Path]:
    """Return the files of a route on the page about the design, in order."""
    paragraph = DESIGN.read_text().split(f"**{title}**")[1].split("\n\n")[0]
    return [README.parent / "src" / "bertie" / name for name in re.findall(r"`([\w/]+\.py)`", paragraph)]


def files_that_run(work: Callable[[], object]) -> set[Path]:
    """Return the Python files whose functions run during a call."""
    found = set()
    sys.setprofile(lambda frame, *_: found.add(Path(frame.f_code.co_filename)))
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_route_from_disk_to_loss(trained_shards: Path) -> None:
    files = route("From disk to loss")
    assert len(files) <= 8
    assert sum(len(path.read_text().splitlines()) for path in files) <= 1200
    recipe = config.load(PretrainConfig, "tiny", "pretrain")
    shards = open_shards(trained_shards)
    recipe = with_vocab_size(recipe, shards.tokenizer)
    model = new_model(recipe.model, recipe.objectives, 0)
    settings = LoopSettings(StepCount(1), 1e-3, 1.0, 0, "fp32", {"mlm": 1.0, "nsp": 1.0})

    def first_step() -> None:
        feed = Feed(recipe.resolved_phases, shards, recipe.objectives, 0, 1, 0, SINGLE_PROCESS, recipe.length())
        with closing(feed.steps(0, Position())) as stream:
            next(train_steps(model, stream, recipe.optimizer.build(model), recipe.schedule, settings))

    assert set(files) <= files_that_run(first_step)


def test_route_from_a_folder_to_predictions(tmp_path: Path, pretrained: Path) -> None:
    files = route("From a folder to predictions")
    assert len(files) <= 10
    checkpoint = read_checkpoint(pretrained)
    config = checkpoint.config
    head = build_head(Classify(labels=("bad", "good")), config, config.hidden_size)
    model = Model(build_encoder(config), {"classify": head})
    initialize_weights(model, 0.02)
    write_model(tmp_path, model, checkpoint.tokenizer, {"labels": ["bad", "good"]})
    (tmp_path / "task.json").unlink()

    def predict() -> None:
        bertie.load(tmp_path, threads=1).predict(["a text"])

    assert set(files) <= files_that_run(predict)


def test_route_from_save_to_automodel(tmp_path: Path, pretrained: Path) -> None:
    files = route("From save to AutoModel")
    assert len(files) <= 4
    checkpoint = read_checkpoint(pretrained)
    model = new_model(checkpoint.config, (MaskedLM(), NextSentence()), 0)
    optimizer = torch.optim.AdamW(model.parameters())

    def save() -> None:
        save_state(tmp_path, model, copied_tensors(model, optimizer), checkpoint.tokenizer, None, Counters(step=1), 1)

    assert set(files) <= files_that_run(save)
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    loaded = transformers.AutoModel.from_pretrained(tmp_path / "checkpoints" / "step-00000001")
    torch.testing.assert_close(loaded.embeddings.word_embeddings.weight, model.encoder.embeddings.word.weight)


def test_help_lists_every_verb() -> None:
    for verb in VERBS:
        assert f"  {verb} " in HELP


def test_help_of_an_incomplete_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["tokenizer", w] for w in ("train", "extend", "inspect", "encode", "decode")
    ]
    assert main(["tokenizer"]) == 2


def test_public_names_exist() -> None:
    for name in bertie.__all__:
        assert getattr(bertie, name) is not None
    assert dir(bertie) == bertie.__all__  # what completion offers
    with pytest.raises(AttributeError, match="nothing"):
        _ = bertie.nothing


@pytest.mark.parametrize("name", config.shipped("pretrain"))
def test_every_pretraining_recipe_builds(name: str) -> None:
    recipe = config.load(PretrainConfig, name, "pretrain")
    with torch.device("meta"):
        model = new_model(replace(recipe.model, vocab_size=30522), recipe.objectives, 0)
    assert model.kinds == {objective.kind for objective in recipe.objectives}


# Unit and golden tests train what these have.
LIKE_OTHERS = {"tiny", "mini", "mini-paper", "mini-roberta", "mini-sop", "mini-wwm", "mini-elmo"}
SMALL = [name for name in config.shipped("pretrain") if name[:4] in ("tiny", "mini", "demo")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_OTHERS)) for name in SMALL]
)
def test_every_small_recipe_trains(
    name: str, tmp_path: Path, trained_shards: Path, translated_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertie.base.report._svg", lambda *_: "")  # charts take longer than the steps of most recipes
    shards = translated_shards if "xlm" in name else trained_shards
    steps = 10 if name.endswith("-paper") else 3  # the last phase of the paper is a tenth of the steps
    rows = "512" if name == "mini-reformer" else "256"
    flags = {"steps": str(steps), "batch-size": "2", "row-tokens": rows, "eval-every": "2", "max-eval-tokens": "200"}
    argv = ["pretrain", name, "--data", str(shards), "--out", str(tmp_path / "run"), "--json"]
    argv += ["--objectives.1.teacher", str(untrained_mini(shards, tmp_path))] if name == "mini-distil" else []
    argv += ["--layout.max-length", "512"] if name == "mini-reformer" else []
    assert main(argv + [word for flag, value in flags.items() for word in (f"--training.{flag}", value)]) == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["split"] == "train"] == list(range(1, steps + 1))
    assert [record["step"] for record in records if record["split"] == "eval"] == sorted({*range(2, steps, 2), steps})
    kinds = {objective.kind for objective in config.load(PretrainConfig, name, "pretrain").objectives}
    wanted = {"split", "step", "epoch", "tokens", "seconds", "loss", "lr", "grad_norm", "tokens_per_second"}
    assert wanted | {f"{kind}_{score}" for kind in kinds for score in ("loss", "accuracy")} <= set(records[0])


def untrained_mini(shards: Path, folder: Path) -> Path:
    """Write a BERT-mini with the vocabulary of the shards and random weights."""
    tokenizer = open_shards(shards).tokenizer
    recipe = with_vocab_size(config.load(PretrainConfig, "mini", "pretrain"), tokenizer)
    (folder / "mini").mkdir()
    write_model(folder / "mini", new_model(recipe.model, recipe.objectives, 0), tokenizer)
    return folder / "mini"


@pytest.fixture(scope="session")
def trained_shards(tmp_path_factory: pytest.TempPathFactory, corpus_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    bertie.train_tokenizer([corpus_folder], folder / "tokenizer", vocab_size=200)
    bertie.prepare([corpus_folder], bertie.Tokenizer.load(folder / "tokenizer"), folder / "shards", eval_share=0.1)
    return folder / "shards"
