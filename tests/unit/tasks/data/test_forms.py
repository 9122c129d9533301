"""Choices, sentences of words, questions: each form of file as its publishers wrote it, and what is wrong with rows of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.errors import UsageError, UserError
from bertie.tasks.data.choices import ChoiceColumns, ChoiceExample, ChoiceReader
from bertie.tasks.data.conll import ConllReader, TagColumns, TaggedSentence
from bertie.tasks.data.rows import valid_examples
from bertie.tasks.data.squad import Answer, Question, QuestionColumns, SquadReader
from bertie.tasks.data.texts import Example, TextColumns, TextReader

SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def lines(values: list[Any]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_codah(shared_data: Path) -> None:
    found = valid_examples(
        ChoiceReader().read(shared_data / "choice" / "codah" / "full_data.tsv"), "codah", strict=True
    )
    assert len(found) == 2776
    assert found[0].context == "I am always very hungry before I go to bed. I am"
    assert found[0].endings[3] == "tempted to snack when I feel this way."
    assert found[0].label == 3
    assert {choice.label for choice in found} == {0, 1, 2, 3}


def test_swag(tmp_path: Path) -> None:
    row = '0,v1,3416,"Members hold their horns. A drum",Members hold their horns.,A drum,gold,"rolls, loud",b,c,d,0\n'
    [found] = ChoiceReader().read(write(tmp_path / "train.csv", SWAG + row))
    assert found == ChoiceExample(
        "Members hold their horns.", "A drum", ("rolls, loud", "b", "c", "d"), 0, "train.csv:2"
    )


def test_choices_of_any_number_from_a_list(tmp_path: Path) -> None:
    rows = [{"question": "q", "choices": ["a", "b", "c"], "answer": 2}, {"question": "q", "choices": ["a", "b"]}]
    path = write(tmp_path / "a.jsonl", lines(rows))
    first, second = ChoiceReader().stream(path)
    assert isinstance(first, ChoiceExample)
    assert isinstance(second, ChoiceExample)
    assert (first.endings, first.label) == (("a", "b", "c"), 2)
    assert second.label is None
    assert valid_examples(ChoiceReader().read(path), "a") == [first]  # the other one cannot be learned from
    assert next(ChoiceReader().values([rows[0]])).endings == first.endings
    [named] = ChoiceReader(ChoiceColumns("start", "right")).values(
        [{"start": "s", "ending0": "a", "ending1": "b", "right": "1"}]
    )
    assert (named.context, named.label) == ("s", 1)


def test_endings_that_are_counted_from_1_are_refused(tmp_path: Path) -> None:
    """All but the last would teach the ending behind the right one."""
    rows = [{"context": "a", "endings": ["b", "c"], "label": i % 2 + 1} for i in range(6)]
    path = write(tmp_path / "a.jsonl", lines(rows))
    with pytest.raises(
        UserError, match=r"a\.jsonl: the right endings are numbered from 1 to 2, and must be from 0 to 1"
    ):
        list(ChoiceReader().read(path))
    write(path, lines([*rows, {"context": "a", "endings": ["b", "c"], "label": 0}]))
    assert len(valid_examples(ChoiceReader().read(path), "a")) == 4  # one 2 is a slip
    assert all(isinstance(found, ChoiceExample) for found in ChoiceReader().stream(path))


def test_endings_by_name(tmp_path: Path) -> None:
    """An exam's table, as people have it: the right answer is a column's name."""
    path = write(tmp_path / "exam.csv", "prompt,A,B,C,answer\nWhich?,one,two,three,C\nWho?,you,me,us,0\n")
    first, second = ChoiceReader(ChoiceColumns(endings=("A", "B", "C"))).read(path)
    assert first == ChoiceExample("Which?", "", ("one", "two", "three"), 2, "exam.csv:2")
    assert isinstance(second, ChoiceExample)
    assert second.label == 0
    [reordered] = ChoiceReader(ChoiceColumns(endings=("C", "A"))).values(
        [{"context": "s", "A": "a", "C": "c", "label": "A"}]
    )
    assert (reordered.endings, reordered.label) == (("c", "a"), 1)
    [listed] = ChoiceReader(ChoiceColumns(endings=("options",))).values(
        [{"context": "s", "options": ["a", "b"], "label": 1}]
    )
    assert (listed.endings, listed.label) == (("a", "b"), 1)
    with pytest.raises(UsageError, match=r"exam\.csv:2: no columns A, D; its columns are.*--task\.endings"):
        list(ChoiceReader(ChoiceColumns(endings=("A", "D"))).read(path))
    with pytest.raises(UsageError, match=r"no endings to choose among.*its columns are: prompt, A, B, C, answer"):
        list(ChoiceReader().read(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "a", "endings": ["b", "c"], "label": 2}, "'label' is '2', and the 2 endings are 0 to 1"),
        ({"context": "a", "endings": ["b", "c"], "label": "x"}, "'label' is 'x'"),
        ({"context": "a", "endings": ["b", 5], "label": 0}, "'endings' must be a string"),
        ({"context": "a", "endings": "bc", "label": 0}, "must be a list of strings"),
        ({"context": 5, "endings": ["b", "c"], "label": 0}, "'context' must be a string"),
        ({"context": "a", "endings": ["b"], "label": 0}, "1 endings to choose among"),
        ({"context": "a", "ending0": "b", "ending1": None, "label": 0}, "1 endings to choose among"),
        ({"context": "a", "label": 0}, "no endings to choose among.*its columns are: context, label"),
        ({"context": "a", "endings": ["b", "c"], "label": "1_0"}, "'label' is '1_0'"),
        ({"context": "a", "endings": ["b", "c"], "label": "9" * 5000}, "'label' is '9999"),
        ({"body": "a", "endings": ["b", "c"], "label": 0}, "cannot tell which column is the start"),
    ],
)
def test_bad_choices(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"context": "a", "endings": ["b", "c"], "label": 0}
    with pytest.raises(UserError, match=message):
        list(ChoiceReader().values([row]))
    path = write(tmp_path / "a.jsonl", lines([good, row, good]))
    found = list(ChoiceReader().read(path))
    assert [isinstance(each, UserError) for each in found] == [False, True, False]
    assert "a.jsonl:2: " in str(found[1])
    with pytest.raises(UserError, match=message):
        valid_examples(ChoiceReader().read(path), "a", strict=True)


@pytest.mark.parametrize(
    "bad",
    [
        {"context": None, "endings": ["b", "c"], "label": 0},
        {"context": "a", "endings": None, "label": 0},
        {"context": "a", "endings": ["b"], "label": 0},
        {"context": "a", "endings": ["b", "c"], "label": None},
        {"context": "a", "endings": ["b", "c"], "label": float("nan")},
    ],
)
def test_a_bad_first_choice_is_one_bad_row(tmp_path: Path, bad: dict[str, Any]) -> None:
    good = {"context": "a", "endings": ["b", "c"], "label": 1}
    error, choice = ChoiceReader().read(write(tmp_path / "a.jsonl", lines([bad, good])))
    assert type(error) is UserError
    assert "a.jsonl:1: " in str(error)
    assert isinstance(choice, ChoiceExample)


def test_wnut(shared_data: Path) -> None:
    names = {"wnut17train.conll": 3394, "emerging.dev.conll": 1009, "emerging.test.annotated": 1287}
    for name, count in names.items():
        found = valid_examples(ConllReader().read(shared_data / "ner" / name), name, strict=True)
        assert len(found) == count
        assert all(sentence.tags and len(sentence.tags) == len(sentence.words) for sentence in found)
        assert {tag[:2] for sentence in found for tag in sentence.tags or ()} == {"O", "B-", "I-"}


def test_conll_of_2003_and_parts_of_speech(tmp_path: Path, shared_data: Path) -> None:
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP I-PER\n"
    found = list(ConllReader().read(write(tmp_path / "train.txt", text)))
    assert found == [
        TaggedSentence(("EU", "rejects"), ("I-ORG", "O"), "train.txt:3"),
        TaggedSentence(("Peter",), ("I-PER",), "train.txt:6"),
    ]
    [first, *_] = ConllReader(TagColumns(0, 1)).read(tmp_path / "train.txt")
    assert isinstance(first, TaggedSentence)
    assert first.tags == ("NNP", "VBZ")
    parts = valid_examples(
        ConllReader(TagColumns(1, 3)).read(shared_data / "treebank" / "en_ewt-ud-dev.conllu"), "ud", strict=True
    )
    assert len(parts) == 2001
    assert parts[0].words[:3] == ("From", "the", "AP")
    assert parts[0].tags is not None
    assert parts[0].tags[:3] == ("ADP", "DET", "PROPN")


def test_for_prediction_wrong_labels_are_none(tmp_path: Path) -> None:
    """Published test sets have -1 for all."""
    choices = write(tmp_path / "c.jsonl", lines([{"context": "a", "endings": ["x", "y"], "label": -1}]))
    [found] = ChoiceReader().stream(choices)
    assert isinstance(found, ChoiceExample)
    assert found.label is None
    [wrong] = ChoiceReader().read(choices)
    assert "the 2 endings are 0 to 1" in str(wrong)
    sentences = write(tmp_path / "s.jsonl", lines([{"tokens": ["a", "b"], "tags": []}]))
    [plain] = ConllReader().stream(sentences)
    assert isinstance(plain, TaggedSentence)
    assert plain.tags is None
    [wrong] = ConllReader().read(sentences)
    assert "2 words and 0 tags" in str(wrong)


@pytest.mark.parametrize("name", ["a.csv", "a.conll.gz", "a.parquet"])
def test_sentences_in_other_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        UsageError, match=r"sentences are read from columns between blanks or tabs \(CoNLL's files\) and from .jsonl"
    ):
        list(ConllReader().stream(write(tmp_path / name, "a b\n")))


def test_lines_on_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sentences, words between blanks; a question needs more than a line."""
    monkeypatch.setattr("bertie.tasks.data.rows.STDIN_DEVICE", write(tmp_path / "typed", "New  York\n\nlast"))
    first, empty, last = ConllReader().stream(Path("-"))
    assert isinstance(first, TaggedSentence)
    assert isinstance(last, TaggedSentence)
    assert (first.words, first.tags, last.words) == (("New", "York"), None, ("last",))
    assert "typed:2: a sentence without words" in str(empty)
    assert all(isinstance(each, UserError) for each in ConllReader().read(Path("-")))
    with pytest.raises(UsageError, match="a line is a text, and a question needs a context"):
        list(SquadReader().stream(Path("-")))


