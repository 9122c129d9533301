"""A model with a memory: its held-out sequences are whole documents, and training documents must be longer than a segment."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.small_recipes import pretraining

import bertie
from bertie.base.errors import UsageError
from bertie.batches.contiguous import DocSentences
from bertie.batches.loader import Position
from bertie.corpus.prepare import prepare
from bertie.corpus.shards import open_shards
from bertie.model.encoders.transformer_xl import TransformerXlConfig
from bertie.model.encoders.xlnet import XlnetConfig
from bertie.objectives import CausalLM, PermutationLM
from bertie.pretraining.long_documents import held_out_layout
from bertie.pretraining.pretrain import set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.distributed import SINGLE_PROCESS

CAUSAL = TransformerXlConfig(2, 32, 2, 64, segment_length=16, memory_length=16)
PERMUTED = XlnetConfig(2, 32, 2, 64, segment_length=16, memory_length=16)


@pytest.fixture(scope="module")
def books(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few documents, each far longer than a row of training."""
    folder = tmp_path_factory.mktemp("books")
    records = [" ".join(small_texts[start : start + 20]) for start in range(0, 200, 20)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in records))
    prepare([folder / "text.jsonl"], small_tokenizer, folder / "shards", eval_share=0.2)
    return folder / "shards"


def recipe(model: Any) -> PretrainConfig:
    objective = CausalLM() if model.kind == "transformer_xl" else PermutationLM()
    settings = {"steps": 2, "batch_size": 4, "learning_rate": 1e-3, "row_tokens": 128}
    return pretraining(model, DocSentences(max_length=64), (objective,), **settings)


@pytest.mark.parametrize("model", [CAUSAL, PERMUTED])
def test_a_held_out_document_is_one_sequence(model: Any, books: Path, tmp_path: Path) -> None:
    """The sequences of the evaluation set, filler apart, are the documents. Training has rows of 64 tokens."""
    shards = open_shards(books)
    setup = set_up(recipe(model), books, tmp_path / "run", 1, SINGLE_PROCESS)
    [[batches]] = map(dict.values, setup.eval_sets)
    lengths = sorted(int(length) for micro in batches for length in micro.batch.ragged.lengths)
    assert lengths == sorted(np.diff(shards.eval.document_starts) + 2)
    assert lengths[0] > 64
    step = next(setup.feed.steps(0, Position()))
    assert max(int(micro.batch.ragged.lengths.max()) for micro in step.micro_batches) <= 64


def test_the_layout_of_other_models_is_that_of_training(books: Path) -> None:
    corpus, layout = open_shards(books).eval, DocSentences(max_length=64)
    assert held_out_layout(replace(PERMUTED, segment_length=0, memory_length=0), layout, corpus) is layout
    shorter = held_out_layout(CAUSAL, replace(layout, short_seq_prob=0.5), corpus)
    assert isinstance(shorter, DocSentences)
    assert shorter.short_seq_prob == 0


def test_the_held_out_loss_is_the_likelihood_of_the_documents(books: Path, tmp_path: Path) -> None:
    """The evaluation of a run, and what its model says of the same texts: the memory is the same."""
    run = tmp_path / "run"
    result = bertie.pretrain(recipe(CAUSAL), books, run, threads=1)
    shards, predictor = open_shards(books), bertie.load(run, threads=1)
    starts = shards.eval.document_starts.tolist()
    sequences = [shards.eval.slice(a, b)[0] for a, b in pairwise(starts)]
    token_model, tokenizer = predictor.token_model(), shards.tokenizer
    found = token_model.next_log_probabilities(
        [np.concatenate([[tokenizer.cls_id], ids, [tokenizer.sep_id]]).astype(np.int32) for ids in sequences]
    )
    assert result["eval"]["clm_loss"] == pytest.approx(-np.concatenate(found).mean(), rel=1e-5)


def test_documents_of_one_segment_are_refused(books: Path, tmp_path: Path) -> None:
    """A memory that is never used is a mistake. Without a memory, segments are enough."""
    longest = int(np.diff(open_shards(books).train.document_starts).max()) + 2
    config = replace(recipe(CAUSAL), layout=DocSentences(max_length=4096))
    config = replace(config, model=replace(CAUSAL, segment_length=longest))
    with pytest.raises(UsageError, match=rf"model\.segment_length {longest} .*model\.memory_length"):
        set_up(config, books, tmp_path / "run", 1, SINGLE_PROCESS)
    none = replace(config, model=replace(config.model, memory_length=0))
    assert set_up(none, books, tmp_path / "run", 1, SINGLE_PROCESS).eval_sets
    shorter = replace(config, model=replace(config.model, segment_length=longest - 1))
    assert set_up(shorter, books, tmp_path / "run", 1, SINGLE_PROCESS).eval_sets
