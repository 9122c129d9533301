from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import UsageError, UserError
from bertie.examples.labels import MARKERS
from bertie.examples.reader import Reader
from bertie.examples.texts import Example, LabeledTexts
from bertie.tasks.classify import Classify
from bertie.tasks.embed import Embed
from bertie.tasks.regress import Regress
from bertie.tasks.scoring import labeled_examples

# As the README of the data states.
GLUE = {
    "CoLA": {"train": 8551, "dev": 1043},
    "SST-2": {"train": 67349, "dev": 872},
    "MRPC": {"train": 3668, "dev": 408},
    "STS-B": {"train": 5749, "dev": 1500},
    "RTE": {"train": 2490, "dev": 277},
    "WNLI": {"train": 635, "dev": 71},
    "QNLI": {"train-subset": 9999, "dev": 5463},
    "MNLI": {"train-subset": 19642, "dev_matched": 9815},
    "QQP": {"train-subset": 8999, "dev-subset": 1000},
    "diagnostic": {"diagnostic": 1104},
}
LABELS = {
    "CoLA": {"0", "1"},
    "SST-2": {"0", "1"},
    "MRPC": {"0", "1"},
    "STS-B": {None},
    "RTE": {"entailment", "not_entailment"},
    "WNLI": {"0", "1"},
    "QNLI": {"entailment", "not_entailment"},
    "MNLI": {"entailment", "neutral", "contradiction"},
    "QQP": {"0", "1"},
    "diagnostic": {None},
}


def read_examples(path: Path, reader: Reader = Reader(LabeledTexts(optional=True))) -> list[Example]:
    return labeled_examples(reader, path, strict=True)


def as_examples(values: Any, reader: Reader = Reader(LabeledTexts())) -> list[Example]:
    return list(reader.values(values))


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("task", GLUE)
def test_every_glue_file_has_the_stated_rows(shared_data: Path, task: str):
    for split, rows in GLUE[task].items():
        found = read_examples(shared_data / "glue" / task / f"{split}.tsv")
        assert len(found) == rows
        assert {example.label for example in found} == LABELS[task]
        assert {example.text_pair is None for example in found} == {task in ("CoLA", "SST-2")}


def test_first_rows_of_original_layouts(shared_data: Path):
    cola = read_examples(shared_data / "glue/CoLA/dev.tsv")[0]
    assert cola == Example("The sailors rode the breeze clear of the rocks.", None, "1", "dev.tsv:1")
    mrpc = read_examples(shared_data / "glue/MRPC/dev.tsv")[0]  # a byte order mark before, a lone quote inside
    assert mrpc.label == "1"
    assert mrpc.source == "dev.tsv:2"
    assert (mrpc.text_pair or "").startswith('" The foodservice')
    qnli = read_examples(shared_data / "glue/QNLI/dev.tsv")[0]
    assert qnli.text == "What came into force after the new constitution was herald?"


def test_mnli_rows_without_a_gold_label_are_left_out_for_training(tmp_path: Path):
    header = "index\tpairID\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tlabel2\tgold_label\n"
    rows = "0\ta\t(p)\t(q)\tA man.\tA person.\tneutral\tentailment\tentailment\n1\tb\t(p)\t(q)\tC\tD\tx\ty\t-\n"
    path = write(tmp_path / "dev.tsv", header + rows)
    assert read_examples(path) == [Example("A man.", "A person.", "entailment", "dev.tsv:2")]
    streamed = list(Reader(LabeledTexts()).stream(path))  # prediction answers every row
    assert [example.label for example in streamed if isinstance(example, Example)] == ["entailment", None]


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("Premise,Hypothesis,Label", "p,h,l", ("p", "h", "l")),
        ("id,question,sentence,label", "0,q,s,l", ("q", "s", "l")),
        ("sentence", "s", ("s", None, None)),
        ("id,qid1,qid2,question1,question2,is_duplicate", "0,1,2,a,b,1", ("a", "b", "1")),
    ],
)
def test_common_column_names_are_recognized(
    tmp_path: Path, header: str, row: str, expected: tuple[str, str | None, str | None]
):
    (found,) = read_examples(write(tmp_path / "x.csv", f"{header}\n{row}\n"))
    assert (found.text, found.text_pair, found.label) == expected


