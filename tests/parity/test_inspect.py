"""`bertie inspect` on models of every family with attention: the same probabilities as transformers, and no family fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.parity.test_families import (
    CASES,
    LENGTHS,
    SIZES,
    Case,
    close,
    loaded,
    pad_id_of,
    padded,
    saved,
    sequences,
    unpadded,
)

import bertie
from bertie.batches.collate import collate
from bertie.inspect.attention import Group, gated, read_attention, require_transformer
from bertie.tokenizers.tokenizer import Tokenizer

BERT = Case("Bert", SIZES, (), (), segments=True)
FAMILIES = {"bert": BERT} | {
    name: case for name, case in CASES.items() if name not in ("xlnet", "deberta-v2", "modernbert-decoder")
}
CAUSAL = ("gpt2", "openai-gpt")


@pytest.mark.parametrize("name", FAMILIES)
def test_probabilities_agree_with_transformers(name: str, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    case = FAMILIES[name]
    folder = saved(case.model("Model"), tmp_path / "theirs", small_tokenizer)
    theirs = loaded("", folder)
    with torch.inference_mode():
        expected = theirs(**padded(case, pad_id_of(theirs)), output_attentions=True).attentions
    compared = 0

    def see(group: Group, layer: int, probabilities: torch.Tensor) -> None:
        nonlocal compared
        for s, index in enumerate(group.indices):
            n = LENGTHS[index]
            wanted = expected[layer][index, :, :n, :n]
            torch.testing.assert_close(probabilities[s, :, :n, :n], wanted, atol=1e-5, rtol=0)
            assert n < 5 or wanted.std() * n > 0.1  # uniform attention would compare nothing
            compared += 1

    read_attention(bertie.load(folder).model, sequences(case), see)
    assert len(expected) == 2
    assert compared == 2 * len(LENGTHS)


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("bert", "gpt2", "xlm with languages") else pytest.param(name, marks=pytest.mark.slow)
        for name in FAMILIES
    ],
)
def test_every_family_is_inspected_with_its_loss(name: str, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    case = FAMILIES[name]
    kind = "LMHeadModel" if name in CAUSAL else "MaskedLM"
    folder = saved(case.model(kind), tmp_path / "model", small_tokenizer)
    (tmp_path / "text.txt").write_text("The gat go the gatun.\nthe fet\n" * 5)
    result = bertie.inspect_model(folder, bertie.Inspection(text=tmp_path / "text.txt"), tmp_path / "out")
    assert "head_importance" in result["tables"]
    assert result["loss"]["kind"] == ("clm" if name in CAUSAL else "mlm")


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "albert"])  # its layers share their heads
def test_disabled_heads_are_masked_heads_in_transformers(name: str, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    case = FAMILIES[name]
    kind = "Model" if name in CAUSAL else "MaskedLM"
    folder = saved(case.model(kind), tmp_path / "model", small_tokenizer)
    bertie.prune_heads(folder, tmp_path / "out", heads=[(1, 2), (2, 1), (2, 4)])
    ours = bertie.load(folder).model
    gates = torch.ones(2, 4)
    gates[0, 1] = gates[1, 0] = gates[1, 3] = 0
    encoder = require_transformer(ours.encoder)
    theirs = loaded("" if name in CAUSAL else kind, tmp_path / "out")
    with torch.inference_mode(), gated(encoder, gates):
        states = encoder(collate(sequences(case), 64).tensors()).last
        expected = states if name in CAUSAL else ours.heads["mlm"].logits(states)  # type: ignore[operator]
        found = theirs(**padded(case, pad_id_of(theirs)))[0]
    close(expected, unpadded(found))
    assert not torch.allclose(encoder(collate(sequences(case), 64).tensors()).last, states, atol=0.01)
