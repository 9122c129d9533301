"""Words, candidates and joint fillings at masks, compared with sums of log probabilities by hand."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from small_models import model_of, run

from bertie.base.errors import UsageError, UserError
from bertie.corpus import bpe, word_counts
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.predict.fill_mask import Filling, WordSearch, encode_masked, fill_tokens, takes_space
from bertie.predict.predictor import Predictor
from bertie.tokenizers.special_tokens import Place, Templates
from bertie.tokenizers.tokenizer import ByteLevel, Tokenizer
from bertie.tokenizers.wordpiece_backend import WordPieceBackend

if TYPE_CHECKING:
    from conftest import LogP

ENTRIES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "cat", "sat", "un", "happy", "a", "b", ".", "##happy", "##s", "##a", "##b", "unhappy", "cats"),
]


@pytest.fixture(scope="module")
def tiny() -> Predictor:
    """A model with 19 entries, whose fillings can all be enumerated."""
    config = TransformerConfig(2, 16, 2, 32, vocab_size=len(ENTRIES), max_position_embeddings=16)
    model = model_of(config, MaskedLM(), seed=3, scale=0.7)
    return Predictor(Path("tiny"), Tokenizer.build(ENTRIES), model, None, 16)


def ids_of(model: Predictor, *tokens: str) -> list[int]:
    return [model.tokenizer.vocabulary.index(token) for token in tokens]


def chain(model: Predictor, log_p: LogP, ids: list[int], fills: list[tuple[int, int]]) -> float:
    """Sum the log probabilities of tokens at masks, in the given order: each is filled in before the next is predicted."""
    total, current = 0.0, list(ids)
    for position, token in fills:
        total += float(log_p(model, current)[position, token])
        current[position] = token
    return total


def by_hand(model: Predictor, log_p: LogP, tokens: list[str], words: list[list[str]]) -> list[tuple[float, list[str]]]:
    """Score words at the only ^ of a text from left to right, the best first."""
    at = tokens.index("^")
    found = []
    for word in words:
        ids = ids_of(model, "[CLS]", *tokens[:at], *["[MASK]"] * len(word), *tokens[at + 1 :], "[SEP]")
        fills = list(enumerate(ids_of(model, *word), at + 1))
        found.append((chain(model, log_p, ids, fills), word))
    return sorted(found, reverse=True)


def spellings() -> list[list[str]]:
    """All words of at most two pieces that the tokenizer spells in this way. un ##happy, for example, is unhappy."""
    starts = [entry for entry in ENTRIES[5:] if not entry.startswith("##")]
    later = [entry for entry in ENTRIES if entry.startswith("##")]
    pairs = [[first, last] for first, last in itertools.product(starts, later) if first != "."]
    return [[word] for word in starts] + [pair for pair in pairs if pair not in (["un", "##happy"], ["cat", "##s"])]


def test_words_of_several_pieces_are_scored_by_hand(tiny: Predictor, log_p: LogP) -> None:
    expected = by_hand(tiny, log_p, ["the", "^", "sat", "."], spellings())
    [found] = tiny.fill_words("the [MASK] sat.", WordSearch(top_k=10, max_pieces=2, beam=50))
    assert len({len(word) for _, word in expected[:10]}) == 2
    for filling, (score, word) in zip(found, expected, strict=False):
        assert filling.pieces == (tuple(word),)
        assert filling.words == ("".join(word).replace("##", ""),)
        assert filling.log_probability == pytest.approx(score, abs=1e-5)
        assert filling.probability == pytest.approx(math.exp(score), rel=1e-4)
        assert filling.share is None


def test_a_wide_beam_finds_every_word_once(tiny: Predictor) -> None:
    [found] = tiny.fill_words("the [MASK] sat.", WordSearch(top_k=200, max_pieces=2))
    assert sorted(filling.pieces[0] for filling in found) == sorted(map(tuple, spellings()))
    assert len({filling.words for filling in found}) == len(found)


def test_a_narrow_beam_keeps_the_best_first_pieces(tiny: Predictor, log_p: LogP) -> None:
    ids = ids_of(tiny, "[CLS]", "the", "[MASK]", "[MASK]", "[SEP]")
    first = max((word[0] for word in spellings()), key=lambda entry: log_p(tiny, ids)[2, ids_of(tiny, entry)[0]])
    [found] = tiny.fill_words("the [MASK]", WordSearch(top_k=1, max_pieces=2, beam=1))
    assert [filling.pieces[0][0] for filling in found if len(filling.pieces[0]) == 2] in ([], [first])


