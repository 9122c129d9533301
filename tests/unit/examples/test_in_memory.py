"""Examples in memory: frames, datasets, columns, arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow
import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.in_memory import require_list
from bertie.examples.texts import Example, pairs_of
from bertie.examples.unlabeled import UnlabeledReader
from bertie.tasks import Choose, Classify, MultiLabel, Regress, Span, Tag
from bertie.tasks.scoring import score

COLUMNS = {"text": ["a", "b"], "label": ["x", "y"]}
EXAMPLES = [Example("a", None, "x", "example 1"), Example("b", None, "y", "example 2")]


class Column:
    """A column of polars, as far as bertie asks for it."""

    def __init__(self, values: list[Any]):
        self.values = values

    def to_list(self) -> list[Any]:
        return self.values


class Frame:
    """A frame of polars, as far as bertie asks for it. Its iterator gives columns."""

    def __init__(self, columns: dict[str, list[Any]]):
        self.data = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Column:
        return Column(self.data[name])


def test_a_row_of_pandas_is_refused_whatever_its_name() -> None:
    from pandas import DataFrame, Index, MultiIndex, Series, Timestamp

    frame = DataFrame(COLUMNS)
    ids = (["id1", "id2"], [Timestamp(0), Timestamp(1)], MultiIndex.from_tuples([("a", 1), ("b", 2)]))
    indexed = [frame.set_index(Index(each)) for each in ids]
    for each in (frame, frame.rename_axis(columns="columns"), *indexed):
        with pytest.raises(UsageError, match="a Series with the names text, label is one row: give a frame"):
            require_list(each.iloc[0])
        assert require_list(each["text"]) == ["a", "b"]
        assert list(require_list(each.iloc[[0]])) == [{"text": "a", "label": "x"}]
    with pytest.raises(UsageError, match="with the names Text is one row"):
        require_list(Series({"Text": "a"}))
    assert require_list(frame.set_index("label")["text"]) == ["a", "b"]


def test_predictions_may_be_columns() -> None:
    for columns in (COLUMNS, {"label": np.array(["x", "y"])}):
        found = score("classify", COLUMNS, {"label": columns["label"]})
        assert found["scores"]["accuracy"] == 1.0


class Names:
    """A ClassLabel of `datasets`."""

    names = ("down", "up")

    def int2str(self) -> None: ...


class ListOf:
    def __init__(self, feature: Any):
        self.feature = feature


class Dataset:
    """A dataset of `datasets`, as far as bertie asks for it."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any]):
        self.rows, self.features, self.column_names = rows, features, list(features)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def with_format(self, kind: None) -> list[dict[str, Any]]:  # noqa: ARG002
        return self.rows


def pandas(columns: dict[str, list[Any]]) -> Any:
    from pandas import DataFrame  # it comes with datasets, which bertie needs

    return DataFrame(columns)


@pytest.mark.parametrize("make", [dict, pandas, Frame, pyarrow.table], ids=["dict", "pandas", "polars", "pyarrow"])
def test_rows_of_columns(make: Callable[[Any], Any]) -> None:
    assert list(Classify().reader.values(make(COLUMNS))) == EXAMPLES
    assert list(UnlabeledReader().values(make(COLUMNS))) == ["a", "b"]
    rows = make({"context": ["c"], "endings": [["d", "e"]], "label": [1]})
    [choice] = Choose().reader.values(rows)
    assert (choice.endings, choice.label) == (("d", "e"), 1)
    with pytest.raises(UsageError, match="cannot tell which column is the text; its columns are: review"):
        list(UnlabeledReader().values(make({"review": ["a"]})))
    assert pairs_of(make({"premise": ["a"], "hypothesis": ["b"], "label": [1]})) == [("a", "b")]


@pytest.mark.parametrize("column", [("a", "b"), np.array(["a", "b"]), Column(["a", "b"]), pyarrow.array(["a", "b"])])
def test_columns_and_arrays_are_texts(column: Any) -> None:
    assert [each.text for each in Classify().reader.values(column)] == ["a", "b"]
    assert list(UnlabeledReader().values(column)) == ["a", "b"]


def test_an_array_of_pairs() -> None:
    [pair] = Classify().reader.values(np.array([["a", "b"]]))
    assert (pair.text, pair.text_pair) == ("a", "b")


def test_a_dataset_names_its_classes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": np.int64(0)}, {"text": "c", "label": -1}]
    found = list(Classify().reader.values(Dataset(rows, {"text": object(), "label": Names()})))
    assert [each.label for each in found] == ["up", "down", None]
    assert "'label': the dataset names its numbers: down, up" in capsys.readouterr().err
    tagged = Dataset([{"tokens": ["a", "b"], "tags": [0, 1]}], {"tokens": object(), "tags": ListOf(Names())})
    [sentence] = Tag().reader.values(tagged)
    assert sentence.tags == ("down", "up")
    with pytest.raises(UsageError, match="has several splits"):
        require_list({"train": Dataset([], {})})


def test_missing_values_of_pandas() -> None:
    """A number of a column with missing values is a float there, and a missing text is NaN."""
    frame = pandas({"text": ["a", "b"], "label": [1, None]})
    assert [each.label for each in Classify().reader.values(frame)] == ["1.0", None]
    with pytest.raises(UserError, match="example 2: no label"):
        list(Classify().reader.values(frame, labeled=True))
    assert [each.label for each in Classify().reader.values(frame.convert_dtypes())] == ["1", None]
    with pytest.raises(UserError, match="example 2: 'text' must be a string, found NaN"):
        list(Classify().reader.values(pandas({"text": ["a", None]})))
    found = MultiLabel().reader.values(pandas({"text": ["a", "b"], "labels": [np.array(["x"]), None]}), labeled=True)
    assert next(found).labels == ("x",)
    with pytest.raises(UserError, match="example 2: its labels are unknown"):
        next(found)
    answers = {"text": np.array(["c"], object), "answer_start": np.array([0], np.int32)}
    [question] = Span().reader.values(pandas({"question": ["q"], "context": ["c"], "answers": [answers]}), labeled=True)
    assert [answer.start for answer in question.answers or ()] == [0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("text", "got one str"),
        ({"text": "a"}, "got one dict"),
        ({}, "got one dict"),
        ({"text": ["a"], "label": [1, 2]}, "equally long.*'text' 1, 'label' 2"),
        ({"a", "b"}, "a set has no order"),
        (5, "got one int"),
    ],
)
def test_what_is_no_list_of_examples_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(Classify().reader.values(given))


def test_frames_that_cannot_be_read_are_refused() -> None:
    frame = pandas({"text": ["a"], "label": ["b"]})
    frame.columns = ["text", "text"]
    with pytest.raises(UsageError, match="two columns of the DataFrame are named 'text'"):
        list(Classify().reader.values(frame))
    with pytest.raises(UserError, match="its keys must be strings, but one is 0"):
        list(Classify().reader.values(pandas({0: ["a"]})))  # pyright: ignore[reportArgumentType]
    lazy = Frame(COLUMNS)
    lazy.collect = None  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UsageError, match="has not been computed"):
        require_list(lazy)


def test_decimals_are_numbers() -> None:
    [found] = Regress().reader.values([{"text": "a", "score": Decimal("3.50")}], labeled=True)
    assert found.label == "3.5"
