"""Which cells and steps a lab file has, and which files are refused."""

from __future__ import annotations

import copy
import os
import runpy
import shutil
import sys
from collections import Counter
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bertie.base import config
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.folder import write_model
from bertie.corpus import prepare as preparation
from bertie.examples.reader import Reader
from bertie.lab import checks
from bertie.lab.checks import check
from bertie.lab.config import LabConfig
from bertie.lab.plan import Plan, make_plan
from bertie.lab.steps import FinetuneStep, GloveStep, MeasureStep, PretrainStep, Workplace, needs
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining.glove import GloveConfig
from bertie.pretraining.initial_weights import new_model
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.step_cost import tokens_per_step
from bertie.tokenizers.tokenizer import Tokenizer

File = dict[str, Any]


def planned(file: File, data: Path) -> Plan:
    return make_plan(config.load(LabConfig, file, "lab"), data)


def kinds(plan: Plan) -> Counter[str]:
    return Counter(step.kind for step in plan.steps.values())


def variant(file: File, **values: Any) -> File:
    """Add a variant."""
    file["axes"][0]["variants"].append({"name": f"variant {len(file['axes'][0]['variants'])}", **values})
    return file


def recipe(plan: Plan, cell: int) -> PretrainConfig:
    step = plan.steps[plan.cells[cell].model]
    assert isinstance(step, PretrainStep)
    return step.recipe


def test_cells_are_all_combinations_and_share_what_they_have_in_common(lab_file: File, lab_data: Path) -> None:
    lab_file |= {"seeds": [0, 1, 2]}
    lab_file["axes"].append(
        {"name": "head", "variants": [{"name": "plain"}, {"name": "frozen", "finetune": {"frozen": True}}]}
    )
    plan = planned(lab_file, lab_data)
    assert [(cell.variants, cell.seed) for cell in plan.cells][:4] == [
        (("BERT", "plain"), 0),
        (("BERT", "plain"), 1),
        (("BERT", "plain"), 2),
        (("BERT", "frozen"), 0),
    ]
    # One vocabulary and one set of shards for all; a pre-training for both heads; a fine-tuning for each cell.
    assert kinds(plan) == {"vocabulary": 1, "shards": 1, "pretrain": 6, "finetune": 12}


def test_variants_are_merged_like_files_that_extend_others(lab_file: File, lab_data: Path) -> None:
    plan = planned(variant(lab_file, pretrain={"model": {"causal": True}, "objectives": [{"kind": "clm"}]}), lab_data)
    assert [objective.kind for objective in recipe(plan, 0).objectives] == ["mlm", "nsp"]
    assert [objective.kind for objective in recipe(plan, 1).objectives] == ["mlm"]
    assert recipe(plan, 1).objectives[0] == recipe(plan, 0).objectives[0]  # the parent's settings of mlm remain
    assert recipe(plan, 2).model.causal
    assert recipe(plan, 2).model.hidden_size == 16


def test_a_variant_changes_single_tasks(lab_file: File, lab_data: Path) -> None:
    lab_file["tasks"].append(lab_file["tasks"][0] | {"name": "again"})
    changes = {"finetune": {"frozen": True, "max_length": 16}, "tasks": {"again": {"max_length": 24}}}
    plan = planned(variant(lab_file, **changes), lab_data)
    cell = next(cell for cell in plan.cells if cell.variants == ("variant 2",))
    steps = [(name, plan.steps[step]) for name, step in cell.tasks.items()]
    found = {name: (s.recipe.frozen, s.recipe.max_length) for name, s in steps if isinstance(s, FinetuneStep)}
    assert found == {"and": (True, 16), "again": (True, 24)}


@pytest.mark.parametrize(("pretrain_seed", "seeds"), [(None, {7, 8}), (3, {3})])
def test_seeds_reach_both_trainings_or_one_pre_training_serves_all(
    lab_file: File, lab_data: Path, pretrain_seed: int | None, seeds: set[int]
) -> None:
    fixed = {} if pretrain_seed is None else {"pretrain_seed": pretrain_seed}
    plan = planned(lab_file | {"seeds": [7, 8], **fixed}, lab_data)
    finetunings = [step for step in plan.steps.values() if isinstance(step, FinetuneStep)]
    assert kinds(plan)["pretrain"] == 2 * len(seeds)  # two variants
    assert {recipe(plan, number).seed for number in range(4)} == seeds
    assert {step.recipe.seed for step in finetunings} == {7, 8}


