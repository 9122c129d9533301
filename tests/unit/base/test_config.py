from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from bertie.base import config
from bertie.base.errors import UsageError, require_range
from bertie.finetuning.recipe import FinetuneConfig
from bertie.pretraining.recipe import PretrainConfig


@dataclass(frozen=True)
class Square:
    kind: Literal["square"] = "square"
    side: float = 1.0


@dataclass(frozen=True)
class Circle:
    kind: Literal["circle"] = "circle"
    radius: float = 2.0


@dataclass(frozen=True)
class Size:
    width: int
    name: str = "plain"
    fast: bool = False
    precision: Literal["auto", "fp32"] = "auto"
    limit: float | None = None


@dataclass(frozen=True)
class Drawing:
    size: Size
    shape: Square | Circle = field(default_factory=Square)
    shapes: tuple[Square | Circle, ...] = ()
    numbers: tuple[float, ...] = (1.0,)
    seed: int = 0


def build(text: str) -> Drawing:
    return config.build(Drawing, config.parse(text, "here"), "")


def load(folder: Path, **files: str) -> Drawing:
    """Write files and load the first one."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return config.load(Drawing, folder / f"{next(iter(files))}.toml", "pretrain")


def test_values_of_every_type_are_read() -> None:
    found = build(
        """
        seed = 3
        numbers = [1, 2.5]
        [size]
        width = 4
        name = "wide"
        fast = true
        precision = "fp32"
        limit = 3
        [shape]
        kind = "circle"
        radius = 1
        [[shapes]]
        kind = "square"
        [[shapes]]
        kind = "circle"
        """
    )
    size = Size(4, "wide", True, "fp32", 3.0)
    assert found == Drawing(size, Circle(radius=1.0), (Square(), Circle()), (1.0, 2.5), 3)
    assert isinstance(found.size.limit, float)


@given(
    st.builds(
        Drawing,
        size=st.builds(
            Size,
            width=st.integers(-(2**60), 2**60),
            name=st.text(),
            fast=st.booleans(),
            precision=st.sampled_from(["auto", "fp32"]),
            limit=st.none() | st.floats(allow_nan=False),
        ),
        shape=st.builds(Circle, radius=st.floats(allow_nan=False)) | st.builds(Square),
        shapes=st.lists(st.builds(Circle) | st.builds(Square), max_size=3).map(tuple),
        numbers=st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
    )
)
def test_a_dumped_configuration_is_read_back(drawing: Drawing) -> None:
    assert build(tomli_w.dumps(config.plain(drawing))) == drawing


@pytest.mark.parametrize("group", ["pretrain", "finetune"])
def test_shipped_configurations_are_read_back(group: str) -> None:
    kind = {"pretrain": PretrainConfig, "finetune": FinetuneConfig}[group]
    assert config.shipped(group)
    for name in config.shipped(group):
        found = config.load(kind, name, group)
        assert config.build(kind, config.parse(tomli_w.dumps(config.plain(found)), name), "") == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size.width = 1\nsede = 1", "sede is not known; did you mean 'seed'?"),
        ("size.width = 1\nsize.qqq = 1", "size.qqq is not known; choose from width, name, fast"),
        ("seed = 1", "top level: size is missing"),
        ("[size]", "size: width is missing"),
        ("size.width = 1.0", "size.width: expected an integer, found 1.0"),
        ("size.width = true", "size.width: expected an integer, found true"),
        ('size.width = "1"', "size.width: expected an integer, found '1'"),
        ("size.width = 1\nsize.fast = 1", "size.fast: expected true or false, found 1"),
        ("size.width = 1\nsize.name = 1", "size.name: expected a string, found 1"),
        ("size = 1", "size: expected a table, found 1"),
        ('size.width = 1\nsize.precision = "fp23"', "size.precision: 'fp23' is not known; did you mean 'fp32'?"),
        ('size.width = 1\nshape.kind = "sqare"', "shape.kind: 'sqare' is not known; did you mean 'square'?"),
        ("size.width = 1\nshape.side = 1", "shape: expected a table with a kind, found {side = 1}"),
        ('size.width = 1\nshape = {kind = "square", radius = 1}', "shape.radius is not known"),
        ("size.width = 1\nnumbers = 1", "numbers: expected an array, found 1"),
        ('size.width = 1\nnumbers = [1, "a"]', "numbers.1: expected a number, found 'a'"),
        ('size.width = 1\n[[shapes]]\nkind = "cube"', "shapes.0.kind: 'cube' is not known"),
        ("size.width = ", "here is not TOML"),
        ("size.width = 1\nsize.width = 2", "here is not TOML"),
        pytest.param("[" * 100_000, "here is not TOML", id="deep"),
        pytest.param("size.width = " + "1" * 5000, "here is not TOML", id="digits"),
        pytest.param("size.width = 1\nnumbers = [1" + "0" * 400 + "]", "numbers.0: expected a number", id="no float"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        build(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_extends_merges_tables_and_replaces_kinds_and_arrays(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        child='extends = "parent.toml"\nnumbers = [7]\n[size]\nname = "child"\n[shape]\nkind = "circle"\n',
        parent='extends = "grandparent.toml"\nnumbers = [1, 2]\nsize.fast = true\nshape = {kind = "square", side = 3}',
        grandparent="seed = 9\nsize.width = 5",
    )
    assert found == Drawing(Size(5, "child", True), Circle(), (), (7.0,), 9)


def test_a_table_without_kind_merges_with_the_parents_table(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        child='extends = "parent.toml"\nshape.side = 4',
        parent='size.width = 1\nshape = {kind = "square", side = 3}',
    )
    assert found.shape == Square(side=4.0)


def test_a_table_of_the_same_kind_merges_with_the_parents_table(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        child='extends = "parent.toml"\nshape.kind = "square"\nshapes = [{kind = "circle"}, {kind = "square", side = 9}]',
        parent='size.width = 1\nshape = {kind = "square", side = 3}\nshapes = [{kind = "square"}, {kind = "circle", radius = 7}]',
    )
    assert found.shape == Square(side=3.0)
    assert found.shapes == (Circle(radius=7.0), Square(side=9.0))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": 'extends = "missing.toml"'}, "missing.toml"),
        ({"a": 'extends = "."'}, "extends '.', but there is no file"),
        ({"a": 'extends = "a.toml"'}, "extends this file in turn"),
        ({"a": 'extends = "b.toml"', "b": 'extends = "a.toml"'}, "extends this file in turn"),
        ({"a": "extends = 5"}, "extends 5: give a file or a name in quotes, or an array of them"),
        ({"a": "extends = true"}, "extends true: give"),
        ({"a": 'extends = ["b.toml", 5]', "b": ""}, "extends 5: give"),
        ({"a": 'extends = "elsewhere/mini"'}, "extends 'elsewhere/mini', but there is no file"),
        ({"a": 'extends = {name = "b.toml"}'}, "extends {name = 'b.toml'}: give"),
        ({"a": 'extends = ["b.toml", "c.toml"]', "b": ""}, "extends 'c.toml', but there is no file"),
        ({"a": 'extends = ["b.toml", "c.toml"]', "b": "", "c": 'extends = ["b.toml", "a.toml"]'}, "this file in turn"),
    ],
)
def test_invalid_extends_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        load(tmp_path, **files)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_later_parent_overrides_an_earlier_one(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        child='extends = ["one.toml", "two.toml"]\nseed = 3',
        one='extends = "root.toml"\nsize.name = "one"\nsize.fast = true\nshape = {kind = "circle", radius = 7}',
        two='extends = "root.toml"\nsize.name = "two"\nshape.kind = "circle"',
        root="seed = 9\nsize.width = 5",
    )
    assert found == Drawing(Size(5, "two", True), Circle(radius=7.0), (), (1.0,), 3)


def test_a_configuration_is_found_by_name_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config.load(PretrainConfig, "mini", "pretrain").model.num_hidden_layers == 4
    with pytest.raises(
        UsageError, match=r"no recipe 'minni': did you mean 'mini'\? Or give a \.toml file or one of .*mini"
    ):
        config.load(PretrainConfig, "minni", "pretrain")
    with pytest.raises(UsageError, match=r"no such file: mini\.toml: did you mean 'mini'\?"):
        config.load(PretrainConfig, "mini.toml", "pretrain")
    with pytest.raises(UsageError, match="5 is not known"):
        config.load(PretrainConfig, {"extends": "mini", "training": {5: 1}}, "pretrain")
    with pytest.raises(UsageError, match=r"no such file: mine\.toml"):
        config.load(PretrainConfig, "mine.toml", "pretrain")
    Path("mini").mkdir()  # a folder of that name does not hide the shipped configuration
    assert config.load(PretrainConfig, "mini", "pretrain").model.num_hidden_layers == 4
    Path("mine.toml").write_bytes(b"\xef\xbb\xbfextends = 'mini'\nseed = 3")  # as editors on Windows save it
    assert config.load(PretrainConfig, "mine.toml", "pretrain").seed == 3
    Path("mine.toml").write_bytes(b"seed = '\xff'")
    with pytest.raises(UsageError, match=r"mine\.toml"):
        config.load(PretrainConfig, "mine.toml", "pretrain")


def test_a_table_with_arbitrary_keys_has_values_of_one_type() -> None:
    assert config.build(dict[str, float], {"a": 1, "b": 0.5}, "scores") == {"a": 1.0, "b": 0.5}
    for wrong, message in (([1], "scores: expected a table"), ({"a": "x"}, "scores.a: expected a number, found 'x'")):
        with pytest.raises(UsageError, match=message):
            config.build(dict[str, float], wrong, "scores")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 2}, "drawing.side is 1.0: give at least 2"),
        ({"low": 0, "high": 0.5}, "drawing.side is 1.0: give at least 0, at most 0.5"),
        ({"low": 1, "above": True}, "drawing.side is 1.0: give more than 1"),
    ],
)
def test_require_range_names_the_setting_and_the_limits(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        require_range("drawing", Square(), "side", **arguments)  # type: ignore[arg-type]
    assert str(raised.value) == message
    require_range("drawing", Square(), "side", low=1, high=1)
    for value, told in (
        (float("nan"), "is nan: give a number, at least 0"),
        (float("inf"), "is inf: give at least 0, at"),
    ):
        with pytest.raises(UsageError, match=told):
            require_range("drawing", Square(side=value), "side", low=0)


def test_a_configuration_is_loaded_from_a_dict() -> None:
    from bertie.finetuning.recipe import FinetuneConfig

    values = {"extends": "classify", "training": {"learning_rate": 3e-4}, "grid": {"batch_size": (8, 16)}}
    mine, shipped = (config.load(FinetuneConfig, given, "finetune") for given in (values, "classify"))
    assert (mine.training.learning_rate, mine.grid.batch_size) == (3e-4, (8, 16))
    assert replace(mine, training=shipped.training, grid=shipped.grid) == shipped
    assert "extends" in values  # the dict is not changed
    for bad, words in (
        ({"extends": "clasify"}, "the configuration: extends 'clasify', but there is no file clasify"),
        ({"extends": "classify", "training": {"rate": 1}}, r"training\.rate is not known"),
        ({}, "task is missing"),
    ):
        with pytest.raises(UsageError, match=words):
            config.load(FinetuneConfig, bad, "finetune")
