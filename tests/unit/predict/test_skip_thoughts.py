"""What a model of skip-thoughts is used for, and for what it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import model_of

import bertie
from bertie.base.contracts import Batch, Hidden, Ragged, Targets
from bertie.checkpoints.folder import write_model
from bertie.cli import main
from bertie.model.encoders.gru import GruConfig, GruEncoder
from bertie.model.heads.skip_decoders import SkipThoughtHead
from bertie.objectives import SkipThoughts
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def gru(small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with large random weights."""
    folder = tmp_path_factory.mktemp("gru")
    config = GruConfig(24, 16, vocab_size=small_tokenizer.size, max_position_embeddings=64)
    write_model(folder, model_of(config, SkipThoughts(), scale=0.5), small_tokenizer)
    return folder


def test_the_vector_of_a_text_is_the_last_state(gru: Path, small_texts: list[str]) -> None:
    loaded, texts = bertie.load(gru, threads=1), [text[:60] for text in small_texts[:5]]
    found = loaded.embed(texts)
    encoder, tokenizer, expected = loaded.model.encoder, loaded.tokenizer, []
    assert isinstance(encoder, GruEncoder)
    for ids in tokenizer.encode(texts):
        read = torch.tensor([tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id])
        expected.append(encoder.layers[0](encoder.embeddings.word(read))[0][-1])  # pyright: ignore[reportCallIssue]
    np.testing.assert_allclose(found, torch.stack(expected).detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(loaded.embed(texts, pooling="lasttoken"), found, atol=1e-6)
    assert not np.allclose(loaded.embed(texts, pooling="mean"), found, atol=1e-2)


def test_conversion_keeps_vectors_and_decoders(gru: Path, small_texts: list[str], tmp_path: Path) -> None:
    bertie.convert(gru, tmp_path / "out", "hf")
    ours, theirs = (bertie.load(folder, threads=1) for folder in (gru, tmp_path / "out"))
    np.testing.assert_array_equal(ours.embed(small_texts[:3]), theirs.embed(small_texts[:3]))
    weights = theirs.model.state_dict()
    assert any(name.startswith("heads.skip.next") for name in weights)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in ours.model.state_dict().items())


def test_what_it_cannot_do_is_refused_in_one_line(
    gru: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("one text\n")
    for verb, *flags, message in (
        ("fill-mask", "[MASK] text", "(gru) has no masked-LM head"),
        ("generate", "a text", "(gru) has no masked-LM or causal-LM head"),
        ("convert", tmp_path / "onnx", "--to", "onnx", "this model is gru: use --to hf"),
        ("inspect", "--text", texts, "--out", tmp_path / "i", "of the kind gru, whose heads cannot be"),
        ("embed", texts, "--out", tmp_path / "v.npy", "--layers", "embeddings", "use layers last"),
    ):
        assert main([str(verb), str(gru), *map(str, flags)]) in (1, 2), verb
        told = capsys.readouterr().err.strip()
        assert message in told
        assert len(told.splitlines()) == 1


def test_a_row_without_neighbors_has_no_loss() -> None:
    head = SkipThoughtHead(GruConfig(6, 4), torch.nn.Embedding(20, 4))
    row = torch.zeros(3, dtype=torch.int64)
    batch = Batch(row, row, row, row, row[:1], row[:1], Ragged(torch.tensor([0, 3]), 8))
    targets = Targets(torch.arange(3), torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 2))
    loss = head(Hidden(torch.randn(3, 6), batch=batch), targets)
    assert (loss.total.item(), loss.count.item()) == (0, 0)
