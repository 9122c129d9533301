"""Models of transformers, read by bertie and written again: equal weights, and equal logits in both directions, in odd sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_families as families
import tokenizers
import torch
from safetensors.torch import load_file

import bertie
from bertie.checkpoints.families import FAMILIES
from bertie.checkpoints.families.settings import EMPTY, READ, WITHOUT_EFFECT
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import read_checkpoint
from bertie.predict.convert.export import convert
from bertie.tokenizers.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the package transformers")

ODD = {
    **{
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "vocab_size": 1000,
    },
    "max_position_embeddings": 70,
}
XLNETS = {"d_model": 24, "n_layer": 1, "n_head": 3, "d_inner": 40, "d_head": 8, "vocab_size": 1000}
SIZES: dict[str, dict[str, Any]] = {
    "roberta": ODD | {"pad_token_id": 0},
    "distilbert": {"dim": 24, "n_layers": 1, "n_heads": 3, "hidden_dim": 40, "vocab_size": 1000},
    "electra": ODD | {"embedding_size": 16, "type_vocab_size": 4},
    "xlm": {"emb_dim": 24, "n_layers": 1, "n_heads": 3, "vocab_size": 1000},
    "modernbert": ODD,
    "albert": ODD | {"embedding_size": 16},
    "xlnet": XLNETS,
}
BERT = families.Case("Bert", families.SIZES, families.HEADS_OF_BERT, (), segments=True)
CASES = {name: families.CASES[name] for name in SIZES}
CASES |= {f"bert with {n} segments": replace(BERT, segments=n > 1) for n in (1, 2, 4)}
SIZES |= {f"bert with {n} segments": ODD | {"type_vocab_size": n} for n in (1, 2, 4)}
SLOW: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("xlm-roberta", "camembert"), ODD | {"pad_token_id": 0, "type_vocab_size": 2}),
    **{"mpnet": ODD, "nomic_bert": ODD, "deberta-v2": ODD | {"pooler_hidden_size": 24}},
    "eurobert": ODD | {"num_key_value_heads": 1},
}
"""Families whose other sizes test_families.py compares."""
CASES |= {name: families.CASES[name] for name in SLOW}
SIZES |= SLOW
HEADS = [
    # All heads of one family and two of the others are fast.
    pytest.param(
        *(name, kind),
        id=f"{name}-{kind}",
        marks=[pytest.mark.slow] * (name in SLOW or (name != "bert with 2 segments" and number > 1)),
    )
    for name, case in CASES.items()
    for number, kind in enumerate(case.heads)
]


@pytest.mark.parametrize(("name", "kind"), HEADS)
def test_weights_and_logits_survive_a_round_trip(
    name: str, kind: str, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    case = CASES[name]
    labels = {"num_labels": 5} if families.KINDS[kind] in ("classify", "tag") else {}
    model = case.model(kind, **SIZES[name], **labels)
    tokenizer = families.with_padding(small_tokenizer, case.pad_id)
    ours = bertie.load(families.saved(model, tmp_path / "theirs", tokenizer))
    (tmp_path / "ours").mkdir()
    write_model(
        tmp_path / "ours", ours.model, ours.tokenizer, source=read_checkpoint(tmp_path / "theirs").without_weights()
    )
    again = families.loaded(kind, tmp_path / "ours")
    assert type(again) is type(model)
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    pooler = {key for key in second.keys() - first.keys() if "pooler" in key}
    assert first.keys() - second.keys() <= {key for key in first if "decoder.bias" in key}
    assert second.keys() - first.keys() == pooler
    assert all(torch.equal(first[key], second[key]) for key in first.keys() & second.keys())
    expected = families.their_logits(case, model, kind)
    torch.testing.assert_close(families.our_logits(case, ours.model, kind), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(families.their_logits(case, again, kind), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("SequenceClassification", True),
        pytest.param("TokenClassification", False, marks=pytest.mark.slow),
        pytest.param("SequenceClassification", False, marks=pytest.mark.slow),
        pytest.param("TokenClassification", True, marks=pytest.mark.slow),
    ],
)
def test_class_names_survive_a_conversion(kind: str, named: bool, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    names = {number: f"class {number}" for number in range(12)}
    labels = {"id2label": names, "label2id": {name: n for n, name in names.items()}} if named else {"num_labels": 12}
    families.saved(BERT.model(kind, **labels), tmp_path / "theirs", small_tokenizer)
    convert(tmp_path / "theirs", tmp_path / "ours", "hf")
    again = families.loaded(kind, tmp_path / "ours")
    assert again.config.id2label == (names if named else {n: f"LABEL_{n}" for n in range(12)})


def test_several_labels_stay_several_labels(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = BERT.model("SequenceClassification", num_labels=4, problem_type="multi_label_classification")
    ours = bertie.load(families.saved(model, tmp_path / "theirs", small_tokenizer))
    [prediction] = ours.predict([{"text": "a text"}])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    with torch.inference_mode():
        expected = model(**tokenizer("a text", return_tensors="pt")).logits[0].sigmoid()
    torch.testing.assert_close(torch.tensor([*prediction.probabilities.values()]), expected, atol=1e-5, rtol=1e-5)
    convert(tmp_path / "theirs", tmp_path / "ours", "hf")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["problem_type"] == "multi_label_classification"


@pytest.mark.parametrize("name", ["gpt2", "openai-gpt"])
def test_the_class_of_a_head_without_weights_survives(name: str, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = families.CASES[name].model("LMHeadModel")
    ours = bertie.load(families.saved(model, tmp_path / "theirs", small_tokenizer))
    assert len(ours.model.heads) == 0
    (tmp_path / "ours").mkdir()
    source = read_checkpoint(tmp_path / "theirs").without_weights()
    write_model(tmp_path / "ours", ours.model, ours.tokenizer, source=source)
    found = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert found["architectures"] == [type(model).__name__]
    again, ids = families.loaded("CausalLM", tmp_path / "ours"), torch.arange(9)[None]
    with torch.inference_mode():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


def test_a_tokenizer_without_padding_is_written(tmp_path: Path) -> None:
    """As that of the first GPT."""
    engine = tokenizers.Tokenizer(tokenizers.models.BPE({"<unk>": 0, "a": 1, "b": 2}, [], unk_token="<unk>"))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=engine, unk_token="<unk>")
    model = families.CASES["openai-gpt"].model("LMHeadModel", vocab_size=3)
    for part in (wrapped, model):
        part.save_pretrained(tmp_path / "theirs")
    ours = bertie.load(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    write_model(tmp_path / "ours", ours.model, ours.tokenizer, source=read_checkpoint(tmp_path / "theirs"))
    pads = [
        json.loads((tmp_path / name / "config.json").read_text()).get("pad_token_id") for name in ("theirs", "ours")
    ]
    assert pads == [None, None]
    ids = torch.tensor([[1, 2, 0, 1]])
    with torch.inference_mode():
        torch.testing.assert_close(families.loaded("CausalLM", tmp_path / "ours")(ids).logits, model(ids).logits)


def test_settings_of_training_survive_a_conversion(
    small_tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"qa_dropout": 0.3, "seq_classif_dropout": 0.25, "problem_type": "single_label_classification"}
    model = CASES["distilbert"].model("SequenceClassification", num_labels=3, **given)
    ours = bertie.load(families.saved(model, tmp_path / "theirs", small_tokenizer))
    source = read_checkpoint(tmp_path / "theirs")
    source.warn_of_training()
    assert "config.json: qa_dropout 0.3: bertie has no separate dropout" in capsys.readouterr().err
    (tmp_path / "ours").mkdir()
    write_model(tmp_path / "ours", ours.model, ours.tokenizer, source=source)
    found = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert {key: found[key] for key in given} == given


@pytest.mark.parametrize(
    "family", [each for each in FAMILIES.values() if each.in_transformers], ids=lambda f: f.model_type
)
def test_every_key_of_the_configuration_is_known(family: Any) -> None:
    config = transformers.CONFIG_MAPPING[family.model_type]
    keys = {*config().to_dict(), *config.attribute_map}
    assert keys - family.settings.known - {*READ, *WITHOUT_EFFECT, *EMPTY} == set()
