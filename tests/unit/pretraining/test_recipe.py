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
MLM, NSP, SBO, RTD, PLM = ({"kind": kind} for kind in ("mlm", "nsp", "sbo", "rtd", "plm"))
CLM, DISTIL, MNTP = {"kind": "clm", "allow_bidirectional": True}, {"kind": "distil"}, {"kind": "mntp"}
UNIGRAM, PATTERNS = MLM | {"initialization": "unigram"}, MLM | {"initialization": "patterns"}
GPT: Table = {"causal": True}


@pytest.mark.parametrize(
    ("extends", "changes", "keys"),
    [
        # objectives and layouts
        ("mini", {"objectives": []}, "objectives .* give one or more"),
        ("mini", {"objectives": [MLM, MLM]}, "objectives is .'mlm', 'mlm'.: .* different kind"),
        ("mini", {"objectives": [MLM | {"weight": 0.0}]}, "objectives.mlm.weight .* raise one"),
        ("mini", {"objectives": [{"kind": ["mlm"]}]}, "objectives.0.kind.* did you mean 'mlm'"),
        ("mini", {"objectives": [MLM, CLM]}, "objectives.clm .* remove objectives.mlm or"),
        ("mini", {"objectives": [{"kind": "clm"}]}, "objectives.clm needs model.causal true"),
        ("mini", {"objectives": [CLM], "model": {"embedding_size": 64}}, "model.embedding_size 0, .* 64: set it"),
        ("mini", {"objectives": [NSP], "model": GPT}, "objectives.nsp .* model.causal false"),
        ("mini", {"objectives": [MLM], "model": GPT}, "objectives.mlm needs model.causal false"),
        ("mini-mntp", {"model": GPT}, "objectives.mntp needs model.causal false"),
        ("mini", {"objectives": [MNTP, MLM]}, "objectives.mntp .* remove objectives.mlm or"),
        ("mini", {"objectives": [MNTP, CLM]}, "objectives.clm .* remove objectives.mntp or"),
        ("mini", {"objectives": [MNTP | {"mask_replace_prob": 0.95}]}, "objectives.mntp: mask_replace_prob .* 1.05"),
        ("mini", {"objectives": [MLM | {"mask_replace_prob": 0.0, "random_replace_prob": 0.0}]}, "mlm: mask_replace"),
        ("mini", {"objectives": [MLM | {"mlm_probability_end": 0.0}]}, "objectives.mlm.mlm_probability_end is 0"),
        ("mini", {"objectives": [MLM | {"mlm_probability_eval": 0.0}]}, "objectives.mlm.mlm_probability_eval is 0"),
        ("mini", {"objectives": [MLM | {"unmasked_sequences": 1.0}]}, "objectives.mlm.unmasked_sequences is 1"),
        ("mini", {"objectives": [SBO]}, 'objectives.sbo .* masking = "spans" before it'),
        ("mini", {"objectives": [MLM | {"masking": "words"}, SBO]}, "objectives.sbo .* before it"),
        ("mini", {"objectives": [SBO, MLM | {"masking": "spans"}]}, "objectives.sbo .* before it"),
        ("mini", {"objectives": [RTD]}, 'objectives.rtd .* kind = "mlm" before it'),
        ("mini", {"objectives": [RTD, MLM]}, 'objectives.rtd .* kind = "mlm" before it'),
        ("mini", {"objectives": [MLM | {"masking": "spans"}, SBO, RTD]}, "remove objectives.sbo or objectives.rtd"),
        ("mini", {"objectives": [MLM, RTD | {"generator_size": 1.5}]}, "objectives.rtd.generator_size"),
        ("mini", {"objectives": [MLM, RTD | {"weight": -1.0}]}, "objectives.rtd.weight"),
        ("mini", {"objectives": [DISTIL]}, 'objectives.distil .* kind = "mlm" before it'),
        ("mini", {"objectives": [NSP, DISTIL, MLM]}, 'objectives.distil .* kind = "mlm" before it'),
        ("mini", {"objectives": [MLM, DISTIL, RTD]}, "remove objectives.rtd or objectives.distil"),
        (
            "mini",
            {"objectives": [UNIGRAM, DISTIL]},
            "objectives.mlm.initialization does not work with objectives.distil.initialization",
        ),
        ("mini", {"objectives": [MLM, DISTIL | {"soft_weight": 0.0}]}, "objectives.distil.soft_weight"),
        ("mini", {"objectives": [PLM]}, 'objectives.plm .* model.kind "transformer": set it to "xlnet"'),
        ("mini-xlnet", {"objectives": [PLM] * 2}, "objectives .* different kind"),
        ("mini-xlnet", {"objectives": [PLM, {"kind": "bilm"}]}, "remove objectives.bilm or objectives.plm"),
        ("mini-xlnet", {"objectives": [MLM]}, 'objectives.mlm .* model.kind "xlnet"'),
        ("mini-xlnet", {"objectives": [PLM | {"plm_probability": 1.0}]}, "objectives.plm.plm_probability"),
        ("mini-elmo", {"objectives": [MLM, RTD]}, 'objectives.mlm .* model.kind "lstm"'),
        ("mini-elmo", {"objectives": [NSP], "layout": {"kind": "pairs"}}, 'objectives.nsp .* model.kind "lstm"'),
        ("mini", {"objectives": [{"kind": "bilm"}]}, 'objectives.bilm .* model.kind "transformer": set it to "lstm"'),
        ("mini", {"objectives": [{"kind": "skip"}]}, 'objectives.skip .* model.kind "transformer": set it to "gru"'),
        ("mini-skip-thoughts", {"objectives": [MLM]}, 'objectives.mlm .* model.kind "gru"'),
        (
            "mini-skip-thoughts",
            {"layout": {"kind": "doc_sentences"}},
            'layout.kind "sentences", and it is "doc_sentences"',
        ),
        ("mini-skip-thoughts", {"objectives": [{"kind": "skip"}, NSP]}, "objectives.nsp"),
        ("mini-transformer-xl", {"objectives": [MLM]}, 'objectives.mlm .* model.kind "transformer_xl"'),
        ("mini-roberta", {"objectives": [NSP]}, 'objectives.nsp needs layout.kind "pairs"'),
        ("mini", {"model": {"type_vocab_size": 1}}, "model.type_vocab_size is 1, but layout.kind"),
        ("mini-sop", {"objectives": [MLM]}, 'layout.negatives "swapped" .* nsp'),
        ("mini-sop", {"model": NO_ORDER}, "layout.negatives .* model.position_embedding"),
        # lengths, segments and phases
        ("mini", {"layout": {"max_length": 600}}, "layout.max_length 600 .*max_position_embeddings 512: change one"),
        ("mini", {"phases": [{"share": 0.5}, {"share": 0.5, "max_length": 600}]}, "phases: max_length 600 .* 512"),
        ("mini", {"phases": [{"share": 0.5}, {"share": 0.5, "max_length": 4}]}, "phases.1.max_length is 4"),
        ("mini", {"phases": [{"share": 0.5}]}, "the shares sum to 0.5: they must sum to 1"),
        ("mini", {"phases": [{"share": 0.9}, {"share": 0.2}]}, "the shares sum to 1.1"),
        (
            "mini",
            {"phases": [{"share": 1e-6}, {"share": 1 - 1e-6}]},
            "phases.0 is less than one of .* steps: raise share",
        ),
        (
            "mini-transformer-xl",
            {"model": {"memory_length": 1025}},
            "model.memory_length is 1025.* layout.max_length 1024",
        ),
        ("mini-transformer-xl", {"model": {"segment_length": 2000}}, "model.segment_length is 2000.* 1024"),
        ("mini-transformer-xl", {"model": {"segment_length": 0}}, "model.segment_length is 0.* at least 1"),
        ("mini-transformer-xl", {"layout": {"kind": "full_sentences"}}, "layout.kind .*full_sentences.*segment_length"),
        ("mini-transformer-xl", {"layout": {"max_length": 20_000}}, "model.max_position_embeddings .* change one"),
        ("mini-xlnet", {"model": {"segment_length": 64}}, "model.segment_length.* model.memory_length.* give both"),
        ("mini-xlnet", {"model": {"segment_length": 64, "memory_length": 64}}, "layout.kind .*model.segment_length 64"),
        # languages
        ("mini", {"model": {"language_embeddings": True}}, 'model.language_embeddings .* layout.kind "translations"'),
        ("mini", {"model": {"languages": ["en"]}}, "model.languages .* model.language_embeddings"),
        ("mini", {"model": {"language": "en"}}, "model.language .* model.language_embeddings"),
        ("mini-xlm", {"model": {"languages": ["en", "en"]}}, "model.languages has a name twice"),
        ("mini-xlm", {"model": {"languages": ["en"], "language": "fr"}}, "model.language is 'fr'"),
        # initial weights
        ("modern-tiny", {"model": {"position_embedding": "learned"}}, 'mlm.initialization is "patterns".*position_emb'),
        ("modern-tiny", {"model": {"embedding_size": 16}}, 'mlm.initialization is "patterns".*embedding_size'),
        ("modern-tiny", {"model": {"mlm_transform": False}}, 'mlm.initialization is "patterns".*mlm_transform'),
        ("modern-tiny", {"objectives": [PATTERNS, RTD]}, 'mlm.initialization is "patterns".*generator'),
        ("mini", {"init_optimizer": "keep"}, "init_from names no checkpoint"),
        # training
        ("mini", {"training": {"static_epochs": -1}}, "training.static_epochs is -1"),
        ("mini", {"training": {"patience": 1, "eval_every": 0}}, "training.patience .* training.eval_every is 0"),
        ("mini", {"training": {"patience": 1}, "phases": [{"share": 0.5}] * 2}, "training.patience .* phases"),
        (
            "mini",
            {"training": {"attention": "varlen", "precision": "fp32"}},
            "training.attention .* training.precision",
        ),
        (
            "mini",
            {"training": {"attention": "varlen"}, "model": {"attention_probs_dropout_prob": 0.1}},
            "varlen .*dropout",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(extends: str, changes: Table, keys: str) -> None:
    with pytest.raises(UsageError, match=keys) as refused:
        read(extends, **changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("extends", "changes"),
    [
        ("mini", {"objectives": [MLM | {"weight": 0.0}, NSP]}),  # masks that are not learned: an ablation
        ("mini", {"objectives": [CLM]}),
        ("mini", {"objectives": [MLM, NSP, RTD]}),
        ("mini", {"objectives": [MLM | {"initialization": "random"}, NSP, DISTIL]}),
        ("mini", {"objectives": [UNIGRAM, DISTIL | {"initialization": "random"}]}),
        ("mini-xlnet", {"layout": {"kind": "pairs"}}),
        ("mini", {"layout": {"max_length": 512}}),
        ("mini", {"layout": {"max_length": 600}, "init_from": "runs/long"}),  # the checkpoint decides
        ("mini-sop", {"model": {"type_vocab_size": 0}}),
        ("mini-sop", {"model": {"position_embedding": "none"}}),  # the segments tell which text is A
    ],
)
def test_unusual_parts_that_fit_are_accepted(extends: str, changes: Table) -> None:
    assert read(extends, **changes).objectives
