"""Recipes whose parts do not fit are refused when they are read, with the keys and the way out."""

from __future__ import annotations

from typing import Any

import pytest

from bertie.base import config
from bertie.base.errors import UsageError
from bertie.pretraining.recipe import PretrainConfig

Table = dict[str, Any]


def read(extends: str, **changes: Any) -> PretrainConfig:
    return config.load(PretrainConfig, {"extends": extends, **changes}, "pretrain")


NO_ORDER: Table = {"position_embedding": "none", "type_vocab_size": 0}
MLM, NSP, CLM = {"kind": "mlm"}, {"kind": "nsp"}, {"kind": "clm", "allow_bidirectional": True}


@pytest.mark.parametrize(
    ("extends", "changes", "keys", "way_out"),
    [
        ("mini", {"objectives": []}, ["objectives"], "give one or more"),
        ("mini", {"objectives": [MLM, MLM]}, ["objectives", "'mlm', 'mlm'"], "each of a different kind"),
        ("mini-xlnet", {"objectives": [{"kind": "plm"}] * 2}, ["objectives"], "each of a different kind"),
        ("mini", {"objectives": [MLM | {"weight": 0.0}]}, ["objectives.mlm.weight"], "raise one"),
        ("mini", {"objectives": [{"kind": ["mlm"]}]}, ["objectives.0.kind"], "did you mean 'mlm'"),
        (
            "mini",
            {"layout": {"max_length": 600}},
            ["layout.max_length 600", "max_position_embeddings 512"],
            "change one",
        ),
        (
            "mini",
            {"phases": [{"share": 0.5}, {"share": 0.5, "max_length": 600}]},
            ["phases: max_length 600", "model.max_position_embeddings 512"],
            "change one",
        ),
        ("mini", {"phases": [{"share": 0.5}]}, ["phases"], "must sum to 1"),
        (
            "mini-transformer-xl",
            {"model": {"memory_length": 1025}},
            ["model.memory_length is 1025", "layout.max_length 1024"],
            "lower model.memory_length",
        ),
        (
            "mini-transformer-xl",
            {"model": {"segment_length": 2000}},
            ["model.segment_length is 2000", "layout.max_length 1024"],
            "lower model.segment_length",
        ),
        ("mini-transformer-xl", {"model": {"segment_length": 0}}, ["model.segment_length is 0"], "at least 1"),
        (
            "mini-transformer-xl",
            {"layout": {"kind": "full_sentences"}},
            ["layout.kind", '"full_sentences"', "model.segment_length"],
            '"doc_sentences"',
        ),
        ("mini-transformer-xl", {"layout": {"max_length": 20_000}}, ["model.max_position_embeddings"], "change one"),
        (
            "mini-transformer-xl",
            {"objectives": [MLM]},
            ["objectives.mlm", 'model.kind is "transformer_xl"'],
            'replace objectives.mlm by one of kind "clm"',
        ),
        ("mini-xlnet", {"model": {"segment_length": 64}}, ["model.segment_length", "model.memory_length"], "give both"),
        (
            "mini-xlnet",
            {"model": {"segment_length": 64, "memory_length": 64}},
            ["layout.kind", "model.segment_length 64"],
            '"doc_sentences"',
        ),
        ("mini-sop", {"model": NO_ORDER}, ["layout.negatives", "model.position_embedding"], '"random"'),
        ("mini", {"objectives": [MLM, CLM]}, ["objectives.clm", "objectives.mlm"], "remove one"),
        (
            "mini",
            {"objectives": [MLM | {"mask_replace_prob": 0.0, "random_replace_prob": 0.0}]},
            ["mask_replace_prob", "random_replace_prob"],
            "raise one",
        ),
        (
            "mini",
            {"training": {"attention": "varlen", "precision": "fp32"}},
            ["training.attention", "training.precision"],
            "automatic",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(extends: str, changes: Table, keys: list[str], way_out: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(extends, **changes)
    message = str(refused.value)
    assert all(key in message for key in keys)
    assert way_out in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("extends", "changes"),
    [
        ("mini", {"objectives": [MLM | {"weight": 0.0}, NSP]}),  # masks that are not learned: an ablation
        ("mini", {"layout": {"max_length": 512}}),
        ("mini", {"layout": {"max_length": 600}, "init_from": "runs/long"}),  # the checkpoint decides
        ("mini-sop", {"model": {"type_vocab_size": 0}}),
        ("mini-sop", {"model": {"position_embedding": "none"}}),  # the segments tell which text is A
    ],
)
def test_unusual_parts_that_fit_are_accepted(extends: str, changes: Table) -> None:
    assert read(extends, **changes).objectives
