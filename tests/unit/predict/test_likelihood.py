"""Likelihoods of texts: by hand on a small model, in batches, from files and on the command line."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from small_models import model_of, run, saved

import bertie
from bertie.base.errors import UserError
from bertie.cli import main
from bertie.examples import unlabeled
from bertie.model.config import TransformerConfig
from bertie.model.encoders.lstm import LstmConfig
from bertie.model.head_facts import HeadFacts, with_facts
from bertie.model.model import Model
from bertie.objectives import BidirectionalLM, CausalLM
from bertie.predict import likelihood, token_model
from bertie.predict.likelihood import TextScore, perplexity
from bertie.predict.predictor import Predictor
from bertie.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from conftest import LogP


@pytest.fixture(scope="module")
def causal(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Predictor:
    """A causal language model, as pre-training saves it. Its head has no weights."""
    model = model_of(replace(tiny_config, causal=True), CausalLM(), seed=2)
    return saved(tmp_path_factory.mktemp("causal"), model, small_tokenizer)


@pytest.fixture
def texts(small_texts: list[str]) -> list[str]:
    return [text[: 6 + 17 * (i % 6)] for i, text in enumerate(small_texts[:30])]


def masked_by_hand(model: Predictor, log_p: LogP, text: str, within_word: bool) -> float:
    """Mask each token, or with the rest of its word, and add the log probabilities."""
    tokenizer = model.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode([text])[0].tolist(), tokenizer.sep_id]
    total = 0.0
    for position in range(1, len(ids) - 1):
        masked = list(ids)
        masked[position] = tokenizer.mask_id
        later = position + 1
        while within_word and tokenizer.vocabulary[ids[later]].startswith("##"):
            masked[later] = tokenizer.mask_id
            later += 1
        total += float(log_p(model, masked)[position, ids[position]])
    return total


@pytest.mark.parametrize("within_word", [False, True])
def test_pseudo_log_likelihood_by_hand(predictor: Predictor, log_p: LogP, texts: list[str], within_word: bool) -> None:
    found = predictor.pseudo_log_likelihood(texts[:8], within_word)
    expected = [masked_by_hand(predictor, log_p, text, within_word) for text in texts[:8]]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_batches_do_not_change_results(predictor: Predictor, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    together = predictor.pseudo_log_likelihood([*texts, *texts])
    np.testing.assert_array_equal(together[: len(texts)], together[len(texts) :])
    np.testing.assert_allclose([predictor.pseudo_log_likelihood([text])[0] for text in texts], together[:30], atol=1e-4)
    monkeypatch.setattr(token_model, "BATCH_TOKENS", 50)
    monkeypatch.setattr(token_model, "MIN_ROWS", 2)
    monkeypatch.setattr(token_model, "CHUNK_LOGITS", 1000)
    monkeypatch.setattr(likelihood, "MAX_MASKED_TOKENS", 300)
    np.testing.assert_allclose(predictor.pseudo_log_likelihood(texts), together[:30], atol=1e-4)


def test_equal_masked_copies_are_computed_once(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sentences that differ in one token are the same sequence after this token is masked."""
    entries = [entry for entry in predictor.tokenizer.vocabulary[5:] if not entry.startswith("##")]
    first, second = (" ".join(entries[start : start + 9]) for start in (10, 10))
    second = second.replace(entries[14], entries[30])
    seen: list[int] = []
    real = token_model.infer

    def infer(model: Any, sequences: list[Any], *rest: Any) -> Any:
        seen.append(len(sequences))
        return real(model, sequences, *rest)

    monkeypatch.setattr(token_model, "infer", infer)
    lengths = [len(ids) for ids in predictor.tokenizer.encode([first, second])]
    assert lengths[0] == lengths[1]
    together = predictor.pseudo_log_likelihood([first, second, first])
    assert seen == [sum(lengths) - 1]
    assert together[0] == together[2] != together[1]