def test_other_masks_remain_while_one_is_filled(tiny: Predictor, log_p: LogP) -> None:
    found = tiny.fill_words("[MASK] cat [MASK]", WordSearch(top_k=3, max_pieces=2, beam=50))
    left = by_hand(tiny, log_p, ["^", "cat", "[MASK]"], spellings())
    right = by_hand(tiny, log_p, ["[MASK]", "cat", "^"], spellings())
    for group, expected in zip(found, (left, right), strict=True):
        assert [filling.pieces[0] for filling in group] == [tuple(word) for _, word in expected[:3]]
        assert [filling.log_probability for filling in group] == pytest.approx([s for s, _ in expected[:3]], abs=1e-5)


@pytest.mark.parametrize("order", ["left-to-right", "confidence"])
def test_joint_fillings_are_the_best_of_all(tiny: Predictor, log_p: LogP, order: Any) -> None:
    """The beam is as wide as the vocabulary, so that the search is exhaustive."""
    found = tiny.fill_jointly("[MASK] cat [MASK]", WordSearch(top_k=6, order=order, beam=100))
    start = ids_of(tiny, "[CLS]", "[MASK]", "cat", "[MASK]", "[SEP]")
    first = log_p(tiny, start)[[1, 3], 5:].max(1).argmax() if order == "confidence" else 0
    places = [1, 3] if first == 0 else [3, 1]
    expected = []
    for tokens in itertools.product(range(5, len(ENTRIES)), repeat=2):
        score = chain(tiny, log_p, start, list(zip(places, tokens, strict=True)))
        expected.append((score, tokens if places == [1, 3] else tokens[::-1]))
    expected.sort(reverse=True)
    for filling, (score, tokens) in zip(found, expected, strict=False):
        assert ids_of(tiny, *filling.words) == list(tokens)
        assert filling.log_probability == pytest.approx(score, abs=1e-5)


def test_confidence_fills_the_surest_mask_first(tiny: Predictor, log_p: LogP) -> None:
    """In a text where the second mask is surer, the two orders give different sums."""
    texts = [f"{a} [MASK] {b} [MASK]" for a in ("the", "cat", "un", "happy") for b in ("sat", "a", "b", "cats")]
    surer = []
    for text in texts:
        ids = ids_of(tiny, "[CLS]", *text.split(), "[SEP]")
        best = log_p(tiny, ids)[[2, 4], 5:].max(1)
        surer.append(bool(best[1] > best[0]))
        orders = ("left-to-right", "confidence")
        found = [tiny.fill_jointly(text, WordSearch(top_k=1, order=order, beam=50))[0] for order in orders]
        scores = [filling.log_probability for filling in found]
        assert (abs(scores[0] - scores[1]) > 1e-6) == surer[-1]
    assert set(surer) == {False, True}


def test_joint_whole_words(tiny: Predictor, log_p: LogP) -> None:
    found = tiny.fill_jointly("[MASK] sat [MASK]", WordSearch(top_k=4, max_pieces=2, beam=200))
    scores = []
    for one, two in itertools.product(spellings(), repeat=2):
        ids = ids_of(tiny, "[CLS]", *["[MASK]"] * len(one), "sat", *["[MASK]"] * len(two), "[SEP]")
        fills = [*enumerate(ids_of(tiny, *one), 1), *enumerate(ids_of(tiny, *two), len(one) + 2)]
        scores.append((chain(tiny, log_p, ids, fills), (tuple(one), tuple(two))))
    for filling, (score, pieces) in zip(found, sorted(scores, reverse=True), strict=False):
        assert filling.pieces == pieces
        assert filling.log_probability == pytest.approx(score, abs=1e-5)


def test_candidates_are_scored_by_hand_and_renormalized(tiny: Predictor, log_p: LogP) -> None:
    words = {"cat": ["cat"], "UNHAPPY": ["unhappy"], "unb": ["un", "##b"], "the cat": ["the", "cat"], "##s": ["##s"]}
    [found] = tiny.score_candidates("a [MASK].", list(words))
    expected = by_hand(tiny, log_p, ["a", "^", "."], list(words.values()))
    total = sum(math.exp(score) for score, _ in expected)
    for filling, (score, pieces) in zip(found, expected, strict=True):
        assert list(filling.pieces[0]) == pieces
        assert words[filling.words[0]] == pieces
        assert filling.log_probability == pytest.approx(score, abs=1e-5)
        assert filling.share == pytest.approx(math.exp(score) / total, rel=1e-4)
    assert sum(filling.share or 0 for filling in found) == pytest.approx(1)


