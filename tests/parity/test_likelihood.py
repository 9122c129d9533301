"""Likelihoods of texts: equal to those that transformers computes with one mask at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.base.errors import UserError
from bertie.corpus import bpe, word_counts
from bertie.tokenizers.tokenizer import ByteLevel, Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
MASKED = {
    "Bert": {**SIZES, "max_position_embeddings": 66},
    "Roberta": {**SIZES, "max_position_embeddings": 68, "type_vocab_size": 1, "pad_token_id": 1},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 66},
    "Electra": {**SIZES, "embedding_size": 24, "max_position_embeddings": 66},
}


@pytest.fixture(scope="module")
def bpe_tokenizer(small_texts: list[str]) -> Tokenizer:
    counts = word_counts.count_words(small_texts, ByteLevel()).counts
    return Tokenizer.build_bpe(*bpe.train(counts, vocab_size=420))


@pytest.fixture
def texts(small_texts: list[str]) -> list[str]:
    """Texts of different lengths; one is there twice, and two differ in one word only."""
    chosen = [text[: 8 + 11 * (i % 9)] for i, text in enumerate(small_texts[:14])]
    return [*chosen, chosen[3], "the dog in the house", "the dog in the mouse", "the dogs in the house"]


def saved(prefix: str, kind: str, values: dict[str, Any], tokenizer: Tokenizer, folder: Path) -> Any:
    """Save a model of transformers with large random weights, so that predictions depend on the text."""
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(vocab_size=tokenizer.size, **values)
    model = getattr(transformers, f"{prefix}{kind}")(config).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


def naive(model: Any, folder: Path, text: str, within_word: bool) -> float:
    """Mask one token at a time, in a row of its own, and sum the log probabilities."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(text)
    ids, words = torch.tensor(encoded["input_ids"]), encoded.word_ids()
    masked = [position for position, word in enumerate(words) if word is not None]
    rows = ids.repeat(len(masked), 1)
    for row, position in zip(rows, masked, strict=True):
        for later, other in enumerate(words):
            if later == position or (within_word and other == words[position] and later > position):
                row[later] = tokenizer.mask_token_id
    with torch.inference_mode():
        log_p = model(input_ids=rows).logits[range(len(masked)), masked].double().log_softmax(-1)
    return float(log_p.gather(1, ids[masked, None]).sum())


@pytest.mark.parametrize("within_word", [False, True], ids=["tokens", "within words"])
@pytest.mark.parametrize("prefix", MASKED)
def test_pseudo_log_likelihood_is_that_of_one_mask_at_a_time(
    prefix: str,
    within_word: bool,
    small_tokenizer: Tokenizer,
    bpe_tokenizer: Tokenizer,
    texts: list[str],
    tmp_path: Path,
) -> None:
    tokenizer = bpe_tokenizer if prefix == "Roberta" else small_tokenizer
    model = saved(prefix, "ForMaskedLM", MASKED[prefix], tokenizer, tmp_path)
    found = bertie.load(tmp_path).pseudo_log_likelihood(texts, within_word=within_word)
    expected = [naive(model, tmp_path, text, within_word) for text in texts]
    assert np.std(expected) > 1
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-6)
    assert found.dtype == np.float64
    assert found[3] == found[14]  # the same text


def test_masks_within_words_matter(small_tokenizer: Tokenizer, texts: list[str], tmp_path: Path) -> None:
    saved("Bert", "ForMaskedLM", MASKED["Bert"], small_tokenizer, tmp_path)
    model = bertie.load(tmp_path)
    plain, within = (model.pseudo_log_likelihood(texts, within_word=flag) for flag in (False, True))
    assert np.abs(plain - within).max() > 0.1


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_log_likelihood_of_a_causal_model(
    algorithm: str, small_tokenizer: Tokenizer, bpe_tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    tokenizer = bpe_tokenizer if algorithm == "bpe" else small_tokenizer
    values = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = saved("GPT2", "LMHeadModel", values, tokenizer, tmp_path)
    found = bertie.load(tmp_path).pseudo_log_likelihood(texts)
    expected = []
    for ids in tokenizer.encode(texts):
        given = torch.tensor([[tokenizer.cls_id, *ids.tolist()]])
        with torch.inference_mode():
            log_p = model(input_ids=given).logits[0, :-1].double().log_softmax(-1)
        expected.append(float(log_p.gather(1, given[0, 1:, None]).sum()))
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-6)
    np.testing.assert_array_equal(found, bertie.load(tmp_path).pseudo_log_likelihood(texts, within_word=True))