def test_texts_that_cannot_be_scored_are_nan(
    predictor: Predictor, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    long = " ".join(texts)
    tokens = len(predictor.tokenizer.encode([long])[0])
    found = predictor.pseudo_log_likelihood([texts[0], "", long, texts[1], " \x00"])
    assert np.isnan(found).tolist() == [False, True, True, False, True]
    told = capsys.readouterr().err
    assert "3 of 5 are NaN: text 2 has no tokens: remove it; text 3 has" in told
    assert f"text 3 has {tokens:,} tokens, but the model reads at most 62: split it" in told
    np.testing.assert_allclose(found[[0, 3]], predictor.pseudo_log_likelihood(texts[:2]), atol=1e-5)
    with pytest.raises(UserError, match="text 1 has no tokens"):
        predictor.pseudo_log_likelihood([""])
    assert predictor.pseudo_log_likelihood([]).shape == (0,)
    longest = " ".join(["the"] * 62)
    assert np.isfinite(predictor.pseudo_log_likelihood([longest])).all()


def test_words_of_lists_are_joined_and_errors_pass_through(predictor: Predictor) -> None:
    error = UserError("a broken row")
    words = ("the", "ka", "du")
    [first, second, third] = predictor.score_tokens([words, error, "the ka du"])
    assert second is error
    assert isinstance(first, TextScore)
    assert isinstance(third, TextScore)
    assert first.log_likelihood == third.log_likelihood
    assert predictor.tokenizer.decode(first.token_ids) == "the ka du"
    assert first.log_likelihood == pytest.approx(first.log_probabilities.sum())
    assert first.perplexity == pytest.approx(math.exp(-first.log_likelihood / len(first.token_ids)))
    assert perplexity(-1e6, 3) == math.inf


def test_invalid_texts_are_refused(predictor: Predictor) -> None:
    with pytest.raises(UserError, match="is not a text but of type int"):
        predictor.pseudo_log_likelihood(["a", 3])  # type: ignore[list-item]
    with pytest.raises(UserError, match="expected a list of texts and got one str"):
        predictor.pseudo_log_likelihood("a text")


def test_memory_does_not_grow_with_the_number_of_texts(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "SEQUENCES_AT_ONCE", 64)

    def count(total: int) -> Iterator[str]:
        for number in range(total):
            yield f"the ka du {number}"

    peaks = []
    for total in (64, 128, 512):  # the first imports what it needs
        tracemalloc.start()
        assert sum(1 for _ in predictor.score_tokens(count(total))) == total
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[1], peaks


def test_long_rows_make_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlabeled, "MAX_CHARACTERS", 10)
    rows = ["abc", "defghij", ("kl", "m"), UserError("bad"), "n", "o", "p"]
    assert [len(block) for block in unlabeled.text_blocks(rows, 4)] == [2, 4, 1]


def test_causal_models_give_the_exact_likelihood(causal: Predictor, texts: list[str]) -> None:
    """The probabilities of all continuations sum to 1."""
    model = causal
    assert model.token_model().kind == "clm"
    found = model.pseudo_log_likelihood(texts)
    single = [model.pseudo_log_likelihood([text])[0] for text in texts]
    np.testing.assert_allclose(found, single, atol=1e-4)
    prefix = np.array([model.tokenizer.cls_id, 17, 30], np.int32)
    sequences = [np.append(prefix, np.int32(token)) for token in range(500)]
    last = [log_p[-1] for log_p in model.token_model().next_log_probabilities(sequences)]
    assert np.exp(np.array(last, np.float64)).sum() == pytest.approx(1, abs=1e-4)
    with pytest.raises(UserError, match="has no masked-LM head"):
        model.fill_mask("the [MASK]")


def test_a_causal_model_scores_as_many_tokens_as_it_reads(causal: Predictor) -> None:
    """The last token is predicted and not read, and the token that starts a text takes its place."""
    assert causal.max_length == 64
    [longest, shorter] = causal.score_tokens([" ".join(["the"] * count) for count in (64, 63)])
    assert isinstance(longest, TextScore)
    assert isinstance(shorter, TextScore)
    assert len(longest.log_probabilities) == 64
    np.testing.assert_allclose(longest.log_probabilities[:63], shorter.log_probabilities, atol=1e-5)
    assert np.isnan(causal.pseudo_log_likelihood(["the", " ".join(["the"] * 65)])).tolist() == [False, True]


