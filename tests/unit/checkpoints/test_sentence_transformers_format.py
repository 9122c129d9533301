from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bertie.base.errors import UsageError, UserError
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.find import find_model_folder
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.checkpoints.sentence_transformers_reader import max_sequence_length, read, score_activation
from bertie.model.config import TransformerConfig
from bertie.model.heads.vector_modules import Dense, Dropout, LayerNorm, Normalize

PATHS = {"Transformer": "", "Pooling": "1_Pooling"}
BERT, GENERAL, POOLING = "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json"


def write(at: Path, name: str, values: Any) -> None:
    (at / name).parent.mkdir(exist_ok=True, parents=True)
    (at / name).write_text(json.dumps(values))


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [{"path": PATHS.get(kind, f"2_{kind}"), "type": f"sentence_transformers.base.{kind}"} for kind in kinds]


def folder(at: Path, pooling: Any, kinds: tuple[str, ...] = ("Transformer", "Pooling")) -> Path:
    """A folder as version 6 of sentence-transformers writes it."""
    write(at, "modules.json", modules(*kinds))
    write(at, POOLING, pooling)
    return at


def test_written_files_are_read_back(tmp_path: Path, tiny_config: TransformerConfig) -> None:
    size = tiny_config.hidden_size
    settings: dict[str, Any] = {
        "lowercase": True,
        "prompts": {"query": "q: ", "odd": ""},
        "default_prompt": "odd",
        "dimensions": 3,
    }
    plain = SentenceEmbedding(("mean", "lasttoken"), (Dropout(0.3), Normalize()), False, similarity="dot", **settings)
    for number, how in enumerate((SentenceEmbedding(), SentenceEmbedding(("cls",), (Normalize(),)), plain)):
        at = tmp_path / str(number)
        at.mkdir()
        sentence_transformers_format.write(at, tiny_config, how, 48)
        assert read(at, size) == how
        assert max_sequence_length(at) == 48
    weighted = (
        Dense(torch.randn(5, 2 * size), torch.randn(5), "GELU", True, torch.randn(5, 2 * size)),
        LayerNorm(torch.randn(5), torch.randn(5)),
        Dense(torch.randn(5, 5).T, None, "Identity", True),
    )
    at = tmp_path / "2"
    sentence_transformers_format.write(at, tiny_config, replace(plain, modules=weighted), 48)
    found = read(at, size)
    assert found
    assert replace(found, modules=()) == replace(plain, modules=())
    x = torch.randn(3, 2 * size)
    for ours, theirs in zip(weighted, found.modules, strict=True):
        torch.testing.assert_close(ours(x), theirs(x))
        x = ours(x)
    assert found.width(size) == 3
    assert replace(found, dimensions=None).width(size) == 5


def test_a_real_folder_is_read(minilm: Path) -> None:
    assert read(minilm) == SentenceEmbedding(("mean",), (Normalize(),))
    assert max_sequence_length(minilm) == 256


