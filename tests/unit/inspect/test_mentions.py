"""Reading texts with mentions."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.inspect.mentions import GAP_COLUMNS, AntecedentQuestion, Mention, MentionText, read_coreference

TEXT = "Anna Lee (left) met Paul; he likes her."


def gap(**changes: str) -> str:
    row = {
        "ID": "test-1",
        "Text": TEXT,
        "Pronoun": "her",
        "Pronoun-offset": "35",
        "A": "Anna Lee",
        "A-offset": "0",
        "A-coref": "TRUE",
        "B": "Paul",
        "B-offset": "20",
        "B-coref": "FALSE",
        "URL": "u",
    }
    row.update({name.replace("_", "-"): value for name, value in changes.items()})
    return "\t".join(row.values())


def write_gap(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in ("\t".join(GAP_COLUMNS), *lines)), encoding="utf-8")
    return path


def test_gap_has_a_pronoun_and_two_names(tmp_path: Path) -> None:
    path = write_gap(tmp_path / "gap.tsv", gap(), "", gap(A_coref="FALSE"), gap(Pronoun="he", Pronoun_offset="26"))
    first, nobody, middle = read_coreference(path)
    assert isinstance(first, MentionText)
    assert isinstance(nobody, MentionText)
    assert isinstance(middle, MentionText)
    assert first.words == ("Anna", "Lee", "(", "left", ")", "met", "Paul", ";", "he", "likes", "her", ".")
    anna, paul = Mention(0, 1, "proper noun"), Mention(6, 6, "proper noun")
    assert first.mentions == (anna, paul, Mention(10, 10, "pronoun"))
    assert first.questions == (AntecedentQuestion(2, (0, 1), (True, False), closed=True),)
    assert (first.text, first.source) == (TEXT, "gap.tsv:2")
    assert first.spans is not None
    assert [TEXT[start:end] for start, end in first.spans.tolist()] == list(first.words)
    assert nobody.questions == ()
    assert nobody.source == "gap.tsv:4"
    assert middle.mentions == (anna, paul, Mention(8, 8, "pronoun"))


def test_a_pronoun_may_come_first_and_b_before_a(tmp_path: Path) -> None:
    line = gap(
        Text="When she came, Paul saw Anna.", Pronoun="she", Pronoun_offset="5", A="Anna", A_offset="24", B_offset="15"
    )
    (text,) = read_coreference(write_gap(tmp_path / "gap.tsv", line))
    assert isinstance(text, MentionText)
    assert [mention.kind for mention in text.mentions] == ["pronoun", "proper noun", "proper noun"]
    assert text.questions == (AntecedentQuestion(0, (1, 2), (False, True), closed=True),)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (gap().rsplit("\t", 1)[0], "expected 11 columns between tabs, found 10"),
        (gap(Pronoun_offset="34"), "the text does not have Pronoun, 'her', at Pronoun-offset '34'"),
        (gap(A_offset="x"), "the text does not have A, 'Anna Lee', at A-offset 'x'"),
        (gap(B_offset="99"), "the text does not have B"),
        (gap(B="", B_offset="3"), "the text does not have B, ''"),
        (gap(Text="   " + TEXT, A="  ", Pronoun_offset="38", B_offset="23"), "A is '  ', which has no word"),
        (gap(A_coref="yes"), "A-coref is 'yes': expected TRUE or FALSE"),
    ],
)
def test_a_broken_row_of_gap_is_named_by_its_line(tmp_path: Path, bad: str, message: str) -> None:
    path = write_gap(tmp_path / "gap.tsv", gap(), bad, gap())
    first, error, last = read_coreference(path)
    assert isinstance(error, UserError)
    assert str(error).startswith(f"{path}:3: {message}")
    assert isinstance(first, MentionText)
    assert isinstance(last, MentionText)


def conll(*rows: str, begin: bool = True, end: bool = True) -> str:
    """Rows as "word/POS/coreference"."""
    lines = ["#begin document (a/b); part 000"] if begin else []
    for number, row in enumerate(rows):
        word, tag, coreference = row.split()
        lines.append(
            f"a/b   0   {number}   {word}   {tag}  (TOP*  -  -  -  Speaker  *  (ARG0*)  {coreference}" if word else ""
        )
    return "\n".join([*lines, *(["", "#end document"] if end else [])]) + "\n"


NESTED = conll(
    "My PRP$ (1|(0)",
    "sister NN 1)",
    "saw VBD -",
    "-LRB- -LRB- -",
    "the DT (2",
    "Lees NNPS 2)|(1)",
    "She PRP (1)",
    "that DT (2)",
    "us PRP (3)",
)


def test_conll_mentions_nest_and_are_asked_about_if_an_antecedent_precedes(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(NESTED + NESTED)
    first, second = read_coreference(path)
    assert isinstance(first, MentionText)
    assert isinstance(second, MentionText)
    assert (first.source, second.source) == ("a.conll:1", "a.conll:13")
    assert first.words == second.words == ("My", "sister", "saw", "(", "the", "Lees", "She", "that", "us")
    assert first.mentions == (
        Mention(0, 1, "nominal", plural=False),
        Mention(0, 0, "pronoun"),
        Mention(4, 5, "proper noun", plural=True),
        Mention(5, 5, "proper noun", plural=True),
        Mention(6, 6, "pronoun"),
        Mention(7, 7, "other"),
        Mention(8, 8, "pronoun"),
    )
    assert first.questions == (
        AntecedentQuestion(3, (0, 1), (True, False), closed=False),  # not "the Lees", which has the same head word
        AntecedentQuestion(4, (0, 1, 2, 3), (True, False, False, True), closed=False),
        AntecedentQuestion(5, (0, 1, 2, 3, 4), (False, False, True, False, False), closed=False),
    )
    assert first.text is None


def test_columns_may_be_between_tabs_and_parts_of_speech_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    rows = ("Anna\t(1)", "sees\t", "her\t(1)", "dog\t")
    lines = [f"book\t0\t{i}\t{row.replace(chr(9), chr(9) + '_' + chr(9) * 8)}" for i, row in enumerate(rows)]
    path.write_text("\n".join(["#begin document (book); part 0", *lines, "#end document"]))
    (text,) = read_coreference(path)
    assert isinstance(text, MentionText)
    assert text.words == ("Anna", "sees", "her", "dog")
    assert text.mentions == (Mention(0, 0, "other"), Mention(2, 2, "pronoun"))
    assert text.questions == (AntecedentQuestion(1, (0,), (True,), closed=False),)


@pytest.mark.parametrize(
    ("bad", "line", "message"),
    [
        (conll("a NN 1)"), 2, "'1)' closes a mention of entity 1 that is not open"),
        (conll("a NN (1", "b NN -"), 1, "the document ends within a mention of entity 1"),
        (conll("a NN (1)", "b NN (x)"), 3, "the coreference column has '(x)': expected (0, 0) or (0)"),
        (conll("a NN 1"), 2, "the coreference column has '1'"),
        (conll("a NN (1)", end=False), 3, 'expected "#end document" before the next document'),
        (conll("a NN (1)").replace("Speaker  *", ""), 2, "expected at least 12 columns, found 11"),
        (conll("a NN (1)", begin=False).rsplit("\n", 3)[0] + "\n", 1, 'a word before "#begin document"'),
    ],
)
def test_a_broken_document_is_named_by_its_line(tmp_path: Path, bad: str, line: int, message: str) -> None:
    path = tmp_path / "a.conll"
    path.write_text(NESTED + bad + NESTED)
    first, *errors, last = read_coreference(path)
    assert [str(error).startswith(f"{path}:{12 + line}: ") for error in errors] == [True]
    assert message in str(errors[0])
    assert isinstance(first, MentionText)
    assert isinstance(last, MentionText)


def test_the_last_document_needs_an_end(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(NESTED + conll("a NN (1)", end=False))
    _, error = read_coreference(path)
    assert str(error) == f'{path}:13: the document has no "#end document"'
    path.write_text(NESTED + "#end document\n")
    _, error = read_coreference(path)
    assert str(error) == f'{path}:13: "#end document" without "#begin document"'


def test_files_that_are_not_utf8_break_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(NESTED.encode() + NESTED.replace("sister", "s\xefster").encode("latin-1") + NESTED.encode())
    first, error, last = read_coreference(path)
    assert isinstance(first, MentionText)
    assert isinstance(last, MentionText)
    assert str(error).startswith(f"{path}:15: ")


@pytest.mark.parametrize("content", ["one line of text\n", "ID\tText\n", "# newdoc\n1\tDo\n"])
def test_other_formats_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=r'a\.txt:1: expected the header of GAP .* or the line "#begin document"'):
        read_coreference(path)


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file"):
        read_coreference(tmp_path / "none.tsv")
    (tmp_path / "empty.tsv").write_text("\n")
    with pytest.raises(UserError, match=r"empty\.tsv is empty"):
        read_coreference(tmp_path / "empty.tsv")


def test_gap_as_published(shared_data: Path) -> None:
    texts = list(read_coreference(shared_data / "coreference" / "gap-validation.tsv"))
    assert len(texts) == 454
    assert all(isinstance(text, MentionText) for text in texts)
    assert sum(len(text.questions) for text in texts if isinstance(text, MentionText)) == 454 - 62
