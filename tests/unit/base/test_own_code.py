"""Tasks and objectives of the user's own: how they are found, what is refused, and what is never imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from examples.own_objective import TokenSubstitution
from examples.own_task import Ordinal

from bertie.base import config, own_code
from bertie.base.errors import UsageError, UserError
from bertie.base.own_code import code_allowed
from bertie.finetuning.recipe import FinetuneConfig, read_recipe
from bertie.model.encoder import EncoderConfig
from bertie.objectives import AnyObjective, MaskedLM
from bertie.pretraining.recipe import PretrainConfig
from bertie.tasks import AnyTask, Classify, Span, Task, text_options
from bertie.tasks.task_json import task_from_json, to_task_json

NAME = "examples.own_task:Ordinal"
MODULE = """
from dataclasses import dataclass
from typing import Literal
from examples.own_task import Ordinal
from bertie.objectives.objective import Objective
from bertie.tasks import Task
from bertie.tasks.task import TaskDefaults

@dataclass(frozen=True)
class Mine(Ordinal):
    depth: int = 2

class Plain(TaskDefaults): ...

@dataclass
class Thawed(TaskDefaults): ...

@dataclass(frozen=True)
class Empty(TaskDefaults):
    kind: Literal["empty"] = "empty"

@dataclass(frozen=True)
class Stubs(Task): ...

@dataclass(frozen=True)
class Unnamed(Ordinal):
    kind: str = "unnamed"

@dataclass(frozen=True)
class Dotted(Ordinal):
    kind: Literal["a.b"] = "a.b"

@dataclass(frozen=True)
class Layered(Ordinal):
    layers: int = 2

