"""Choices, tagged sentences and questions: the formats of their publishers, and bad rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from bertie.base.errors import UsageError, UserError
from bertie.examples.choices import ChoiceExample, Choices
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.sentences import TaggedSentences
from bertie.examples.squad import Answer, Question, Questions
from bertie.examples.tagged import TaggedSentence
from bertie.examples.texts import Example, LabeledTexts
from bertie.examples.unlabeled import UnlabeledReader
from bertie.tasks import Tag

SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def lines(values: list[Any]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_codah_has_the_stated_examples(shared_data: Path) -> None:
    found = valid_examples(
        Reader(Choices()).read(shared_data / "choice" / "codah" / "full_data.tsv"), "codah", strict=True
    )
    assert len(found) == 2776
    assert found[0].context == "I am always very hungry before I go to bed. I am"
    assert found[0].endings[3] == "tempted to snack when I feel this way."
    assert found[0].label == 3
    assert {choice.label for choice in found} == {0, 1, 2, 3}


def test_swag_rows_have_a_context_and_a_lead(tmp_path: Path) -> None:
    row = '0,v1,3416,"Members hold their horns. A drum",Members hold their horns.,A drum,gold,"rolls, loud",b,c,d,0\n'
    [found] = Reader(Choices()).read(write(tmp_path / "train.csv", SWAG + row))
    assert found == ChoiceExample(
        "Members hold their horns.", "A drum", ("rolls, loud", "b", "c", "d"), 0, "train.csv:2"
    )


def test_a_context_and_its_endings_may_be_a_list() -> None:
    assert list(Reader(Choices()).values([["c", "a", "b"], ("c", "a", "b", "d")])) == [
        ChoiceExample("c", "", ("a", "b"), None, "example 1"),
        ChoiceExample("c", "", ("a", "b", "d"), None, "example 2"),
    ]
    for wrong, message in (
        (["c", "a"], "at least 2 endings, found 2 texts"),
        (["c", "a", 1], "'text 3' must be a string"),
    ):
        with pytest.raises(UserError, match=message):
            list(Reader(Choices()).values([wrong]))


def test_a_list_may_have_any_number_of_endings(tmp_path: Path) -> None:
    rows = [{"question": "q", "choices": ["a", "b", "c"], "answer": 2}, {"question": "q", "choices": ["a", "b"]}]
    path = write(tmp_path / "a.jsonl", lines(rows))
    first, second = Reader(Choices()).stream(path)
    assert (first.endings, first.label) == (("a", "b", "c"), 2)
    assert second.label is None
    assert valid_examples(Reader(Choices()).read(path), "a") == [first]  # the other one has no label
    assert next(Reader(Choices()).values([rows[0]])).endings == first.endings
    [named] = Reader(Choices("start", "right")).values([{"start": "s", "ending0": "a", "ending1": "b", "right": "1"}])
    assert (named.context, named.label) == ("s", 1)


def test_named_ending_columns(tmp_path: Path) -> None:
    """As in a table of exam questions: the label is the name of a column."""
    path = write(tmp_path / "exam.csv", "prompt,A,B,C,answer\nWhich?,one,two,three,C\nWho?,you,me,us,0\n")
    first, second = Reader(Choices(endings=("A", "B", "C"))).read(path)
    assert first == ChoiceExample("Which?", "", ("one", "two", "three"), 2, "exam.csv:2")
    assert second.label == 0
    [reordered] = Reader(Choices(endings=("C", "A"))).values([{"context": "s", "A": "a", "C": "c", "label": "A"}])
    assert (reordered.endings, reordered.label) == (("c", "a"), 1)
    [listed] = Reader(Choices(endings=("options",))).values([{"context": "s", "options": ["a", "b"], "label": 1}])
    assert (listed.endings, listed.label) == (("a", "b"), 1)
    with pytest.raises(UsageError, match=r"exam\.csv: no column 'D'; its columns are.*--task\.endings"):
        list(Reader(Choices(endings=("A", "D"))).read(path))
    with pytest.raises(UsageError, match=r"no endings to choose among.*its columns are: prompt, A, B, C, answer"):
        list(Reader(Choices()).read(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "a", "endings": ["b", "c"], "label": 3}, "'label' is '3', but the 2 endings are 0 to 1"),
        ({"context": "a", "endings": ["b", 5], "label": 0}, "'endings' must be a string"),
        ({"context": "a", "endings": "bc", "label": 0}, "must be a list of strings"),
        ({"context": "a", "endings": ["b"], "label": 0}, "1 endings to choose from"),
        ({"context": "a", "label": 0}, "no endings to choose among.*its columns are: context, label"),
        ({"context": "a", "endings": ["b", "c"], "label": "9" * 5000}, "'label' is '9999"),
    ],
)
def test_a_bad_choice_is_an_error_in_its_place(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"context": "a", "endings": ["b", "c"], "label": 0}
    with pytest.raises(UserError, match=message):
        list(Reader(Choices()).values([row], labeled=True))
    path = write(tmp_path / "a.jsonl", lines([good, row, good]))
    found = list(Reader(Choices()).read(path))
    assert [isinstance(item, UserError) for item in found] == [False, True, False]
    assert "a.jsonl:2: " in str(found[1])
    with pytest.raises(UserError, match=message):
        valid_examples(Reader(Choices()).read(path), "a", strict=True)


def test_conll_of_2003_and_parts_of_speech(tmp_path: Path, shared_data: Path) -> None:
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP I-PER\n"
    found = list(Reader(TaggedSentences()).read(write(tmp_path / "train.txt", text)))
    assert found == [
        TaggedSentence(("EU", "rejects"), ("I-ORG", "O"), "train.txt:3"),
        TaggedSentence(("Peter",), ("I-PER",), "train.txt:6"),
    ]
    [numbers] = Reader(TaggedSentences(names=("O", "B-PER"))).stream(write(tmp_path / "a.conll", "here 5\n"))
    assert isinstance(numbers, TaggedSentence)  # to predict: the last column may be anything
    [first, *_] = Reader(TaggedSentences(0, 1)).read(tmp_path / "train.txt")
    assert first.tags == ("NNP", "VBZ")
    parts = valid_examples(
        Reader(TaggedSentences(1, 3)).read(shared_data / "treebank" / "en_ewt-ud-dev.conllu"), "ud", strict=True
    )
    assert len(parts) == 2001
    assert parts[0].words[:3] == ("From", "the", "AP")
    assert parts[0].tags is not None
    assert parts[0].tags[:3] == ("ADP", "DET", "PROPN")


@pytest.mark.parametrize("name", ["a.csv.gz", "a.zip"])
def test_other_formats_of_sentences_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        UsageError,
        match=r"sentences are read from columns between spaces or tabs \(CoNLL\), \.jsonl, \.parquet, \.json \(Lab",
    ):
        list(Reader(TaggedSentences()).stream(write(tmp_path / name, "a b\n")))


def test_a_line_of_stdin_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A question needs more than a line."""
    monkeypatch.setattr("bertie.examples.rows.STDIN_DEVICE", write(tmp_path / "typed", "New  York\n\nlast"))
    first, empty, last = Reader(TaggedSentences()).stream(Path("-"))
    assert (first.words, first.tags, last.words) == (("New", "York"), None, ("last",))
    assert "typed:2: a sentence without words" in str(empty)
    with pytest.raises(UsageError, match="a line of stdin is a text, but a question needs a context"):
        list(Reader(Questions()).stream(Path("-")))


