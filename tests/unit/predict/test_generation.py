"""Generation: draws by hand, and texts that depend on the seed only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from small_models import model_of, saved

from bertie.base import seeding
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.model.config import TransformerConfig
from bertie.objectives import CausalLM
from bertie.predict.generation import Generation, draw
from bertie.predict.predictor import Predictor
from bertie.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from conftest import LogP

LOG_P = np.log(np.array([0.5, 0.2, 0.1, 0.15, 0.05], np.float32))
ALLOWED = np.array([False, True, True, True, True])


@pytest.fixture(scope="module")
def write_causal(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[float], Predictor]:
    def write(end: float) -> Predictor:
        """A causal model. Its logit of the token that ends a text is about `end`."""
        model = model_of(replace(tiny_config, causal=True), CausalLM(), seed=2)
        with torch.no_grad():
            model.encoder.layers[-1].norm.bias.fill_(1.0)  # type: ignore[union-attr, index]
            model.encoder.embeddings.word.weight[small_tokenizer.sep_id] = end / tiny_config.hidden_size
        return saved(tmp_path_factory.mktemp("causal"), model, small_tokenizer)

    return write


def shares(how: Generation) -> np.ndarray:
    rng = seeding.generator(0, seeding.GENERATION, 0)
    return np.bincount([draw(LOG_P, ALLOWED, how, rng) for _ in range(4000)], minlength=5) / 4000


def test_draws_have_the_probabilities_of_allowed_entries() -> None:
    np.testing.assert_allclose(shares(Generation()), [0, 0.4, 0.2, 0.3, 0.1], atol=0.03)
    np.testing.assert_allclose(shares(Generation(top_k=2)), [0, 4 / 7, 0, 3 / 7, 0], atol=0.03)
    squared = np.array([0, 0.2, 0.1, 0.15, 0.05]) ** 2
    np.testing.assert_allclose(shares(Generation(temperature=0.5)), squared / squared.sum(), atol=0.03)
    assert shares(Generation(temperature=0)).tolist() == [0, 1, 0, 0, 0]
    assert shares(Generation(temperature=1e-6)).tolist() == [0, 1, 0, 0, 0]


def greedy(model: Predictor, log_p: LogP, prompt: str, length: int) -> list[int]:
    """Fill masks from left to right with the most probable token that is not special."""
    tokenizer = model.tokenizer
    start = [tokenizer.cls_id, *tokenizer.encode([prompt])[0].tolist()]
    ids = [*start, *[tokenizer.mask_id] * length, tokenizer.sep_id]
    for position in range(len(start), len(start) + length):
        scores = log_p(model, ids)[position].copy()
        scores[tokenizer.special_ids] = -np.inf
        ids = [*ids[:position], int(scores.argmax()), *ids[position + 1 :]]
    return ids[1:-1]


def test_left_to_right_by_hand(predictor: Predictor, log_p: LogP) -> None:
    [found] = predictor.generate("the ka", Generation(length=5, temperature=0))
    assert found == predictor.tokenizer.decode(greedy(predictor, log_p, "the ka", 5))


def test_gibbs_sampling_by_hand(predictor: Predictor, log_p: LogP) -> None:
    """Every sweep masks and draws each position once, in random order."""
    tokenizer = predictor.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode(["the ka"])[0].tolist()]
    start = len(ids)
    ids += [*[tokenizer.mask_id] * 4, tokenizer.sep_id]
    rng = seeding.generator(7, seeding.GENERATION, 0)
    after_one_sweep = []
    for _ in range(3):
        for position in (rng.permutation(4) + start).tolist():
            ids[position] = tokenizer.mask_id
            scores = log_p(predictor, ids)[position].copy()
            scores[tokenizer.special_ids] = -np.inf
            ids[position] = int(scores.argmax())
            rng.random()  # one number per draw, also at temperature 0
        after_one_sweep = after_one_sweep or list(ids)
    assert after_one_sweep != ids
    [found] = predictor.generate("the ka", Generation("gibbs", length=4, temperature=0, sweeps=3, seed=7))
    assert found == tokenizer.decode(ids[1:-1])


@pytest.mark.parametrize("how", [Generation(), Generation("gibbs", sweeps=2)], ids=["left-to-right", "gibbs"])
def test_texts_depend_on_the_seed_and_the_number_only(predictor: Predictor, how: Generation) -> None:
    how = replace(how, length=8, count=4)
    first = predictor.generate("the", how)
    assert first == predictor.generate("the", how)
    assert len(set(first)) == 4
    assert first[:2] == predictor.generate("the", replace(how, count=2))
    assert first != predictor.generate("the", replace(how, seed=1))
    assert all(text.startswith("the") for text in first)
    special = predictor.tokenizer.tokens(predictor.tokenizer.special_ids)
    assert not any(token in text for text in first for token in special)


def test_prompt_and_text_fill_the_model(predictor: Predictor) -> None:
    for how in (Generation(length=62), Generation("gibbs", length=62, sweeps=1)):
        assert len(predictor.generate("", how)[0]) > 62
    with pytest.raises(UserError, match="prompt and text have 63 tokens, but the model reads at most 62"):
        predictor.generate("the", Generation(length=62))


def test_causal_models_continue_the_prompt(write_causal: Callable[[float], Predictor]) -> None:
    model = write_causal(-9.0)
    tokenizer = model.tokenizer
    [found] = model.generate("the ka", Generation(length=5, temperature=0))
    ids = [tokenizer.cls_id, *tokenizer.encode(["the ka"])[0].tolist()]
    for _ in range(5):
        [[scores]] = model.token_model().log_distributions([(np.array(ids, np.int32), np.array([len(ids) - 1]))])
        scores[np.setdiff1d(tokenizer.special_ids, tokenizer.sep_id)] = -np.inf
        ids.append(int(scores.argmax()))
    assert found == tokenizer.decode(ids[1:])
    assert model.generate("the", Generation(seed=3)) == model.generate("the", Generation(seed=3, count=2))[:1]
    with pytest.raises(UsageError, match="a causal model generates from left to right: omit --method gibbs"):
        model.generate("", Generation("gibbs"))


def test_prompt_and_text_fill_a_causal_model(write_causal: Callable[[float], Predictor]) -> None:
    """It does not read the last token, and the token that starts a text takes its place."""
    model = write_causal(-9.0)
    assert len(model.generate("the", Generation(length=63))[0]) > 63
    with pytest.raises(UserError, match="prompt and text have 65 tokens, but the model reads at most 64"):
        model.generate("the", Generation(length=64))


def test_causal_models_end_a_text(write_causal: Callable[[float], Predictor]) -> None:
    model = write_causal(7.0)
    texts = model.generate("the ka", Generation(length=30, count=8))
    lengths = {len(model.tokenizer.encode([text])[0]) for text in texts}
    assert min(lengths) < 30
    assert not any("[SEP]" in text for text in texts)


def test_bad_settings_are_refused() -> None:
    for values in ({"length": 0}, {"temperature": float("nan")}, {"top_k": -1}, {"sweeps": 3}, {"method": "beam"}):
        with pytest.raises(UsageError, match=next(iter(values))):
            Generation(**values)  # type: ignore[arg-type]


def test_command_line(predictor: Predictor, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", str(predictor.folder), "the ka", "--length", "4", "--count", "2", "--seed", "5", "--json"]
    assert main(argv) == 0
    *printed, result = capsys.readouterr().out.splitlines()
    texts = predictor.generate("the ka", Generation(length=4, count=2, seed=5))
    assert printed == texts == json.loads(result)["texts"]
    assert main(["generate", str(predictor.folder), "--length", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
