from __future__ import annotations

import itertools
import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from bertie.errors import UsageError, UserError
from bertie.text import merges, word_counts, wordpiece
from bertie.text.merges import Criterion
from bertie.text.tokenizer import CONTINUATION, SPECIAL_TOKENS, NormalizerOptions, Tokenizer

CHILD = """
import hashlib, sys
from pathlib import Path
from bertie.files import sources
from bertie.text.executors import LocalExecutor
from bertie.text.vocabulary import train_tokenizer
sources.MIN_GROUP_BYTES = 1000  # so that each file is a piece of work by itself
executor = LocalExecutor(int(sys.argv[3]))
train_tokenizer([sys.argv[1]], Path(sys.argv[2]), vocab_size=2500, criterion=sys.argv[4], executor=executor)
print(hashlib.sha256(Path(sys.argv[2], "tokenizer.json").read_bytes()).hexdigest())
"""


def trained(texts: list[str], rules: NormalizerOptions = NormalizerOptions(), **choices: object) -> list[str]:
    return wordpiece.train(word_counts.count_words(texts, rules).counts, **choices)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def lines(shared_data: Path) -> list[str]:
    path = shared_data / "treebank" / "en_ewt-ud-train.conllu"
    with open(path, encoding="utf-8") as file:
        return [line.removeprefix("# text = ").strip() for line in file if line.startswith("# text = ")][:6000]


def test_order_of_the_word_list() -> None:
    found = trained(["low lower lowest", "new newer newest"], vocab_size=27)
    characters = sorted(set("lowerstn"))
    assert found[:5] == list(SPECIAL_TOKENS)
    assert found[5:13] == characters
    assert found[13:21] == ["##" + character for character in characters]
    assert len(found) == 27
    # ##w and ##e stand together four times, any other two pieces at most three times.
    assert found[21] == "##we"


def test_reserved_entries_come_after_the_special_ones() -> None:
    found = trained(["aa aa"], vocab_size=10, reserved=["<url>", "[unused0]"])
    assert found[5:] == ["<url>", "[unused0]", "a", "##a", "aa"]


def test_letters_are_lowered_and_accents_stripped_only_if_asked() -> None:
    assert trained(["Été été ÉTÉ"] * 3, vocab_size=10)[5:] == ["e", "t", "##e", "##t", "et"]
    cased = trained(["Été été"] * 3, NormalizerOptions(lowercase=False), vocab_size=14)
    assert cased[5:11] == ["t", "É", "é", "##t", "##É", "##é"]


def test_the_alphabet_keeps_the_frequent_and_of_equals_the_lower() -> None:
    found = trained(["aaaa bb dd cc"] * 2, vocab_size=11, alphabet_limit=3, min_frequency=2)
    assert found[5:11] == ["a", "b", "c", "##a", "##b", "##c"]


def test_words_with_a_foreign_character_teach_nothing() -> None:
    found = trained(["aaaa bbbb"] * 5 + ["axb aby"] * 50, vocab_size=13, alphabet_limit=2)
    assert found[5:9] == ["a", "b", "##a", "##b"]
    assert not {"ab", "##ab"} & set(found)


def naive(counts: dict[str, int], vocab_size: int, criterion: Criterion, least: int) -> list[str]:
    """The same, from the definition: every pair is counted and scored anew before every merge."""
    alphabet = sorted(set("".join(counts)))
    pieces = [*SPECIAL_TOKENS, *alphabet, *(CONTINUATION + character for character in alphabet)]
    number = {piece: index for index, piece in enumerate(pieces)}
    split = {word: [number[CONTINUATION * (i > 0) + c] for i, c in enumerate(word)] for word in counts}
    while len(pieces) < vocab_size:
        singles: Counter[int] = Counter()
        pairs: Counter[tuple[int, int]] = Counter()
        for word, parts in split.items():
            for part in parts:
                singles[part] += counts[word]
            for pair in itertools.pairwise(parts):
                pairs[pair] += counts[word]
        scores = {pair: score(pair, pairs, singles, criterion) for pair, count in pairs.items() if count >= least}
        scores = {pair: value for pair, value in scores.items() if value > 0}
        if not scores:
            break
        a, b = min(scores, key=lambda pair: (-scores[pair], pair))
        joined = pieces[a] + pieces[b].removeprefix(CONTINUATION)
        if joined not in number:
            number[joined] = len(pieces)
            pieces.append(joined)
        for parts in split.values():
            at = 0
            while at < len(parts) - 1:
                if parts[at : at + 2] == [a, b]:
                    parts[at : at + 2] = [number[joined]]
                at += 1
    return pieces


def score(pair: tuple[int, int], pairs: Counter, singles: Counter, criterion: Criterion) -> float:
    """Occurrences, or what the logarithm of the text's likelihood gains; rounded, so that equals are equal."""
    if criterion == "frequency":
        return pairs[pair]
    a, b = pair
    c, every = pairs[pair], singles.total()
    gain = xlogx(c) + xlogx(every) - xlogx(every - c)
    if a == b:
        return float(np.float32(gain + xlogx(singles[a] - 2 * c) - xlogx(singles[a])))
    gain += xlogx(singles[a] - c) - xlogx(singles[a]) + xlogx(singles[b] - c) - xlogx(singles[b])
    return float(np.float32(gain))