def test_a_suffix_names_the_format_of_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = write(tmp_path / "typed", '{"question": "Who?", "context": "Keats."}\n')
    monkeypatch.setattr("bertie.examples.rows.STDIN_DEVICE", device)
    [question] = Reader(Questions()).stream(Path("-.jsonl"))
    assert (question.question, question.context) == ("Who?", "Keats.")
    device.write_text("context\tending0\tending1\nc\td\te\n")
    [choice] = Reader(Choices()).stream(Path("-.tsv"))
    assert (choice.context, choice.endings) == ("c", ("d", "e"))


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (
            Reader(Questions()),
            "example 1: a question needs a context: .*--one-example QUESTION CONTEXT, or --input FILE",
        ),
        (
            Reader(Choices()),
            "example 1: a context needs endings: .*--one-example CONTEXT ENDING ENDING…, or --input FILE",
        ),
    ],
)
def test_a_lone_text_is_refused_without_words_of_python(reader: Reader, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        list(reader.values(["who?"]))
    assert "str" not in str(raised.value)


def test_an_id_that_is_not_unicode_is_an_error(tmp_path: Path) -> None:
    """When it is read, not when predictions are written."""
    path = write(tmp_path / "a.jsonl", '{"question": "q", "context": "c", "id": "\\ud800"}\n')
    [found] = Reader(Questions()).stream(path)
    assert isinstance(found, UserError)
    assert "'id' holds half of a surrogate pair" in str(found)


def test_sentences_from_python_values_and_jsonl(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "tags": ["O", "B-X"]}, {"words": ["c"], "ner_tags": [3]}]
    assert valid_examples(Reader(TaggedSentences()).read(write(tmp_path / "a.jsonl", lines(rows))), "a") == [
        TaggedSentence(("a", "b"), ("O", "B-X"), "a.jsonl:1"),
        TaggedSentence(("c",), ("3",), "a.jsonl:2"),
    ]
    assert [s.words for s in Reader(TaggedSentences()).values(["a b", ["c", "d"], {"tokens": ["e"]}])] == [
        ("a", "b"),
        ("c", "d"),
        ("e",),
    ]
    untagged = list(Reader(TaggedSentences()).stream(write(tmp_path / "b.conll", "one\ntwo\n\nthree\n")))
    assert untagged == [
        TaggedSentence(("one", "two"), None, "b.conll:1"),
        TaggedSentence(("three",), None, "b.conll:4"),
    ]