def test_candidates_of_several_masks_alone_and_together(tiny: Predictor, log_p: LogP) -> None:
    words = [["cat"], ["un", "##b"]]
    alone = tiny.score_candidates("[MASK] sat [MASK]", ["cat", "unb"])
    assert [len(group) for group in alone] == [2, 2]
    right = by_hand(tiny, log_p, ["[MASK]", "sat", "^"], words)
    assert [filling.log_probability for filling in alone[1]] == pytest.approx([score for score, _ in right], abs=1e-5)
    [together] = tiny.score_candidates("[MASK] sat [MASK]", ["cat", "unb"], joint=True)
    assert len(together) == 4
    assert sum(filling.share or 0 for filling in together) == pytest.approx(1)
    filling = next(each for each in together if each.words == ("unb", "cat"))
    ids = ids_of(tiny, "[CLS]", "[MASK]", "[MASK]", "sat", "[MASK]", "[SEP]")
    fills = list(zip([1, 2, 4], ids_of(tiny, "un", "##b", "cat"), strict=True))
    assert filling.log_probability == pytest.approx(chain(tiny, log_p, ids, fills), abs=1e-5)


def test_special_tokens_around_the_text_are_those_of_the_tokenizer(tiny: Predictor, log_p: LogP) -> None:
    """As in XLNet, they stand after the text: the first word is at position 0, and begins the text."""
    cls, sep, text = Place(tiny.tokenizer.cls_id, 0), Place(tiny.tokenizer.sep_id, 0), Place(None, 0)
    templates = Templates((text, sep, cls), (text, sep, text, sep, cls))
    backend = tiny.tokenizer.backend
    assert isinstance(backend, WordPieceBackend)
    model = replace(tiny, tokenizer=Tokenizer(replace(backend, templates=templates)))
    ids = ids_of(model, "[MASK]", "sat", "[SEP]", "[CLS]")
    [[filling, *_]] = model.fill_words("[MASK] sat", WordSearch(top_k=3))
    assert filling.log_probability == pytest.approx(float(log_p(model, ids)[0, 5:].max()), abs=1e-5)
    cat, sat = ids_of(model, "cat", "sat")
    second = ids_of(model, "cat", "[MASK]", "[SEP]", "[CLS]")
    expected = chain(model, log_p, ids, [(0, cat)]) + chain(model, log_p, second, [(1, sat)])
    assert model.pseudo_log_likelihood(["cat sat"])[0] == pytest.approx(expected, abs=1e-5)


def test_special_tokens_are_no_fillings(tiny: Predictor) -> None:
    """`fill_mask` lists them, because its probabilities are those of all entries."""
    fillings = tiny.fill_jointly("the [MASK]", WordSearch(top_k=50, beam=50))
    assert sorted(filling.words[0] for filling in fillings) == sorted(ENTRIES[5:])
    [tokens] = tiny.fill_mask("the [MASK]", top_k=50)
    assert sorted(token.token for token in tokens) == sorted(ENTRIES)


@pytest.fixture(scope="module")
def roberta(small_texts: list[str]) -> Predictor:
    """A model with byte-level BPE."""
    counts = word_counts.count_words([*small_texts, "Städte 東京"], ByteLevel()).counts
    tokenizer = Tokenizer.build_bpe(*bpe.train(counts, vocab_size=400))
    config = TransformerConfig(2, 32, 4, 64, vocab_size=tokenizer.size, max_position_embeddings=64)
    return Predictor(Path("roberta"), tokenizer, model_of(config, MaskedLM(), seed=1), None, 64)


def test_words_of_byte_level_bpe_are_spelled_as_in_a_text(roberta: Predictor) -> None:
    tokenizer = roberta.tokenizer
    for text, before, after in (("The <mask> in", "The ", " in"), ("<mask> in", "", " in")):
        [found] = roberta.fill_words(text, WordSearch(top_k=50, max_pieces=2, beam=60))
        assert {len(filling.pieces[0]) for filling in found} == {1, 2}
        for filling in found:
            [word] = filling.words
            assert word == word.strip()
            ids = tokenizer.encode([before + word + after])[0].tolist()
            own = [tokenizer.vocabulary.index(piece) for piece in filling.pieces[0]]
            start = len(tokenizer.encode([before.strip()])[0])
            assert ids[start : start + len(own)] == own


def test_candidates_of_byte_level_bpe_have_the_space_of_their_place(roberta: Predictor) -> None:
    first, second = roberta.score_candidates("<mask> in <mask>", ["The", "in", "東京"])
    pieces = [{filling.words[0]: filling.pieces[0] for filling in group} for group in (first, second)]
    assert pieces[0]["in"][0] == "in"
    assert pieces[1]["in"][0] == "Ġin"
    assert len(pieces[1]["東京"]) > 1


@pytest.mark.parametrize("takes", [True, False])
def test_the_mask_takes_the_space_before_it_if_its_files_say_so(
    roberta: Predictor, tmp_path: Path, takes: bool
) -> None:
    roberta.tokenizer.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token["lstrip"] = takes and token["content"] == "<mask>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer.load(tmp_path)
    assert takes_space(tokenizer) is takes
    tokenizer.save(tmp_path / "saved")
    assert takes_space(Tokenizer.load(tmp_path / "saved")) is takes
    model = replace(roberta, tokenizer=tokenizer)
    ids, _ = encode_masked(model.token_model(only_masks=True), "The <mask> in")
    before = tokenizer.encode(["The" if takes else "The "])[0].tolist()
    assert ids[1:].tolist()[: len(before) + 1] == [*before, tokenizer.mask_id]
    [found] = model.score_candidates("The <mask> in", ["in"])
    assert found[0].pieces[0][0] == ("Ġin" if takes else "in")


