"""Models that no class of Hugging Face represents are saved in bertie's own format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertie.base.errors import UserError
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import load_weights, read_checkpoint
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.head_facts import with_facts
from bertie.model.heads.heads import PooledHead
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.objectives import CausalLM, MaskedLM
from bertie.objectives.heads import build_heads
from bertie.tasks import Classify
from bertie.tokenizers.tokenizer import Tokenizer

CHANGES = [
    {"position_embedding": "rotary", "norm_position": "pre", "hidden_act": "geglu", "use_bias": False},
    {"position_embedding": "sinusoidal", "type_vocab_size": 0},
    {"embedding_size": 16, "causal": True},
]


def built(config: TransformerConfig, kind: str) -> Model:
    encoder = build_encoder(config)
    heads = build_heads([o for o in (MaskedLM(), CausalLM()) if o.kind == kind], encoder)
    if not heads:
        heads[kind] = with_facts(PooledHead(config.hidden_size, 3, 0.1), Classify().facts)
    model = Model(encoder, heads)
    initialize_weights(model, 0.1)
    return model


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("kind", ["clm", "classify"])
def test_models_of_any_structure_are_read_back(
    changes: dict[str, object], kind: str, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = built(replace(tiny_config, **changes), kind)
    write_model(tmp_path, model, small_tokenizer)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.config == model.encoder.config
    again = built(checkpoint.config, kind)
    assert load_weights(again, checkpoint).dropped == ()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "bertie"
    assert "Only bertie loads this model" in (tmp_path / "README.md").read_text()


def test_electra_with_embeddings_of_its_hidden_size_is_saved_as_electra(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = replace(tiny_config, embedding_size=tiny_config.hidden_size, pooler_act="gelu")
    assert config.embedding_size == 0
    write_model(tmp_path, built(config, "classify"), small_tokenizer)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "electra"


def test_a_damaged_configuration_is_refused(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    write_model(tmp_path, built(replace(tiny_config, causal=True), "clm"), small_tokenizer)
    values = json.loads((tmp_path / "config.json").read_text())
    for encoder in (None, {"kind": "nothing"}, values["encoder"] | {"hidden_size": 64}):
        (tmp_path / "config.json").write_text(json.dumps(values | {"encoder": encoder}))
        with pytest.raises(UserError):
            read_checkpoint(tmp_path)