def test_only_the_last_endings_may_be_missing(tmp_path: Path) -> None:
    """Otherwise the label would mean another ending."""
    fewer = {"context": "s", "ending0": "a", "ending1": "b", "ending2": None, "label": 1}
    gap = {"context": "s", "ending0": "a", "ending1": None, "ending2": "c", "label": 2}
    found, error = Reader(Choices()).stream(write(tmp_path / "a.jsonl", lines([fewer, gap])))
    assert (found.endings, found.label) == (("a", "b"), 1)
    assert "a.jsonl:2: 'ending1' must be a string, found null" in str(error)


def test_a_column_cannot_have_two_uses() -> None:
    """A label that is part of the text would be learned at once."""
    for make, flags in (
        (lambda: Reader(LabeledTexts(text="a", label="a")), "--task.text and --task.label"),
        (lambda: Reader(LabeledTexts(text="a", text_pair="a")), "--task.text and --task.text-pair"),
        (lambda: Reader(TaggedSentences(tokens="a", tags="a")), "--task.tokens and --task.tags"),
        (lambda: Reader(Questions(question="context")), "--task.question and --task.context"),
        (lambda: Reader(Choices(context="a", label="a")), "--task.context and --task.label"),
        (lambda: Reader(Choices(context="B", endings=("A", "B"))), "--task.context and --task.endings"),
    ):
        with pytest.raises(UsageError, match=f"{flags} name the same column"):
            make()
    with pytest.raises(UsageError, match=r"task\.endings name the same column, 'A'"):
        Reader(Choices(endings=("A", "B", "A")))
    with pytest.raises(UsageError, match="'text' is the text, so it cannot be the label"):
        list(Reader(LabeledTexts(label="text")).values([{"text": "a"}]))


def test_a_wrong_start_is_shown_as_it_is_used() -> None:
    row = {"question": "q", "context": "a b b", "answers": {"text": ["b ", "x"], "answer_start": [3, 0]}}
    [question] = Reader(Questions()).values([row])
    assert question.answers == (Answer("b", 2), Answer("x", 0))