def test_a_folder_without_the_files_gives_none(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    assert max_sequence_length(tmp_path) is None
    write(tmp_path, GENERAL, {"prompts": {"query": "q"}})  # without modules.json, the library does not read it
    assert read(tmp_path) is None


def test_the_format_of_version_6_is_read(tmp_path: Path) -> None:
    config = {"embedding_dimension": 384, "pooling_mode": "cls", "include_prompt": True}
    at = folder(tmp_path, config, ("Transformer", "Pooling", "Normalize"))
    assert read(at, 384) == SentenceEmbedding(("cls",), (Normalize(),))
    write(at, BERT, {"transformer_task": "feature-extraction"})
    assert max_sequence_length(at) is None
    write(at, "tokenizer_config.json", {"model_max_length": 128})
    assert max_sequence_length(at) == 128
    write(at, BERT, {"processor_kwargs": {"model_max_length": 32}, "max_seq_length": 64})
    assert max_sequence_length(at) == 32


def test_old_layouts_name_the_folder_of_the_encoder(tmp_path: Path) -> None:
    listed = [modules("Transformer")[0] | {"path": "0_Transformer"}, *modules("Pooling")]
    write(folder(tmp_path, {"pooling_mode_max_tokens": True}), "modules.json", listed)
    write(tmp_path, "config.json", {"__version__": "0.2.6"})
    inner = tmp_path / "0_Transformer"
    write(inner, "config.json", {})
    write(inner, "sentence_xlm-roberta_config.json", {"max_seq_length": 99, "do_lower_case": True})
    assert find_model_folder(tmp_path) == inner
    assert read(inner) == SentenceEmbedding(("max",), lowercase=True)
    assert max_sequence_length(inner) == 99


REFUSED: list[tuple[str, Any, str | None]] = [
    ("modules.json", [], "asks for nothing, which"),
    ("modules.json", {}, "is damaged"),
    ("modules.json", [{"path": "", "type": 1}], "each module has a path and a type"),
    ("modules.json", modules("Transformer", "Pooling", "Pooling"), "the module Pooling, which"),
    ("modules.json", modules("BoW"), "asks for BoW, which is not supported"),
    ("modules.json", modules("Transformer", "WordWeights", "Pooling"), "Transformer → WordWeights → Pooling"),
    ("modules.json", [{"path": "", "type": "custom.Transformer"}], "type is 'custom.Transformer': it is code"),
    ("modules.json", [{**modules("Transformer")[0], "kwargs": ["task"]}], "kwargs is"),
    *(
        ("modules.json", [*modules("Transformer"), modules("Pooling")[0] | {"path": path}], "path is .*: it must be")
        for path in ("../x", "/etc", "a/../../b", "C:\\x", "\0")
    ),
    (POOLING, {"pooling_mode": ["mean", "sum"]}, "pooling_mode is .*sum"),
    (POOLING, {"pooling_mode": []}, "pooling_mode is"),
    (POOLING, {"pooling_mode_weighted": True}, "pooling_mode_weighted is True"),
    (POOLING, {"pooling_mode": "mean", "include_prompt": "no"}, "include_prompt is 'no'"),
    (POOLING, {"embedding_dimension": 9}, "embedding_dimension is 9, and the model's hidden states have the width 8"),
    (POOLING, {"embedding_dimension": "8"}, "embedding_dimension is '8'"),
    (BERT, {"do_lower_case": "yes"}, "do_lower_case is 'yes'"),
    (BERT, {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
    (BERT, {"modality_config": {"image": {}}}, "modality_config is"),
    (BERT, {"module_output_name": "sentence_embedding"}, "module_output_name is 'sentence_embedding'"),
    (BERT, {"query_expansion": {"length": 32}}, "query_expansion is"),
    (BERT, {"tokenizer_args": {"padding_side": "left"}}, "tokenizer_args is {'padding_side': 'left'}"),
    (BERT, {"config_args": []}, None),
    (BERT, {"config_args": [1]}, "config_args is"),
    (BERT, {"model_kwargs": {"attn_implementation": "eager", "torch_dtype": "float16"}}, None),
    (GENERAL, {"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'"),
    (GENERAL, {"prompts": ["query"]}, "prompts is"),
    (GENERAL, {"prompts": {"a": 1}}, "prompts is"),
    (GENERAL, {"prompts": {"a": None}, "default_prompt_name": None, "similarity_fn_name": None}, None),
    (GENERAL, {"default_prompt_name": "a"}, "default_prompt_name is 'a': there is no such prompt"),
    (GENERAL, {"similarity_fn_name": ["dot"]}, "similarity_fn_name is"),
    (GENERAL, {"truncate_dim": 0}, "truncate_dim is 0"),
]


def problem(at: Path, message: str | None) -> str:
    """Return what is wrong with the error of a folder; empty if all is well."""
    try:
        read(at, 8)
    except UserError as error:
        fits = message and re.search(message, str(error)) and str(at) in str(error) and "\n" not in str(error)
        return "" if fits else f"{message}: {error}"
    return f"{message}: no error" if message else ""


def test_what_is_not_supported_is_refused_by_name(tmp_path: Path) -> None:
    wrong = []
    for number, (name, values, message) in enumerate(REFUSED):
        at = folder(tmp_path / str(number), {"embedding_dimension": 8, "pooling_mode": "mean"})
        write(at, name, values)
        wrong.append(problem(at, message))
    assert not any(wrong), "\n".join(filter(None, wrong))


LINEAR = {"linear.weight": (4, 8), "linear.bias": (4,)}
SIZES = {"in_features": 8, "out_features": 4}
DENSE: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]], str | None]] = [
    ("Dense", SIZES, LINEAR, None),
    ("Dense", {}, LINEAR, "out_features is None"),
    ("Dense", SIZES, {"linear.weight": (4, 8)}, "lacks linear.bias"),
    ("Dense", SIZES, LINEAR | {"more": (1,)}, "also holds more"),
    ("Dense", SIZES, {}, "model.safetensors is missing"),
    ("Dense", SIZES, LINEAR | {"linear.weight": (4,)}, "linear.weight has the shape"),
    ("Dense", SIZES | {"in_features": 9}, LINEAR | {"linear.weight": (4, 9)}, "width 9, but the module before"),
    ("Dense", SIZES | {"bias": 1}, LINEAR, "bias is 1"),
    ("Dense", SIZES | {"activation_function": "os.system"}, LINEAR, "activation_function is 'os.system'"),
    ("Dense", SIZES | {"module_input_name": "token_embeddings"}, LINEAR, "module_input_name is 'token_embeddings'"),
    ("LayerNorm", {"dimension": 8}, {"norm.weight": (8,), "norm.bias": (8,)}, None),
    ("Dropout", {"dropout": 2}, {}, "dropout is 2"),
    ("Normalize", {"module_output_name": "x"}, {}, "module_output_name is 'x'"),
]


