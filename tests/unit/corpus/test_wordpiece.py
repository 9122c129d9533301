from __future__ import annotations

import itertools
import math
import os
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

from bertie.base.errors import UsageError, UserError
from bertie.corpus import merges, word_counts, wordpiece
from bertie.corpus.merges import Criterion
from bertie.tokenizers.tokenizer import CONTINUATION, MAX_WORD_CHARACTERS, SPECIAL_TOKENS, NormalizerOptions, Tokenizer

CHILD = """
import hashlib, sys
from pathlib import Path
from bertie.files import sources
from bertie.corpus.executors import LocalExecutor
from bertie.corpus.vocabulary import train_tokenizer
sources.MIN_GROUP_BYTES = 1000  # every file is a work item
executor = LocalExecutor(int(sys.argv[3]))
for criterion in ("frequency", "likelihood"):
    out = Path(sys.argv[2], criterion)
    train_tokenizer([sys.argv[1]], out, vocab_size=700, criterion=criterion, executor=executor)
    print(hashlib.sha256((out / "tokenizer.json").read_bytes()).hexdigest())
"""


def train(texts: list[str], normalization: NormalizerOptions = NormalizerOptions(), **choices: object) -> list[str]:
    return wordpiece.train(word_counts.count_words(texts, normalization).counts, **choices)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def lines(shared_data: Path) -> list[str]:
    path = shared_data / "treebank" / "en_ewt-ud-train.conllu"
    with open(path, encoding="utf-8") as file:
        return [line.removeprefix("# text = ").strip() for line in file if line.startswith("# text = ")][:6000]


def test_order_of_the_vocabulary() -> None:
    entries = train(["low lower lowest", "new newer newest"], vocab_size=27)
    characters = sorted(set("lowerstn"))
    assert entries[:5] == list(SPECIAL_TOKENS)
    assert entries[5:13] == characters
    assert entries[13:21] == ["##" + character for character in characters]
    assert len(entries) == 27
    # ##w ##e occurs four times, every other pair at most three times.
    assert entries[21] == "##we"


def test_reserved_entries_follow_the_special_tokens() -> None:
    entries = train(["aa aa"], vocab_size=10, reserved=["<url>", "[unused0]"])
    assert entries[5:] == ["<url>", "[unused0]", "a", "##a", "aa"]


def test_lowercasing_and_accent_stripping_are_optional() -> None:
    assert train(["Été été ÉTÉ"] * 3, vocab_size=10)[5:] == ["e", "t", "##e", "##t", "et"]
    cased = train(["Été été"] * 3, NormalizerOptions(lowercase=False), vocab_size=14)
    assert cased[5:11] == ["t", "É", "é", "##t", "##É", "##é"]


def test_alphabet_keeps_frequent_characters_and_on_ties_lower_code_points() -> None:
    entries = train(["aaaa bb dd cc"] * 2, vocab_size=11, alphabet_limit=3, min_frequency=2)
    assert entries[5:11] == ["a", "b", "c", "##a", "##b", "##c"]


def test_words_with_a_character_outside_the_alphabet_are_ignored() -> None:
    entries = train(["aaaa bbbb"] * 5 + ["axb aby"] * 50, vocab_size=13, alphabet_limit=2)
    assert entries[5:9] == ["a", "b", "##a", "##b"]
    assert not {"ab", "##ab"} & set(entries)


def test_words_over_the_maximum_length_are_ignored() -> None:
    longest = "a" * MAX_WORD_CHARACTERS
    with_longer = train([f"{longest} b {longest}a {'xy' * MAX_WORD_CHARACTERS}"] * 2, vocab_size=12)
    assert with_longer == train([f"{longest} b"] * 2, vocab_size=12)
    assert "##aa" in with_longer
    with pytest.raises(UserError, match="all words of the text are longer than 100 characters"):
        train([longest + "a"], vocab_size=12)


def train_naively(counts: dict[str, int], vocab_size: int, criterion: Criterion, min_frequency: int) -> list[str]:
    """Train from the definition: count and score every pair anew before every merge."""
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
        scores = {
            pair: score(pair, pairs, singles, criterion) for pair, count in pairs.items() if count >= min_frequency
        }
        scores = {pair: value for pair, value in scores.items() if value > 0}
        if not scores:
            break
        a, b = min(scores, key=lambda pair: (-scores[pair], pair))
        merged = pieces[a] + pieces[b].removeprefix(CONTINUATION)
        if merged not in number:
            number[merged] = len(pieces)
            pieces.append(merged)
        for parts in split.values():
            at = 0
            while at < len(parts) - 1:
                if parts[at : at + 2] == [a, b]:
                    parts[at : at + 2] = [number[merged]]
                at += 1
    return pieces