def test_named_columns(tmp_path: Path):
    path = write(tmp_path / "x.csv", "headline,body,topic,score,label\nh,b,t,0.5,l\n")
    (found,) = read_examples(path, Reader(LabeledTexts(text="headline", text_pair="body", label="topic")))
    assert (found.text, found.text_pair, found.label) == ("h", "b", "t")
    (scored,) = read_examples(path, Reader(LabeledTexts(text="body", label="score")))
    assert (scored.text_pair, scored.label) == (None, "0.5")


def test_a_named_label_may_be_missing_only_for_prediction(tmp_path: Path):
    path = write(tmp_path / "x.csv", "text\nhello\n")
    found = next(Reader(LabeledTexts(label="topic")).stream(path))
    assert found.label is None
    with pytest.raises(UsageError, match=r"no column 'topic'; its columns are: text\. Choose with --task\.label"):
        read_examples(path, Reader(LabeledTexts(label="topic")))


@pytest.mark.parametrize(
    ("text", "reader", "message"),
    [
        (
            "headline,topic\na,b\n",
            Reader(LabeledTexts()),
            r"cannot tell.*headline, topic.*--task\.text and --task\.label \(of pairs also --task\.text-pair\)",
        ),
        ("text,sentence\na,b\n", Reader(LabeledTexts()), "more than one column could be the text"),
        ("sentence1,label\na,b\n", Reader(LabeledTexts()), "cannot tell"),
        (
            "text,label,gold_label\na,b,c\n",
            Reader(LabeledTexts()),
            r"more than one column could be the label.*--task\.label",
        ),
        ("text,label\na,b\n", Reader(LabeledTexts(text="txet")), "no column 'txet'"),
        ("text,other\na,b\n", Reader(LabeledTexts(text_pair="other")), r"--task\.text-pair without --task\.text"),
    ],
)
def test_unclear_columns_are_refused(tmp_path: Path, text: str, reader: Reader, message: str):
    with pytest.raises(UsageError, match=message) as caught:
        read_examples(write(tmp_path / "x.csv", text), reader)
    assert str(caught.value).startswith(str(tmp_path / "x.csv"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "text,label\n", "no examples"),
        ("x.jsonl", "\n\n", "no examples"),
        ("x.tsv", "text\tlabel\na\t1\nb\n", r"x\.tsv:3: 1 column, but the first line has 2"),
        ("x.tsv", b"text\tlabel\nna\xefve\t1\n", r"x\.tsv:2: not UTF-8"),
        (
            "x.jsonl",
            '{"text": "a"}\n{"label": "b", "text": "a", "label": "c"}\n',
            r"x\.jsonl:2: the key 'label' occurs twice",
        ),
        ("x.jsonl", '"a"\n', r"x\.jsonl:1: expected a JSON object"),
        ("x.jsonl", '{"text": 5, "label": "a"}\n', r"x\.jsonl:1: 'text' must be a string, found 5"),
        ("x.jsonl", '{"text": "a"}\n{"label": "a"}\n', r"x\.jsonl:2: cannot tell which column"),
        ("x.jsonl", '{"text": "a", "text_pair": "b"}\n{"text": "a"}\n', r"x\.jsonl:2: found 'text', but 'text' and"),
        ("x.jsonl", '{"text": "a", "label": {"b": 1}}\n', r"x\.jsonl:1: 'label' must be a string"),
        ("x.jsonl", '{"text": "a", "label": ["b", "c"]}\n', r"x\.jsonl:1: the label is a list, .*multi_label learns"),
        ("x.jsonl", '{"text": "\\ud800"}\n', r"x\.jsonl:1: 'text' holds half of a surrogate pair"),
    ],
)
def test_an_error_names_the_file_and_the_line(tmp_path: Path, name: str, content: str | bytes, message: str):
    with pytest.raises(UserError, match=message) as caught:
        read_examples(write(tmp_path / name, content))
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_wrong_paths_are_usage_errors(tmp_path: Path):
    with pytest.raises(UsageError, match="no such file"):
        Reader(LabeledTexts()).stream(tmp_path / "none.tsv")
    with pytest.raises(UsageError, match=r"\.txt, \.jsonl, \.csv, \.tsv, \.parquet"):
        read_examples(write(tmp_path / "x.xlsx", "text\n"))
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(UsageError, match=r"folder\.tsv is a folder: give a file"):
        Reader(LabeledTexts()).stream(tmp_path / "folder.tsv")