def test_an_id_that_no_file_can_hold(tmp_path: Path) -> None:
    """Said when it is read, not when predictions are written."""
    path = write(tmp_path / "a.jsonl", '{"question": "q", "context": "c", "id": "\\ud800"}\n')
    [found] = SquadReader().stream(path)
    assert isinstance(found, UserError)
    assert "'id' holds half of a surrogate pair" in str(found)


def test_sentences_of_python_values_and_json(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "tags": ["O", "B-X"]}, {"words": ["c"], "ner_tags": [3]}]
    assert valid_examples(ConllReader().read(write(tmp_path / "a.jsonl", lines(rows))), "a") == [
        TaggedSentence(("a", "b"), ("O", "B-X"), "a.jsonl:1"),
        TaggedSentence(("c",), ("3",), "a.jsonl:2"),
    ]
    assert [s.words for s in ConllReader().values(["a b", ["c", "d"], {"tokens": ["e"]}])] == [
        ("a", "b"),
        ("c", "d"),
        ("e",),
    ]
    untagged = list(ConllReader().stream(write(tmp_path / "b.txt", "one\ntwo\n\nthree\n")))
    assert untagged == [TaggedSentence(("one", "two"), None, "b.txt:1"), TaggedSentence(("three",), None, "b.txt:4")]