@pytest.mark.parametrize("start", [2, 2.0, "2", "2.0", float("nan"), None])
def test_starts_of_answers_may_be_floats(tmp_path: Path, start: Any) -> None:
    """pandas makes them of integers beside missing values, and parquet keeps them."""
    row = {"question": "q", "context": "a b", "answers": "b", "answer_start": start}
    [found] = Reader(Questions()).values([row], labeled=True)
    [(text, at)] = [(answer.text, answer.start) for answer in found.answers or ()]
    assert (text, at) == ("b", 2 if start in (2, "2", "2.0") else -1)
    [same] = Reader(Questions()).read(write(tmp_path / "a.jsonl", lines([row])))
    assert same.answers == found.answers


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"is_impossible": False, "answers": []}, "is_impossible is false, but there is no answer"),
        ({"is_impossible": True, "answers": ["Ada"]}, "is_impossible is true, but the answer is 'Ada'"),
        ({"answers": ["None"]}, "the answer 'None' may mean"),
        ({"answers": None}, "no answers"),
    ],
)
def test_contradictions_about_the_answer_are_errors(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    row = {"question": "q", "context": "Ada or None", **row}
    with pytest.raises(UserError, match=f"example 1: {message}"):
        list(Reader(Questions()).values([row], labeled=True))
    [error] = Reader(Questions()).read(write(tmp_path / "a.jsonl", lines([row])))
    assert f"a.jsonl:1: {message}" in str(error)
    [asked] = Reader(Questions()).values([row])  # prediction needs no answers
    assert asked.answers is None


def test_a_word_for_none_may_be_an_answer() -> None:
    answers = {"text": ["None"], "answer_start": [7]}
    row = {"question": "q", "context": "Ada or None", "answers": answers, "is_impossible": False}
    [found] = Reader(Questions()).values([row], labeled=True)
    assert found.answers == (Answer("None", 7),)
    [none] = Reader(Questions()).values([{**row, "answers": "None", "is_impossible": True}], labeled=True)
    assert none.answers == ()


def test_an_undecodable_byte_costs_its_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(b"a O\n\nb O\n\xff O\nc O\n\n\xfe O\n\nd O\n")
    first, second, third, last = Reader(TaggedSentences()).read(path)
    assert (first.words, last.words) == (("a",), ("d",))
    assert "a.conll:4: not UTF-8" in str(second)
    assert "a.conll:7: not UTF-8" in str(third)


def test_plain_values_do_not_need_the_named_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model trained with named columns still reads texts, lists of words and pairs."""
    monkeypatch.setattr("bertie.examples.rows.STDIN_DEVICE", write(tmp_path / "typed", "New York\n"))
    tags = Reader(TaggedSentences(tokens="Wörter"))
    assert [item.words for item in tags.values(["a b", ["a", "b"], {"Wörter": ["a", "b"]}])] == [("a", "b")] * 3
    [typed] = tags.stream(Path("-"))
    assert isinstance(typed, TaggedSentence)
    asked = list(Reader(Questions("Frage", "Text")).values([("q", "c"), {"Frage": "q", "Text": "c"}]))
    assert [(item.question, item.context) for item in asked] == [("q", "c")] * 2
    texts = Reader(LabeledTexts(text="Review"))
    [line] = texts.stream(Path("-"))
    assert line.text == "New York"
    [row] = texts.stream(write(tmp_path / "a.txt", "New York\n"))
    assert isinstance(row, Example)
    assert [item.text_pair for item in Reader(LabeledTexts()).values([("a", "b"), ["a", "b"]])] == ["b", "b"]


def test_words_and_tags_under_named_keys(tmp_path: Path) -> None:
    rows = [{"tokens": ["a"], "ner_tags": ["O"], "pos_tags": ["DT"], "pieces": ["b"]}]
    path = write(tmp_path / "a.jsonl", lines(rows))
    assert list(Reader(TaggedSentences(tags="pos_tags")).read(path)) == [TaggedSentence(("a",), ("DT",), "a.jsonl:1")]
    [other] = Reader(TaggedSentences(tokens="pieces", tags="pos_tags")).values(rows)
    assert (other.words, other.tags) == (("b",), ("DT",))
    [error] = Reader(TaggedSentences(tags="pos")).read(path)
    assert "no tags under 'pos': its keys are tokens, ner_tags, pos_tags, pieces" in str(error)


@pytest.mark.parametrize("header", ["Word\tTag", "token ner_tag", "FORM\tlemma\tUPOS"])
def test_a_header_line_is_not_a_word(tmp_path: Path, header: str) -> None:
    width = len(header.split())
    text = header + "\n" + "\t".join([*["Word", "x", "B-X"][: width - 1], "O"]) + "\n\n"
    again = "\t".join([*["word", "x", "O"][: width - 1], "tag"]) + "\n"
    named, later = Reader(TaggedSentences()).read(write(tmp_path / "a.tsv", text + again))
    assert (named.words, named.tags) == (("Word",), ("O",))
    assert later.words == ("word",)
    assert list(Reader(TaggedSentences()).stream(write(tmp_path / "b.conll", "word\ntoken\n"))) == [
        TaggedSentence(("word", "token"), None, "b.conll:1")
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.txt",
            "a O\nb\n\nc O\n",
            r"a\.txt:2: 1 columns, where most lines have 2 \(the sentence that starts in line 1",
        ),
        ("a.txt", "c\tO\n\na\t\nb\tO\n", r"a\.txt:3: no tag \(the sentence that starts in line 3\)"),
        (
            "a.jsonl",
            lines([{"tokens": ["a"], "tags": ["O", "O"]}, {"tokens": ["c"], "tags": ["O"]}]),
            "1 words, but 2 tags",
        ),
        ("a.jsonl", lines([{"tokens": [], "tags": []}, {"tokens": ["c"], "tags": ["O"]}]), "a sentence without words"),
        (
            "a.jsonl",
            lines([{"tokens": ["a"]}, {"tokens": ["c"], "tags": ["O"]}]),
            "no tags under 'tags' or 'ner_tags' or 'labels' or 'ner': its keys are tokens. Choose with --task.tags",
        ),
        (
            "a.jsonl",
            lines([{"other": "a"}, {"tokens": ["c"], "tags": ["O"]}]),
            "no list of words under 'tokens': its keys are other. Choose with --task.tokens",
        ),
    ],
)
def test_a_bad_sentence_is_skipped_or_with_strict_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path / name, text)
    assert [sentence.words for sentence in valid_examples(Reader(TaggedSentences()).read(path), name)] == [("c",)]
    with pytest.raises(UserError, match=message):
        valid_examples(Reader(TaggedSentences()).read(path), name, strict=True)


def test_only_blanks_and_tabs_separate_columns(tmp_path: Path) -> None:
    text = "10\u00a0000 \t B-X\n\u2028\tO\n\n" + "10\u00a0000  B-X \na\x1cb O\n"
    first, second = Reader(TaggedSentences()).read(write(tmp_path / "a.txt", text))
    assert (first.words, first.tags) == (("10\u00a0000", "\u2028"), ("B-X", "O"))
    assert (second.words, second.tags) == (("10\u00a0000", "a\x1cb"), ("B-X", "O"))


def test_conllu_words_are_found_and_its_tag_column_must_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", "# text\n1\tDogs\tdog\tNOUN\tNNS\t_\t0\troot\t_\tSpaceAfter=No\n")
    assert list(Reader(TaggedSentences(tag=3)).read(path)) == [TaggedSentence(("Dogs",), ("NOUN",), "a.conllu:2")]
    assert list(Reader(TaggedSentences()).stream(path)) == [TaggedSentence(("Dogs",), None, "a.conllu:2")]
    with pytest.raises(
        UsageError, match=r"a\.conllu:2: more than one column could be the tag.*--task\.tag.*3 has the parts of speech"
    ):
        list(Reader(TaggedSentences()).read(path))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tag": -5}, r"no tags in column -5 of 2.*--task\.tag"),
        ({"word": 2}, "no column 2 with words: there are 2"),
        ({"word": -9}, "word is -9: give at least -1"),
    ],
)
def test_missing_columns_are_refused(tmp_path: Path, columns: dict[str, int], message: str) -> None:
    path = write(tmp_path / "a.conll", "a O\nb O\n")
    with pytest.raises(UsageError, match=message):
        list(Tag(**columns).reader.read(path))
    if "word" not in columns:  # tags are not required there
        assert list(Tag(**columns).reader.stream(path)) == [TaggedSentence(("a", "b"), None, "a.conll:1")]


@pytest.mark.parametrize(
    ("name", "count", "none"),
    [
        ("dev-v1.1", 10570, 0),
        ("train-v1.1-subset", 12134, 0),
        ("dev-v2.0-subset", 3978, None),
        ("train-v2.0-subset", 7895, None),
    ],
)
def test_squad_files_have_the_stated_questions(shared_data: Path, name: str, count: int, none: int | None) -> None:
    found = valid_examples(Reader(Questions()).read(shared_data / "squad" / f"{name}.json"), name, strict=True)
    assert len(found) == count
    without = sum(not question.answers for question in found)
    assert without == none if none is not None else 0.3 < without / count < 0.7
    assert all(q.context[a.start : a.start + len(a.text)] == a.text for q in found for a in q.answers or ())


def test_questions_from_python_values() -> None:
    [found] = Reader(Questions()).values(
        [{"question": "q", "context": "c d", "answers": {"text": ["d"], "answer_start": [2]}}]
    )
    assert found == Question("1", "q", "c d", (Answer("d", 2),), "example 1")
    plain, impossible, pair = Reader(Questions()).values(
        [
            {"question": "q", "context": "c", "answers": ["c"]},
            {"question": "q", "context": "c", "answers": [], "is_impossible": True},
            ("q", "c"),
        ]
    )
    assert plain.answers == (Answer("c", -1),)
    assert impossible.answers == ()
    assert pair.answers is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "answers": ["a"]}, "no column 'context'"),
        ({"question": "q", "context": " ", "answers": ["a"]}, "the context is empty"),
        ({"question": "q", "context": "c", "answers": 5}, "the answers must be a list"),
        ({"question": "q", "context": "c", "answers": [{"start": 0}]}, "the answers must be a list of texts"),
        ({"question": "q", "context": "c", "answers": [{"text": "c", "answer_start": "x"}]}, "answer_start is 'x'"),
        (
            {"question": "q", "context": "c", "answers": {"text": ["c"], "answer_start": 5}},
            "answer_start must be a list of 1, as long as the texts, found 5",
        ),
        ({"question": "q", "context": "c"}, "no answers"),
        ({"question": "q", "context": "c", "answers": ["c"], "id": "good"}, "duplicate id 'good'"),
    ],
)
def test_a_bad_question_is_skipped_or_with_strict_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"question": "q", "context": "c", "answers": ["c"], "id": "good"}
    path = write(tmp_path / "a.jsonl", lines([good, row]))
    assert [question.id for question in valid_examples(Reader(Questions()).read(path), "a")] == ["good"]
    with pytest.raises(UserError, match=message):
        valid_examples(Reader(Questions()).read(path), "a", strict=True)


def test_ids_may_repeat_for_prediction(tmp_path: Path) -> None:
    """Which keeps memory constant for files of any size."""
    asked = {"question": "q", "context": "c", "answers": ["c"], "id": "good"}
    path = write(tmp_path / "a.jsonl", lines([asked, asked]))
    assert [type(found) for found in Reader(Questions()).stream(path)] == [Question, Question]
    assert [type(found) for found in Reader(Questions()).read(path)] == [Question, UserError]
    question = {"question": "q", "answers": [{"text": "c", "answer_start": 0}], "id": "good"}
    paragraph = {"context": "c", "qas": [question, question]}
    squad = write(tmp_path / "a.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    assert [type(found) for found in Reader(Questions()).read(squad)] == [Question, UserError]


def test_every_invalid_part_of_squad_json_is_an_error(tmp_path: Path) -> None:
    good = {"qas": [{"id": "1", "question": "q", "answers": []}], "context": "c"}
    articles = [{"paragraphs": [good, {"context": "c"}, 5]}, {"title": "t"}, {"paragraphs": {}}, "x"]
    path = write(tmp_path / "a.json", json.dumps({"data": articles}))
    found = list(Reader(Questions()).read(path))
    assert isinstance(found[0], Question)
    assert [str(error).removeprefix(f"{path}: ") for error in found[1:]] == [
        'data[0].paragraphs[1] has no list "qas"',
        'data[0].paragraphs[2] has no list "qas"',
        'data[1] has no list "paragraphs"',
        'data[2] has no list "paragraphs"',
        'data[3] has no list "paragraphs"',
    ]


def test_squad_json_with_a_byte_order_mark_and_without_ids(tmp_path: Path) -> None:
    questions = [{"id": None, "question": "q", "answers": []}, {"question": "q", "answers": []}]
    text = "\ufeff" + json.dumps({"data": [{"paragraphs": [{"context": "c", "qas": questions}]}]})
    first, second = Reader(Questions()).read(write(tmp_path / "a.json", text))
    assert (first.id, second.id) == ("1", "2")
    assert first.source == "a.json: data[0].paragraphs[0].qas[0]"


def test_questions_from_tables(tmp_path: Path) -> None:
    text = 'id,question,context,answer,answer_start\nq7,Who?,"Ann, or Ann",Ann,8\nq8,Why?,Ann,,\nq9,Where?,Ann,nn,x\n'
    where, why, wrong = Reader(Questions()).read(write(tmp_path / "a.csv", text))
    assert where == Question("q7", "Who?", "Ann, or Ann", (Answer("Ann", 8),), "a.csv:2")
    assert why == Question("q8", "Why?", "Ann", (), "a.csv:3")  # an empty cell means no answer
    assert "a.csv:4: answer_start is 'x', but must be a number" in str(wrong)
    reader = Reader(Questions("ask", "passage", "says"))
    tsv = write(tmp_path / "a.tsv", "ask\tpassage\tsays\nWho?\tAnn\tAnn\n")
    assert list(reader.read(tsv)) == [Question("1", "Who?", "Ann", (Answer("Ann", -1),), "a.tsv:2")]
    with pytest.raises(
        UsageError, match=r"a\.tsv: no column 'question'; its columns are: ask, passage, says. Choose with --task"
    ):
        list(Reader(Questions()).stream(tsv))
    [row] = reader.values([{"ask": "Who?", "passage": "Ann", "says": ["Ann"]}])
    assert (row.question, row.context, row.answers) == ("Who?", "Ann", (Answer("Ann", -1),))
    unknown = write(tmp_path / "b.csv", "question,context\nWho?,Ann\n")
    [asked] = Reader(Questions()).stream(unknown)
    assert asked.answers is None
    with pytest.raises(UsageError, match="no answers; its columns are: question, context"):
        list(Reader(Questions()).read(unknown))
    squad = {"data": [{"paragraphs": [{"context": "Ann", "qas": [{"id": "1", "question": "Who?", "answers": []}]}]}]}
    [nested] = reader.read(write(tmp_path / "a.json", json.dumps(squad)))  # it has its own names
    assert isinstance(nested, Question)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='no list "data"'):
        list(Reader(Questions()).read(write(tmp_path / "a.json", '{"rows": []}')))
    with pytest.raises(UsageError, match=r"SQuAD's \.json, or from \.jsonl, \.csv, \.tsv and \.parquet"):
        list(Reader(Questions()).read(write(tmp_path / "a.txt", "a\tb\n")))
    with pytest.raises(UsageError, match="no such file"):
        list(Reader(TaggedSentences()).read(tmp_path / "none.txt"))
    for reader in (Reader(TaggedSentences()), Reader(Questions()), Reader(Choices())):
        with pytest.raises(UsageError, match="is a folder: give a file"):
            list(reader.read(tmp_path))
    with pytest.raises(UserError, match="is empty"):
        list(Reader(TaggedSentences()).read(write(tmp_path / "e.txt", "")))


def test_skipped_rows_are_counted_and_some_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"context": "a", "endings": ["b", "c"], "label": i % 7} for i in range(14)]
    assert len(valid_examples(Reader(Choices()).read(write(tmp_path / "a.jsonl", lines(rows))), "a")) == 4
    warning = capsys.readouterr().err
    assert "10 of 14 rows are skipped (--strict refuses them)" in warning
    assert warning.count("a.jsonl:") == 1


def write_packed(path: Path, text: str) -> Path:
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}
    path.write_bytes(pack[path.suffix](text.encode()))
    return path


@pytest.mark.parametrize("packed", [".gz", ".zst"])
def test_compressed_files_are_read_like_plain_ones(tmp_path: Path, packed: str) -> None:
    path = write_packed(tmp_path / f"a.jsonl{packed}", lines([{"foo": 1}, {"text": "a", "label": "x"}]))
    error, example = Reader(LabeledTexts()).read(path)  # as in .jsonl, one row without the columns is one bad row
    assert str(error).startswith(f"{path}:1: cannot tell which column")
    assert example == Example("a", None, "x", f"a.jsonl{packed}:2")
    path = write_packed(tmp_path / f"a.conllu{packed}", "# c\n1 a O\n\n")
    assert list(Reader(TaggedSentences(tag=2)).read(path)) == [TaggedSentence(("a",), ("O",), f"a.conllu{packed}:2")]
    assert list(UnlabeledReader().stream(path)) == [("a",)]


def test_parquet_files_of_each_task(tmp_path: Path) -> None:
    def write_table(name: str, rows: list[dict[str, Any]]) -> Path:
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
        return tmp_path / name

    path = write_table(
        "t.parquet", [{"text": "a", "label": 1}, {"text": None, "label": 0}, {"text": "c", "label": None}]
    )
    example, missing, unlabeled = Reader(LabeledTexts()).read(path)
    assert example == Example("a", None, "1", "t.parquet:1")
    assert str(missing) == f"{path}:2: 'text' must be a string, found null"
    assert str(unlabeled) == f"{path}:3: no label"
    assert [type(text) for text in UnlabeledReader().stream(path)] == [str, UserError, str]
    choice = {"context": "a", "endings": ["b", "c"], "label": 1}
    assert list(Reader(Choices()).read(write_table("c.parquet", [choice]))) == [
        ChoiceExample("a", "", ("b", "c"), 1, "c.parquet:1")
    ]
    with pytest.raises(UsageError, match=r"t\.parquet: cannot tell which column.*its columns are: body"):
        list(Reader(LabeledTexts()).read(write_table("t.parquet", [{"body": "a"}])))
    with pytest.raises(UserError, match=r"t\.parquet: row 1: truncated, or not really \.parquet"):
        list(Reader(LabeledTexts()).read(write(tmp_path / "t.parquet", "no parquet")))
    with pytest.raises(UsageError, match=r"a\.parquet\.gz: examples are read from files of these formats"):
        Reader(LabeledTexts()).read(write(tmp_path / "a.parquet.gz", ""))


def test_oversize_lines_cost_their_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.files.lines.MAX_RECORD_BYTES", 100)
    path = write(tmp_path / "a.tsv", f"text\tlabel\na\tx\n{'y' * 200}\tx\nb\tx\n")
    first, oversize, last = Reader(LabeledTexts()).read(path)
    assert str(oversize) == f"{path}:3: over 64 MB"
    assert [first.text, last.text] == ["a", "b"]


BAD_LABELS: list[tuple[Any, dict[str, Any], str]] = [
    (Choices(), {"context": "a", "endings": ["x", "y"], "label": -1}, "no label"),  # as in published test sets
    (Choices(), {"context": "a", "endings": ["x", "y"], "label": "z"}, "'label' is 'z'"),
    (TaggedSentences(), {"tokens": ["a", "b"], "tags": []}, "2 words, but 0 tags"),
    (Questions(), {"question": "q", "context": "c", "answers": [{"start": 0}]}, "must be a list of texts"),
    (LabeledTexts(), {"text": "a", "label": {}}, "'label' must be a string"),
]


@pytest.mark.parametrize(("kind", "row", "message"), BAD_LABELS)
def test_bad_labels_are_unknown_for_prediction(tmp_path: Path, kind: Any, row: dict[str, Any], message: str) -> None:
    reader, path = Reader(kind), write(tmp_path / "a.jsonl", lines([row]))
    assert [each.gold for each in (*reader.stream(path), *reader.values([row]))] == [None, None]
    [error] = reader.read(path)
    assert "a.jsonl:1: " in str(error)
    assert message in str(error)
