"""`bertie prune-heads`: zero weights in a copy of the model's folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import bertie
from bertie import cli
from bertie.base.errors import UsageError, UserError
from bertie.batches.collate import collate
from bertie.checkpoints import folder as checkpoints
from bertie.checkpoints.read import verify
from bertie.inspect.attention import gated, require_transformer
from bertie.inspect.heads.prune import lowest_heads, parse_heads
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining.initial_weights import new_model
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer

HEADS = [(1, 2), (2, 1), (2, 4)]


@pytest.fixture
def text(tmp_path: Path, small_texts: list[str]) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(small_texts[:20]))
    return path


def hidden_states(folder: Path, heads: list[tuple[int, int]] = []) -> torch.Tensor:  # noqa: B006
    predictor = bertie.load(folder)
    encoder = require_transformer(predictor.model.encoder)
    gates = torch.ones(2, 4)
    for layer, head in heads:
        gates[layer - 1, head - 1] = 0
    sequences = truncation.encode(predictor.tokenizer, ["the gat in the fet", "go the"], max_length=32)
    with torch.inference_mode(), gated(encoder, gates):
        return encoder(collate(sequences, 32).tensors()).last


def test_the_model_computes_what_the_model_with_masked_heads_does(pretrained: Path, tmp_path: Path) -> None:
    result = bertie.prune_heads(pretrained, tmp_path / "out", heads=HEADS)
    assert result["heads"] == [[1, 2], [2, 1], [2, 4]]
    torch.testing.assert_close(hidden_states(tmp_path / "out"), hidden_states(pretrained, HEADS))
    assert not torch.allclose(hidden_states(tmp_path / "out"), hidden_states(pretrained))


def test_only_the_values_and_outputs_of_the_heads_change(pretrained: Path, tmp_path: Path) -> None:
    bertie.prune_heads(pretrained, tmp_path / "out", heads=[(2, 3)])
    before, after = (load_file(folder / "model.safetensors") for folder in (pretrained, tmp_path / "out"))
    assert list(before) == list(after)
    name = "bert.encoder.layer.1.attention"
    before[f"{name}.self.value.weight"][16:24] = 0
    before[f"{name}.self.value.bias"][16:24] = 0
    before[f"{name}.output.dense.weight"][:, 16:24] = 0
    for key, tensor in before.items():
        assert torch.equal(after[key], tensor), key
    for path in pretrained.iterdir():
        if path.name not in ("model.safetensors", "manifest.json", "README.md"):
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    verify(tmp_path / "out")
    assert "2.3." in (tmp_path / "out" / "README.md").read_text()


def test_heads_that_share_values_do_not_change_each_other(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = TransformerConfig(
        *(2, 32, 4, 48),
        vocab_size=small_tokenizer.size,
        num_key_value_heads=2,
        type_vocab_size=0,
        position_embedding="rotary",
        norm_position="pre",
        norm="rms",
        use_bias=False,
        hidden_act="swiglu",
        pooler_act="gelu",
        mlm_transform=False,
        mlm_matrix="own",
    )
    (tmp_path / "model").mkdir()
    checkpoints.write_model(tmp_path / "model", new_model(config, (MaskedLM(),), 0), small_tokenizer)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "eurobert"
    bertie.prune_heads(tmp_path / "model", tmp_path / "out", heads=HEADS)
    torch.testing.assert_close(hidden_states(tmp_path / "out"), hidden_states(tmp_path / "model", HEADS))


def test_half_precision_and_other_prefixes_are_kept(pretrained: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(pretrained, model)
    (model / "manifest.json").unlink(missing_ok=True)
    tensors = load_file(model / "model.safetensors")
    save_file({f"_orig_mod.{name}": tensor.half() for name, tensor in tensors.items()}, model / "model.safetensors")
    bertie.prune_heads(model, tmp_path / "out", heads=[(1, 1)])
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {torch.float16}
    assert not found["_orig_mod.bert.encoder.layer.0.attention.output.dense.weight"][:, :8].any()


def test_the_least_important_heads_are_disabled_and_the_loss_is_reported(
    pretrained: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspection = bertie.Inspection(text=text, loss_tokens=300)
    bertie.inspect_model(pretrained, inspection, tmp_path / "inspection")
    numbers = json.loads((tmp_path / "inspection" / "inspect.json").read_text())
    columns = numbers["tables"]["head_importance"]["columns"]
    expected = lowest_heads(np.reshape(columns["importance"], (2, 4)), 3)
    out = tmp_path / "out"
    words = ["prune-heads", str(pretrained), "--lowest", "3", "--text", str(text), "--loss-tokens", "300"]
    code = cli.main([*words, "--out", str(out), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result = json.loads(captured.out.splitlines()[-1])
    assert result["heads"] == [list(head) for head in expected]
    assert result["loss"]["before"] == pytest.approx(numbers["loss"]["loss"], rel=1e-6)
    assert result["loss"]["after"] == pytest.approx(result["loss"]["before"] + result["loss"]["increase"])
    again = bertie.prune_heads(out, tmp_path / "again", heads=[(1, 1)], text=text, loss_tokens=300)
    assert again["loss"]["before"] == pytest.approx(result["loss"]["after"], rel=1e-5)
    assert "mlm loss on" in captured.err


def test_the_most_important_head_of_each_layer_is_kept() -> None:
    importance = np.array([[1.0, 2.0, 3.0], [0.001, 0.003, 0.0005], [0, 0, 0]])
    assert lowest_heads(importance, 3) == [(2, 3), (3, 2), (3, 3)]
    assert lowest_heads(importance, 4) == [(2, 1), (2, 3), (3, 2), (3, 3)]
    assert lowest_heads(importance, 6) == [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (3, 3)]


def test_heads_are_read_from_text() -> None:
    assert parse_heads("2.3, 4.10,") == [(2, 3), (4, 10)]
    assert parse_heads("") == []
    for wrong in ("2", "0.1", "2.3;4.1", "1.2.3"):
        with pytest.raises(UsageError, match=r"write each head as LAYER\.HEAD"):
            parse_heads(wrong)


def test_wrong_arguments_are_refused(pretrained: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for settings, problem in (
        ({}, "either --heads or --lowest"),
        ({"heads": [(1, 1)], "lowest": 1}, "either --heads or --lowest"),
        ({"heads": [(3, 1)]}, "no head 3.1"),
        ({"heads": [(1, 5)]}, "no head 1.5"),
        ({"lowest": 1}, "--lowest needs --text"),
        ({"lowest": 7, "text": text}, "give 1 to 6"),
        ({"heads": [(1, 1)], "text": tmp_path / "none.txt"}, "no such file"),
        ({"heads": [(1, 1)], "text": text, "task_data": text}, "either --text FILE"),
        ({"heads": [(1, 1)], "text_column": "a"}, "to which --text-column applies"),
    ):
        with pytest.raises(UsageError, match=problem):
            bertie.prune_heads(pretrained, out, **settings)
    with pytest.raises(UserError, match="not fine-tuned"):
        bertie.prune_heads(pretrained, out, heads=[(1, 1)], task_data=text)
    bertie.convert(pretrained, tmp_path / "tf", "tf", threads=1)
    with pytest.raises(UsageError, match="is a TensorFlow checkpoint: convert it first, with bertie convert --to hf"):
        bertie.prune_heads(tmp_path / "tf", out, heads=[(1, 1)])
    assert not out.exists()
    with pytest.raises(UsageError, match="already exists"):
        bertie.prune_heads(pretrained, pretrained, heads=[(1, 1)])