def test_missing_endings_stand_last(tmp_path: Path) -> None:
    """Or the number of the right one would mean another."""
    fewer = {"context": "s", "ending0": "a", "ending1": "b", "ending2": None, "label": 1}
    gap = {"context": "s", "ending0": "a", "ending1": None, "ending2": "c", "label": 2}
    found, error = ChoiceReader().stream(write(tmp_path / "a.jsonl", lines([fewer, gap])))
    assert isinstance(found, ChoiceExample)
    assert (found.endings, found.label) == (("a", "b"), 1)
    assert "a.jsonl:2: 'ending1' must be a string, found null" in str(error)


def test_one_column_is_one_thing() -> None:
    """A label that stands in the text would be learned at once."""
    for make, flags in (
        (lambda: TextColumns(text="a", label="a"), "--task.text and --task.label"),
        (lambda: TextColumns(text="a", text_pair="a"), "--task.text and --task.text-pair"),
        (lambda: TagColumns(tokens="a", tags="a"), "--task.tokens and --task.tags"),
        (lambda: QuestionColumns(question="context"), "--task.question and --task.context"),
        (lambda: ChoiceColumns(context="a", label="a"), "--task.context and --task.label"),
        (lambda: ChoiceColumns(context="B", endings=("A", "B")), "--task.context and --task.endings"),
    ):
        with pytest.raises(UsageError, match=f"{flags} name one column"):
            make()
    with pytest.raises(UsageError, match=r"task\.endings names a column twice: A, B, A"):
        ChoiceColumns(endings=("A", "B", "A"))
    with pytest.raises(UsageError, match="is a label 1 the column of this name, or the ending of this number"):
        ChoiceColumns(endings=("1", "2"))
    with pytest.raises(UsageError, match="'text' is the text, and cannot be the label"):
        list(TextReader(TextColumns(label="text")).values([{"text": "a"}]))


