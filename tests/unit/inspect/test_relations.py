"""Heads that find the head of a word in a dependency tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from bertie.batches.collate import collate
from bertie.inspect.attention import observed, read_attention, require_transformer
from bertie.inspect.heads.relations import DIRECTIONS, Relations, named_words
from bertie.inspect.tables import Table
from bertie.inspect.treebank import ParsedSentence
from bertie.inspect.words import WordGrid, encode_words
from bertie.model.model import Model
from bertie.predict.load import load
from bertie.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from conftest import Plant


def sentence(*words: str) -> ParsedSentence:
    """Words as "form/HEAD/relation/PART", with the head counted from 1."""
    forms, heads, relations, parts = zip(*((*word.split("/"), "X")[:4] for word in words), strict=True)
    return ParsedSentence(forms, parts, tuple(int(head) - 1 for head in heads), relations, "test")


OBJECTS = [
    sentence("the/2/det", "cat/3/nsubj", "sees/0/root", "dogs/3/obj", "./3/punct"),
    sentence("she/2/nsubj", "likes/0/root", "the/5/det", "red/5/amod", "dog/2/obj"),
    sentence("dogs/3/obj", "she/3/nsubj", "sees/0/root", "now/3/advmod"),
    sentence("cats/0/root"),
]


def run(
    model: Model, tokenizer: Tokenizer, blocks: list[list[ParsedSentence]], max_length: int = 64
) -> tuple[Table, Table]:
    relations = Relations(require_transformer(model.encoder))
    for block in blocks:
        encoded = encode_words(tokenizer, [each.words for each in block], max_length)
        read_attention(model, encoded.sequences, relations.add(block, encoded))
    best, heads = relations.tables()
    assert (best.name, heads.name) == ("relations", "relation_heads")
    return best, heads


def row(table: Table, **wanted: object) -> dict[str, object]:
    content = table.plain()
    (found,) = (
        values
        for values in (dict(zip(content, each, strict=True)) for each in zip(*content.values(), strict=True))
        if all(values[name] == value for name, value in wanted.items())
    )
    return found


def test_a_planted_head_is_found(plant: Plant, word_tokenizer: Tokenizer) -> None:
    """Verbs attend to their objects in layer 2, head 3; determiners to their nouns in layer 1, head 2."""
    to_object, to_noun = [("sees", "dog"), ("likes", "dog")], [("the", "cat"), ("the", "dog")]
    model = plant({(1, 2): to_object, (0, 1): to_noun})
    best, heads = run(model, word_tokenizer, [OBJECTS[:2], OBJECTS[2:]])
    found = row(best, relation="obj")
    assert (found["layer"], found["head"], found["direction"]) == (2, 3, "head to dependent")
    assert (found["words"], found["accuracy"], found["low"], found["high"]) == (3, 1, 1, 1)
    found = row(best, relation="det")
    assert (found["layer"], found["head"], found["direction"]) == (1, 2, "dependent to head")
    assert (found["words"], found["accuracy"]) == (2, 1)
    assert row(heads, relation="obj", layer=2, head=3, direction="head to dependent")["accuracy"] == 1
    others = [value for value in heads.plain()["relation"] if value == "obj"]
    assert len(others) == 2 * 3 * 2
    assert "root" not in best.columns["relation"]


def test_the_baseline_is_the_best_fixed_offset(plant: Plant, word_tokenizer: Tokenizer) -> None:
    best, _ = run(plant({}), word_tokenizer, [OBJECTS])
    # obj: head at -1, -3, +2: all occur once, so the first offset wins. det: +1 and +2. nsubj: +1, +1, +1.
    expected = {"obj": (-3, 1 / 3), "det": (1, 1 / 2), "nsubj": (1, 1.0), "punct": (-2, 1.0), "amod": (1, 1.0)}
    for relation, (offset, accuracy) in expected.items():
        found = row(best, relation=relation)
        assert (found["offset"], found["baseline"]) == (offset, accuracy)
        assert found["gain"] == pytest.approx(found["accuracy"] - accuracy)  # pyright: ignore[reportOperatorIssue]
    everything, words = row(best, relation="all"), row(best, relation="all but punct")
    assert (everything["words"], words["words"]) == (11, 10)
    assert (everything["offset"], everything["baseline"]) == (1, 5 / 11)  # the cat she red she
    assert (words["offset"], words["baseline"]) == (1, 5 / 10)


def test_subtypes_count_in_their_family_too(plant: Plant, word_tokenizer: Tokenizer) -> None:
    block = [
        sentence("anna/3/nmod:poss", "##s/1/case/PART", "cat/0/root", "now/3/nmod"),
        sentence("she/2/nmod:poss", "dog/0/root"),
    ]
    best, _ = run(plant({}), word_tokenizer, [block])
    sizes = dict(zip(best.columns["relation"], best.columns["words"], strict=True))
    assert sizes == {
        "all": 4,
        "all but punct": 4,
        "case": 1,
        "nmod": 3,
        "nmod:poss": 2,
        "nmod:poss ('s)": 2,
    }


def test_a_possessive_marker_answers_for_its_possessor(plant: Plant, word_tokenizer: Tokenizer) -> None:
    block = [sentence("anna/4/nmod:poss", "now/1/case/PART", "red/4/amod", "cat/0/root", "dog/4/dep")] * 2
    model = plant({(0, 0): [("now", "cat"), ("anna", "dog")]})
    best, heads = run(model, word_tokenizer, [block])
    where = {"layer": 1, "head": 1, "direction": "dependent to head"}
    assert row(heads, relation="nmod:poss", **where)["accuracy"] == 0
    assert row(heads, relation="nmod:poss ('s)", **where)["accuracy"] == 1
    assert row(best, relation="nmod:poss")["offset"] == 3
    assert row(best, relation="nmod:poss ('s)")["offset"] == 2


def test_accuracies_match_a_slow_loop(pretrained: Path) -> None:
    predictor = load(pretrained)
    rng = np.random.default_rng(3)
    forms = ["The", "fatun", "gat", "bobingat", ".", "shet", "xyzzyqqq", "fet"]
    names = ["a", "a:b", "c", "punct"]
    sentences = []
    for length in rng.integers(2, 9, 20):
        heads = [int(rng.choice([other for other in range(-1, length) if other != word])) for word in range(length)]
        relations = [str(rng.choice(names)) for _ in range(length)]
        words = tuple(str(word) for word in rng.choice(forms, length))
        sentences.append(ParsedSentence(words, ("X",) * length, tuple(heads), tuple(relations), "test"))
    best, heads = run(predictor.model, predictor.tokenizer, [sentences[:8], sentences[8:]], max_length=40)
    right = slow_answers(
        predictor.model, predictor.tokenizer, [each for each in sentences if fits(predictor.tokenizer, each)]
    )
    assert len({len(each.words) for each in sentences}) > 3
    checked = 0
    for relation in ("all", "all but punct", *names):
        groups = {key: [ok for name, ok in values if belongs(name, relation)] for key, values in right.items()}
        for (layer, head, direction), values in groups.items():
            found = row(heads, relation=relation, layer=layer, head=head, direction=direction)
            assert (found["words"], found["accuracy"]) == (len(values), pytest.approx(np.mean(values)))
            checked += 1
        top = row(best, relation=relation)
        assert top["accuracy"] == pytest.approx(max(np.mean(values) for values in groups.values()))
    assert checked == 6 * 2 * 4 * 2


def fits(tokenizer: Tokenizer, each: ParsedSentence) -> bool:
    return len(encode_words(tokenizer, [each.words], 40).sequences) == 1


def belongs(name: str, relation: str) -> bool:
    return relation in ("all", name, name.split(":")[0]) or (relation == "all but punct" and name != "punct")


def slow_answers(
    model: Model, tokenizer: Tokenizer, sentences: list[ParsedSentence]
) -> dict[tuple[int, int, str], list[tuple[str, bool]]]:
    """Return for each head and direction whether it is right about each word, with the relation of the word."""
    right: dict[tuple[int, int, str], list[tuple[str, bool]]] = {}
    for each in sentences:
        (sequence,) = encode_words(tokenizer, [each.words], 64).sequences
        assert sequence.offsets is not None
        of = sequence.offsets[:, 0].tolist()
        seen: list[torch.Tensor] = []
        encoder = require_transformer(model.encoder)
        with torch.no_grad(), observed(encoder, lambda _, p, seen=seen: seen.append(p[0].clone())):
            encoder(collate([sequence], len(sequence)).tensors(model.device))
        count = len(each.words)
        for layer, probabilities in enumerate(seen, 1):
            for head, tokens in enumerate(probabilities.double().numpy(), 1):
                words = np.zeros((count, count))
                for a in range(count):
                    rows = [i for i, word in enumerate(of) if word == a]
                    for b in range(count):
                        words[a, b] = np.mean(
                            [sum(tokens[i, j] for j, word in enumerate(of) if word == b) for i in rows]
                        )
                for word, (target, relation) in enumerate(zip(each.heads, each.relations, strict=True)):
                    if target >= 0:
                        others = [other for other in range(count) if other != word]
                        named = (
                            max(others, key=lambda other: words[word, other]),
                            max(others, key=lambda other: words[other, word]),
                        )
                        for direction, choice in zip(DIRECTIONS, named, strict=True):
                            right.setdefault((layer, head, direction), []).append((relation, choice == target))
    return right


def test_a_word_that_attends_to_no_other_word_names_none() -> None:
    """The first row of a causal model sees itself alone."""
    attention = torch.tensor([[[[1.0, 0, 0], [0.9, 0.1, 0], [0.2, 0.3, 0.5]]]])
    grid = WordGrid(torch.eye(3)[None], torch.eye(3)[None])
    named = named_words(grid, attention, np.array([0, 0, 0]), np.array([0, 1, 2]))
    assert named[:, :, 0].tolist() == [[-1, 1], [0, 2], [1, -1]]


def test_words_without_a_token_neither_answer_nor_are_named() -> None:
    attention = torch.tensor([[[[0.1, 0.0, 0.9], [0.0, 0.0, 0.0], [0.4, 0.0, 0.6]]]])
    belongs = torch.eye(3)[None].clone()
    belongs[0, 1] = 0
    named = named_words(WordGrid(belongs, belongs), attention, np.array([0, 0, 0]), np.array([0, 1, 2]))
    assert named[:, :, 0].tolist() == [[2, 2], [-1, -1], [0, 0]]


def test_sentences_that_are_too_long_or_have_no_relation_are_left_out(plant: Plant, word_tokenizer: Tokenizer) -> None:
    best, heads = run(plant({}), word_tokenizer, [OBJECTS], max_length=7)
    assert row(best, relation="all")["words"] == 4 + 3  # the first sentence has eight tokens
    best, heads = run(plant({}), word_tokenizer, [[OBJECTS[3]], []])
    assert set(map(len, best.plain().values())) == set(map(len, heads.plain().values())) == {0}