def score(pair: tuple[int, int], pairs: Counter, singles: Counter, criterion: Criterion) -> float:
    """Score a pair: occurrences, or the gain in log-likelihood, rounded to make equal gains compare as equal."""
    if criterion == "frequency":
        return pairs[pair]
    a, b = pair
    c, total = pairs[pair], singles.total()
    gain = xlogx(c) + xlogx(total) - xlogx(total - c)
    if a == b:
        return float(np.float32(gain + xlogx(singles[a] - 2 * c) - xlogx(singles[a])))
    gain += xlogx(singles[a] - c) - xlogx(singles[a]) + xlogx(singles[b] - c) - xlogx(singles[b])
    return float(np.float32(gain))


def xlogx(count: float) -> float:
    return count * math.log(count) if count > 0 else 0.0


def test_score_is_the_gain_in_log_likelihood() -> None:
    before = Counter({0: 30, 1: 20, 2: 50})
    after = Counter({0: 18, 1: 8, 2: 50, 3: 12})

    def log_likelihood(counts: Counter[int]) -> float:
        return sum(n * math.log(n / counts.total()) for n in counts.values())

    gain = log_likelihood(after) - log_likelihood(before)
    assert score((0, 1), Counter({(0, 1): 12}), before, "likelihood") == pytest.approx(gain, rel=1e-6)


COUNTS = st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 40), min_size=1, max_size=12)


@settings(deadline=None, max_examples=50)
@given(COUNTS, st.integers(1, 4))
def test_merges_by_frequency_follow_the_definition(counts: dict[str, int], min_frequency: int) -> None:
    vocabulary = wordpiece.train(counts, vocab_size=40, min_frequency=min_frequency)
    assert vocabulary == train_naively(counts, 40, "frequency", min_frequency)


@settings(deadline=None, max_examples=60)
@given(COUNTS, st.integers(1, 4), st.sampled_from([1, 3, 8192]))
def test_merges_by_likelihood_follow_the_definition(
    counts: dict[str, int], min_frequency: int, candidates: int
) -> None:
    """The number of candidates between two refreshes does not matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merges.LikelihoodQueue, "MAX_CANDIDATES", candidates)
        patch.setattr(merges.LikelihoodQueue, "MAX_NEW_PAIRS", max(2, candidates // 2))
        vocabulary = wordpiece.train(counts, vocab_size=40, criterion="likelihood", min_frequency=min_frequency)
    assert vocabulary == train_naively(counts, 40, "likelihood", min_frequency)


def test_parity_with_the_library_given_the_order_of_the_alphabet(lines: list[str]) -> None:
    counts = word_counts.count_words(lines).counts
    entries = wordpiece.train(counts, vocab_size=3000)
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
    assert entries == sorted(vocabulary, key=vocabulary.__getitem__)


@pytest.mark.parametrize("criterion", ["frequency", "likelihood"])
def test_no_word_of_the_training_text_is_unknown(lines: list[str], criterion: Criterion) -> None:
    lines = lines[:700]
    entries = train(lines, vocab_size=1000, criterion=criterion)
    assert len(entries) == len(set(entries)) == 1000
    tokenizer = Tokenizer.build(entries)
    assert not any(tokenizer.unk_id in ids for ids in tokenizer.encode(lines))
    pieces = sum(map(len, tokenizer.encode(lines)))
    characters = sum(map(len, lines))
    assert characters / pieces > 2.5


def test_workers_threads_and_hash_seeds_do_not_change_the_tokenizer(lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for part in range(4):
        (tmp_path / "texts" / f"{part}.txt").write_text("\n\n".join(lines[part:400:4]), encoding="utf-8")
    digests = set()
    for run, workers in enumerate("12"):
        environment = {**os.environ, "RAYON_NUM_THREADS": workers, "PYTHONHASHSEED": str(run)}
        (tmp_path / f"out{run}").mkdir()
        command = [sys.executable, "-c", CHILD, str(tmp_path / "texts"), str(tmp_path / f"out{run}"), workers]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 1


def test_empty_text_is_an_error() -> None:
    for texts in ([], [" \n", "\u200b"]):
        with pytest.raises(UserError, match="the text is empty"):
            train(texts, vocab_size=100)


def test_too_small_vocabulary_size_names_the_minimum() -> None:
    with pytest.raises(UsageError, match=r"--vocab-size 10 is too small.* give 11"):
        train(["abc"], vocab_size=10)
    assert len(train(["abc"], vocab_size=11)) == 11


def test_a_small_text_fills_fewer_entries() -> None:
    texts = ["low lower lowest", "new newer newest"]
    most = train(texts, vocab_size=5000)
    assert 11 < len(most) < 5000
    assert train(texts, vocab_size=len(most)) == most


def test_vocabulary_and_preparation_do_not_import_torch() -> None:
    code = "import sys, bertie.corpus.vocabulary, bertie.corpus.prepare; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