def test_what_is_no_answer_does_not_hinder_prediction(tmp_path: Path) -> None:
    bad = {"question": "q", "context": "c d", "answers": [{"start": 0}]}
    path = write(tmp_path / "a.jsonl", lines([bad]))
    [asked] = SquadReader().stream(path)
    assert isinstance(asked, Question)
    assert asked.answers is None
    assert [type(found) for found in SquadReader().read(path)] == [UserError]
    labelled = write(tmp_path / "b.jsonl", lines([{"text": "a", "label": {}}]))
    [text] = TextReader().stream(labelled)
    assert isinstance(text, Example)
    assert text.label is None
    assert [type(found) for found in TextReader().read(labelled)] == [UserError]


def test_tables_of_pandas(tmp_path: Path) -> None:
    """A column of whole numbers with gaps is written as fractions, a truth as a word."""
    text = "question,context,answers,answer_start,is_impossible\nq,a b,b,2.0,False\nq,a b,b,,True\nq,a b,b,2.5,False\n"
    where, silent, wrong = SquadReader().read(write(tmp_path / "a.csv", text))
    assert isinstance(where, Question)
    assert where.answers == (Answer("b", 2),)
    assert isinstance(silent, Question)
    assert silent.answers == ()
    assert "answer_start is '2.5'" in str(wrong)
    nobody = {"question": "q", "context": "a b", "answers": [{"text": "b", "answer_start": None}]}
    assert [each.answers for each in SquadReader().values([nobody])] == [(Answer("b", -1),)]