def test_the_name_of_a_step_depends_on_its_settings_and_inputs_only(lab_file: File, lab_data: Path) -> None:
    before = planned(copy.deepcopy(lab_file), lab_data)
    lab_file["title"], lab_file["axes"][0]["variants"][0]["name"] = "Another title", "base"
    lab_file["pretrain"]["seed"] = 5  # replaced by the seed of the lab
    lab_file["pretrain"]["model"]["use_bias"] = True  # the default
    assert list(planned(copy.deepcopy(lab_file), lab_data).steps) == list(before.steps)
    lab_file["text"]["vocab_size"] = 310  # changes everything
    assert not set(planned(lab_file, lab_data).steps) & set(before.steps)


def test_a_copy_of_the_data_keeps_its_steps_and_other_contents_change_them(
    lab_file: File, lab_data: Path, tmp_path: Path
) -> None:
    """A copy has other times of modification; an edit may keep the size and the time."""
    data = tmp_path / "data"
    shutil.copytree(lab_data, data)
    before = planned(copy.deepcopy(lab_file), data).steps.keys()
    files = [path for path in data.rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, (5, 5))
    assert planned(copy.deepcopy(lab_file), data).steps.keys() == before
    dev = data / lab_file["tasks"][0]["dev"]
    dev.write_bytes(dev.read_bytes()[:-2] + b"x\n")
    os.utime(dev, (6, 6))
    after = planned(copy.deepcopy(lab_file), data).steps.keys()
    assert len(after - before) == kinds(planned(lab_file, data))["finetune"]


