"""Texts with mentions as windows of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from bertie.corpus import bpe, word_counts
from bertie.inspect.mention_windows import MentionWindows, encode_mentions
from bertie.inspect.mentions import AntecedentQuestion, Mention, MentionText
from bertie.tokenizers.tokenizer import ByteLevel, NormalizerOptions, Tokenizer

FILLER = ("now",) * 10


def text_of(words: tuple[str, ...], heads: list[int], right: dict[int, list[int]], closed: bool = False) -> MentionText:
    """Mentions of one word. right: mention -> its antecedents."""
    mentions = tuple(Mention(head, head, "pronoun" if words[head] in ("she", "he") else "nominal") for head in heads)
    questions = []
    for mention, antecedents in right.items():
        candidates = tuple(other for other in range(len(heads)) if other != mention and (closed or other < mention))
        questions.append(
            AntecedentQuestion(mention, candidates, tuple(other in antecedents for other in candidates), closed)
        )
    return MentionText(words, mentions, tuple(questions), "test")


def check(windows: MentionWindows, texts: list[MentionText], tokenizer: Tokenizer, max_length: int) -> None:
    """The words of every question have to be where the offsets of its window say."""
    for question in windows.questions:
        sequence = windows.sequences[question.window]
        assert len(sequence) <= max_length
        assert sequence.example == question.text
        assert sequence.offsets is not None
        assert sequence.offsets[[0, -1], 0].tolist() == [-1, -1]
        assert sequence.offsets[1, 0] == 0
        for word in (question.word, *question.candidates):
            at = np.flatnonzero(sequence.offsets[:, 0] == word)
            form = tokenizer.decode(sequence.input_ids[at].tolist()).replace(" ", "").lower()
            assert form in {
                texts[question.text].words[mention.last].lower() for mention in texts[question.text].mentions
            }


def test_a_short_text_is_one_window(word_tokenizer: Tokenizer) -> None:
    text = text_of(("the", "cats", "sees", "anna", ".", "she", "likes", "dogs"), [1, 3, 5, 7], {2: [1], 3: [0]})
    nothing = text_of(("the", "cat"), [1], {})
    windows = encode_mentions(word_tokenizer, [nothing, text], 64)
    check(windows, [nothing, text], word_tokenizer, 64)
    assert (len(windows.sequences), windows.outside, windows.without_antecedent) == (1, 0, 1)
    first, second = windows.questions
    assert (first.window, first.text, first.word, first.candidates, first.right) == (0, 1, 5, (1, 3), (False, True))
    assert first.baselines == (True, False, True)  # nearest, head match, rules
    assert first.groups == ("all", "pronoun", "feminine pronoun")
    assert (second.word, second.candidates, second.right) == (7, (1, 3, 5), (True, False, False))
    assert second.groups == ("all", "nominal")


def test_candidates_with_the_same_head_word_are_one(word_tokenizer: Tokenizer) -> None:
    words = ("anna", "the", "cat", "she")
    mentions = (
        Mention(0, 0, "proper noun"),
        Mention(1, 2, "nominal"),
        Mention(2, 2, "nominal"),
        Mention(3, 3, "pronoun"),
    )
    text = MentionText(words, mentions, (AntecedentQuestion(3, (0, 1, 2), (False, False, True), closed=False),), "test")
    (question,) = encode_mentions(word_tokenizer, [text], 64).questions
    assert (question.candidates, question.right) == ((0, 2), (False, True))
    assert question.baselines == (True, False, True)


def test_a_long_text_has_windows_with_half_of_their_tokens_before_the_mention(word_tokenizer: Tokenizer) -> None:
    """Mentions at words 0, 11, 22, …; each is the antecedent of the next one and of the one ten later."""
    words = sum((("cats", *FILLER) for _ in range(30)), ())
    heads = list(range(0, len(words), 11))
    right = {number: [number - 1] for number in range(1, 30)} | {29: [5]}
    text = text_of(words, heads, right)
    windows = encode_mentions(word_tokenizer, [text], 50)
    check(windows, [text], word_tokenizer, 50)
    assert windows.outside == 1
    assert [question.groups for question in windows.questions] == [("all", "nominal")] * 28
    assert 28 / 3 < len(windows.sequences) < 28 / 1.5, "neighbors share windows"
    for question in windows.questions[3:]:
        offsets = windows.sequences[question.window].offsets
        assert offsets is not None
        before = int(np.flatnonzero(offsets[:, 0] == question.word)[0]) - 1
        assert before >= 22
        assert len(question.candidates) == before // 12


def test_a_closed_question_needs_all_of_its_candidates(word_tokenizer: Tokenizer) -> None:
    words = (*FILLER, "anna", *FILLER, "cat", "she", *FILLER)
    text = text_of(words, [10, 21, 22], {2: [1]}, closed=True)
    windows = encode_mentions(word_tokenizer, [text], 17)
    check(windows, [text], word_tokenizer, 17)
    assert (len(windows.sequences[0]), windows.outside) == (17, 0)
    assert windows.questions[0].candidates == (1, 12)
    assert windows.questions[0].word == 13
    too_short = encode_mentions(word_tokenizer, [text], 14)
    assert (too_short.sequences, too_short.questions, too_short.outside) == ([], [], 1)
    opened = text_of(words, [10, 21, 22], {2: [1]})
    windows = encode_mentions(word_tokenizer, [opened], 12)
    assert (windows.questions[0].candidates, windows.questions[0].right) == ((3,), (True,))
    windows = encode_mentions(word_tokenizer, [text_of(words, [10, 21, 22], {2: [0]})], 12)
    assert (windows.sequences, windows.outside) == ([], 1)


def test_a_closed_question_about_one_head_word_is_not_asked(word_tokenizer: Tokenizer) -> None:
    mentions = (Mention(0, 1, "proper noun"), Mention(1, 1, "proper noun"), Mention(2, 2, "pronoun"))
    question = AntecedentQuestion(2, (0, 1), (True, False), closed=True)
    windows = encode_mentions(word_tokenizer, [MentionText(("the", "cat", "she"), mentions, (question,), "test")], 64)
    assert (windows.questions, windows.outside) == ([], 1)


def test_windows_do_not_cut_words(word_tokenizer: Tokenizer) -> None:
    text = text_of(("cats",) * 40, [3, 30, 31], {2: [1]})
    for length in range(8, 20):
        windows = encode_mentions(word_tokenizer, [text], length)
        check(windows, [text], word_tokenizer, length)
        (sequence,) = windows.sequences
        assert sequence.offsets is not None
        assert set(np.bincount(sequence.offsets[1:-1, 0])) == {2}
        assert len(sequence) >= length - 2


def test_a_raw_text_is_tokenized_as_it_is() -> None:
    """With byte-level BPE, a name before a comma has other tokens than one before a space and a comma."""
    raw = "Anna, Paul and 'Eve' (she) left."
    tokenizer = Tokenizer.build_bpe(*bpe.train(word_counts.count_words([raw] * 9, ByteLevel()).counts, vocab_size=300))
    starts = (0, 4, 6, 11, 15, 16, 19, 21, 22, 25, 27, 31)
    spans = np.stack([starts, (4, 5, 10, 14, 16, 19, 20, 22, 25, 26, 31, 32)], 1)
    words = tuple(raw[start:end] for start, end in spans.tolist())
    mentions = (Mention(0, 0, "proper noun"), Mention(5, 5, "proper noun"), Mention(8, 8, "pronoun"))
    question = AntecedentQuestion(2, (0, 1), (True, False), closed=True)
    text = MentionText(words, mentions, (question,), "test", raw, spans)
    (sequence,) = encode_mentions(tokenizer, [text], 64).sequences
    assert sequence.input_ids[1:-1].tolist() == tokenizer.encode([raw])[0].tolist()
    assert sequence.offsets is not None
    found = [
        tokenizer.decode(sequence.input_ids[sequence.offsets[:, 0] == word].tolist()).strip()
        for word in range(len(words))
    ]
    assert found == list(words)


@pytest.mark.parametrize("missing", [10, 21])
def test_a_word_without_a_token_is_no_candidate(missing: int) -> None:
    words = wordpiece_words()
    tokenizer = Tokenizer.build(words, NormalizerOptions(drop_punctuation=True))
    forms = ["now"] * 24
    forms[missing] = "!"
    text = text_of(tuple(forms), [10, 21, 22], {2: [0, 1]})
    windows = encode_mentions(tokenizer, [text], 64)
    (question,) = windows.questions
    assert question.candidates == tuple(word for word in (10, 21) if word != missing)
    forms[22] = "!"
    windows = encode_mentions(tokenizer, [text_of(tuple(forms), [10, 21, 22], {2: [0, 1]})], 64)
    assert (windows.questions, windows.outside) == ([], 1)


def wordpiece_words() -> list[str]:
    from bertie.tokenizers.tokenizer import SPECIAL_TOKENS

    return [*SPECIAL_TOKENS, "now"]