def test_models_that_predict_no_tokens_are_refused(causal: Predictor, small_tokenizer: Tokenizer) -> None:
    config = LstmConfig(num_hidden_layers=1, hidden_size=16, cell_size=32, vocab_size=500, max_position_embeddings=64)
    tuned = Model(causal.model.encoder, {"classify": with_facts(torch.nn.Identity(), HeadFacts("", ""))})
    for model in (model_of(config, BidirectionalLM()), tuned):
        with pytest.raises(UserError, match="has no masked-LM or causal-LM head"):
            Predictor(Path("model"), small_tokenizer, model, None, 64).pseudo_log_likelihood(["a"])


def test_a_model_that_computes_no_numbers_is_refused(pretrained: Path) -> None:
    """Its NaN would count as a wrong minimal pair, and as a random token."""
    model = bertie.load(pretrained)
    for parameter in model.model.encoder.parameters():
        parameter.data *= 1e30  # finite, but not what the layers compute
    for use in (
        lambda: model.pseudo_log_likelihood(["the dog"]),
        lambda: model.fill_mask("the [MASK]"),
        lambda: model.generate("the"),
        lambda: model.next_sentence([("the dog", "the dogs")]),
    ):
        with pytest.raises(UserError, match="the hidden states are NaN or infinity"):
            use()


# The command line


def test_texts_on_the_command_line(predictor: Predictor, texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    expected = predictor.pseudo_log_likelihood(texts[:3])
    (*lines, result), told = run("likelihood", predictor.folder, *texts[:3], capsys=capsys)
    assert [line["log_likelihood"] for line in lines] == pytest.approx(expected.tolist())
    counts = [len(ids) for ids in predictor.tokenizer.encode(texts[:3])]
    assert [line["tokens"] for line in lines] == counts
    assert result["score"] == "pseudo-log-likelihood"
    assert (result["texts"], result["errors"], result["tokens"]) == (3, 0, sum(counts))
    assert result["log_likelihood"] == pytest.approx(expected.sum())
    assert result["perplexity"] == pytest.approx(math.exp(-expected.sum() / sum(counts)))
    assert "pseudo-perplexity per token" in told


def test_a_file_in_input_order_with_errors(
    predictor: Predictor, small_texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": "the ka du"}, {"text": 3}, {"text": ""}, {"text": " ".join(small_texts[:9])}, {"text": "in the"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    argv = ["likelihood", str(predictor.folder), "--input", str(path), "--within-word", "--per-token"]
    assert main([*argv, "--out", str(out)]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert "3 of 5 texts have an" in output.err
    first, *bad, last = [json.loads(line) for line in out.read_text().splitlines()]
    assert [set(row) for row in bad] == [{"error"}] * 3
    assert f"{path}:2: 'text' must be a string" in bad[0]["error"]
    assert bad[1]["error"] == "text 3 has no tokens: remove it"
    assert bad[2]["error"].startswith("text 4 has ")
    expected = predictor.pseudo_log_likelihood(["the ka du", "in the"], within_word=True)
    assert [first["log_likelihood"], last["log_likelihood"]] == pytest.approx(expected.tolist())
    assert [token for token, _ in last["pieces"]] == ["in", "the"]
    assert sum(log_p for _, log_p in last["pieces"]) == pytest.approx(last["log_likelihood"])
    assert main([*argv, "--out", str(out)]) == 2
    assert main([*argv, "--strict", "--out", str(tmp_path / "strict.jsonl")]) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.jsonl", "out.jsonl"]


def test_a_causal_model_on_the_command_line(causal: Predictor, capsys: pytest.CaptureFixture[str]) -> None:
    (*_, result), told = run("likelihood", causal.folder, "the ka du", capsys=capsys)
    assert (result["score"], "pseudo" in told) == ("log-likelihood", False)
