from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bertie.errors import UsageError, UserError
from bertie.text import readers, wordpiece
from bertie.text.tokenizer import SPECIAL_TOKENS, Tokenizer

CHILD = """
import hashlib, sys
from pathlib import Path
from bertie.text import readers, wordpiece
paths = [Path(sys.argv[1])]
words = wordpiece.train(lambda: (document.text for document in readers.read(paths)), vocab_size=2500)
print(hashlib.sha256("\\n".join(words).encode()).hexdigest())
"""


@pytest.fixture
def lines(shared_data: Path) -> list[str]:
    path = shared_data / "treebank" / "en_ewt-ud-train.conllu"
    with open(path, encoding="utf-8") as file:
        return [line.removeprefix("# text = ").strip() for line in file if line.startswith("# text = ")][:6000]


def test_order_of_the_word_list() -> None:
    words = wordpiece.train(lambda: ["low lower lowest", "new newer newest"], vocab_size=27)
    characters = sorted(set("lowerstn"))
    assert words[:5] == list(SPECIAL_TOKENS)
    assert words[5:13] == characters
    assert words[13:21] == ["##" + character for character in characters]
    assert len(words) == 27
    # ##w and ##e stand together four times, any other two pieces at most three times.
    assert words[21] == "##we"


def test_letters_are_lowered_and_accents_stripped_only_if_asked() -> None:
    uncased = wordpiece.train(lambda: ["Été été ÉTÉ"] * 3, vocab_size=10)
    assert uncased[5:] == ["e", "t", "##e", "##t", "et"]
    cased = wordpiece.train(lambda: ["Été été"] * 3, vocab_size=14, lowercase=False)
    assert cased[5:11] == ["t", "É", "é", "##t", "##É", "##é"]


def test_the_alphabet_keeps_the_frequent_and_of_equals_the_lower() -> None:
    words = wordpiece.train(lambda: ["aaaa bb dd cc"] * 2, vocab_size=11, alphabet_limit=3, min_frequency=2)
    assert words[5:11] == ["a", "b", "c", "##a", "##b", "##c"]


def test_neighbours_of_a_foreign_character_are_not_joined() -> None:
    texts = ["ab" * 20] + ["axb"] * 5 + ["ab ba"] * 3
    words = wordpiece.train(lambda: texts, vocab_size=9 + 2, alphabet_limit=2)
    assert "x" not in words
    only_foreign = ["aaaa bbbb"] * 5 + ["axb"] * 50
    words = wordpiece.train(lambda: only_foreign, vocab_size=13, alphabet_limit=2)
    assert "ab" not in words
    assert "##ab" not in words


def test_every_word_of_the_text_is_known_afterwards(lines: list[str]) -> None:
    words = wordpiece.train(lambda: lines, vocab_size=2000)
    assert len(words) == len(set(words)) == 2000
    tokenizer = Tokenizer.build(words, lowercase=True)
    assert not any(tokenizer.unk_id in ids for ids in tokenizer.encode(lines))
    pieces = sum(map(len, tokenizer.encode(lines)))
    characters = sum(map(len, lines))
    assert characters / pieces > 3


def test_order_of_texts_does_not_matter(lines: list[str]) -> None:
    shuffled = list(lines)
    random.Random(1).shuffle(shuffled)
    assert wordpiece.train(lambda: shuffled, vocab_size=3000) == wordpiece.train(lambda: lines, vocab_size=3000)


def test_processes_and_thread_counts_agree(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(lines), encoding="utf-8")
    found = set()
    for run, threads in enumerate(("1", "2", "4")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": str(run)}
        command = [sys.executable, "-c", CHILD, str(path)]
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


def test_no_text() -> None:
    with pytest.raises(UserError, match="the text is empty"):
        wordpiece.train(lambda: [], vocab_size=100)
    with pytest.raises(UserError, match="the text is empty"):
        wordpiece.train(lambda: [" \n", "\u200b"], vocab_size=100)


def test_too_small_a_vocabulary_says_the_least() -> None:
    with pytest.raises(UsageError, match=r"--vocab-size 10 is too small.* take 11"):
        wordpiece.train(lambda: ["abc"], vocab_size=10)
    assert len(wordpiece.train(lambda: ["abc"], vocab_size=11)) == 11


def test_too_large_a_vocabulary_says_the_most() -> None:
    texts = ["low lower lowest", "new newer newest"]
    with pytest.raises(UserError, match=r"only (\d+) entries: ask for --vocab-size \1 or give more text") as caught:
        wordpiece.train(lambda: texts, vocab_size=5000)
    most = int(str(caught.value).split("--vocab-size ")[1].split()[0])
    assert len(wordpiece.train(lambda: texts, vocab_size=most)) == most


def test_training_needs_no_torch() -> None:
    code = "import sys, bertie.text.wordpiece, bertie.text.prepare; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reading_twice_from_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("low lower\n\nlow lowest")
    words = wordpiece.train(lambda: (document.text for document in readers.read([path])), vocab_size=21)
    assert "low" in words
