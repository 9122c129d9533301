from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bertie.checkpoints.families import bert, family
from bertie.checkpoints.huggingface import from_config_json, to_config_json
from bertie.errors import UserError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.head_facts import HeadShape
from bertie.model.heads import PooledHead
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.objectives.heads import build_heads
from bertie.tasks import Classify

KINDS = [frozenset(), frozenset({"mlm"}), frozenset({"nsp"}), frozenset({"mlm", "nsp"}), frozenset({"classify"})]
SHAPES: dict[str, HeadShape] = {"mlm": "masked", "nsp": "pair", "classify": "text"}
FACTS = {each.kind: each.facts for each in (MaskedLM(), NextSentence(), Classify())}


def model_of(config: TransformerConfig, kinds: frozenset[str]) -> Model:
    encoder = build_encoder(config)
    heads = build_heads([o for o in (MaskedLM(), NextSentence()) if o.kind in kinds], encoder)
    if "classify" in kinds:
        heads["classify"] = PooledHead(config.hidden_size, 3, 0.1)
    return Model(encoder, heads)


def to_huggingface(weights: dict[str, Tensor], kinds: frozenset[str]) -> dict[str, Tensor]:
    return family.to_huggingface(bert.FAMILY, weights, {kind: SHAPES[kind] for kind in kinds})


def from_huggingface(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    return family.from_huggingface(bert.FAMILY, weights, SHAPES)


def pooled(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the head from the pooler's name, as `from_huggingface` does."""
    return {name[name.index("pooler") :] if ".pooler." in name else name: tensor for name, tensor in weights.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "+".join(sorted(kinds)) or "encoder")
def test_weights_are_read_back(tiny_config: TransformerConfig, kinds: frozenset[str]) -> None:
    weights = model_of(tiny_config, kinds).state_dict()
    theirs = to_huggingface(weights, kinds)
    back, unknown = from_huggingface(theirs)
    assert unknown == []
    assert same(back, pooled(weights))
    assert sum(t.numel() for t in theirs.values()) == sum(t.numel() for t in weights.values())


def test_names_are_those_of_bert(tiny_config: TransformerConfig) -> None:
    theirs = to_huggingface(model_of(tiny_config, KINDS[3]).state_dict(), KINDS[3])
    layer = "bert.encoder.layer.1"
    for name, shape in {
        "bert.embeddings.word_embeddings.weight": (500, 32),
        "bert.embeddings.position_embeddings.weight": (64, 32),
        "bert.embeddings.token_type_embeddings.weight": (2, 32),
        "bert.embeddings.LayerNorm.bias": (32,),
        f"{layer}.attention.self.query.weight": (32, 32),
        f"{layer}.attention.self.value.bias": (32,),
        f"{layer}.attention.output.dense.weight": (32, 32),
        f"{layer}.attention.output.LayerNorm.weight": (32,),
        f"{layer}.intermediate.dense.weight": (64, 32),
        f"{layer}.output.dense.weight": (32, 64),
        f"{layer}.output.LayerNorm.weight": (32,),
        "bert.pooler.dense.weight": (32, 32),
        "cls.predictions.transform.dense.weight": (32, 32),
        "cls.predictions.transform.LayerNorm.weight": (32,),
        "cls.predictions.bias": (500,),
        "cls.seq_relationship.weight": (2, 32),
    }.items():
        assert tuple(theirs[name].shape) == shape, name
    assert len(theirs) == 5 + 2 * 16 + 2 + 5 + 2


def test_query_key_and_value_are_split_in_this_order(tiny_config: TransformerConfig) -> None:
    model = model_of(tiny_config, KINDS[0])
    theirs = to_huggingface(model.state_dict(), KINDS[0])
    qkv = model.encoder.state_dict()["layers.0.attention.qkv.weight"]
    for part, name in enumerate(("query", "key", "value")):
        found = theirs[f"encoder.layer.0.attention.self.{name}.weight"]
        assert torch.equal(found, qkv[32 * part : 32 * part + 32])


@pytest.fixture
def theirs(tiny_config: TransformerConfig) -> dict[str, Tensor]:
    return to_huggingface(model_of(tiny_config, KINDS[3]).state_dict(), KINDS[3])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LayerNorm.weight", "LayerNorm.gamma"),
        ("LayerNorm.bias", "LayerNorm.beta"),
        ("bert.", ""),
        ("bert.", "_orig_mod.bert."),
        ("bert.", "module.bert."),
        ("bert.", "module._orig_mod.bert."),
    ],
)
def test_other_spellings_of_names_are_accepted(theirs: dict[str, Tensor], old: str, new: str) -> None:
    respelled = {name.replace(old, new): tensor for name, tensor in theirs.items()}
    assert respelled.keys() != theirs.keys()
    found, unknown = from_huggingface(respelled)
    assert unknown == []
    assert same(found, from_huggingface(theirs)[0])