def test_text_with_another_date_restarts_an_unfinished_step(
    lab_file: File, lab_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is the same one, and the unfinished preparation in its folder belongs to the text of the other date."""
    data = tmp_path / "data"
    shutil.copytree(lab_data, data)
    steps = {step.kind: (name, step) for name, step in planned(lab_file, data).steps.items()}
    places = {kind: Workplace(tmp_path / "steps", name, 1) for kind, (name, _) in steps.items()}
    steps["vocabulary"][1].run(places["vocabulary"])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(preparation, "_assemble", interrupt)
        with pytest.raises(KeyboardInterrupt):
            steps["shards"][1].run(places["shards"])
    assert list(places["shards"].folder.glob(".*work"))
    os.utime(data / "text.jsonl", (5, 5))
    assert steps["shards"][1].run(places["shards"])["splits"]
    assert not list(places["shards"].folder.glob(".*work"))


def test_other_weights_of_a_teacher_or_an_initial_model_are_another_step(
    lab_file: File, lab_data: Path, tmp_path: Path
) -> None:
    lab_file["budget"] = {"unit": "flops", "amount": 1e9}
    files = {"teacher": "model.safetensors", "start": "model.safetensors", "google": "bert_model.ckpt.index"}
    for name, file in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / ("bert_config.json" if name == "google" else "config.json")).write_text("{}")
        (tmp_path / name / file).write_bytes(b"1")
    objectives = [{"kind": "mlm", "initialization": "random"}, {"kind": "distil", "teacher": str(tmp_path / "teacher")}]
    variant(lab_file, pretrain={"objectives": objectives})
    variant(lab_file, pretrain={"init_from": str(tmp_path / "start")})
    variant(lab_file, pretrain={"init_from": str(tmp_path / "google" / "bert_model.ckpt")})
    before = planned(lab_file, lab_data)
    assert planned(lab_file, lab_data).steps.keys() == before.steps.keys()
    for cell, (name, file) in enumerate(files.items(), 2):
        (tmp_path / name / file).write_bytes(b"12")
        after = planned(lab_file, lab_data)
        changed = [a != b for a, b in zip(before.cells, after.cells, strict=True)]
        assert [i for i, each in enumerate(changed) if each] == [cell]
        assert len(after.steps.keys() - before.steps.keys()) == 3  # measured, pre-trained and fine-tuned again
        before = after


@pytest.mark.parametrize(("unit", "amount", "steps"), [("steps", 4, 4), ("tokens", 1300, 10)])
def test_a_budget_replaces_the_number_of_steps_and_a_variant_changes_it(
    lab_file: File, lab_data: Path, unit: str, amount: float, steps: int
) -> None:
    lab_file["budget"] = {"unit": unit, "amount": amount}
    plan = planned(variant(lab_file, budget={"amount": 2 * amount}), lab_data)
    assert tokens_per_step(recipe(plan, 0)) == 4 * 32
    assert [recipe(plan, cell).training.steps for cell in range(3)] == [steps, steps, 2 * steps]


@pytest.mark.parametrize("unit", ["flops", "seconds"])
def test_a_budget_that_must_be_measured_is_a_step_for_all_seeds(lab_file: File, lab_data: Path, unit: str) -> None:
    plan = planned(lab_file | {"seeds": [0, 1], "budget": {"unit": unit, "amount": 1e9}}, lab_data)
    assert kinds(plan)["measure"] == 2
    assert all(step.measure for step in plan.steps.values() if isinstance(step, PretrainStep))
    assert {step.budget.unit for step in plan.steps.values() if isinstance(step, MeasureStep)} == {unit}


def test_glove_takes_the_place_of_pre_training(lab_file: File, lab_data: Path) -> None:
    plan = planned(variant(lab_file, glove={"hidden_size": 8}, finetune={"lstm_hidden_size": 8}), lab_data)
    step = plan.steps[plan.cells[2].model]
    assert isinstance(step, GloveStep)
    assert step.settings == GloveConfig(hidden_size=8)
    check(plan)


def test_steps_are_described_by_their_first_cell(lab_file: File, lab_data: Path) -> None:
    plan = planned(lab_file, lab_data)
    cell = plan.cells[1]
    assert plan.describe(cell.model) == f"pre-training of no NSP, seed 0 ({cell.model})"
    assert plan.describe(cell.tasks["and"]) == f"and of no NSP, seed 0 ({cell.tasks['and']})"
    shards = needs(plan.steps[cell.model])[0]
    assert plan.describe(shards) == shards


def test_checkpoints_of_one_run_are_fine_tuned(lab_file: File, lab_data: Path) -> None:
    lab_file["axes"][0]["variants"] = [{"name": str(step), "checkpoint": step} for step in (2, 4)]
    plan = planned(lab_file, lab_data)
    assert kinds(plan) == {"vocabulary": 1, "shards": 1, "pretrain": 1, "finetune": 2}
    [run] = [step for step in plan.steps.values() if isinstance(step, PretrainStep)]
    assert run.keep_checkpoints


REFUSED: list[tuple[str, Any, str]] = [
    ("checkpoint", {"checkpoint": 3}, "a run of 4 steps has one after every 2"),
    ("kept", {"checkpoint": 2, "pretrain": {"training": {"keep_checkpoints": 1}}}, "training.keep_checkpoints"),
    ("glove", {"checkpoint": 2, "glove": {}}, "remove one of them"),
    ("key", {"pretrain": {"modle": {}}}, "did you mean 'model'"),
    ("combination", {"pretrain": {"model": {"causal": True}}}, "model.causal"),
    ("grid", {"finetune": {"restarts": 3}}, "restarts"),
    ("text", {"text": {"inputs": ["missing.jsonl"]}}, "no such file"),
    ("negative checkpoint", {"checkpoint": -2}, "checkpoint is -2"),
    ("glove and pretrain", {"glove": {}, "pretrain": {"seed": 1}}, "glove, which replaces pre-training, and pretrain"),
    ("share", {"text": {"eval_share": float("nan")}}, "text.eval_share is nan"),
    ("no text", {"text": {"inputs": []}}, "text.inputs is empty"),
    ("bpe", {"text": {"algorithm": "bpe", "cased": True}}, "text.cased is for"),
    ("table", {"pretrain": {"extends": "nope"}}, "pretrain: the configuration: extends 'nope'"),
    ("objectives", {"pretrain": {"objectives": []}}, "pretrain: objectives"),
]


@pytest.mark.parametrize(("values", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_wrong_variant_is_refused_by_name(lab_file: File, lab_data: Path, values: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        planned(variant(lab_file, **values), lab_data)
    assert "variant 2" in str(caught.value)
    assert "\n" not in str(caught.value)


DISTIL: list[File] = [{"kind": "mlm", "initialization": "random"}, {"kind": "distil"}]
CANNOT_RUN: list[tuple[Any, str]] = [
    ({"pretrain": {"model": {"vocab_size": 200}}}, "text.vocab_size is 300"),
    ({"finetune": {"max_length": 1024}}, "max_length of fine-tuning"),
    ({"finetune": {"layers": "concat_last_4"}}, "layers"),
    ({"finetune": {"metric": "bleu"}}, "metric is 'bleu'"),
    ({"finetune": {"task": {"label": "stars"}}}, "stars"),
    ({"finetune": {"language": "de"}}, "no language embeddings"),
    ({"text": {"text_field": "body"}}, "no field 'body'"),
    ({"pretrain": {"layout": {"kind": "translations"}, "objectives": [{"kind": "mlm"}]}}, "several languages"),
    ({"pretrain": {"init_from": "./nowhere"}}, "init_from: nowhere"),
    ({"pretrain": {"objectives": DISTIL}}, "teacher is empty"),
    ({"pretrain": {"objectives": [DISTIL[0], DISTIL[1] | {"teacher": "./nowhere"}]}}, "teacher: nowhere"),
]


@pytest.mark.parametrize(("values", "message"), CANNOT_RUN)
def test_a_cell_that_cannot_run_is_refused_before_the_first_one(
    lab_file: File, lab_data: Path, values: Any, message: str
) -> None:
    plan = planned(variant(lab_file, **values), lab_data)
    with pytest.raises(UserError, match=message) as caught:
        check(plan)
    assert str(caught.value).startswith("variant 2, seed 0: ")


def test_a_file_of_the_task_with_unknown_classes_is_refused(lab_file: File, lab_data: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nthe\tmaybe\n")
    lab_file["tasks"][0]["dev"] = str(tmp_path / "dev.tsv")
    with pytest.raises(UserError, match=r"BERT, seed 0: .*maybe"):
        check(planned(lab_file, lab_data))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [1, 1]}, "seeds: the same name occurs twice"),
        ({"seeds": [-1]}, "seeds has -1"),
        ({"axes": [{"name": "a", "variants": []}]}, "axes.a.variants is empty"),
        ({"axes": [{"name": "a", "variants": [{"name": "x"}, {"name": "x"}]}]}, "axes.a.variants: the same name"),
        ({"budget": {"unit": "steps", "amount": 0}}, "budget.amount"),
        ({"budget": {"unit": "tokens", "amount": 3}}, "less than one step"),
        ({"pretrain": {"extends": "tiny", "budget": "1h"}}, "pretrain.budget follows the clock"),
        ({"titel": "x"}, "did you mean 'title'"),
        (
            {"axes": [{"name": "a", "variants": [{"name": "x", "tasks": {"or": {"max_length": 3}}}]}]},
            "the variant x has tasks.or: the tasks of the lab are and",
        ),
        ({"pretrain_seed": -1}, "pretrain_seed is -1"),
        ({"tasks": [{"name": "mlm_loss", "train": "t", "dev": "d", "finetune": {}}]}, "which another measure has"),
    ],
)
def test_a_wrong_file_is_refused(lab_file: File, lab_data: Path, changes: File, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(lab_file | changes, lab_data)


LONG = ["modern", "relatives"]  # read and check the largest data


@pytest.mark.parametrize(
    ("names", "examples"),
    [
        (sorted(set(config.shipped("lab")) - set(LONG)), 1500),
        pytest.param(config.shipped("lab"), None, marks=pytest.mark.slow),
    ],
    ids=["first examples of short", "all of all"],
)
def test_every_shipped_lab_can_run(
    names: list[str], examples: int | None, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in shared_data.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "sick").unlink()
    for script, *arguments in (
        ("sick", f"{shared_data}/sick/SICK.txt", f"{tmp_path}/sick"),
        ("nesting", f"{tmp_path}/nesting", "--train", "200", "--dev", "20"),
    ):
        file = Path(__file__).parents[3] / "benchmarks" / f"{script}.py"
        monkeypatch.setattr(sys, "argv", [str(file), *arguments])
        runpy.run_path(str(file), run_name="__main__")
    fit = lru_cache(maxsize=None)(partial(checks._fit, lru_cache(maxsize=None)(checks._read)))
    monkeypatch.setattr(checks, "_fit", lambda _, *arguments: fit(*arguments))  # labs have tasks in common
    read = Reader.read
    monkeypatch.setattr(Reader, "read", lambda *given: islice(read(*given), examples))
    problems = []
    for name in names:
        try:
            check(make_plan(config.load(LabConfig, name, "lab"), tmp_path))
        except UserError as error:
            problems.append(f"{name}: {error}")
    assert not problems, "\n".join(problems)


def test_a_model_of_another_vocabulary_is_refused(
    lab_file: File, lab_data: Path, tmp_path: Path, small_tokenizer: Tokenizer
) -> None:
    """The lab trains a vocabulary of 300 entries, and the model has another number."""
    size = TransformerConfig(1, 16, 2, 32, vocab_size=small_tokenizer.size)
    write_model(tmp_path, new_model(size, (MaskedLM(),), 0), small_tokenizer)
    teach = [DISTIL[0], DISTIL[1] | {"teacher": str(tmp_path)}]
    for changes in ({"init_from": str(tmp_path)}, {"objectives": teach}):
        with pytest.raises(UsageError, match=r"a vocabulary of 500 entries, and text.vocab_size is 300"):
            check(planned(variant(copy.deepcopy(lab_file), pretrain=changes), lab_data))
