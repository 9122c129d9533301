"""Annotated spans of every tool become the same words and tags, or an error that names them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.sentences import TaggedSentences
from bertie.examples.tag_form import Scheme, TagForm
from bertie.tasks.inspect_data import inspect_data
from bertie.tasks.tag import Tag

TEXT = "Anna Maria\u200b saw caf\u00e9s \U0001f389 in New-York,\r\nnot nai\u0308ve Paris."
WORDS = ["Anna", "Maria", "saw", "cafés", "🎉", "in", "New", "-", "York", ",", "not", "naïve", "Paris", "."]
TAGS = ["B-PER", "I-PER", "O", "O", "O", "O", "B-LOC", "I-LOC", "I-LOC", "O", "O", "O", "B-LOC", "O"]
SURFACES = [("Anna Maria", "PER"), ("New-York", "LOC"), ("Paris", "LOC")]
SPANS = [
    (TEXT.index(each), TEXT.index(each) + len(each), label) for each, label in [("Anna Maria", "PER"), *SURFACES[1:]]
]


def utf16(place: int) -> int:
    return len(TEXT[:place].encode("utf-16-le")) // 2


def task(spans: list[Any], **more: Any) -> dict[str, Any]:
    """A task of Label Studio."""
    regions = [
        {"type": "labels", "value": {"start": a, "end": b, "text": text, "labels": [label]}}
        for a, b, text, label in spans
    ]
    choice = {"type": "choices", "value": {"choices": ["news"]}}
    return {"id": 7, "data": {"text": TEXT}, "annotations": [{"result": [choice, *regions], **more}]}


def write(path: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(text.encode())
    return path


def objects(start: str = "start", end: str = "end") -> list[dict[str, Any]]:
    return [{start: a, end: b, "label": label} for a, b, label in reversed(SPANS)]


def prodigy() -> dict[str, Any]:
    places, at = [], 0
    for word in [*WORDS[:10], "\r\n", *WORDS[10:]]:
        at = TEXT.index(word, at)
        places.append({"text": word, "start": at, "end": at + len(word), "id": len(places)})
        at += len(word)
    return {"text": TEXT, "tokens": places, "spans": objects(), "answer": "accept"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("doccano.jsonl", {"id": 1, "text": TEXT, "label": [list(each) for each in SPANS]}),
        ("doccano.jsonl", {"text": TEXT, "entities": objects("start_offset", "end_offset"), "relations": []}),
        ("offsets.jsonl", {"text": TEXT, "entities": SPANS}),
        ("offsets.jsonl", {"text": TEXT, "spans": objects()}),
        ("offsets.json", [{"text": TEXT, "spans": objects()}]),
        ("prodigy.jsonl", prodigy()),
        ("studio.json", [task([(a, b, TEXT[a:b], label) for a, b, label in SPANS])]),
        ("studio.json", [task([(utf16(a), utf16(b), TEXT[a:b], label) for a, b, label in SPANS])]),
        ("short.json", [{"text": TEXT, "label": [{"start": a, "end": b, "labels": [k]} for a, b, k in SPANS]}]),
    ],
)
def test_files_of_annotation_tools(tmp_path: Path, name: str, content: Any) -> None:
    path = write(tmp_path / name, content)
    [found] = Reader(TaggedSentences()).read(path)
    assert found.words == tuple(WORDS)
    assert found.tags == tuple(TAGS)
    assert found.text == TEXT
    assert [TEXT[start:end] for start, end in found.places] == WORDS
    [plain] = Reader(TaggedSentences()).stream(path)
    assert plain.words == found.words


def test_brat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"T{i}\t{label} {a} {b}\t{TEXT[a:b]}\n" for i, (a, b, label) in enumerate(SPANS)]
    lines += ["R1\tLives Arg1:T0 Arg2:T1\n", "#1\tAnnotatorNotes T0\tsure?\n"]
    write(tmp_path / "b.ann", "".join(lines))
    write(tmp_path / "b.txt", TEXT)
    write(tmp_path / "a.ann", "T1\tPER 0 4;9 11\tAnna in\n")
    write(tmp_path / "a.txt", "Anna was in")
    bad, found = Reader(TaggedSentences()).read(tmp_path)
    assert "a.ann:1: PER 0 4;9 11 is discontinuous" in str(bad)
    assert (found.words, found.tags, found.source) == (tuple(WORDS), tuple(TAGS), "b.ann")
    assert "2 lines that annotate no entities are not read" in capsys.readouterr().err
    assert [each.words for each in valid_examples(Reader(TaggedSentences()).stream(tmp_path), "brat")] == [
        ("Anna", "was", "in"),
        tuple(WORDS),
    ]
    (tmp_path / "a.txt").unlink()
    with pytest.raises(UsageError, match=r"a\.ann: its text a\.txt is missing"):
        list(Reader(TaggedSentences()).read(tmp_path / "a.ann"))


def test_half_of_a_pair_of_brat_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.ann", "T1\tPER 0 4\tAnna\n")
    write(tmp_path / "a.txt", "Anna")
    write(tmp_path / "b.txt", "Berta")
    [found] = valid_examples(Reader(TaggedSentences()).read(tmp_path), "brat")
    assert found.tags == ("B-PER",)
    assert "no annotations (.ann) beside 1 text, not read: b.txt" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"a\.txt is the text of a\.ann, brat's annotations beside it: give .*a\.ann"):
        Reader(TaggedSentences()).read(tmp_path / "a.txt")
    (tmp_path / "a.ann").unlink()
    with pytest.raises(
        UsageError, match=r"is a folder: give a file, or a folder with brat's NAME\.ann beside NAME\.txt"
    ):
        list(Reader(TaggedSentences()).read(tmp_path))


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[0, 10, "PER"], [5, 9, "PER"]], "the span PER 5–9 is nested in PER 0–10"),
        ([[5, 14, "PER"], [0, 6, "PER"]], "the span PER 5–14 overlaps with PER 0–6"),
        ([[0, 500, "PER"]], "the span PER 0–500 is not in the text, which has 62 characters"),
        ([[-1, 4, "PER"]], "a span starts at -1 and ends at 4: expected character offsets, from 0"),
        ([[4, 5, "PER"]], "the span PER 4–5 covers no word"),
        ([[0, 3, "PER"]], r"the span PER 0–3 cuts the word 'Anna' \(0–4\)"),
        ([[0, 4, ""]], "the span 0–4 has no label"),
        ([[0, 4]], r"a span is \[start, end, label\]"),
        ([[0, 4, "O"]], "the span O 0–4: O is the tag of words outside entities"),
        (
            [[0, 4, "B-PER"], [5, 10, "I-PER"]],
            "the spans B-PER 0–4 and I-PER 5–10 are tags of words.* tokens and tags",
        ),
        ([{"start": 0, "end": 4, "labels": ["A", "B"]}], "a span has the labels .* give one"),
        (
            [{"start": 0, "end": 4, "label": "A", "text": "Otto"}],
            "the span A 0–4 .'Otto'. has a different text .*: 'Anna'",
        ),
    ],
)
def test_spans_that_are_no_tags_of_words_are_refused_by_line(tmp_path: Path, spans: Any, message: str) -> None:
    text = "Anna Maria saw it and went away with the others, not with you."
    rows = [{"text": "ok", "entities": []}, {"text": text, "entities": spans}]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    good, bad = Reader(TaggedSentences()).read(path)
    assert good.tags == ("O",)
    with pytest.raises(UserError, match=rf"a\.jsonl:2: .*{message}"):
        raise bad if isinstance(bad, UserError) else AssertionError(bad)


def test_kinds_that_begin_as_tags_do_are_kinds() -> None:
    """B-cells and T-cells, phases S and M, and B-1 beside I-2."""
    spans = [[0, 1, "B-cell"], [2, 3, "T-cell"], [4, 5, "S-phase"], [6, 7, "M-phase"], [8, 9, "B-1"], [10, 11, "I-2"]]
    [found] = Reader(TaggedSentences()).values([{"text": "a b c d e f", "entities": spans}], labeled=True)
    assert found.tags == tuple(f"B-{label}" for _, _, label in spans)


@pytest.mark.parametrize("end", [4.0, "4", "4.0"])
def test_whole_numbers_of_pandas_are_positions(end: Any) -> None:
    token = {"text": "Anna", "start": 0.0, "end": end}
    rows = [{"text": "Anna", "spans": [[0.0, end, "P"]]}, {"text": "Anna", "tokens": [token], "spans": []}]
    assert [each.tags for each in Reader(TaggedSentences()).values(rows, labeled=True)] == [("B-P",), ("O",)]


def test_spaces_at_the_ends_of_a_span_do_not_count() -> None:
    [found] = Reader(TaggedSentences()).values([{"text": "in New York ,", "entities": [[2, 12, "LOC"]]}])
    assert found.tags == ("O", "B-LOC", "I-LOC", "O")


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("bio", "B-L I-L I-L B-L B-P O"),
        ("iob1", "I-L I-L I-L B-L I-P O"),
        ("iobes", "B-L I-L E-L S-L S-P O"),
        ("bilou", "B-L I-L L-L U-L U-P O"),
        ("bmes", "B-L M-L E-L S-L S-P O"),
        ("bmewo", "B-L M-L E-L W-L W-P O"),
    ],
)
def test_spans_get_the_tags_of_the_model(scheme: Scheme, tags: str) -> None:
    text, spans = "a b c d e f", [[0, 5, "L"], [6, 7, "L"], [8, 9, "P"]]
    [found] = Reader(TaggedSentences(form=TagForm(scheme))).values([{"text": text, "entities": spans}], labeled=True)
    assert found.tags == tuple(tags.split())
    with pytest.raises(UserError, match="follows one with the same label: the scheme io would join them"):
        list(Reader(TaggedSentences(form=TagForm("io"))).values([{"text": text, "entities": spans}], labeled=True))
    model = Tag(labels=("B-L", "L-L", "O", "U-L"), scheme="bilou")
    [dev] = model.reader.values([{"text": "a b", "entities": [[0, 1, "L"]]}], labeled=True)
    assert dev.tags == ("U-L", "O")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"tokens": ["a"], "tags": ["O"], "ner_tags": ["O"]},
            "the tags could be under 'tags' or 'ner_tags'. Choose with",
        ),
        ({"tokens": ["a"], "words": ["a"], "tags": ["O"]}, "the words could be under 'tokens' or 'words'. Choose with"),
        ({"text": "a", "entities": [], "spans": []}, "the spans could be under 'entities' or 'spans'"),
        (
            {"text": "a", "tokens": ["a"], "tags": ["O"], "spans": [[0, 1, "X"]]},
            "the words could be under 'tokens' or 'text'. Choose with --task.tokens",
        ),
        ({"text": "a"}, "no spans under 'entities' or 'spans' or 'label' or 'labels': its keys are text"),
        ({"text": "a", "label": None}, "it has no annotation"),
        ({"text": "a", "spans": [], "answer": "reject"}, "the annotator left out all 1 row (reject 1)"),
        ({"text": " \n", "spans": []}, "a sentence without words"),
        ({"text": "ab", "tokens": [{"start": 0, "end": 3}]}, "a token starts at 0 and ends at 3, in 2 characters"),
    ],
)
def test_rows_that_could_be_read_in_two_ways_are_asked_about(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        valid_examples(Reader(TaggedSentences()).read(write(tmp_path / "a.jsonl", row)), "a")


def test_json_in_utf16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"text": "a"}]', encoding="utf-16")
    with pytest.raises(UserError, match=r"a\.json is in UTF-16, as its first bytes say: convert the file to UTF-8"):
        inspect_data("tag", path)


def test_what_is_annotated_decides_between_text_and_words() -> None:
    row = {"text": "a, b", "tokens": ["a,", "b"], "ner_tags": ["O", "B-X"]}
    spans = {"text": "a, b", "tokens": ["a,", "b"], "entities": [[3, 4, "X"]]}
    first, second = Reader(TaggedSentences()).values([row, spans])
    assert (first.words, first.tags) == (("a,", "b"), ("O", "B-X"))
    assert (second.words, second.tags) == (("a", ",", "b"), ("O", "O", "B-X"))
    [named] = Reader(TaggedSentences(tokens="text", tags="spans")).values([row | {"spans": [[0, 1, "X"]]}])
    assert named.tags == ("B-X", "O", "O")


def test_label_studio_tasks_that_are_refused(tmp_path: Path) -> None:
    twice = task([(0, 4, "Anna", "PER")])
    twice["annotations"] *= 2
    html = task([])
    html["annotations"][0]["result"] = [{"type": "hypertextlabels", "value": {}}]
    tasks = [twice, task([], was_cancelled=True), html, task([(0, 4, "Otto", "PER")]), "no task", task([])]
    errors = [str(each) for each in Reader(TaggedSentences()).read(write(tmp_path / "a.json", tasks))]
    assert "a.json: example 1: 2 annotations: keep one of them" in errors[0]
    assert "example 2: its annotator left it out: was_cancelled" in errors[1]
    assert "example 3: bertie reads labels of characters in a text, not hypertextlabels" in errors[2]
    assert "example 4: the span PER 0–4 ('Otto') has a different text in the document: 'Anna'" in errors[3]
    assert "example 5: expected an object" in errors[4]
    assert "tags=('O', 'O'" in errors[5]


def test_label_studio_names_the_text_of_its_regions(tmp_path: Path) -> None:
    one = task([(0, 4, "", "PER")])
    one["data"] = {"text": "Anna was in", "title": "Otto is here"}
    for region in one["annotations"][0]["result"]:
        region["value"].pop("text", None)
        region["to_name"] = "title"
    [found] = Reader(TaggedSentences()).read(write(tmp_path / "a.json", [one]))
    assert (found.words, found.tags) == (("Otto", "is", "here"), ("B-PER", "O", "O"))
    for region in one["annotations"][0]["result"]:
        region["to_name"] = "shown"
    [bad] = Reader(TaggedSentences()).read(write(tmp_path / "a.json", [one]))
    assert "its regions belong to 'shown', but the texts are text, title. Choose with --task.tokens" in str(bad)
    [found] = Reader(TaggedSentences(tokens="text")).read(tmp_path / "a.json")
    assert found.words == ("Anna", "was", "in")


@pytest.mark.parametrize(
    "change", [{"annotations": {"result": []}}, {"annotations": [3]}, {"annotations": [{"result": [3]}]}]
)
def test_damaged_tasks_of_label_studio_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    [bad] = Reader(TaggedSentences()).read(write(tmp_path / "a.json", [task([]) | change]))
    assert "example 1: 'annotations' is not a list of objects" in str(bad).replace("result", "annotations", 1)


def test_lines_that_brat_does_not_write_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "Anna was in")
    (tmp_path / "a.ann").write_text("\ufeffT1\tPER 0 4\tAnna\n", encoding="utf-8")
    [found] = valid_examples(Reader(TaggedSentences()).read(tmp_path), "brat", strict=True)
    assert found.tags == ("B-PER", "O", "O")
    for line in (" T1\tPER 0 4\tAnna", "t1\tPER 0 4\tAnna", f"T1\tPER 0 {'9' * 5000}\tAnna"):
        write(tmp_path / "a.ann", line + "\n")
        [bad] = Reader(TaggedSentences()).read(tmp_path)
        assert "a.ann:1: expected an id such as T1, then a label" in str(bad)


def test_spans_of_other_tools() -> None:
    spans = [{"start": 0, "end": 4, "entity_group": "PER"}] * 2  # some tools repeat a span
    [found] = Reader(TaggedSentences()).values([{"text": "Anna was", "entities": spans}])
    assert found.tags == ("B-PER", "O")
    [found] = Reader(TaggedSentences()).values(
        [{"text": "Anna was", "entities": [{"start": 0, "end": 4, "type": "PER"}]}]
    )
    assert found.tags == ("B-PER", "O")


def test_datasets_names_its_numbers_in_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    names = {"_type": "ClassLabel", "names": ["O", "B-X"]}
    features = {"tokens": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"}}
    written = {"info": {"features": {**features, "ner_tags": {"feature": names, "_type": "List"}}}}
    table = pyarrow.table({"tokens": [["a", "b"]], "ner_tags": [[1, 0]]})
    parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(written)}), tmp_path / "a.parquet")
    [found] = Tag().reader.read(tmp_path / "a.parquet")
    assert found.tags == ("B-X", "O")
