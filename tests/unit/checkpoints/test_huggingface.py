from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bertie.base.errors import UserError
from bertie.checkpoints.families import bert, family
from bertie.checkpoints.huggingface import from_config_json, to_config_json
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder, head_dropout
from bertie.model.head_facts import HeadShape
from bertie.model.heads.heads import PooledHead
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
    return family.from_huggingface(bert.FAMILY, dict(weights), SHAPES)


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


@pytest.fixture
def theirs(tiny_config: TransformerConfig) -> dict[str, Tensor]:
    return to_huggingface(model_of(tiny_config, KINDS[3]).state_dict(), KINDS[3])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LayerNorm.weight", "LayerNorm.gamma"),
        ("bert.", ""),
        ("bert.", "module._orig_mod.bert."),
        ("bert.", "backbone.model."),
        ("bert.", "roberta."),
    ],
)
def test_other_spellings_of_names_are_accepted(theirs: dict[str, Tensor], old: str, new: str) -> None:
    respelled = {name.replace(old, new): tensor for name, tensor in theirs.items()}
    assert respelled.keys() != theirs.keys()
    found, unknown = from_huggingface(respelled)
    assert unknown == []
    assert same(found, from_huggingface(theirs)[0])


@pytest.mark.parametrize("prefix", ["0.auto_model.", "module."])
def test_a_wrapper_of_the_whole_model_is_accepted(theirs: dict[str, Tensor], prefix: str) -> None:
    for bare in (False, True):
        inner = {name.removeprefix("bert." * bare): tensor for name, tensor in theirs.items()}
        found, unknown = from_huggingface({prefix + name: tensor for name, tensor in inner.items()})
        assert unknown == []
        assert same(found, from_huggingface(theirs)[0])


def test_two_encoders_are_refused(theirs: dict[str, Tensor]) -> None:
    encoder = {name: tensor for name, tensor in theirs.items() if name.startswith("bert.")}
    two = {part + name: tensor for name, tensor in encoder.items() for part in ("query.", "text.")}
    with pytest.raises(UserError, match=r"several encoders, with the prefixes 'query\.bert\.', 'text\.bert\.'"):
        from_huggingface(two)
    with pytest.raises(UserError, match="two tensors are the same weights"):
        from_huggingface(encoder | {"bert.embeddings.LayerNorm.gamma": torch.zeros(32)})


def test_tied_and_derived_tensors_are_ignored(theirs: dict[str, Tensor]) -> None:
    words, bias = theirs["bert.embeddings.word_embeddings.weight"], theirs["cls.predictions.bias"]
    copies = {"cls.predictions.decoder.weight": words.clone(), "cls.predictions.decoder.bias": bias.clone()}
    found = theirs | copies
    assert family.untie(bert.FAMILY, found, tied=True) == ""
    assert same(found, theirs)
    buffers = {"bert.embeddings.position_ids": torch.arange(64)[None]}
    weights, unknown = from_huggingface(theirs | buffers)
    assert unknown == []
    assert same(weights, from_huggingface(theirs)[0])
    assert from_huggingface(theirs | {"bert.surprise.weight": torch.zeros(1)})[1] == ["bert.surprise.weight"]


def test_the_only_copy_of_a_tied_tensor_is_the_original(theirs: dict[str, Tensor]) -> None:
    found = dict(theirs)
    found["cls.predictions.decoder.bias"] = found.pop("cls.predictions.bias")
    assert family.untie(bert.FAMILY, found, tied=True) == ""
    assert same(found, theirs)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_an_output_layer_of_its_own_is_named(theirs: dict[str, Tensor], name: str) -> None:
    copy = f"cls.predictions.decoder.{name}"
    found = theirs | {copy: theirs[bert.FAMILY.tied[copy]] + 1}
    assert family.untie(bert.FAMILY, found, tied=True) == copy
    assert family.untie(bert.FAMILY, dict(theirs), tied=False) == "cls.predictions.decoder.weight"


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


DEBERTA = {"relative_attention": True, "share_att_key": True, "pos_att_type": "p2c|c2p"}