def test_tsv_does_not_quote_and_only_line_feeds_end_lines(tmp_path: Path):
    path = write(tmp_path / "x.tsv", 'sentence\tlabel\r\n"a lone quote\t1\r\nline\u2028separator\t 0 \r\n\r\n')
    assert [(e.text, e.label) for e in read_examples(path)] == [('"a lone quote', "1"), ("line\u2028separator", "0")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("text\tlabel\na\t1\n\t\n \t0\n\nb\t0\n\n", [("a", "1"), ("", None), (" ", "0"), ("b", "0")]),
        ("text\na\n \n\nb\n\n", [("a", None), (" ", None), ("b", None)]),
    ],
)
def test_rows_of_empty_cells_are_rows_and_empty_lines_are_none(
    tmp_path: Path, content: str, expected: list[tuple[str, str | None]]
):
    for path in (write(tmp_path / "x.tsv", content), write(tmp_path / "x.csv", content.replace("\t", ","))):
        assert [(e.text, e.label) for e in Reader(LabeledTexts()).stream(path) if isinstance(e, Example)] == expected


@pytest.mark.parametrize("paired", [True, False])
def test_the_training_examples_decide_whether_texts_are_pairs(tmp_path: Path, paired: bool) -> None:
    rows: list[dict[str, Any]] = [{"text": "a"}, {"text": "b", "text_pair": "c"}]
    rows = rows if paired else rows[::-1]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    said = "found 'text', but the task reads two" if paired else "found 'text' and 'text_pair', but the task reads one"
    error, example = Reader(LabeledTexts(paired=paired)).stream(path)
    assert f"a.jsonl:1: {said}" in str(error)
    assert (example.text_pair is not None) == paired
    for name in ("a.csv", "a.tsv"):  # all rows have the same columns
        (tmp_path / name).write_text("\t".join(rows[0]).replace("\t", "," if name == "a.csv" else "\t") + "\n")
        with open(tmp_path / name, "a") as file:
            file.write(("," if name == "a.csv" else "\t").join("xy"[: len(rows[0])]) + "\n")
        with pytest.raises(UsageError, match=f"{name}: {said}"):
            list(Reader(LabeledTexts(paired=paired)).stream(tmp_path / name))


def test_embed_reads_pairs_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "text_pair": "c"}\n')
    error, example = Embed().reader.stream(path)
    assert "a.jsonl:1: found 'text', but the task reads two texts" in str(error)
    assert isinstance(example, Example)


@pytest.mark.parametrize("reader", [Reader(LabeledTexts()), Embed().reader, Regress().reader])
def test_nan_is_a_missing_label(tmp_path: Path, reader: Reader) -> None:
    """As pandas writes missing values."""
    path = write(tmp_path / "x.csv", "text,text_pair,label\na,b,1\na,b,nan\na,b,NaN\na,b,0\n")
    found = list(reader.read(path))
    assert [item.label for item in found if isinstance(item, Example)] == ["1", "0"]
    assert [str(item) for item in found if isinstance(item, UserError)] == [f"{path}:{i}: no label" for i in (3, 4)]


def test_numpy_numbers_are_labels() -> None:
    for values, labels in (
        ((np.int64(1), np.float32(0.5)), ["1", "0.5"]),
        ((np.bool_(True),), ["true"]),
        ((np.str_("x"),), ["x"]),
    ):
        given = [{"text": "a", "label": value} for value in values]
        assert [item.label for item in Reader(LabeledTexts()).values(given)] == labels
    assert [item.label for item in Reader(LabeledTexts()).values([{"text": "a", "label": np.float32("nan")}])] == [None]


def test_long_labels_are_shortened_in_messages():
    examples = [Example("a", None, "y" * 100_000, "here"), Example("b", None, "n", "there")]
    with pytest.raises(UserError, match=r"the label 'y{40}…' is none of the classes") as caught:
        Classify(labels=("n", "m" * 100_000)).validate(examples)
    assert len(str(caught.value)) < 200
    with pytest.raises(UserError, match=r"the score 'y{40}…', which is not a finite number"):
        Regress().validate(examples)


def test_labels_of_jsonl_become_strings(tmp_path: Path):
    rows = [{"text": "a", "label": label} for label in (1, "x", True, 0.5, None, "")]
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    found = [example for example in Reader(LabeledTexts()).stream(path) if isinstance(example, Example)]
    assert [example.label for example in found] == ["1", "x", "true", "0.5", None, None]
    write(path, "".join(json.dumps(row) + "\n" for row in rows[1::3]))
    with pytest.raises(UserError, match=r"x\.jsonl:2: no label"):
        read_examples(path)


