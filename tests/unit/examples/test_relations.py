"""Reading texts with two spans: SemEval's files, TACRED's JSON, own columns, and what is refused by its line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bertie.base.errors import UsageError, UserError
from bertie.examples.left_out import valid_examples
from bertie.examples.marked_texts import TAG, RelationExample, from_positions, from_tags
from bertie.examples.reader import DataFormat
from bertie.tasks import Relate
from bertie.tasks.scoring import labeled_examples, training_examples

SEMEVAL = """1\t"The <e1>child</e1> was put into the <e2>cradle</e2>."
Entity-Destination(e1,e2)
Comment: it is one.

2\t"<e2>Ridges</e2> rise from a <e1>surge</e1>."
Other
Comment:

"""


def read(path: Path, **settings: Any) -> list[Any]:
    return list(Relate(**settings).reader.read(path))


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def spans(example: RelationExample) -> tuple[str, str]:
    return example.text[slice(*example.first)], example.text[slice(*example.second)]


def tagged(example: RelationExample) -> tuple[str, str, str | None]:
    return (*spans(example), example.label)


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    return written(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_files_of_semeval_are_read(tmp_path: Path) -> None:
    for name in ("TRAIN_FILE.TXT", "train.txt"):
        found = read(written(tmp_path / name, SEMEVAL))
        assert [each.text for each in found] == ["The child was put into the cradle.", "Ridges rise from a surge."]
        assert [tagged(each) for each in found] == [
            ("child", "cradle", "Entity-Destination(e1,e2)"),
            ("surge", "Ridges", "Other"),
        ]
        assert found[1].source == f"{name}:5"
    unlabeled = "".join(line + "\n" for line in SEMEVAL.splitlines() if line[:1].isdigit())
    found = list(Relate().reader.stream(written(tmp_path / "test.txt", unlabeled)))
    assert [tagged(each) for each in found] == [("child", "cradle", None), ("surge", "Ridges", None)]


def test_a_relation_may_begin_as_a_comment_does(tmp_path: Path) -> None:
    found = read(written(tmp_path / "train.txt", SEMEVAL.replace("Other\n", "Comment-Topic(e1,e2)\nComment\n")))
    assert [each.label for each in found] == ["Entity-Destination(e1,e2)", "Comment-Topic(e1,e2)"]
    found = read(written(tmp_path / "train.txt", SEMEVAL.replace("Other\n", "Comment\n")))
    assert [each.label for each in found] == ["Entity-Destination(e1,e2)", "Comment"]
    found = read(written(tmp_path / "train.txt", SEMEVAL.replace("Other\n", "")))
    assert [each.label for each in found] == ["Entity-Destination(e1,e2)", None]


def test_a_damaged_file_of_semeval_names_the_line(tmp_path: Path) -> None:
    found = read(written(tmp_path / "train.txt", SEMEVAL.replace("Other\n", "Other\nOther\n")))
    assert str(found[1]).startswith(f"{tmp_path}/train.txt:7: expected a numbered sentence, its relation, or a comment")
    found = read(written(tmp_path / "train.txt", SEMEVAL.replace("Entity-Destination(e1,e2)\n", "")))
    assert [str(each) for each in found if isinstance(each, UserError)] == []
    with pytest.raises(UserError, match=r"train\.txt:1: no label to train on; add it"):
        Relate().fit(found)


@pytest.mark.parametrize("order", [1, -1])
def test_a_table_without_a_header_is_recognized(tmp_path: Path, order: int) -> None:
    rows = [["Other", "A <e1> ridge </e1> over the <e2> surge </e2> ."], ["X(e1,e2)", "<e1>a</e1> <e2>b</e2>"]]
    text = "".join("\t".join(row[::order]) + "\n" for row in rows)
    found = read(written(tmp_path / "train.tsv", text))
    assert [tagged(each) for each in found] == [("ridge", "surge", "Other"), ("a", "b", "X(e1,e2)")]
    assert found[0].text == "A ridge over the surge ."


def test_tacred_has_positions_of_tokens(tmp_path: Path) -> None:
    row = {
        **{"id": "x7", "relation": "per:city", "token": ["-LRB-", "Ada", "King", "-RRB-", "left", "London"]},
        **{"subj_start": 1, "subj_end": 2, "obj_start": 5, "obj_end": 5, "subj_type": "PERSON", "obj_type": "CITY"},
        **{"stanford_pos": ["x"] * 6, "docid": "d"},
    }
    path = written(tmp_path / "train.json", json.dumps([row, {**row, "obj_end": 9}, "x"]))
    found = read(path, form="typed")
    assert found[0].text == "( Ada King ) left London"
    assert tagged(found[0]) == ("Ada King", "London", "per:city")
    assert (found[0].first_type, found[0].second_type) == ("PERSON", "CITY")
    assert "example 2 (x7): the span 5 to 10, exclusive, is empty or not in the 6 tokens" in str(found[1])
    assert "example 3: expected an object, found str" in str(found[2])


def test_ends_of_columns_of_tacred_are_the_last_tokens(tmp_path: Path) -> None:
    """Also where no row shows it."""
    row = {"token": ["a", "b", "c", "d", "e"], "subj_start": 0, "subj_end": 1, "obj_start": 2, "obj_end": 3}
    row |= {"relation": "x"}
    reader = Relate().reader
    assert [spans(each) for each in reader.values([row])] == [("a b", "c d")]
    assert reader.resolve([row]).kind.data_format == DataFormat(end="last")
    assert [spans(each) for each in Relate().reader.values(iter([row]))] == [("a b", "c d")]
    for path in (written(tmp_path / "a.json", json.dumps([row])), lines(tmp_path / "a.jsonl", row)):
        assert [spans(each) for each in read(path)] == [("a b", "c d")]
    after = lines(tmp_path / "a.jsonl", row | {"obj_end": 5}, row)
    where = rf"by the name subj_start, it is the last token of a span; by {after}:1, it is the token after it"
    with pytest.raises(UsageError, match=where):
        read(after)
    with pytest.raises(UserError, match="is empty or not in the"):
        list(Relate().reader.values(iter([row | {"obj_end": 5}])))
    assert spans(read(after, end="after")[0]) == ("a", "c d e")


def test_ends_of_tokens_are_asked_about_unless_an_example_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = {"tokens": ["a", "b", "c", "d", "e"], "e1_start": 0, "e1_end": 1, "e2_start": 2, "e2_end": 3, "label": "x"}
    path = lines(tmp_path / "a.jsonl", long, long)
    with pytest.raises(UsageError, match=r"a\.jsonl: e1_end could be the last token of a span or the token after it"):
        read(path)
    with pytest.raises(UsageError, match="could be the last token"):
        list(Relate().reader.values([long]))
    with pytest.raises(UsageError, match="could be the last token"):
        list(Relate().reader.values(iter([long])))
    assert [spans(each) for each in read(path, end="last")] == [("a b", "c d")] * 2
    assert [spans(each) for each in read(path, end="after")] == [("a", "c")] * 2
    for other, expected in (({"e2_end": 2}, ("a b", "c d")), ({"e2_start": 4, "e2_end": 5}, ("a", "c"))):
        found = read(lines(tmp_path / "a.jsonl", long, long | other))
        assert spans(found[0]) == expected
        assert "a.jsonl:2 shows" in capsys.readouterr().err
        assert spans(next(Relate().reader.values([long, long | other]))) == expected


def test_a_doubt_about_ends_is_resolved_by_the_training_examples(tmp_path: Path) -> None:
    long = {"tokens": ["a", "b", "c", "d", "e"], "e1_start": 0, "e1_end": 1, "e2_start": 2, "e2_end": 3, "label": "x"}
    dev = lines(tmp_path / "dev.jsonl", long)
    for other, expected in (({"e2_end": 2, "label": "y"}, ("a b", "c d")), ({"e2_end": 5, "label": "y"}, ("a", "c"))):
        trained, examples = training_examples(Relate(), lines(tmp_path / "train.jsonl", long, long | other))
        task: Any = trained.fit(examples)
        assert spans(*task.reader.read(dev)) == expected
        for own in (task, replace(task, data_format=DataFormat(), end=task.data_format.end)):
            trained = Relate().as_trained(own)
            assert spans(*trained.reader.read(dev)) == expected
            assert spans(*trained.reader.values(iter([long]))) == expected
    certain = lines(tmp_path / "dev.jsonl", long, long | {"e1_end": 0})  # by itself, whatever training examples had
    assert spans(next(iter(task.reader.read(certain)))) == ("a b", "c d")


def test_open_nre_has_objects(tmp_path: Path) -> None:
    row = {
        "token": ["Ada", "King", "left", "Rome", "."],
        "h": {"name": "ada king", "id": "Q1", "pos": [0, 2], "type": "PER"},
        "t": {"name": "Rome", "id": "Q2", "pos": [3, 4], "type": "LOC"},
        "relation": "in",
    }
    [found] = read(lines(tmp_path / "a.jsonl", row))
    assert tagged(found) == ("Ada King", "Rome", "in")
    assert (found.first_type, found.second_type) == ("PER", "LOC")
    assert tagged(*Relate().reader.values([row])) == ("Ada King", "Rome", "in")
    assert tagged(*read(written(tmp_path / "a.json", json.dumps([row])))) == ("Ada King", "Rome", "in")
    last = row | {"h": row["h"] | {"pos": [0, 1]}, "t": row["t"] | {"pos": [3, 3]}}
    assert tagged(*read(lines(tmp_path / "a.jsonl", last))) == ("Ada King", "Rome", "in")
    by_name = row | {"h": row["h"] | {"pos": [0, 1]}, "t": {"name": "left Rome", "pos": [2, 3]}}
    assert tagged(*read(lines(tmp_path / "a.jsonl", by_name))) == ("Ada King", "left Rome", "in")
    with pytest.raises(UsageError, match="h_end could be the last token of a span or the token after it"):
        read(lines(tmp_path / "a.jsonl", row | {"h": {"pos": [0, 2]}}))
    text = {"text": "Ada King left Rome.", "h": {"pos": [14, 18]}, "t": {"pos": [0, 8]}, "relation": "of"}
    assert tagged(*read(lines(tmp_path / "a.jsonl", text))) == ("Rome", "Ada King", "of")
    found, bad = read(lines(tmp_path / "a.jsonl", row, row | {"t": {"name": "Rome", "pos": [[3, 4]]}}))
    assert tagged(found) == ("Ada King", "Rome", "in")
    assert str(bad).endswith("a.jsonl:2: the pos of 't' is [[3, 4]]: expected [start, end]")
    with pytest.raises(UsageError, match=r"\.txt or stdin is a text without a label"):
        read(lines(tmp_path / "wiki80.txt", row))


def test_positions_of_characters(tmp_path: Path) -> None:
    row = {
        "sentence": "Ada King left 倫敦 .",
        "e1_start": 0,
        "e1_end": 8,
        "e2_start": 14,
        "e2_end": 16,
        "relation": "in",
    }
    assert tagged(*read(lines(tmp_path / "a.jsonl", row))) == ("Ada King", "倫敦", "in")
    text = "sentence,e1_start,e1_end,e2_start,e2_end,relation\nAda King left Rome .,0,7,14,17,in\n"
    with pytest.raises(UsageError, match=r"a\.csv:2: the span 'Ada Kin' cuts the word 'King' .*--task.end last"):
        read(written(tmp_path / "a.csv", text))
    assert tagged(*read(tmp_path / "a.csv", end="last")) == ("Ada King", "Rome", "in")
    assert spans(*read(tmp_path / "a.csv", end="after")) == ("Ada Kin", "Rom")
    arrays = {name: np.int64(value) if isinstance(value, int) else value for name, value in row.items()}
    assert tagged(*Relate().reader.values([arrays])) == ("Ada King", "倫敦", "in")
    floats = text.replace("0,7,14,17", "0.0,8.0,14.0,18.0")  # as pandas writes them
    assert tagged(*read(written(tmp_path / "a.csv", floats))) == ("Ada King", "Rome", "in")
    [bad] = read(written(tmp_path / "a.csv", floats.replace("8.0,", "8.5,")))
    assert "a.csv:2: the positions of a span must be whole numbers from 0: 0.0, 8.5" in str(bad)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("Ada left Rome", (0, 1, 2, 3)),  # of tokens
        ("Ada left Rome", (0, 3, 10, 13)),
        ("😀 Ada left Rome.", (3, 6, 12, 16)),  # of UTF-16
    ],
)
def test_positions_that_cut_words_are_asked_about(tmp_path: Path, text: str, places: tuple[int, ...]) -> None:
    names = ("e1_start", "e1_end", "e2_start", "e2_end")
    bad = {"text": text, "relation": "x"} | dict(zip(names, places, strict=True))
    good = {"text": "Ada left Rome", "relation": "y"} | dict(zip(names, (0, 3, 9, 13), strict=True))
    with pytest.raises(UsageError, match=r"a\.jsonl:2: the span .* cuts the word .* \(so in 1 of 2 texts\)"):
        read(lines(tmp_path / "a.jsonl", good, bad))
    many = lines(tmp_path / "a.jsonl", *[good] * 19, bad)  # the others leave no doubt
    *others, last = read(many)
    assert {tagged(each) for each in others} == {("Ada", "Rome", "y")}
    assert isinstance(last, UserError)
    assert "a.jsonl:20: the span " in str(last)
    assert len(valid_examples(read(many, end="after"), "a", strict=True)) == 20


def test_labels_that_may_be_unknown_are_asked_about(tmp_path: Path) -> None:
    row = "<e1>a</e1> <e2>b</e2>\t"

    def found(*labels: str, no_label: tuple[str, ...] = (), negative: str = "") -> list[str | None]:
        path = written(tmp_path / "a.tsv", "text\trelation\n" + "".join(f"{row}{label}\n" for label in labels))
        return [
            each.label
            for each in labeled_examples(Relate(no_label=no_label, negative=negative).reader, path, strict=True)
        ]

    for marker in ("-1", "-"):
        with pytest.raises(UsageError, match=f"the label '{marker}' could mean that the label is unknown"):
            found("x", "y", marker)
        assert found("x", "y", marker, no_label=(marker,)) == ["x", "y"]
        assert found("x", marker, negative=marker) == ["x", marker]
    assert found("0", "1", "2", "-1") == ["0", "1", "2"]
    assert found("x", "NA", "none") == ["x", "NA", "none"]  # there is no relation
    assert found("X(e2,e1)", "X (E2, E1)", "Other") == ["X(e2,e1)", "X(e2,e1)", "Other"]
    with pytest.raises(UsageError, match=r"names 'X\(e1, e2\)': write 'X\(e1,e2\)'"):
        Relate(labels=("X(e1, e2)", "Other"))
    text = {"text": "<e1>a</e1> <e2>b</e2>"}
    with pytest.raises(
        UsageError, match=r"a\.jsonl:2: the label '1' is text, but the label of .*a\.jsonl:1 is a number"
    ):
        read(lines(tmp_path / "a.jsonl", text | {"label": 1}, text | {"label": "1"}))


def test_ends_that_contradict_each_other_are_asked_about(tmp_path: Path) -> None:
    long = {"tokens": ["a", "b", "c", "d", "e"], "e1_start": 0, "e1_end": 1, "e2_start": 2, "e2_end": 5, "label": "x"}
    path = lines(tmp_path / "a.jsonl", long, long | {"e2_end": 2})
    where = (
        rf"by {tmp_path}/a\.jsonl:2, it is the last token of a span; by {tmp_path}/a\.jsonl:1, it is the token after it"
    )
    with pytest.raises(UsageError, match=where):
        read(path)
    found = read(path, end="last")
    assert "a.jsonl:1: the span 2 to 6, exclusive, is empty" in str(found[0])
    assert spans(found[1]) == ("a b", "c")


NEAR_MISSES = [
    *(
        ({"text": text}, "the text needs <e1>…</e1> and <e2>…</e2>")
        for text in (
            *("<e1>a</e1> b", "<e1>a</e1> <e2>b", "<e1>a</e1> <e1>b</e1> <e2>c</e2>", "<e1>a <e2>b</e1> c</e2>"),
            *("<e1>a <e2>b</e2></e1>", "</e1>a<e1> <e2>b</e2>"),
        )
    ),
    ({"text": "<e1> </e1> <e2>b</e2>"}, "the span e1 is empty"),
    ({"text": "[E1] a <e1>a</e1> <e2>b</e2>"}, r"the text has '\[E1\]', which is how bertie marks spans"),
    ({"text": "<e1>a</e1> [/E2:X] <e2>b</e2>"}, r"the text has '\[/E2:X\]'"),
    (
        {"text": "a b", "e1_start": 0, "e1_end": 1, "e2_start": 2, "e2_end": 4},
        "the span 2 to 4, exclusive, is empty or not in",
    ),
    ({"text": "a b", "e1_start": 0, "e1_end": 2, "e2_start": 1, "e2_end": 3}, "the spans overlap: characters 0 to 2"),
    (
        {"text": "a b", "e1_start": 1, "e1_end": 1, "e2_start": 2, "e2_end": 3},
        "the span 1 to 1, exclusive, is empty or not in",
    ),
    ({"text": "a b c", "e1_start": 0, "e1_end": 1, "e2_start": 1, "e2_end": 2}, "is blank"),
    ({"text": "a b", "e1_start": "x", "e1_end": 1, "e2_start": 2, "e2_end": 3}, "whole numbers from 0: x, 1, 2, 3"),
    ({"text": "a b", "e1_start": -1, "e1_end": 1, "e2_start": 2, "e2_end": 3}, "whole numbers from 0: -1, 1, 2, 3"),
    (
        {"text": "<e1>a</e1> <e2>b</e2>", "e1_start": 0, "e1_end": 1, "e2_start": 2, "e2_end": 3},
        "has tags, and e1_start",
    ),
    ({"tokens": ["a", "b"]}, "tokens without the positions of the spans"),
    ({"text": 3}, "'text' must be a string"),
    ({"text": "<e1>a</e1> <e2>b</e2>", "relation": None}, "no label"),
]


@pytest.mark.parametrize(("row", "problem"), NEAR_MISSES)
def test_a_near_miss_is_refused_by_its_line(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    good = {"text": "<e1>a</e1> <e2>b</e2>", "relation": "x"}
    path = lines(tmp_path / "a.jsonl", good, {"relation": "y"} | row)
    found = read(path)
    assert tagged(found[0]) == ("a", "b", "x")
    with pytest.raises(UserError, match=rf"a\.jsonl:2: .*{problem}"):
        valid_examples(found, "a.jsonl", strict=True)


def test_columns_are_asked_about(tmp_path: Path) -> None:
    good = {"text": "<e1>a</e1> <e2>b</e2>", "relation": "x"}
    with pytest.raises(UsageError, match=r"more than one column could be the text \(text, sentence\)"):
        list(Relate().reader.values([{**good, "sentence": "c"}]))
    assert len(list(Relate(text="text").reader.values([{**good, "sentence": "c"}]))) == 1
    with pytest.raises(UsageError, match=r"could be the relation \(relation, label\)"):
        list(Relate().reader.values([{**good, "label": "c"}]))
    with pytest.raises(UsageError, match="a column beside e1_start is missing"):
        list(Relate().reader.values([{**good, "e1_start": 0}]))
    with pytest.raises(UsageError, match="cannot tell which column is the text; its columns are: body"):
        list(Relate().reader.values([{"body": "c"}]))
    own = {"body": "a b", "a": 0, "b": 1, "c": 2, "d": 3, "class": "x", "k": "P", "l": "Q"}
    settings: dict[str, Any] = {"text": "body", "spans": ("a", "b", "c", "d"), "types": ("k", "l"), "label": "class"}
    [found] = Relate(form="typed", **settings).reader.values([own])
    assert (*tagged(found), found.first_type, found.second_type) == ("a", "b", "x", "P", "Q")
    with pytest.raises(UsageError, match="4 columns are needed"):
        list(Relate(**settings | {"spans": ("a",)}).reader.values([own]))
    with pytest.raises(UserError, match="expected a text with"):
        list(Relate().reader.values([["a", "b"]]))
    written(tmp_path / "a.txt", "<e1>a</e1> <e2>b</e2>\n")
    with pytest.raises(UsageError, match=r"\.txt or stdin is a text without a label"):
        read(tmp_path / "a.txt")
    assert [spans(each) for each in Relate().reader.stream(tmp_path / "a.txt")] == [("a", "b")]


def test_types_that_have_no_marker_are_refused_by_their_line(tmp_path: Path) -> None:
    rows = [
        {"text": "<e1>a</e1> <e2>b</e2>", "relation": "xy"[i], "e1_type": "P", "e2_type": "QR"[i]} for i in range(2)
    ]
    task = Relate(form="masked").fit(list(Relate(form="masked").reader.values(rows)))
    with pytest.raises(UserError, match="the first span has no type"):
        list(Relate(form="masked").reader.values(["<e1>a</e1> <e2>b</e2>"]))
    found = list(task.reader.stream(lines(tmp_path / "a.jsonl", rows[0], rows[0] | {"e2_type": "P"})))
    assert tagged(found[0])[:2] == ("a", "b")
    assert "a.jsonl:2: the type 'P' of the second span is not one of the known types: Q, R" in str(found[1])


@settings(max_examples=50)
@given(st.lists(st.text("ab <>/e1\n\u3000\u200b😀é\u0301", max_size=6), min_size=5, max_size=5), st.booleans())
def test_spans_are_exact_in_any_text(parts: list[str], swapped: bool) -> None:
    before, first, between, second, after = parts
    a, b = ("e2", "e1") if swapped else ("e1", "e2")
    tagged_text = f"{before}<{a}>{first}</{a}>{between}<{b}>{second}</{b}>{after}"
    assume(first.strip() and second.strip() and len(TAG.findall(tagged_text)) == 4)
    text, *places = from_tags(tagged_text, "here")
    found = [text[slice(*each)] for each in (places[::-1] if swapped else places)]
    assert found == [first.strip(), second.strip()]
    assert "".join(text.split()) == "".join("".join(parts).split())
    ends = [number for place in places for number in place]
    assert from_positions(text, ends, "after", "here") == (text, *places)


def test_blanks_at_tags_are_kept_once() -> None:
    for tagged_text in (
        "x<e1> a b </e1>y <e2>c</e2>",
        "x <e1>a b</e1> y<e2> c </e2>",
        " x  <e1> a b </e1> y <e2> c</e2>",
    ):
        text, first, second = from_tags(tagged_text, "here")
        assert (text[slice(*first)], text[slice(*second)]) == ("a b", "c")
        assert " ".join(text.split()) == "x a b y c"
