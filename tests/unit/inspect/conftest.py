"""Models and data whose heads and hidden states are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from bertie.inspect.probes.probe_data import StateScale, WordBatch
    from bertie.inspect.treebank import ParsedSentence
    from bertie.model.model import Model
    from bertie.tokenizers.tokenizer import Tokenizer

WORDS = ["the", "cat", "dog", "sees", "likes", "she", "he", "anna", "paul", ".", "##s", "red", "now"]
Plant = Callable[[dict[tuple[int, int], list[tuple[str, str]]]], "Model"]


@pytest.fixture(scope="session")
def word_tokenizer() -> Tokenizer:
    """A tokenizer for WORDS: "cats" is "cat", "##s"."""
    from bertie.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

    return Tokenizer.build([*SPECIAL_TOKENS, *WORDS])


@pytest.fixture(scope="session")
def plant(word_tokenizer: Tokenizer) -> Plant:
    """Build a model from (layer, head), both from 0 -> pairs of words: where the head attends from one to the other.

    Elsewhere, attention is about uniform. Embeddings are one-hot vectors, which all layers leave as they are.
    """
    import torch

    from bertie.model.config import TransformerConfig
    from bertie.model.encoder import build_encoder
    from bertie.model.layers import SelfAttention
    from bertie.model.model import Model

    size, heads = 24, 3
    per_head = size // heads
    ids = {token: number for number, token in enumerate(word_tokenizer.vocabulary)}

    def build(planted: dict[tuple[int, int], list[tuple[str, str]]]) -> Model:
        config = TransformerConfig(
            num_hidden_layers=2,
            hidden_size=size,
            num_attention_heads=heads,
            intermediate_size=8,
            vocab_size=len(ids),
            max_position_embeddings=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        encoder = build_encoder(config)
        with torch.no_grad():
            for name, value in encoder.named_parameters():
                value.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            encoder.embeddings.word.weight.copy_(torch.eye(len(ids), size))  # pyright: ignore[reportAttributeAccessIssue]
            layers = [part for part in encoder.modules() if isinstance(part, SelfAttention)]
            for (layer, head), pairs in planted.items():
                q, k, _ = layers[layer].qkv.weight.split(size)
                for row, (source, target) in enumerate(pairs):
                    q[head * per_head + row, ids[source]] = 4.0
                    k[head * per_head + row, ids[target]] = 1.0
        return Model(encoder, {}).eval()

    return build


@pytest.fixture(scope="session")
def planted_trees() -> list[ParsedSentence]:
    """80 sentences of 1 to 9 words with random trees. The part of speech follows from the word, the relation from the depth."""
    from bertie.inspect.probes.structural_probe import tree_distances
    from bertie.inspect.treebank import ParsedSentence

    rng = np.random.default_rng(0)
    sentences = []
    for number in range(80):
        n = 1 + number % 9
        order, heads = rng.permutation(n), np.full(n, -1)
        for place in range(1, n):
            heads[order[place]] = order[rng.integers(place)]
        depths = tree_distances(heads.tolist())[1]
        words = tuple(f"w{k}" for k in rng.integers(0, 30, n))
        parts = tuple("ABC"[int(word[1:]) % 3] for word in words)
        relations = tuple(["root", "nsubj:pass", "punct"][min(int(depth), 2)] for depth in depths)
        sentences.append(ParsedSentence(words, parts, tuple(heads.tolist()), relations, f"s:{number}"))
    return sentences


@pytest.fixture(scope="session")
def planted_batches(planted_trees: list[ParsedSentence]) -> list[WordBatch]:
    """The sentences as batches of a model with two layers and three attention heads.

    - Layer 1: a random linear map of vectors in which the tree distances are squared distances, and the depths are squared
      lengths. The embeddings are random.
    - Attention head 2 of 3 attends from every word to its syntactic head (the root: place 0).
    - The vectors tell the words.
    """
    import torch

    from bertie.inspect.probes.probe_data import WordBatch

    rng = np.random.default_rng(1)
    mixing, tables = rng.normal(0, 1, (10, 10)), rng.normal(0, 1, (2, 30, 10))
    batches = []
    for start in range(0, len(planted_trees), 16):
        sentences = planted_trees[start : start + 16]
        places = 1 + max(len(sentence.words) for sentence in sentences)
        shape = len(sentences), places
        valid, states = np.zeros(shape, bool), rng.normal(0, 1, (2, *shape, 10))
        vectors = np.zeros((*shape, 10))
        attention = rng.dirichlet(np.ones(places), (len(sentences), 3, places))
        for s, sentence in enumerate(sentences):
            valid[s, : len(sentence.words) + 1] = True
            path = np.zeros((len(sentence.words), 10))
            for word in range(len(sentence.words)):
                above = word
                while sentence.heads[above] >= 0:
                    path[word, above] = 1
                    above = sentence.heads[above]
                kind = int(sentence.words[word][1:])
                vectors[s, word + 1], states[0, s, word + 1] = tables[:, kind]
                attention[s, 1, word + 1] = np.arange(places) == sentence.heads[word] + 1
            states[1, s, 1 : len(path) + 1] = path @ mixing
        numbers = list(range(start, start + len(sentences)))
        arrays = (torch.as_tensor(each, dtype=torch.float32) for each in (states, attention, vectors))
        batches.append(WordBatch(sentences, numbers, torch.as_tensor(valid), *arrays))
    return batches


@pytest.fixture(scope="session")
def unit_scale() -> StateScale:
    """The scale of the hidden states that leaves them as they are."""
    import torch

    from bertie.inspect.probes.probe_data import StateScale

    return StateScale(torch.zeros(2, 1, 1, 10), torch.ones(2, 1, 1, 10))


@pytest.fixture(scope="session")
def train_probe() -> Callable[..., None]:
    """Train a set of probes on batches with Adam, with a factor for its learning rates."""
    import torch

    def train(probe: Any, batches: list[WordBatch], epochs: int, factor: float = 1.0) -> None:
        groups = [{"params": weights, "lr": rate * factor} for weights, rate in probe.learning_rates]
        optimizer = torch.optim.Adam(groups)
        for _ in range(epochs):
            for batch in batches:
                optimizer.zero_grad()
                probe.loss(batch).backward()
                optimizer.step()

    return train