@dataclass(frozen=True)
class Silent(Objective):
    kind: Literal["silent"] = "silent"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that Python finds, and that nothing has imported."""
    monkeypatch.syspath_prepend(tmp_path)
    name = tmp_path.name.replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_needs.py").write_text("import module_that_is_missing")
    return name


def task(name: str) -> Any:
    return config.build(AnyTask, {"kind": name}, "task")


def objective(name: str) -> Any:
    return config.build(AnyObjective, {"kind": name}, "objectives.0")


@pytest.mark.parametrize(
    ("build", "name", "message"),
    [
        (
            task,
            "missing_module:Mine",
            "missing_module:Mine needs the module missing_module, which Python does not find",
        ),
        (task, "{}_needs:Mine", "{}_needs:Mine needs the module module_that_is_missing, which Python does not find"),
        (task, "{}:Mime", "the module {} has no class Mime: did you mean 'Mine'?"),
        (task, "__main__:Mine", "the module __main__ has no class Mine: the class of a notebook is lost with it"),
        (task, "{}:Literal", "the module {} has no class Literal"),
        (task, "{}:Plain", "{}:Plain is no frozen dataclass: put @dataclass(frozen=True) above it"),
        (task, "{}:Thawed", "{}:Thawed is no frozen dataclass"),
        (task, "{}:Empty", "{}:Empty lacks constant_predictions, decode, encode, evaluate, facts, fit, head, "),
        (task, "{}:Stubs", "{}:Stubs inherits Task: inherit TaskDefaults instead"),
        (
            task,
            "{}:Unnamed",
            '{}:Unnamed: kind must be a field with the name of its head: kind: Literal["mine"]',
        ),
        (task, "{}:Dotted", "{}:Dotted: kind must be a field with the name of its head"),
        (task, "{}:Silent", "{}:Silent lacks added_tokens, as_trained, "),
        (
            objective,
            "{}:Silent",
            "{}:Silent lacks check, facts, head, label, weight: see Objective in bertie.objectives",
        ),
        (objective, NAME, "examples.own_task:Ordinal lacks check, "),
        (task, "my-module:Mine", "task.kind: 'my-module:Mine' is not known"),
    ],
)
def test_what_is_no_task_or_objective_is_refused_in_one_line(
    build: Callable[[str], Any], name: str, message: str, module: str
) -> None:
    with pytest.raises(UsageError) as raised:
        build(name.format(module))
    assert message.format(module) in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match=r"is no frozen dataclass|expected a table"):
        config.build(AnyTask, object() if build is task else Ordinal, "task")


def test_a_name_stands_for_the_class_and_is_written_again(module: str) -> None:
    recipe = read_recipe(f"{module}:Mine")
    assert type(recipe.task).__name__ == "Mine"
    assert replace(recipe, task=Classify()) == read_recipe("classify")
    assert config.plain(recipe)["task"]["kind"] == f"{module}:Mine"
    assert [config.plain(each)["kind"] for each in (Classify(), MaskedLM())] == ["classify", "mlm"]
    assert config.build(FinetuneConfig, config.plain(recipe), "") == recipe
    given = {"extends": "classify", "task": {"kind": f"{module}:Mine", "depth": 5}}
    assert config.load(FinetuneConfig, given, "finetune").task == replace(recipe.task, depth=5)  # type: ignore[call-arg]
    assert replace(read_recipe(Ordinal(text="a")), task=Classify()) == read_recipe("classify")
    assert read_recipe(Span(question="a")) == replace(read_recipe("span"), task=Span(question="a"))
    with pytest.raises(UsageError, match=r"task\.layers: task\.json uses this name for something else"):
        read_recipe(f"{module}:Layered")
    recipe = config.load(PretrainConfig, {"extends": "mini", "objectives": [TokenSubstitution()]}, "pretrain")
    [table] = config.plain(recipe)["objectives"]
    assert table["kind"] == "examples.own_objective:TokenSubstitution"
    assert config.build(PretrainConfig, config.plain(recipe), "") == recipe
    with pytest.raises(UsageError, match=r"rts does not work with objectives\.mlm"):
        replace(recipe, objectives=(MaskedLM(), TokenSubstitution()))


def test_a_task_may_name_a_recipe_that_suits_it() -> None:
    @dataclass(frozen=True)
    class Slow(Ordinal):
        recipe = "span"

    assert read_recipe(Slow()).max_length == read_recipe("span").max_length != read_recipe("classify").max_length


def test_a_folder_imports_nothing_unless_it_is_allowed(module: str) -> None:
    content = to_task_json(task(f"{module}:Mine"), 24, "last", 0)
    assert (content["kind"], content["code"]) == ("ordinal", f"{module}:Mine")
    assert task_from_json(content, "task.json") == task(f"{module}:Mine")  # the module is there already
    del sys.modules[module]
    with pytest.raises(UserError, match=rf"RUN: the task is {module}:Mine, code that .*: .*--allow-code \(load\("):
        task_from_json(content, "RUN")
    assert module not in sys.modules
    with code_allowed():
        assert type(task_from_json(content, "RUN")).__name__ == "Mine"
    with code_allowed(), pytest.raises(UsageError, match=r"RUN: gone:Mine needs the module gone, .*: install it, or"):
        task_from_json(content | {"code": "gone:Mine"}, "RUN")
    for strange in ("os.system", "os:system", 5, ["x"]):
        with code_allowed(), pytest.raises((UserError, UsageError), match=r"^RUN"):
            task_from_json(content | {"code": strange}, "RUN")


def test_other_unions_are_closed(module: str) -> None:
    with code_allowed(), pytest.raises(UsageError, match=rf"kind: '{module}:Mine' is not known"):
        config.build(EncoderConfig, {"kind": f"{module}:Mine"}, "encoder")
    assert module not in sys.modules


def test_the_script_that_runs_is_named_as_others_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Script:
        __file__ = "/somewhere/stars.py"
        __spec__: Any = None

    script = Script()
    monkeypatch.setitem(sys.modules, "__main__", script)  # type: ignore[arg-type]
    monkeypatch.setattr(Ordinal, "__module__", "__main__")
    vars(script).update(Ordinal=Ordinal, Literal=Literal, text_options=text_options)
    assert own_code.name_of(Ordinal) == "stars:Ordinal"
    assert own_code.find("stars:Ordinal", Task) is Ordinal
    Script.__file__ = "<stdin>"
    assert own_code.name_of(Ordinal) == "__main__:Ordinal"
    Script.__spec__ = type("Spec", (), {"name": "package.stars"})
    assert own_code.name_of(Ordinal) == "package.stars:Ordinal"