def test_a_byte_that_is_no_text_costs_its_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(b"a O\n\nb O\n\xff O\nc O\n\n\xfe O\n\nd O\n")
    first, second, third, last = ConllReader().read(path)
    assert isinstance(first, TaggedSentence)
    assert isinstance(last, TaggedSentence)
    assert (first.words, last.words) == (("a",), ("d",))
    assert "a.conll:4: not UTF-8" in str(second)
    assert "a.conll:7: not UTF-8" in str(third)


def test_an_open_quote_does_not_read_the_whole_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\n"5 inch,yes\n' + "good,no\n" * 3_000_000)
    with pytest.raises(UserError, match=r"a\.csv:2: not valid CSV: .*limit.*is a quote left open"):
        list(TextReader().stream(path))


def test_plain_values_have_no_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run on columns with names of its own reads texts, words and pairs as any other."""
    monkeypatch.setattr("bertie.tasks.data.rows.STDIN_DEVICE", write(tmp_path / "typed", "New York\n"))
    tags = ConllReader(TagColumns(tokens="Wörter"))
    assert [each.words for each in tags.values(["a b", ["a", "b"], {"Wörter": ["a", "b"]}])] == [("a", "b")] * 3
    [typed] = tags.stream(Path("-"))
    assert isinstance(typed, TaggedSentence)
    asked = list(SquadReader(QuestionColumns("Frage", "Text")).values([("q", "c"), {"Frage": "q", "Text": "c"}]))
    assert [(each.question, each.context) for each in asked] == [("q", "c")] * 2
    texts = TextReader(TextColumns(text="Review"))
    [line] = texts.stream(Path("-"))
    assert isinstance(line, Example)
    assert line.text == "New York"
    [row] = texts.stream(write(tmp_path / "a.txt", "New York\n"))
    assert isinstance(row, Example)
    assert [each.text_pair for each in TextReader().values([("a", "b"), ["a", "b"]])] == ["b", "b"]


def test_words_and_tags_under_other_keys(tmp_path: Path) -> None:
    rows = [{"tokens": ["a"], "ner_tags": ["O"], "pos_tags": ["DT"], "pieces": ["b"]}]
    path = write(tmp_path / "a.jsonl", lines(rows))
    assert list(ConllReader(TagColumns(tags="pos_tags")).read(path)) == [TaggedSentence(("a",), ("DT",), "a.jsonl:1")]
    [other] = ConllReader(TagColumns(tokens="pieces", tags="pos_tags")).values(rows)
    assert (other.words, other.tags) == (("b",), ("DT",))
    [error] = ConllReader(TagColumns(tags="pos")).read(path)
    assert "no tags under 'pos': its keys are tokens, ner_tags, pos_tags, pieces" in str(error)


@pytest.mark.parametrize("header", ["Word\tTag", "token ner_tag", "FORM\tlemma\tUPOS"])
def test_a_line_that_names_the_columns_is_no_word(tmp_path: Path, header: str) -> None:
    width = len(header.split())
    text = header + "\n" + "\t".join([*["Word", "x", "B-X"][: width - 1], "O"]) + "\n\n"
    again = "\t".join([*["word", "x", "O"][: width - 1], "tag"]) + "\n"
    named, later = ConllReader().read(write(tmp_path / "a.tsv", text + again))
    assert isinstance(named, TaggedSentence)
    assert (named.words, named.tags) == (("Word",), ("O",))
    assert isinstance(later, TaggedSentence)  # the first line alone can be one
    assert later.words == ("word",)
    assert list(ConllReader().stream(write(tmp_path / "b.txt", "word\ntoken\n"))) == [
        TaggedSentence(("word", "token"), None, "b.txt:1")
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.txt",
            "a O\nb\n\nc O\n",
            r"a\.txt:2: 1 columns, where most lines have 2 \(the sentence from line 1",
        ),
        ("a.txt", "c O\n\na x O\n", r"a\.txt:3: 3 columns, where most lines have 2"),
        ("a.txt", "c\tO\n\na\t\nb\tO\n", r"a\.txt:3: no tag \(the sentence from line 3 on\)"),
        (
            "a.jsonl",
            lines([{"tokens": ["a"], "tags": ["O", "O"]}, {"tokens": ["c"], "tags": ["O"]}]),
            "1 words and 2 tags",
        ),
        ("a.jsonl", lines([{"tokens": [], "tags": []}, {"tokens": ["c"], "tags": ["O"]}]), "a sentence without words"),
        (
            "a.jsonl",
            lines([{"tokens": ["a"]}, {"tokens": ["c"], "tags": ["O"]}]),
            "no tags under 'tags': its keys are tokens. Choose with --task.tags",
        ),
        (
            "a.jsonl",
            lines([{"text": "a"}, {"tokens": ["c"], "tags": ["O"]}]),
            "no list of words under 'tokens': its keys are text. Choose with --task.tokens",
        ),
    ],
)
def test_bad_sentences(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path / name, text)
    assert [sentence.words for sentence in valid_examples(ConllReader().read(path), name)] == [("c",)]
    with pytest.raises(UserError, match=message):
        valid_examples(ConllReader().read(path), name, strict=True)


def test_only_blanks_and_tabs_part_columns(tmp_path: Path) -> None:
    text = "10\u00a0000 \t B-X\n\u2028\tO\n\n" + "10\u00a0000  B-X \na\x1cb O\n"
    first, second = ConllReader().read(write(tmp_path / "a.txt", text))
    assert isinstance(first, TaggedSentence)
    assert isinstance(second, TaggedSentence)
    assert (first.words, first.tags) == (("10\u00a0000", "\u2028"), ("B-X", "O"))
    assert (second.words, second.tags) == (("10\u00a0000", "a\x1cb"), ("B-X", "O"))


def test_words_of_conllu_are_found_and_its_tags_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", "# text\n1\tDogs\tdog\tNOUN\tNNS\t_\t0\troot\t_\tSpaceAfter=No\n")
    assert list(ConllReader(TagColumns(tag=3)).read(path)) == [TaggedSentence(("Dogs",), ("NOUN",), "a.conllu:2")]
    assert list(ConllReader().stream(path)) == [TaggedSentence(("Dogs",), None, "a.conllu:2")]
    with pytest.raises(UsageError, match=r"a\.conllu:2: more than one column could be the tag.*--task\.tag.*are in 3"):
        list(ConllReader().read(path))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tag": -5}, r"a\.txt:1: no tags in column -5 of 2.*--task\.tag"),
        ({"tag": 2}, "no tags in column 2 of 2"),
        ({"tag": 0}, "no tags in column 0 of 2, beside the words in 0"),
        ({"word": 2}, "no column 2 with words: there are 2"),
        ({"word": -9}, "word is -9: give at least -1"),
    ],
)
def test_columns_that_are_not_there(tmp_path: Path, columns: dict[str, int], message: str) -> None:
    path = write(tmp_path / "a.txt", "a O\nb O\n")
    with pytest.raises(UsageError, match=message):
        list(ConllReader(TagColumns(**columns)).read(path))
    if "word" not in columns:  # nobody needs tags there
        assert list(ConllReader(TagColumns(**columns)).stream(path)) == [TaggedSentence(("a", "b"), None, "a.txt:1")]


def test_python_sentences_with_too_few_tags() -> None:
    ready = TaggedSentence(("a", "b"), ("O", "B-X"), "mine")
    assert list(ConllReader().values([ready])) == [ready]
    with pytest.raises(UserError, match="example 1: 2 words and 1 tags"):
        list(ConllReader().values([TaggedSentence(("a", "b"), ("O",), "mine")]))


@pytest.mark.parametrize("reader", [ConllReader(), ChoiceReader(), SquadReader()])
def test_python_keys_that_are_no_strings(reader: ConllReader | ChoiceReader | SquadReader) -> None:
    with pytest.raises(UserError, match="example 1: its keys must be strings, and one is 1"):
        list(reader.values([{1: "a"}]))


@pytest.mark.parametrize(
    ("name", "count", "none"),
    [
        ("dev-v1.1", 10570, 0),
        ("train-v1.1-subset", 12134, 0),
        ("dev-v2.0-subset", 3978, None),
        ("train-v2.0-subset", 7895, None),
    ],
)
def test_squad(shared_data: Path, name: str, count: int, none: int | None) -> None:
    found = valid_examples(SquadReader().read(shared_data / "squad" / f"{name}.json"), name, strict=True)
    assert len(found) == count
    without = sum(not question.answers for question in found)
    assert without == none if none is not None else 0.3 < without / count < 0.7
    assert all(q.context[a.start : a.start + len(a.text)] == a.text for q in found for a in q.answers or ())


def test_questions_of_python_values() -> None:
    [found] = SquadReader().values(
        [{"question": "q", "context": "c d", "answers": {"text": ["d"], "answer_start": [2]}}]
    )
    assert found == Question("1", "q", "c d", (Answer("d", 2),), "example 1")
    plain, impossible, pair = SquadReader().values(
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
        ({"question": "q", "answers": ["a"]}, "no 'context'"),
        ({"question": "q", "context": " ", "answers": ["a"]}, "the context is empty"),
        ({"question": "q", "context": "c", "answers": 5}, "the answers must be a list"),
        ({"question": "q", "context": "c", "answers": [{"start": 0}]}, "an answer without a text"),
        ({"question": "q", "context": "c", "answers": [{"text": "c", "answer_start": "0"}]}, "answer_start is '0'"),
        (
            {"question": "q", "context": "c", "answers": {"text": ["c"], "answer_start": 5}},
            "answer_start must be a list of 1, as long as the texts, found 5",
        ),
        (
            {"question": "q", "context": "c d", "answers": {"text": ["c", "d"], "answer_start": [0]}},
            r"answer_start must be a list of 2.*found \[0\]",
        ),
        ({"question": "q", "context": "c"}, "no answers"),
        ({"question": "q", "context": "c", "answers": ["c"], "id": "good"}, "the id 'good' is there already"),
    ],
)
def test_bad_questions(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    good = {"question": "q", "context": "c", "answers": ["c"], "id": "good"}
    path = write(tmp_path / "a.jsonl", lines([good, row]))
    assert [question.id for question in valid_examples(SquadReader().read(path), "a")] == ["good"]
    with pytest.raises(UserError, match=message):
        valid_examples(SquadReader().read(path), "a", strict=True)


def test_ids_are_not_remembered_for_prediction(tmp_path: Path) -> None:
    """Files of any size, at constant memory."""
    asked = {"question": "q", "context": "c", "answers": ["c"], "id": "good"}
    path = write(tmp_path / "a.jsonl", lines([asked, asked]))
    assert [type(found) for found in SquadReader().stream(path)] == [Question, Question]
    assert [type(found) for found in SquadReader().read(path)] == [Question, UserError]


def test_no_part_of_squads_json_is_lost(tmp_path: Path) -> None:
    good = {"qas": [{"id": "1", "question": "q", "answers": []}], "context": "c"}
    articles = [{"paragraphs": [good, {"context": "c"}, 5]}, {"title": "t"}, {"paragraphs": {}}, "x"]
    path = write(tmp_path / "a.json", json.dumps({"data": articles}))
    found = list(SquadReader().read(path))
    assert isinstance(found[0], Question)
    assert [str(error).removeprefix(f"{path}: ") for error in found[1:]] == [
        'data[0].paragraphs[1] has no list "qas"',
        'data[0].paragraphs[2] has no list "qas"',
        'data[1] has no list "paragraphs"',
        'data[2] has no list "paragraphs"',
        'data[3] has no list "paragraphs"',
    ]


def test_squad_with_a_byte_order_mark_and_without_ids(tmp_path: Path) -> None:
    questions = [{"id": None, "question": "q", "answers": []}, {"question": "q", "answers": []}]
    text = "\ufeff" + json.dumps({"data": [{"paragraphs": [{"context": "c", "qas": questions}]}]})
    first, second = SquadReader().read(write(tmp_path / "a.json", text))
    assert isinstance(first, Question)
    assert isinstance(second, Question)
    assert (first.id, second.id) == ("1", "2")
    assert first.source == "a.json: data[0].paragraphs[0].qas[0]"


def test_questions_of_tables(tmp_path: Path) -> None:
    text = 'id,question,context,answer,answer_start\nq7,Who?,"Ann, or Ann",Ann,8\nq8,Why?,Ann,,\nq9,Where?,Ann,nn,x\n'
    where, why, wrong = SquadReader().read(write(tmp_path / "a.csv", text))
    assert where == Question("q7", "Who?", "Ann, or Ann", (Answer("Ann", 8),), "a.csv:2")
    assert why == Question("q8", "Why?", "Ann", (), "a.csv:3")  # a table says so with an empty cell
    assert "a.csv:4: answer_start is 'x', and must be a number" in str(wrong)
    columns = QuestionColumns("ask", "passage", "says")
    tsv = write(tmp_path / "a.tsv", "ask\tpassage\tsays\nWho?\tAnn\tAnn\n")
    assert list(SquadReader(columns).read(tsv)) == [Question("1", "Who?", "Ann", (Answer("Ann", -1),), "a.tsv:2")]
    with pytest.raises(UsageError, match=r"a\.tsv:2: no 'question'; there are ask, passage, says. Choose with --task"):
        list(SquadReader().stream(tsv))
    [row] = SquadReader(columns).values([{"ask": "Who?", "passage": "Ann", "says": ["Ann"]}])
    assert (row.question, row.context, row.answers) == ("Who?", "Ann", (Answer("Ann", -1),))
    unknown = write(tmp_path / "b.csv", "question,context\nWho?,Ann\n")
    [asked] = SquadReader().stream(unknown)
    assert isinstance(asked, Question)
    assert asked.answers is None
    [error] = SquadReader().read(unknown)
    assert "no answers" in str(error)
    squad = {"data": [{"paragraphs": [{"context": "Ann", "qas": [{"id": "1", "question": "Who?", "answers": []}]}]}]}
    [nested] = SquadReader(columns).read(write(tmp_path / "a.json", json.dumps(squad)))  # its names are its own
    assert isinstance(nested, Question)


def test_files_of_another_form(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='no list "data"'):
        list(SquadReader().read(write(tmp_path / "a.json", '{"rows": []}')))
    with pytest.raises(UsageError, match=r"SQuAD's \.json, or from \.jsonl, \.csv and \.tsv"):
        list(SquadReader().read(write(tmp_path / "a.txt", "a\tb\n")))
    with pytest.raises(UsageError, match="no such file"):
        list(ConllReader().read(tmp_path / "none.txt"))
    for reader in (ConllReader(), SquadReader(), ChoiceReader()):
        with pytest.raises(UsageError, match="is a folder: give a file"):
            list(reader.read(tmp_path))
    with pytest.raises(UserError, match="is empty"):
        list(ConllReader().read(write(tmp_path / "e.txt", "")))


def test_skipped_rows_are_counted_and_some_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"context": "a", "endings": ["b", "c"], "label": i % 7} for i in range(14)]
    assert len(valid_examples(ChoiceReader().read(write(tmp_path / "a.jsonl", lines(rows))), "a")) == 4
    told = capsys.readouterr().err
    assert "10 of 14 rows are skipped (--strict refuses them)" in told
    assert told.count("a.jsonl:") == 3
    assert "and 7 more" in told