@pytest.mark.parametrize(
    ("given", "key", "usual"),
    [
        ({"model_type": "bert"}, "classifier_dropout", None),
        ({"model_type": "deberta-v2", **DEBERTA}, "cls_dropout", None),
        ({"model_type": "distilbert"}, "seq_classif_dropout", 0.2),
        ({"model_type": "modernbert"}, "classifier_dropout", None),  # 0, as the others
        ({"model_type": "albert"}, "classifier_dropout_prob", 0.1),
        ({"model_type": "xlnet"}, "summary_last_dropout", None),
    ],
)
def test_the_dropout_of_heads_is_read_and_written(given: dict[str, object], key: str, usual: float | None) -> None:
    for values, expected in ((given, usual), (given | {key: 0.3}, 0.3)):
        family, config, _ = from_config_json(values, "config.json")
        assert (config.head_dropout_prob, head_dropout(config)) == (expected, expected or config.hidden_dropout_prob)
        again = to_config_json(config, [], (), 1, family)
        null = given["model_type"] in ("bert", "deberta-v2")
        assert again[key] == (expected if null else head_dropout(config))
        assert from_config_json(again, "config.json")[1] == config


def test_class_names_keep_their_order(tiny_config: TransformerConfig) -> None:
    labels = tuple(f"c{i}" for i in range(11))
    assert from_config_json(to_config_json(tiny_config, [FACTS["classify"]], labels, 0), "")[2] == labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "t5"}, "model_type is 't5'"),
        ({"model_type": ["bert"]}, "model_type is"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_causal": True}, "is_causal is True"),
        ({"problem_type": "ranking"}, "problem_type is 'ranking'"),
        ({"problem_type": "single_label_classification", "id2label": {"0": "a"}}, "with one label"),
        ({"model_type": "new", "auto_map": {"AutoModel": "code.py"}}, "with code of its own"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported: give one of"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 33}, "not a multiple"),
        ({"hidden_size": "wide"}, "not a bert configuration"),
        ({"id2label": ["a", "b"]}, "id2label is .*: it must map numbers to names"),
    ],
)
def test_unsupported_configurations_are_refused(
    tiny_config: TransformerConfig, change: dict[str, object], message: str
) -> None:
    values = to_config_json(tiny_config, [FACTS["mlm"], FACTS["nsp"]], (), 0) | change
    with pytest.raises(UserError, match=message) as raised:
        from_config_json(values, "there/config.json")
    assert str(raised.value).startswith("there/config.json: ")


def test_names_that_only_label2id_has_are_a_warning(
    tiny_config: TransformerConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    values = to_config_json(tiny_config, [FACTS["classify"]], (), 0)
    assert from_config_json(values | {"label2id": {"LABEL_0": 0}}, "one/config.json")[2] == ()
    assert not capsys.readouterr().err
    assert from_config_json(values | {"label2id": {"good": 1, "bad": 0}}, "two/config.json")[2] == ()
    assert "two/config.json: label2id names good, bad, but id2label names no class" in capsys.readouterr().err


def test_class_names_fill_gaps(tiny_config: TransformerConfig) -> None:
    values = to_config_json(tiny_config, [FACTS["classify"]], (), 0) | {"id2label": {"2": "c", "0": 7}}
    assert from_config_json(values, "")[2] == ("7", "LABEL_1", "c")


def test_keys_without_effect_are_silent_and_others_are_named(
    tiny_config: TransformerConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    values = to_config_json(tiny_config, [], (), 0) | {"is_decoder": False, "pruned_heads": {}, "use_cache": True}
    values |= {"finetuning_task": None, "output_past": True, "top_k": 50, "pooler_type": "first_token_transform"}
    from_config_json(values, "silent/config.json")
    assert capsys.readouterr().err == ""
    for _ in range(2):
        from_config_json(values | {"alpha": 1, "window": 2}, "loud/config.json")
    assert capsys.readouterr().err == (
        "warning: loud/config.json: bertie does not know alpha, window: if they have an effect, it is lost\n"
    )


@pytest.mark.parametrize("name", ["RobertaModel", "DistilBertForMaskedLM", "BertModel"])
def test_a_file_without_model_type_has_the_family_of_its_class(name: str) -> None:
    family, _, _ = from_config_json({"architectures": [name]}, "")
    assert family.model_type == name.lower()[: len(family.model_type)]
    assert from_config_json({}, "")[0] == bert.FAMILY