def test_streaming_is_lazy(tmp_path: Path):
    stream = Reader(LabeledTexts()).stream(write(tmp_path / "x.jsonl", '{"text": "a"}\nbroken\n{"text": "c"}\n'))
    assert next(stream) == Example("a", None, None, "x.jsonl:1")
    bad = next(stream)
    assert isinstance(bad, UserError)
    assert "x.jsonl:2: not valid JSON" in str(bad)
    assert next(stream) == Example("c", None, None, "x.jsonl:3")


def test_a_line_of_txt_is_a_text_without_a_label(tmp_path: Path):
    path = write(tmp_path / "x.txt", "a\tb\n\nlast")
    assert list(Reader(LabeledTexts()).stream(path)) == [
        Example(text, None, None, f"x.txt:{number}") for number, text in enumerate(["a\tb", "", "last"], 1)
    ]
    for name in (path, Path("-")):
        with pytest.raises(UsageError, match=r"\.txt or stdin is a text without a label"):
            read_examples(name)


def test_examples_from_python_values():
    ready = Example("c", None, "x", "mine")
    found = as_examples([{"text": "a", "label": 1}, "b", ready])
    assert found == [Example("a", None, "1", "example 1"), Example("b", None, None, "example 2"), ready]
    (pair,) = as_examples([{"premise": "p", "hypothesis": "h"}])
    assert pair.text_pair == "h"
    (named,) = as_examples(["plain"], Reader(LabeledTexts(text="headline", label="topic")))
    assert (named.text, named.label) == ("plain", None)
    assert as_examples([("a", "b")]) == [Example("a", "b", None, "example 1")]
    with pytest.raises(UserError, match="example 1: expected a dict, a string, a pair or an Example, got int"):
        as_examples([5])
    with pytest.raises(UserError, match="example 1: its keys must be strings, but one is 1"):
        as_examples([{1: "a", "text": "b"}])
    assert as_examples([{"text": "a", "text_pair": None}]) == [Example("a", None, None, "example 1")]
    with pytest.raises(UsageError, match="a pair has two texts and this one has 3"):
        as_examples([("a", "b", "c")])


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t\x00"), min_size=1)
labels = st.from_regex(r"[a-z]{1,5}", fullmatch=True).filter(lambda label: label not in ("nan", *MARKERS))


@given(st.lists(st.tuples(texts, labels), min_size=1, max_size=8))
def test_tsv_csv_and_jsonl_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]):
    folder = tmp_path_factory.mktemp("formats")
    tsv = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
    jsonl = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    with open(folder / "x.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    for path in (write(folder / "x.tsv", tsv), write(folder / "x.jsonl", jsonl), folder / "x.csv"):
        assert [(example.text, example.label) for example in read_examples(path)] == rows


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_list_of_one_label_is_this_label(name: str, tmp_path: Path) -> None:
    """As in doccano's files of one class for each text, and in tables that pandas made of them."""

    def write(*lists: list[Any]) -> Path:
        rows = [{"text": "a", "label": labels} for labels in lists]
        lines = [json.dumps(row) for row in rows]
        if not name.endswith("jsonl"):
            separator = "," if name.endswith("csv") else "\t"
            cells = [f'"{labels}"' if separator == "," else str(labels) for labels in lists]
            lines = [f"text{separator}label", *(f"a{separator}{cell}" for cell in cells)]
        (tmp_path / name).write_text("\n".join(lines))
        return tmp_path / name

    reader = Reader(LabeledTexts())
    assert [each.label for each in reader.read(write(["pos"], ["neg"])) if isinstance(each, Example)] == ["pos", "neg"]
    assert [each.label for each in reader.values([{"text": "a", "label": np.array(["pos"])}], labeled=True)] == ["pos"]
    skipped = list(reader.read(write([], ["pos"])))
    assert "no label" in str(skipped[0])
    assert "multi_label learns several" in str(next(reader.read(write(["pos", "neg"]))))
    for lists in (["pos"], ["pos", "neg"]), (["pos", "neg"], ["pos"]):
        with pytest.raises(UsageError, match=r"is a list of several labels, but .* has one"):
            list(reader.read(write(*lists)))