def test_tied_and_derived_tensors_are_ignored(theirs: dict[str, Tensor]) -> None:
    extra = {
        "bert.embeddings.position_ids": torch.arange(64)[None],
        "cls.predictions.decoder.weight": torch.zeros(500, 32),
        "cls.predictions.decoder.bias": torch.zeros(500),
    }
    found, unknown = from_huggingface(theirs | extra)
    assert unknown == []
    assert same(found, from_huggingface(theirs)[0])
    assert from_huggingface(theirs | {"bert.surprise.weight": torch.zeros(1)})[1] == ["bert.surprise.weight"]


def test_more_than_ten_layers_keep_their_order(tiny_config: TransformerConfig) -> None:
    model = model_of(replace(tiny_config, num_hidden_layers=12), KINDS[0])
    for number, layer in enumerate(model.encoder.layers):
        for parameter in layer.parameters():
            parameter.data.fill_(number)
    theirs = to_huggingface(model.state_dict(), KINDS[0])
    assert theirs["encoder.layer.10.output.dense.weight"][0, 0] == 10
    assert same(from_huggingface(theirs)[0], dict(model.state_dict()))


@pytest.mark.parametrize("act", ["gelu", "gelu_tanh"])
def test_a_configuration_is_read_back(tiny_config: TransformerConfig, act: str) -> None:
    config = replace(tiny_config, hidden_act=act, hidden_dropout_prob=0.25, layer_norm_eps=1e-7)  # type: ignore[arg-type]
    values = to_config_json(config, [FACTS["classify"]], ("no", "yes"), pad_id=0)
    assert values["architectures"] == ["BertForSequenceClassification"]
    assert values["id2label"] == {"0": "no", "1": "yes"}
    assert values["label2id"] == {"no": 0, "yes": 1}
    assert from_config_json(values, "config.json") == (bert.FAMILY, config, ("no", "yes"))
    assert from_config_json(values | {"surprise": 1, "hidden_act": "gelu_new"}, "")[1].hidden_act == "gelu_tanh"


def test_class_names_keep_their_order(tiny_config: TransformerConfig) -> None:
    labels = tuple(f"c{i}" for i in range(11))
    assert from_config_json(to_config_json(tiny_config, [FACTS["classify"]], labels, 0), "")[2] == labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "t5"}, "model_type is 't5'"),
        ({"model_type": ["bert"]}, "model_type is"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported: give one of"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 33}, "not a multiple"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_size": "wide"}, "not a bert configuration"),
        ({"id2label": ["a", "b"]}, "not a bert configuration"),
        ({"id2label": {"one": "a"}}, "not a bert configuration"),
    ],
)
def test_unsupported_configurations_are_refused(
    tiny_config: TransformerConfig, change: dict[str, object], message: str
) -> None:
    values = to_config_json(tiny_config, [FACTS["mlm"], FACTS["nsp"]], (), 0) | change
    with pytest.raises(UserError, match=message) as raised:
        from_config_json(values, "there/config.json")
    assert str(raised.value).startswith("there/config.json: ")
