"""Several data sets in a pre-training: their rows take turns by weights, their losses are apart, and a run resumes exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.small_recipes import interrupted, pretraining

import bertie
from bertie.base.errors import UsageError
from bertie.batches.loader import Position
from bertie.corpus.prepare import prepare
from bertie.corpus.shards import open_shards
from bertie.model.config import TransformerConfig
from bertie.pretraining.budget_plan import Target
from bertie.pretraining.phases import Phase
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.sources import epochs_of_run, planned_epochs
from bertie.tokenizers.tokenizer import Tokenizer

PHASES = (Phase(0.75, weights=(3.0, 1.0)), Phase(0.25, weights=(0.0, 1.0)))


@pytest.fixture(scope="module")
def sets(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders: list[Path] = []
    for name, texts in (("news", small_texts[:60]), ("books", small_texts[60:100])):
        folder = tmp_path_factory.mktemp(name)
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        prepare([folder / "text.jsonl"], small_tokenizer, folder / name, eval_share=0.2)
        folders.append(folder / name)
    return folders


@pytest.fixture
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    recipe = pretraining(tiny_config, steps=12, eval_every=4, max_eval_tokens=2000, checkpoint_every=1)
    return replace(recipe, phases=PHASES)


def records(run: Path, split: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "tokens_per_second", "utilization")}
        for record in found
        if record["split"] == split
    ]


@pytest.fixture
def undisturbed(config: PretrainConfig, sets: list[Path], tmp_path: Path) -> Path:
    bertie.pretrain(config, sets, tmp_path / "undisturbed", threads=1)
    return tmp_path / "undisturbed"


def test_rows_take_turns_by_weights_and_the_last_phase_has_its_own(
    config: PretrainConfig, sets: list[Path], undisturbed: Path
) -> None:
    shards, phases = open_shards(sets), config.resolved_phases
    steps = records(undisturbed, "train")
    tokens = np.array([step["source_tokens"] for step in steps])
    first = tokens[:9].sum(0)
    row = phases[0].shape.row_tokens
    assert abs(first[0] - 0.75 * first.sum()) <= row
    assert not tokens[9:, 0].any()
    assert tokens[9:, 1].all()
    read = epochs_of_run(undisturbed, shards)
    assert [*read] == ["news", "books"]
    assert read == pytest.approx(planned_epochs(phases, shards), rel=0.1)
    page = (undisturbed / "report.html").read_text(encoding="utf-8")
    assert page.index("Data sets") < page.index("Settings and machine")
    last = records(undisturbed, "eval")[-1]
    assert (
        min(last["mlm_loss@news"], last["mlm_loss@books"])
        <= last["mlm_loss"]
        <= max(last["mlm_loss@news"], last["mlm_loss@books"])
    )
    assert last["loss"] == pytest.approx(last["mlm_loss"] + last.get("nsp_loss", 0))


def test_a_row_is_of_one_data_set(config: PretrainConfig, sets: list[Path]) -> None:
    shards, phase = open_shards(sets), config.resolved_phases[0]
    plans = phase.loader(shards, 0).steps(Position())
    first, later = next(plans), [next(plans) for _ in range(3)][-1]
    again = next(phase.loader(shards, 0).steps(Position(0, 3)))
    for one, other in zip(later.all_rows, again.all_rows, strict=True):
        np.testing.assert_array_equal(one.input_ids, other.input_ids)
    words = [
        set(np.concatenate([np.asarray(tokens) for tokens in part.train.tokens]).tolist()) for part in shards.parts
    ]
    special = set(shards.tokenizer.special_ids.tolist())
    assert all(any({*row.input_ids.tolist()} - special <= known for known in words) for row in first.all_rows)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_run_resumes_to_the_same_bytes(
    config: PretrainConfig, sets: list[Path], undisturbed: Path, tmp_path: Path, workers: int
) -> None:
    settings = replace(config, training=replace(config.training, workers=workers))
    for step in (2, 9, 10):
        with interrupted(lambda counters, step=step: counters.step == step):
            bertie.pretrain(settings, sets, tmp_path / "run", threads=1)
    bertie.pretrain(settings, sets, tmp_path / "run", threads=1)
    assert records(tmp_path / "run", "train") == records(undisturbed, "train")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()


def test_without_weights_each_text_has_as_many_epochs(config: PretrainConfig, sets: list[Path], tmp_path: Path) -> None:
    bertie.pretrain(replace(config, phases=()), sets, tmp_path / "run", threads=1)
    shards = open_shards(sets)
    assert shards.tokens == sum(open_shards(each).tokens for each in sets)
    news, books = epochs_of_run(tmp_path / "run", shards).values()
    assert news == pytest.approx(books)
    assert "mlm_loss@books" in records(tmp_path / "run", "eval")[-1]


def test_one_data_set_may_have_a_weight(config: PretrainConfig, sets: list[Path], tmp_path: Path) -> None:
    bertie.pretrain(replace(config, phases=(), weights=(1.0,)), sets[0], tmp_path / "run", threads=1)
    assert records(tmp_path / "run", "train")[0]["source_tokens"]


def test_a_plan_counts_the_epochs_of_each_data_set(sets: list[Path]) -> None:
    shards = open_shards(sets)
    target = Target("cpu", None, 0.3, 1, 1e9, shards, 60.0, (1.0, 1.0))
    assert [tokens for tokens, _ in target.of_sources(1000)] == [500, 500]
    assert target.useful(1e5) < replace(target, weights=()).useful(1e5)


def test_what_does_not_fit_is_refused(
    config: PretrainConfig, sets: list[Path], small_shards: Path, translated_shards: Path, tmp_path: Path
) -> None:
    def run(data: Any, **changes: Any) -> None:
        bertie.pretrain(replace(config, **{"phases": (), **changes}), data, tmp_path / "run", threads=1)

    for weights in ((-1.0, 2.0), (0.0, 0.0)):
        with pytest.raises(UsageError, match=r"weights .*: give numbers of 0 or more, and one above 0"):
            run(sets, weights=weights)
    with pytest.raises(UsageError, match="give one for each data set: news, books"):
        run(sets, weights=(1.0, 2.0, 3.0))
    with pytest.raises(UsageError, match=r"weights .*: give one for each data set: "):
        run(small_shards, weights=(1.0, 2.0))
    with pytest.raises(UsageError, match="two have the same text"):
        run([sets[0], sets[0]])
    with pytest.raises(UsageError, match="has another tokenizer than"):
        run([sets[0], translated_shards])
    large = replace(config.training, batch_size=1000)
    with pytest.raises(UsageError, match=r"books has [\d,]+ tokens, fewer than a step's"):
        run(sets, weights=(0.0, 1.0), training=large)
    with pytest.raises(UsageError, match="static_epochs is for one data set"):
        run(sets, weights=(1.0, 1.0), training=replace(config.training, static_epochs=1))
    assert not (tmp_path / "run").exists()