def xlogx(count: float) -> float:
    return count * math.log(count) if count > 0 else 0.0


def test_the_score_is_what_the_likelihood_gains() -> None:
    before = Counter({0: 30, 1: 20, 2: 50})
    after = Counter({0: 18, 1: 8, 2: 50, 3: 12})

    def likelihood(counts: Counter[int]) -> float:
        return sum(n * math.log(n / counts.total()) for n in counts.values())

    gain = likelihood(after) - likelihood(before)
    assert score((0, 1), Counter({(0, 1): 12}), before, "likelihood") == pytest.approx(gain, rel=1e-6)


WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 40), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(WORDS, st.integers(1, 4))
def test_merges_by_frequency_are_those_of_the_definition(counts: dict[str, int], least: int) -> None:
    given_ = {"vocab_size": 40, "min_frequency": least, "exact": False}
    assert wordpiece.train(counts, **given_) == naive(counts, 40, "frequency", least)


@settings(deadline=None, max_examples=150)
@given(WORDS, st.integers(1, 4), st.sampled_from([1, 3, 8192]))
def test_merges_by_likelihood_gain_what_the_best_gains(counts: dict[str, int], least: int, near: int) -> None:
    """However few pairs are looked at between two looks at all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merges.ByLikelihood, "NEAR", near)
        patch.setattr(merges.ByLikelihood, "YOUNG", max(2, near // 2))
        found = wordpiece.train(counts, vocab_size=40, criterion="likelihood", min_frequency=least, exact=False)
    expected = naive(counts, 40, "likelihood", least)
    assert found == expected


def test_the_library_gives_the_same_pieces_once_its_numbers_are_fixed(lines: list[str]) -> None:
    counts = word_counts.count_words(lines).counts
    found = wordpiece.train(counts, vocab_size=3000)
    alphabet = sorted(set("".join(counts)))
    backend = tokenizers.Tokenizer(models.WordPiece({}, unk_token="[UNK]"))
    backend.normalizer = NormalizerOptions().normalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=3000,
        min_frequency=2,
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *(CONTINUATION + character for character in alphabet)],
        show_progress=False,
    )
    backend.train_from_iterator(lines, trainer)
    vocabulary = backend.get_vocab()
    assert found == sorted(vocabulary, key=vocabulary.__getitem__)


@pytest.mark.parametrize("criterion", ["frequency", "likelihood"])
def test_every_word_of_the_text_is_known_afterwards(lines: list[str], criterion: Criterion) -> None:
    found = trained(lines, vocab_size=2000, criterion=criterion)
    assert len(found) == len(set(found)) == 2000
    tokenizer = Tokenizer.build(found)
    assert not any(tokenizer.unk_id in ids for ids in tokenizer.encode(lines))
    pieces = sum(map(len, tokenizer.encode(lines)))
    characters = sum(map(len, lines))
    assert characters / pieces > 3


def test_order_of_texts_does_not_matter(lines: list[str]) -> None:
    shuffled = list(lines)
    random.Random(1).shuffle(shuffled)
    assert trained(shuffled, vocab_size=3000) == trained(lines, vocab_size=3000)


@pytest.mark.parametrize("criterion", ["frequency", "likelihood"])
def test_processes_and_thread_counts_agree(lines: list[str], tmp_path: Path, criterion: str) -> None:
    (tmp_path / "texts").mkdir()
    for part in range(4):
        (tmp_path / "texts" / f"{part}.txt").write_text("\n\n".join(lines[part::4]), encoding="utf-8")
    found = set()
    for run, workers in enumerate("124"):
        environment = {**os.environ, "RAYON_NUM_THREADS": workers, "PYTHONHASHSEED": str(run)}
        command = [
            sys.executable,
            "-c",
            CHILD,
            str(tmp_path / "texts"),
            str(tmp_path / f"out{run}"),
            workers,
            criterion,
        ]
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


def test_no_text() -> None:
    for texts in ([], [" \n", "\u200b"]):
        with pytest.raises(UserError, match="the text is empty"):
            trained(texts, vocab_size=100)


def test_too_small_a_vocabulary_says_the_least() -> None:
    with pytest.raises(UsageError, match=r"--vocab-size 10 is too small.* take 11"):
        trained(["abc"], vocab_size=10)
    assert len(trained(["abc"], vocab_size=11)) == 11


def test_too_large_a_vocabulary_says_the_most() -> None:
    texts = ["low lower lowest", "new newer newest"]
    with pytest.raises(UserError, match=r"only (\d+) entries: ask for --vocab-size \1 or give more text") as caught:
        trained(texts, vocab_size=5000)
    most = int(str(caught.value).split("--vocab-size ")[1].split()[0])
    assert len(trained(texts, vocab_size=most)) == most


def test_training_needs_no_torch() -> None:
    code = "import sys, bertie.text.vocabulary, bertie.text.prepare; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
