"""Texts that grow token by token, and texts longer than a row of training, with models that have a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import model_of, saved

import bertie
from bertie.base.contracts import Batch, Sequence
from bertie.base.errors import UserError
from bertie.batches.collate import collate
from bertie.inspect.inspect import Inspection, inspect_model
from bertie.model.encoders.transformer_xl import TransformerXlConfig, TransformerXlEncoder
from bertie.model.encoders.xlnet import XlnetConfig
from bertie.objectives import CausalLM, PermutationLM
from bertie.predict import next_tokens
from bertie.predict.generation import Generation
from bertie.predict.predictor import Predictor
from bertie.tokenizers.tokenizer import Tokenizer

CAUSAL = TransformerXlConfig(2, 32, 4, 64, 8, 12, vocab_size=500, max_position_embeddings=32)
PERMUTED = XlnetConfig(
    2, 32, 4, 64, segment_length=8, memory_length=12, vocab_size=500, max_position_embeddings=32, pooled_token="last"
)


def written(folder: Path, config: Any, tokenizer: Tokenizer) -> Predictor:
    model = model_of(config, CausalLM() if config is CAUSAL else PermutationLM(), seed=2)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    with torch.no_grad():  # texts do not end early
        next(iter(model.heads.values())).bias[tokenizer.sep_id] = -100.0  # type: ignore[index]
    return saved(folder, model, tokenizer)


@pytest.fixture(scope="module")
def causal(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return written(tmp_path_factory.mktemp("causal"), CAUSAL, small_tokenizer)


@pytest.fixture(scope="module")
def permuted(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return written(tmp_path_factory.mktemp("permuted"), PERMUTED, small_tokenizer)


def greedy(model: Predictor, prompt: str, length: int) -> str:
    """Read the whole text again for every token."""
    tokenizer = model.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode([prompt])[0].tolist()]
    for _ in range(length):
        [[log_p]] = model.token_model().log_distributions([(np.array(ids, np.int32), np.array([len(ids) - 1]))])
        log_p = log_p.copy()
        log_p[tokenizer.special_ids] = -np.inf
        ids.append(int(log_p.argmax()))
    return tokenizer.decode(ids[1:])


@pytest.mark.parametrize("part", [4096, 5])
def test_a_text_is_continued_with_the_most_probable_tokens(
    causal: Predictor, small_texts: list[str], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt and the text are longer than the model's rows. The prompt may take several passes."""
    monkeypatch.setattr(next_tokens, "PART_TOKENS", part)
    prompt = " ".join(small_texts[:3])
    assert len(causal.tokenizer.encode([prompt])[0]) > 32
    expected = greedy(causal, prompt, 25)
    found = causal.generate(prompt, Generation(length=25, count=2, temperature=0))
    assert found == [expected, expected]
    assert causal.generate("", Generation(length=3, temperature=0)) == [greedy(causal, "", 3)]


def test_every_token_is_read_once(causal: Predictor, small_texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()
    original = TransformerXlEncoder.read_on

    def counted(self: TransformerXlEncoder, batch: Batch, readings: list[Any]) -> Any:
        read.append(len(batch.input_ids))
        return original(self, batch, readings)

    monkeypatch.setattr(TransformerXlEncoder, "read_on", counted)
    causal.generate(small_texts[0], Generation(length=20, count=3))
    prompt = 1 + len(causal.tokenizer.encode([small_texts[0]])[0])
    assert read == [3 * prompt] + [3] * 19


def test_texts_that_end_early_leave_the_others_alone(causal: Predictor, small_texts: list[str]) -> None:
    """Text number n is the same for every count, whichever texts have ended before."""
    bias = causal.model.heads["clm"].bias
    assert isinstance(bias, torch.Tensor)
    old = bias[causal.tokenizer.sep_id].item()
    bias.data[causal.tokenizer.sep_id] = 4.0
    try:
        five = causal.generate(small_texts[1], Generation(length=20, count=5, seed=3))
        assert len({len(causal.tokenizer.encode([text])[0]) for text in five}) > 1
        assert causal.generate(small_texts[1], Generation(length=20, count=2, seed=3)) == five[:2]
    finally:
        bias.data[causal.tokenizer.sep_id] = old


def test_the_likelihood_of_a_long_text_is_that_of_its_tokens(causal: Predictor, small_texts: list[str]) -> None:
    """A text longer than a row of training is read to its end, with the memory."""
    text = " ".join(small_texts[:4])
    [score] = causal.score_tokens([text])
    assert not isinstance(score, UserError)
    ids = np.concatenate([[causal.tokenizer.cls_id], score.token_ids]).astype(np.int32)
    assert len(ids) > 100
    [log_p] = causal.token_model().log_distributions([(ids, np.arange(len(ids)))])
    expected = log_p[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(score.log_probabilities, expected, atol=1e-4)


def test_xlnet_with_memory_generates_what_its_masks_say(permuted: Predictor, small_texts: list[str]) -> None:
    """Each token is the most probable one at a mask, given the text so far and masks after it; texts exceed a row."""
    tokenizer, length = permuted.tokenizer, 6
    prompt = " ".join(small_texts[:2])
    before, after = tokenizer.templates.around
    given = tokenizer.encode([prompt])[0]
    assert len(given) > 32
    ids = np.concatenate([before, given, [tokenizer.mask_id] * length, after]).astype(np.int32)
    for position in range(len(before) + len(given), len(before) + len(given) + length):
        order = torch.as_tensor(ids == tokenizer.mask_id).long()
        batch = collate([Sequence(ids, np.zeros_like(ids), np.ones(len(ids), bool))], len(ids)).tensors()
        with torch.no_grad():
            hidden = permuted.model.encoder(Batch(**batch.arrays | {"order": order}, ragged=batch.ragged)).last
            scores = permuted.model.heads["plm"].logits(hidden)[position, : tokenizer.size].numpy()  # type: ignore[operator]
        scores[tokenizer.special_ids] = -np.inf
        ids[position] = scores.argmax()
    [found] = permuted.generate(prompt, Generation(length=length, temperature=0))
    assert found == tokenizer.decode(ids[len(before) : len(ids) - len(after)])


def test_saved_models_give_the_same_states(causal: Predictor, permuted: Predictor, small_texts: list[str]) -> None:
    """Their format is bertie's own: no class of transformers has these settings."""
    for model, config in ((causal, CAUSAL), (permuted, PERMUTED)):
        assert model.model.encoder.config == config
        again = bertie.load(model.folder, threads=1)
        for one, two in zip(model.hidden_states(small_texts[:3]), again.hidden_states(small_texts[:3]), strict=True):
            np.testing.assert_array_equal(one, two)


def test_inspection_names_the_kind_that_it_does_not_know(causal: Predictor, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="transformer_xl"):
        inspect_model(causal.folder, Inspection(sentences=("a b",)), tmp_path / "out")