def test_modules_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    wrong = []
    for number, (kind, values, shapes, message) in enumerate(DENSE):
        at = folder(tmp_path / str(number), {"pooling_mode": "mean"}, ("Transformer", "Pooling", kind))
        write(at, f"2_{kind}/config.json", values)
        if shapes:
            save_file({name: torch.ones(s) for name, s in shapes.items()}, at / f"2_{kind}" / "model.safetensors")
        wrong.append(problem(at, message))
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("name", ["1_Pooling", POOLING, "modules.json", BERT])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    at = folder(tmp_path / "model", {"pooling_mode": "mean"})
    write(at, BERT, {})
    os.rename(at / name, tmp_path / "elsewhere")
    (at / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"is a link to .*, outside the folder"):
        read(at)


def test_unknown_keys_are_named_once_per_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = folder(tmp_path, {"pooling_mode": "mean", "new": 1, "newer": 2})
    assert read(at) == SentenceEmbedding()
    assert "does not know new, newer: ignored" in " ".join(capsys.readouterr().err.split())


def test_an_invalid_length_is_refused(tmp_path: Path) -> None:
    at = folder(tmp_path, {"pooling_mode": "mean"})
    write(at, BERT, {"max_seq_length": 3})
    with pytest.raises(UserError, match="max_seq_length is"):
        max_sequence_length(at)


def test_prompts_are_found_by_name() -> None:
    how = SentenceEmbedding(prompts={"query": "q: ", "title": "t: "}, default_prompt="title")
    assert [how.prompt(*given) for given in ((None, None), ("query", None), ("document", None), (None, ""))] == [
        *("t: ", "q: ", "", "")
    ]
    assert SentenceEmbedding().prompt(None, None) == ""
    with pytest.raises(UsageError, match="no prompt 'x': the model has document, query, title"):
        how.prompt("x", None)
    with pytest.raises(UsageError, match="give one of them"):
        how.prompt("query", "q")


@pytest.mark.parametrize(
    ("values", "outputs", "expected"),
    [
        ({}, 1, None),
        ({"sbert_ce_default_activation_function": None}, 1, None),
        ({"sentence_transformers": {"version": "5"}}, 1, "Sigmoid"),
        ({"sentence_transformers": {"version": "5"}}, 3, "Identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, 1, "Identity"),
    ],
)
def test_activations_of_scores(tmp_path: Path, values: Any, outputs: int, expected: str | None) -> None:
    write(tmp_path, "config.json", values)
    assert score_activation(tmp_path, outputs) == expected


def test_unsupported_cross_encoders_are_refused(tmp_path: Path) -> None:
    for name, outputs in (("my.Identity", 1), ("torch.nn.modules.activation.Sigmoid", 2), (7, 1)):
        write(tmp_path, "config.json", {"sbert_ce_default_activation_function": name})
        with pytest.raises(UserError, match="sbert_ce_default_activation_function is"):
            score_activation(tmp_path, outputs)
    write(tmp_path, "config.json", {})
    write(tmp_path, GENERAL, {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"})
    write(tmp_path, BERT, {"transformer_task": "sequence-classification"})
    write(tmp_path, "modules.json", modules("Transformer"))
    assert (score_activation(tmp_path, 1), read(tmp_path)) == ("Identity", None)
    write(tmp_path, "modules.json", modules("Transformer", "LogitScore"))
    with pytest.raises(UserError, match="Transformer → LogitScore"):
        score_activation(tmp_path, 1)
    write(tmp_path, "modules.json", modules("Transformer"))
    write(tmp_path, GENERAL, {"model_type": "CrossEncoder", "default_prompt_name": "query"})
    with pytest.raises(UserError, match="default_prompt_name is 'query'"):
        score_activation(tmp_path, 1)