def test_log_likelihood_of_a_causal_xlm(small_tokenizer: Tokenizer, texts: list[str], tmp_path: Path) -> None:
    """Its head has a bias and the name of a masked one, but it predicts the next token."""
    values = {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "causal": True}
    values["pad_index"] = small_tokenizer.pad_id  # transformers zeroes the last states if a token has this id
    model = saved("XLM", "WithLMHeadModel", values, small_tokenizer, tmp_path)
    predictor = bertie.load(tmp_path)
    expected = []
    for ids in small_tokenizer.encode(texts):
        given = torch.tensor([[small_tokenizer.cls_id, *ids.tolist()]])
        with torch.inference_mode():
            log_p = model(input_ids=given).logits[0, :-1].double().log_softmax(-1)
        expected.append(float(log_p.gather(1, given[0, 1:, None]).sum()))
    np.testing.assert_allclose(predictor.pseudo_log_likelihood(texts), expected, atol=1e-4, rtol=1e-6)
    [start] = small_tokenizer.encode(["the dog"])
    greedy = [small_tokenizer.cls_id, *start.tolist()]
    for _ in range(4):
        with torch.inference_mode():
            log_p_V = model(input_ids=torch.tensor([greedy])).logits[0, -1].numpy().copy()
        log_p_V[[i for i in small_tokenizer.special_ids.tolist() if i != small_tokenizer.sep_id]] = -np.inf
        greedy.append(int(log_p_V.argmax()))
    assert small_tokenizer.sep_id not in greedy
    generated = predictor.generate("the dog", bertie.Generation(length=4, temperature=0))
    assert generated == [small_tokenizer.decode(greedy[1:])]
    with pytest.raises(UserError, match="has no masked-LM head"):
        predictor.fill_mask("the [MASK]")


def test_a_gpt_without_a_token_that_starts_a_text(tmp_path: Path) -> None:
    """As openai-gpt is published: <unk> is its only special token. The first token of a text is given, as in the loss there."""
    transformers.utils.logging.disable_progress_bar()
    letters = "abcdefghijklmnopqrstuvwxyz"
    entries = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), "th", "the</w>"]
    (tmp_path / "vocab.json").write_text(json.dumps({entry: i for i, entry in enumerate(entries)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\nth e</w>\n")
    torch.manual_seed(0)
    sizes = {"vocab_size": len(entries), "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**sizes, initializer_range=0.3)).eval()
    model.save_pretrained(tmp_path)
    tokenizer, predictor = transformers.AutoTokenizer.from_pretrained(tmp_path), bertie.load(tmp_path)
    texts = [
        "the dog",
        "the dogs in",
        "a cat",
        "cat a",
        "abcdefghijklmnopq",
    ]  # the last one has 17 tokens, one only predicted
    expected = []
    for text in texts[:-1]:
        ids = torch.tensor([tokenizer(text).input_ids])
        with torch.inference_mode():
            expected.append(-float(model(ids, labels=ids).loss) * (ids.shape[1] - 1))
    found = predictor.pseudo_log_likelihood(texts)
    np.testing.assert_allclose(found[:-1], expected, atol=1e-4)
    assert np.isfinite(found[-1])
    [score] = list(predictor.score_tokens(texts[:1]))
    assert not isinstance(score, UserError)
    assert [*score.given, *score.token_ids.tolist()] == tokenizer(texts[0]).input_ids
    assert len(score.token_ids) == len(score.log_probabilities) == 3
    for refused in ("the", "abcdefghijklmnopqr"):
        with pytest.raises(UserError, match="no token that starts a text" if refused == "the" else "at most 17"):
            predictor.pseudo_log_likelihood([refused])
    prompt = torch.tensor([tokenizer("the d").input_ids])
    greedy = model.generate(prompt, max_new_tokens=5, do_sample=False, bad_words_ids=[[0]], eos_token_id=None)[0]
    assert predictor.generate("the d", bertie.Generation(length=5, temperature=0)) == [tokenizer.decode(greedy)]
    with pytest.raises(UserError, match="has no token that starts a text: give a prompt"):
        predictor.generate("", bertie.Generation(length=5))
    pairs = [("the cat", "the dog"), ("the cat", "a cat")]
    rows = [{"sentence_good": good, "sentence_bad": bad} for good, bad in pairs]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = bertie.minimal_pairs(predictor, tmp_path / "pairs.jsonl")
    assert (result["pairs"], result["refused"]) == (1, 1)


def test_pseudo_log_likelihood_of_xlnet(small_tokenizer: Tokenizer, texts: list[str], tmp_path: Path) -> None:
    """In XLNet a token is predicted from all others by hiding it from them and from itself."""
    values = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "summary_type": "first"}
    model = saved("XLNet", "LMHeadModel", values, small_tokenizer, tmp_path)
    found = bertie.load(tmp_path).pseudo_log_likelihood(texts[:5])
    for text, value in zip(texts, found, strict=False):
        ids = [small_tokenizer.cls_id, *small_tokenizer.encode([text])[0].tolist(), small_tokenizer.sep_id]
        n, total = len(ids), 0.0
        for position in range(1, n - 1):
            hidden, target = torch.zeros(1, n, n), torch.zeros(1, 1, n)
            hidden[0, :, position] = 1
            target[0, 0, position] = 1
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([ids]), perm_mask=hidden, target_mapping=target).logits
            total += float(logits[0, 0].double().log_softmax(-1)[ids[position]])
        assert value == pytest.approx(total, abs=1e-4)


def test_next_sentence_is_that_of_transformers(
    small_tokenizer: Tokenizer, small_texts: list[str], tmp_path: Path
) -> None:
    model = saved("Bert", "ForNextSentencePrediction", MASKED["Bert"], small_tokenizer, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pairs = [(text[:20], text[20:50]) for text in small_texts[:6]]
    with torch.inference_mode():
        logits = model(**tokenizer(pairs, padding=True, return_tensors="pt")).logits
    found = bertie.load(tmp_path).next_sentence(pairs)
    assert found.std() > 0.01
    np.testing.assert_allclose(found, logits.softmax(-1)[:, 0].numpy(), atol=1e-5)