@pytest.mark.parametrize(
    ("candidates", "named"),
    [([], ""), ("cat", ""), (["cat", ""], " ''"), (["cat", "dog"], " 'dog'"), (["cat", "sat", "CAT"], " 'CAT'")],
)
def test_bad_candidates_are_refused(tiny: Predictor, candidates: Any, named: str) -> None:
    with pytest.raises(UsageError, match=f"--candidates{named}: "):
        tiny.score_candidates("the [MASK]", candidates)


def test_limits(tiny: Predictor) -> None:
    with pytest.raises(UserError, match="the text with 10 more pieces has 16 tokens, but the model reads at most 14"):
        tiny.score_candidates("the cat sat . . [MASK]", ["a" + "ab" * 5])
    with pytest.raises(UserError, match="the text with 9 more pieces has 15 tokens"):
        tiny.fill_words("the cat sat . . [MASK]", WordSearch(max_pieces=10, beam=5))
    with pytest.raises(UsageError, match="--candidates: 10 for 4 masks together make more than 1,000"):
        tiny.score_candidates("[MASK] [MASK] [MASK] [MASK]", [f"a{'b' * n}" for n in range(10)], joint=True)
    with pytest.raises(UsageError, match="--max-pieces: 10 for 4 masks together make more than 1,000"):
        tiny.fill_jointly("[MASK] [MASK] [MASK] [MASK]", WordSearch(max_pieces=10))


def test_bad_settings_are_refused() -> None:
    for name, value in (("top_k", 0), ("beam", 201), ("max_pieces", 11), ("order", "random")):
        with pytest.raises(UsageError, match=name):
            WordSearch(**{name: value})  # type: ignore[arg-type]


def test_tokens_are_those_of_a_single_pass(predictor: Predictor, log_p: LogP) -> None:
    text = "the [MASK] in the [MASK]"
    model = predictor.token_model(only_masks=True)
    mask = predictor.tokenizer.mask_id
    ids = [predictor.tokenizer.cls_id, *predictor.tokenizer.encode(["the"])[0].tolist(), mask]
    ids += [*predictor.tokenizer.encode(["in the"])[0].tolist(), mask, predictor.tokenizer.sep_id]
    expected = np.exp(log_p(predictor, ids))[np.flatnonzero(np.array(ids) == mask)]
    for group, row in zip(fill_tokens(model, text, 500), expected, strict=True):
        found = {each.token: each.probability for each in group}
        assert [found[entry] for entry in predictor.tokenizer.vocabulary] == pytest.approx(row.tolist(), abs=1e-6)


# The command line


def test_command_line(predictor: Predictor, capsys: pytest.CaptureFixture[str]) -> None:
    text = "the [MASK] in the [MASK]"

    def fill(*flags: str, text: str = text) -> tuple[dict[str, Any], str]:
        [found], told = run("fill-mask", predictor.folder, text, *flags, capsys=capsys)
        return found, told

    found, _ = fill("--top-k", "2")
    assert [[set(token) for token in group] for group in found["masks"]] == [[{"token", "probability"}] * 2] * 2
    found, _ = fill("--whole-words", "--top-k", "2", "--max-pieces", "2", "--beam", "9")
    expected = predictor.fill_words(text, WordSearch(2, 2, True, beam=9))
    words = [[filling.words[0] for filling in group] for group in expected]
    assert [[token["word"] for token in group] for group in found["masks"]] == words
    assert set(found["masks"][0][0]) == {"word", "pieces", "probability", "log_probability"}
    found, told = fill("--joint", "--top-k", "3", "--order", "confidence")
    best = predictor.fill_jointly(text, WordSearch(3, order="confidence"))
    assert [each["words"] for each in found["fillings"]] == [list(filling.words) for filling in best]
    assert " … ".join(best[0].words) in told
    found, told = fill("--candidates", "the", "in", "fododo")
    assert [len(group) for group in found["masks"]] == [3, 3]
    assert sum(each["share"] for each in found["masks"][1]) == pytest.approx(1)
    found, _ = fill("--candidates", "the", "in", "--joint", "--top-k", "1")
    assert len(found["fillings"]) == 1
    found, _ = fill("--whole-words", "--max-pieces", "1", text="[MASK]")
    assert all(len(each["pieces"]) == 1 for each in found["masks"][0])


def test_fillings_have_a_probability() -> None:
    assert Filling(("a",), (("a",),), math.log(0.25)).probability == pytest.approx(0.25)
