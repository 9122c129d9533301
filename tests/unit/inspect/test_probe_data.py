"""Words of treebanks with hidden states and attention."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertie.base.errors import UserError
from bertie.batches.collate import collate
from bertie.corpus import word_counts, wordpiece
from bertie.inspect.attention import observed, require_transformer
from bertie.inspect.probes.probe_data import EncodedTreebank, StateScale, WordReader, treebank_vectors
from bertie.inspect.treebank import ParsedSentence
from bertie.inspect.words import words_of
from bertie.model.encoder import build_encoder
from bertie.model.encoders.characters import Characters
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.model import Model
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer


def sentence(text: str) -> ParsedSentence:
    """A sentence whose words all hang on the first one."""
    words = tuple(text.split())
    return ParsedSentence(words, ("X",) * len(words), (-1, *[0] * (len(words) - 1)), ("dep",) * len(words), "s")


TEXTS = ["The fatun gat bobingat .", "go", "a fet in the gatun", "xyzzyqqq go go the"]


@pytest.fixture(scope="module")
def predictor(pretrained: Path) -> Predictor:
    return load(pretrained)


@pytest.fixture(scope="module")
def reader(predictor: Predictor) -> WordReader:
    treebank = EncodedTreebank.of([sentence(text) for text in TEXTS], predictor.tokenizer, 64)
    return WordReader(predictor.model, treebank, treebank_vectors(predictor.model, treebank))


def test_words_have_the_states_attention_and_vectors_of_their_tokens(predictor: Predictor, reader: WordReader) -> None:
    encoder = require_transformer(predictor.model.encoder)
    batch = reader.read([0, 3, 1])
    assert batch.valid.sum(1).tolist() == [6, 5, 2]
    assert batch.words.sum(1).tolist() == [5, 4, 1]
    assert batch.heads.tolist() == [[-1, 0, 1, 1, 1, 1], [-1, 0, 1, 1, 1, -1], [-1, 0, -1, -1, -1, -1]]
    pieces = 0
    for s, number in enumerate([0, 3, 1]):
        sequence = reader.treebank.sequences[number]
        seen: list[torch.Tensor] = []
        with torch.no_grad(), observed(encoder, lambda _, p, seen=seen: seen.append(p[0])):
            alone = collate([sequence], len(sequence)).tensors()
            layers = torch.stack(encoder(alone, all_layers=True).layers or ())
        tokens_of = [
            np.flatnonzero(np.array(words_of(sequence)) == place) for place in range(1 + len(TEXTS[number].split()))
        ]
        assert tokens_of[0].tolist() == [0]
        pieces = max(pieces, *map(len, tokens_of))
        attention = torch.cat(seen)
        table = encoder.embeddings.word.weight
        for i, of_i in enumerate(tokens_of):
            torch.testing.assert_close(batch.states[:, s, i], layers[:, of_i].mean(1))
            expected = table[alone.input_ids[of_i]].mean(0) / table.square().mean().sqrt()
            torch.testing.assert_close(batch.vectors[s, i], expected.detach())
            for j, of_j in enumerate(tokens_of):
                merged = attention[:, of_i][:, :, of_j].sum(2).mean(1)
                torch.testing.assert_close(batch.attention[s, :, i, j], merged)
        assert not batch.states[:, s, len(tokens_of) :].any()
    assert pieces > 1, "the test needs a word of several pieces"


def test_every_sentence_is_in_one_batch_and_the_order_depends_on_seed_and_epoch(reader: WordReader) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.inspect.probes.probe_data.TRAIN_TOKENS", 20)
        patch.setattr("bertie.inspect.probes.probe_data.POOL", 2)
        orders = [reader.shuffled(range(4), *key) for key in ((0, 0), (0, 0), (0, 1), (1, 0))]
        assert all(sorted(functools.reduce(operator.iadd, order, [])) == [0, 1, 2, 3] for order in orders)
        assert all(len(order) > 1 for order in orders)
        assert orders[0] == orders[1]
        assert orders[0] != orders[2] or orders[0] != orders[3]
    lengths = [len(reader.treebank.sequences[n]) for batch in reader.batches([2, 0, 1], 12) for n in batch.numbers]
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) == 3


def test_sentences_and_words_that_cannot_be_used_are_counted() -> None:
    words = wordpiece.train(word_counts.count_words(["go there now and then"] * 9).counts, vocab_size=35)
    tokenizer = Tokenizer.build(words, NormalizerOptions(drop_punctuation=True))
    two_roots = replace(sentence("go now"), heads=(-1, -1))
    given = [sentence("go , now !"), two_roots, sentence("go " * 20), sentence("then")]
    treebank = EncodedTreebank.of(given, tokenizer, 10)
    assert treebank.sentences == [given[0], given[3]]
    assert (treebank.too_long, treebank.not_trees, treebank.without_tokens) == (1, 1, 2)
    assert sorted(set(words_of(treebank.sequences[0]))) == [-1, 0, 1, 3]


def test_the_scale_is_the_mean_and_the_deviation_of_words(reader: WordReader) -> None:
    scale = StateScale.estimate(reader, [0, 2, 3], 0)
    states = torch.cat([reader.read([n]).states[:, 0, 1:] for n in (0, 2, 3)], 1)
    torch.testing.assert_close(scale.mean[:, 0, 0], states.mean(1))
    torch.testing.assert_close(scale.deviation[:, 0, 0], states.std(1, unbiased=False), atol=1e-5, rtol=1e-4)
    one = StateScale.estimate(reader, [1], 0)
    assert (one.deviation == 1).all()


def test_vectors_of_another_model_have_its_tokens(predictor: Predictor, reader: WordReader) -> None:
    tokenizer = Tokenizer.build(
        [*"abcdefghijklmnopqrstuvwxyz", *predictor.tokenizer.vocabulary[:5], *[f"##{c}" for c in "ao"]]
    )
    torch.manual_seed(0)
    encoder = build_encoder(replace(require_transformer(predictor.model.encoder).config, vocab_size=tokenizer.size))
    treebank = EncodedTreebank.of(reader.treebank.sentences, tokenizer, 1 << 30)
    vectors = treebank_vectors(Model(encoder, {}), treebank)
    found = WordReader(predictor.model, reader.treebank, vectors).read([1])
    torch.testing.assert_close(found.states, reader.read([1]).states)
    table = encoder.embeddings.word.weight.detach()
    ids = [tokenizer.vocabulary.index(entry) for entry in ("g", "##o")]
    torch.testing.assert_close(found.vectors[0, 1], table[ids].mean(0) / table.square().mean().sqrt())


def test_vectors_from_characters_are_refused(reader: WordReader) -> None:
    config = LstmConfig(num_hidden_layers=1, hidden_size=8, cell_size=8, vocab_size=500, input=Characters())
    with pytest.raises(UserError, match="from characters"):
        treebank_vectors(Model(build_encoder(config), {}), reader.treebank)
