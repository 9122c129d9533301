from __future__ import annotations

from pathlib import Path

import pytest

from bertie.base.errors import UsageError
from bertie.examples.conll import Keep
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.sentences import TaggedSentences
from bertie.tasks.scoring import training_examples
from bertie.tasks.tag import Tag

SENTENCES = "".join(f"# s{i}\nAnna B-PER\nsmiled O\n\n" for i in range(4))


def read(tmp_path: Path, text: str, comments: Keep = "") -> list[tuple[str, ...]]:
    (tmp_path / "a.conll").write_text(text)
    return [
        each.words
        for each in valid_examples(Reader(TaggedSentences(comments=comments)).read(tmp_path / "a.conll"), "a")
    ]


def test_a_doubt_is_resolved_by_the_training_examples(tmp_path: Path) -> None:
    """By their tags, or else by what such lines were in them."""
    (tmp_path / "a.conll").write_text("a O\n\n# s1\nb O\n\n")
    (tmp_path / "train.conll").write_text(SENTENCES)

    def words(reader: Reader) -> list[tuple[str, ...]]:
        return [each.words for each in valid_examples(reader.read(tmp_path / "a.conll"), "a")]

    assert words(Reader(TaggedSentences(known=("O", "s1")))) == [("a",), ("#", "b")]
    task, examples = training_examples(Tag(), tmp_path / "train.conll")
    task = task.fit(examples)
    assert words(task.reader) == [("a",), ("b",)]
    assert words(Tag().as_trained(task).reader) == [("a",), ("b",)]  # pyright: ignore


@pytest.mark.parametrize(
    "text",
    [
        SENTENCES,
        "# a longer comment\nAnna B-PER\nsmiled O\n\n",
        "# id = 7\n# text = x\nAnna _ _ B-PER\nsmiled _ _ O\n",
        "#begin document (bc/cctv); part 000\nAnna B-PER\nsmiled O\n\n#end document x\n",
        "# alone = 1\n\nAnna\tB-PER\nsmiled\tO\n",
    ],
)
def test_comments_are_skipped(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(read(tmp_path, text)) == {("Anna", "smiled")}
    assert "a.conll: skips" in capsys.readouterr().err


def test_a_word_that_looks_like_a_comment_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(tmp_path, "a O\n\n# O\nb B-X\n\n#tag B-Y\n") == [("a",), ("#", "b"), ("#tag",)]
    assert read(tmp_path, "a O\n# O\n") == [("a", "#")]
    assert not capsys.readouterr().err


def test_a_line_that_could_be_both_is_asked_about(tmp_path: Path) -> None:
    text = "a O\n\n# s1\nb O\n\n"
    with pytest.raises(
        UsageError, match=r"a\.conll:3: '# s1' could be a comment, or the word '#' with the tag 's1'"
    ) as told:
        read(tmp_path, text)
    assert "--task.comments skip or keep" in str(told.value)
    assert read(tmp_path, text, "skip") == [("a",), ("b",)]
    assert read(tmp_path, text, "keep") == [("a",), ("#", "b")]
    late = "a O\nb B-X\n\n" * 60
    with pytest.raises(UsageError, match=r"a\.conll:181: "):
        read(tmp_path, f"{late}# s1\nc O\n")
    assert read(tmp_path, f"{late}# B-X\nc O\n")[-1] == ("#", "c")
