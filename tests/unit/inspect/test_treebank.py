"""Reading CoNLL-U files."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.inspect.treebank import ParsedSentence, read_treebank

GOOD = """# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tthere\t_\tADV\t_\t_\t_\t_\t3:x\t_
"""


def line(*, number: str = "1", form: str = "go", head: str = "0", columns: int = 10) -> str:
    cells = [number, form, "_", "VERB", "_", "_", head, "root", "_", "_"]
    return "\t".join(cells[:columns])


def test_a_sentence_has_words_parts_of_speech_and_a_tree(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(GOOD + "\n\n" + GOOD.replace("\n", "\r\n"))
    words, parts, relations = ("Do", "n't", "go"), ("AUX", "PART", "VERB"), ("aux", "advmod", "root")
    expected = [ParsedSentence(words, parts, (2, 2, -1), relations, f"a.conllu:{start}") for start in (3, 11)]
    assert list(read_treebank(path)) == expected


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (line(columns=9), "expected 10 columns between tabs, found 9"),
        (line(number="2"), "expected word 1 of the sentence, found '2'"),
        (line(number="x"), "expected word 1 of the sentence, found 'x'"),
        (line(form=""), "the word is empty"),
        (line(head="2"), "the head is '2': expected 0 or another word, 1 to 1"),
        (line(head="1"), "the head is '1'"),
        (line(head="_"), "the head is '_'"),
        (line(head="²"), "the head is '²'"),
        (line(head="9" * 5000), "the head is '99999999999999999999': expected 0"),
    ],
)
def test_a_broken_sentence_is_named_by_its_line_and_the_others_remain(tmp_path: Path, bad: str, message: str) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(f"{GOOD}\n{bad}\n\n{GOOD}", encoding="utf-8")
    first, error, last = read_treebank(path)
    assert isinstance(error, UserError)
    assert str(error).startswith(f"{path}:8: ")
    assert message in str(error)
    assert isinstance(first, ParsedSentence)
    assert isinstance(last, ParsedSentence)


@pytest.mark.parametrize(
    ("heads", "first"),
    [((2, 1, 0), 1), ((0, 3, 4, 2), 2), ((3, 0, 4, 3), 3), ((2, 3, 1), 1), ((0, 1, 1), None), ((2, 3, 0, 0, 4), None)],
)
def test_a_cycle_is_named_by_its_first_word_and_the_others_remain(
    tmp_path: Path, heads: tuple[int, ...], first: int | None
) -> None:
    path = tmp_path / "a.conllu"
    words = "\n".join(line(number=str(n), form=f"w{n}", head=str(head)) for n, head in enumerate(heads, 1))
    path.write_text(f"{words}\n\n{GOOD}", encoding="utf-8")
    found, last = read_treebank(path)
    assert isinstance(last, ParsedSentence)
    if first is None:
        assert isinstance(found, ParsedSentence)
    else:
        assert str(found) == f"{path}:{first}: the heads lead from 'w{first}' back to it: expected a tree"


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.conllu"):
        list(read_treebank(tmp_path / "none.conllu"))
    (tmp_path / "empty.conllu").touch()
    with pytest.raises(UserError, match="is empty"):
        list(read_treebank(tmp_path / "empty.conllu"))


def test_the_real_treebank_is_read_whole(shared_data: Path) -> None:
    sentences = list(read_treebank(shared_data / "treebank" / "en_ewt-ud-dev.conllu"))
    assert len(sentences) == 2001
    assert all(isinstance(sentence, ParsedSentence) for sentence in sentences)
