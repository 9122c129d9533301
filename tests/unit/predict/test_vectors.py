"""`Predictor.embed` and `Predictor.word_vectors` against hidden states that are pooled by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from small_models import close, model_of, run, saved
from tests.unit.model.test_pooling import NAIVE

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.model.config import TransformerConfig
from bertie.model.heads import layer_selection
from bertie.model.heads.layer_selection import Fixed
from bertie.model.heads.vector_modules import Dense, Normalize
from bertie.model.pooling import Pooling
from bertie.predict.predictor import Predictor
from bertie.tasks import Embed, word_alignment
from bertie.tokenizers.tokenizer import Tokenizer

TEXTS = ["the bat", "", "a longer text of some more words, and a stop.", "  ", "x"]


def model(
    config: TransformerConfig, tokenizer: Tokenizer, folder: Path, task: dict[str, Any] | None = None
) -> Predictor:
    purposes = [Embed(pooling=task["pooling"])] if task else []
    return saved(folder, model_of(config, *purposes), tokenizer, task)


@pytest.fixture(scope="module")
def predictor(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Predictor:
    return model(replace(tiny_config, num_hidden_layers=5), small_tokenizer, tmp_path_factory.mktemp("plain"))


def states(predictor: Predictor, layers: Fixed, text: str) -> np.ndarray:
    [found] = predictor.hidden_states([text])
    return layer_selection.select_layers(layers, tuple(torch.from_numpy(found))).numpy()


@pytest.mark.parametrize("layers", get_args(Fixed))
def test_embed_pools_the_hidden_states(predictor: Predictor, layers: Fixed) -> None:
    hidden = [states(predictor, layers, text) for text in TEXTS]
    for pooling in get_args(Pooling):
        found = predictor.embed(TEXTS, pooling, layers)
        assert found.dtype == np.float32
        close(found, np.stack([NAIVE[pooling](each) for each in hidden]))
        assert predictor.embed([], pooling, layers).shape == (0, found.shape[1])


def test_default_is_the_mean_of_the_last_layer(predictor: Predictor) -> None:
    assert np.array_equal(predictor.embed(TEXTS), predictor.embed(TEXTS, "mean", "last"))


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_a_run_of_task_embed_pools_as_trained(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path, pooling: Pooling
) -> None:
    found = model(tiny_config, small_tokenizer, tmp_path, {"kind": "embed", "pooling": pooling, "max_length": 10})
    assert np.array_equal(found.embed(TEXTS), found.embed(TEXTS, pooling))
    other: Pooling = "max" if pooling == "mean" else "mean"
    assert not np.allclose(found.embed(TEXTS), found.embed(TEXTS, other))
    pairs = [(TEXTS[0], TEXTS[2])]
    unit = found.embed(pairs[0]) / np.linalg.norm(found.embed(pairs[0]), axis=1, keepdims=True)
    close(np.stack(found.predict(pairs)[0].vectors), unit)


def test_sentence_transformers_files_set_pooling_normalization_and_length(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model(tiny_config, small_tokenizer, tmp_path)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    found = bertie.load(tmp_path, threads=1)
    assert found.max_length == 8
    plain = found.embed(TEXTS, "cls")
    assert abs(np.linalg.norm(plain, axis=1) - 1).min() > 0.01
    close(found.embed(TEXTS), plain / np.linalg.norm(plain, axis=1, keepdims=True))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 10000}')
    assert bertie.load(tmp_path, threads=1).max_length == 64
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    (tmp_path / "modules.json").write_text(json.dumps([*listed, {"path": "3_Dense", "type": "x.Dense"}]))
    with pytest.raises(UserError, match=r"type is 'x\.Dense'"):
        bertie.load(tmp_path, threads=1)


def test_prompts_lowercasing_and_modules(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """tests/parity/test_vectors_modules.py compares these with sentence-transformers."""
    plain = model(tiny_config, small_tokenizer, tmp_path)
    size = tiny_config.hidden_size
    modules = (Dense(torch.randn(3, 2 * size), None), Normalize())
    prompts = {"query": "the bat ", "other": "x "}
    how = SentenceEmbedding(("mean", "cls"), modules, prompts=prompts, default_prompt="other", similarity="dot")
    sentence_transformers_format.write(tmp_path, tiny_config, how, 64)
    found = bertie.load(tmp_path, threads=1)
    prefixed = [f"x {text}" for text in TEXTS]
    states = np.concatenate([plain.embed(prefixed, pooling) for pooling in ("mean", "cls")], 1)
    wanted = np.tanh(states @ modules[0].weight.numpy().T)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    close(found.embed(TEXTS), wanted)
    np.testing.assert_allclose(found.embed([], prompt="").shape, (0, 3))
    close(found.similarity(TEXTS), wanted @ wanted.T)
    np.testing.assert_array_equal(found.embed(["x"], "max", prompt_name="query"), plain.embed(["the bat x"], "max"))
    with pytest.raises(UsageError, match="Dense and LayerNorm read the last layer: add --pooling"):
        found.embed(TEXTS, layers="sum_all")
    assert found.embed(TEXTS, "mean", "sum_all", prompt="").shape == (len(TEXTS), size)


def test_pooling_of_a_model_that_names_none(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    plain = model(tiny_config, small_tokenizer, tmp_path)
    for pooling in ("cls", "mean", "lasttoken"):
        found = bertie.load(tmp_path, threads=1, pooling=pooling)
        np.testing.assert_array_equal(found.embed(TEXTS), plain.embed(TEXTS, pooling))
    sentence_transformers_format.write(tmp_path, tiny_config, SentenceEmbedding(("cls",), (Normalize(),)), 64)
    named = bertie.load(tmp_path, threads=1, pooling="cls")
    np.testing.assert_array_equal(named.embed(TEXTS), bertie.load(tmp_path, threads=1).embed(TEXTS))
    with pytest.raises(UsageError, match="--pooling mean"):
        bertie.load(tmp_path, threads=1, pooling="mean")


def test_prompts_of_commands(
    tiny_config: TransformerConfig,
    small_tokenizer: Tokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = model(tiny_config, small_tokenizer, tmp_path)
    how = SentenceEmbedding(("cls",), prompts={"query": "the bat ", "document": "x "}, similarity="euclidean")
    sentence_transformers_format.write(tmp_path, tiny_config, how, 64)
    out = tmp_path / "out.npy"
    run("embed", tmp_path, *TEXTS, "--prompt-name", "document", "--out", out, capsys=capsys)
    documents = plain.embed([f"x {text}" for text in TEXTS], "cls")
    close(np.load(out), documents)
    [result], _ = run("similarity", tmp_path, "a", "b", "--prompt-name", "query", capsys=capsys)
    first, second = plain.embed(["the bat a", "the bat b"], "cls")
    assert result["similarity"][0][1] == pytest.approx(-float(np.linalg.norm(first - second)), abs=1e-4)


def test_unknown_choices_are_refused(predictor: Predictor) -> None:
    odd: Any = "foo"
    for call in (
        lambda: predictor.embed([], layers=odd),
        lambda: predictor.embed(["a"], odd),
        lambda: predictor.word_vectors(["a"], odd),
        lambda: predictor.word_vectors(["a"], word_pooling=odd),
    ):
        with pytest.raises(UsageError, match="'foo' is not known; choose from"):
            call()


@pytest.mark.parametrize("layers", get_args(Fixed))
def test_word_vectors_pool_the_pieces_of_a_word(predictor: Predictor, layers: Fixed) -> None:
    text = "The kadu, (a longer) vigoment"
    pieces = predictor.tokenizer.encode_with_offsets([text])[0].word_ids
    rows = states(predictor, layers, text)[1:-1]
    expected = ["The", "kadu", ",", "(", "a", "longer", ")", "vigoment"]
    assert len(pieces) > len(expected)
    for read, pool in (("first", NAIVE["cls"]), ("mean", NAIVE["mean"])):
        empty, found = predictor.word_vectors(["", text], layers, read)
        assert found.words == expected
        assert [text[start:end] for start, end in found.offsets.tolist()] == expected
        wanted = np.stack([pool(rows[np.array(pieces) == number]) for number in range(len(expected))])
        close(found.vectors, wanted)
        assert empty.words == []
        assert empty.offsets.shape == (0, 2)
        assert empty.vectors.shape == (0, wanted.shape[1])


def test_word_vectors_refuse_what_is_no_text(predictor: Predictor) -> None:
    wrong: Any = ["a text", None]
    with pytest.raises(UserError, match="None is not a text"):
        predictor.word_vectors(wrong)


def test_lists_of_words_have_the_offsets_of_the_joined_text(predictor: Predictor) -> None:
    given = ["ka-du", "longer", "\u200d", "x"]
    none, found = predictor.word_vectors([[], given], word_pooling="mean")
    joined = " ".join(given)
    assert none.words == []
    assert found.words == given
    assert [joined[start:end] for start, end in found.offsets.tolist()] == given
    assert found.vectors.shape == (4, 32)
    same = predictor.word_vectors(["ka du longer"], word_pooling="mean")[0]
    apart = predictor.word_vectors([["ka", "du", "longer"]], word_pooling="mean")[0]
    close(same.vectors, apart.vectors)
    assert np.array_equal(same.offsets, apart.offsets)
    mixed: Any = ["a", ["b"]]
    with pytest.raises(UsageError, match="expected texts or lists of words, not both"):
        predictor.word_vectors(mixed)
    with pytest.raises(UsageError, match="in brackets"):
        predictor.word_vectors("a text")


@pytest.mark.parametrize("read", ["first", "mean"])
def test_every_word_of_a_long_text_has_a_vector(predictor: Predictor, small_texts: list[str], read: Any) -> None:
    """The vector of a word comes from the window in which it has the most context."""
    text = " ".join(small_texts[:6])
    [found] = predictor.word_vectors([text], word_pooling=read)
    [(pieces, places)] = word_alignment.split_and_tokenize(predictor.tokenizer, [text])
    assert len(pieces.ids) > 4 * predictor.max_length
    assert len(found.words) == len(places) > 100
    assert np.isfinite(found.vectors).all()
    assert (np.abs(found.vectors).sum(1) > 0).all()
    middle = len(found.words) // 2
    [alone] = predictor.word_vectors([found.words[middle]], word_pooling=read)
    # The context of the word changes its vector.
    assert not np.allclose(alone.vectors[0], found.vectors[middle], atol=1e-3)
    cut = predictor.hidden_states([text])[0][-1]  # the first window is the truncated text
    expected = cut[1] if read == "first" else cut[1:-1][pieces.offsets[: len(cut) - 2, 0] == 0].mean(0)
    close(found.vectors[0], expected)
