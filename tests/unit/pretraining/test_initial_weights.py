from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from tests.unit.small_recipes import BERT, interrupted, pretraining

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.model_card import CardFacts
from bertie.checkpoints.read import read_checkpoint
from bertie.corpus.prepare import prepare
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining.initial_weights import (
    load_initial_optimizer,
    load_initial_weights,
    new_model,
    read_initial_checkpoint,
)
from bertie.pretraining.recipe import PretrainConfig
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer
from bertie.training.optimizers import NO_BIAS_CORRECTION, AdamW, BertAdam

NEW = ["thean", "##inthe", "☃☃"]


@pytest.fixture(scope="module")
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    return pretraining(tiny_config, warmup=0.1, steps=12, checkpoint_every=5)


@pytest.fixture(scope="module")
def source(config: PretrainConfig, small_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    run = tmp_path_factory.mktemp("source") / "run"
    bertie.pretrain(config, small_shards, run, threads=1)
    return run


@pytest.fixture(scope="module")
def extended(small_tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer.build([*small_tokenizer.vocabulary, *NEW])


@pytest.fixture(scope="module")
def extended_shards(extended: Tokenizer, small_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extended")
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in small_texts[:150]))
    prepare([folder / "text.jsonl"], extended, folder / "shards", eval_share=0.1)
    return folder / "shards"


def evals(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in found if record["split"] == "eval"]


def test_continued_run_begins_with_the_weights_of_the_other_model(
    config: PretrainConfig, source: Path, small_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The size is that of the other model, the dropout that of the recipe. The card names a model of the hub."""
    cached = tmp_path / "models--me--small" / "snapshots" / "0"
    cached.parent.mkdir(parents=True)
    cached.symlink_to(source)
    training = replace(config.training, steps=1, learning_rate=0.0)
    size = replace(config.model, num_hidden_layers=1, hidden_size=8, hidden_dropout_prob=0.3)
    other = replace(config, model=size, training=training, init_from=str(cached), seed=1)
    other = replace(other, card=CardFacts(language=("art",)))
    bertie.pretrain(other, small_shards, tmp_path / "run", threads=1)
    assert f"the size of {cached}: 2 layers of 32, not 1 layer of 8 as in the recipe" in capsys.readouterr().err
    for name in ("mlm_loss", "nsp_accuracy"):
        assert evals(tmp_path / "run")[0][name] == evals(source)[-1][name]
    result = read_checkpoint(tmp_path / "run")
    assert (result.config.num_hidden_layers, result.config.hidden_size) == (2, 32)
    assert result.config.hidden_dropout_prob == 0.3
    card = ModelCard.load(tmp_path / "run" / "README.md").data
    assert (card.base_model, card.base_model_relation, card.language) == ("me/small", "finetune", ["art"])
    scores = {each.metric_name: (each.metric_type, each.metric_value) for each in card.eval_results}
    assert scores["mlm_loss"] == ("loss", pytest.approx(evals(tmp_path / "run")[-1]["mlm_loss"], abs=1e-6))
    assert scores["nsp_accuracy"][0] == "accuracy"
    assert {each.dataset_name for each in card.eval_results} == {"held-out documents of shards"}


def test_added_vocabulary_entries_begin_as_the_mean_of_their_old_pieces(
    tiny_config: TransformerConfig, source: Path, extended: Tokenizer
) -> None:
    start, old = read_initial_checkpoint(source, extended), read_checkpoint(source)
    model = new_model(replace(tiny_config, vocab_size=503), BERT, 1)
    assert load_initial_weights(start, model) == f"continuing from {source}"
    head, before = model.heads["mlm"], old.weights["encoder.embeddings.word.weight"]
    found = model.encoder.embeddings.word.weight
    assert torch.equal(found[:500], before)
    for row, word in enumerate(NEW, 500):
        ids = old.tokenizer.split_entry(word)
        cut = [old.tokenizer.vocabulary[i] for i in ids]
        assert "".join(piece.removeprefix("##") for piece in cut) == (
            "[UNK]" if word == "☃☃" else word.removeprefix("##")
        )
        assert cut[0].startswith("##") == word.startswith("##")
        torch.testing.assert_close(found[row], before[ids].mean(0))
        torch.testing.assert_close(head.bias[row], old.weights["heads.mlm.bias"][ids].mean())


def test_run_continues_with_an_extended_vocabulary(
    config: PretrainConfig, source: Path, extended_shards: Path, tmp_path: Path
) -> None:
    result = bertie.pretrain(
        replace(config, init_from=str(source), init_optimizer="keep"), extended_shards, tmp_path / "run"
    )
    assert result["eval"]["mlm_loss"] < 6
    assert read_checkpoint(tmp_path / "run").tokenizer.size == 503


def test_different_vocabulary_is_refused(source: Path, small_tokenizer: Tokenizer) -> None:
    words = small_tokenizer.vocabulary
    for tokenizer in (
        Tokenizer.build([*words[:400], "new", *words[400:]]),
        Tokenizer.build(words[:-1]),
        Tokenizer.build(words, NormalizerOptions(lowercase=False)),
    ):
        with pytest.raises(UsageError, match="with a different vocabulary from "):
            read_initial_checkpoint(source, tokenizer)


def test_optimizer_state_is_loaded_and_extended(
    tiny_config: TransformerConfig, source: Path, extended: Tokenizer
) -> None:
    start = read_initial_checkpoint(source, extended)
    model = new_model(replace(tiny_config, vocab_size=503), BERT, 1)
    load_initial_weights(start, model)
    optimizer = AdamW().build(model)
    assert "step-00000012" in load_initial_optimizer(start, model, optimizer, "adamw")
    state = optimizer.state[model.encoder.embeddings.word.weight]
    assert float(state["step"]) == 12
    assert state["exp_avg"].shape == (503, 32)
    assert state["exp_avg"][:500].abs().sum() > 0
    assert state["exp_avg_sq"][500:].abs().sum() == 0
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_new_parameters_keep_the_initial_optimizer_state(
    config: PretrainConfig, small_shards: Path, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """For a new head, too, the initial step count of BertAdam disables bias correction."""
    first = replace(config, objectives=(MaskedLM(),), optimizer=BertAdam(), training=replace(config.training, steps=2))
    bertie.pretrain(first, small_shards, tmp_path / "run", threads=1)
    start = read_initial_checkpoint(tmp_path / "run", small_tokenizer)
    model = new_model(start.config, BERT, 1)
    load_initial_weights(start, model)
    optimizer = BertAdam().build(model)
    load_initial_optimizer(start, model, optimizer, "bert_adam")
    assert float(optimizer.state[model.heads["nsp"].out.weight]["step"]) == NO_BIAS_CORRECTION
    assert optimizer.state[model.heads["mlm"].bias]["exp_avg"].abs().sum() > 0


def test_unsuitable_optimizer_state_is_refused(
    tiny_config: TransformerConfig, source: Path, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = new_model(tiny_config, BERT, 1)
    with pytest.raises(UsageError, match="was trained with adamw"):
        load_initial_optimizer(
            read_initial_checkpoint(source, small_tokenizer), model, BertAdam().build(model), "bert_adam"
        )
    bare = shutil.copytree(source, tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(UsageError, match="contains no optimizer state: omit --init-optimizer"):
        load_initial_optimizer(read_initial_checkpoint(bare, small_tokenizer), model, AdamW().build(model), "adamw")
    [*_, newest] = sorted((source / "checkpoints").iterdir())
    alone = shutil.copytree(newest, tmp_path / "alone" / "checkpoint")
    with pytest.raises(UsageError, match="the kind of its optimizer is unknown"):
        load_initial_optimizer(read_initial_checkpoint(alone, small_tokenizer), model, AdamW().build(model), "adamw")
    broken = shutil.copytree(source, tmp_path / "broken")
    for content in ("", "[optimizer]", "optimizer = 3", "optimizer = [1]"):
        (broken / "config.toml").write_text(content)
        with pytest.raises(UserError, match=r"config\.toml is damaged: it has no optimizer\.kind"):
            load_initial_optimizer(
                read_initial_checkpoint(broken, small_tokenizer), model, AdamW().build(model), "adamw"
            )


def test_checkpoint_is_found_by_a_relative_path_without_folders(
    tiny_config: TransformerConfig, source: Path, small_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source / "checkpoints")
    model = new_model(tiny_config, BERT, 1)
    start = read_initial_checkpoint("step-00000012", small_tokenizer)
    assert "step-00000012" in load_initial_optimizer(start, model, AdamW().build(model), "adamw")


def test_run_resumes_after_its_initial_checkpoint_was_deleted(
    config: PretrainConfig, source: Path, small_shards: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(source, tmp_path / "source")
    changed = replace(config, init_from=str(other), model=replace(config.model, hidden_size=8))
    bertie.pretrain(changed, small_shards, tmp_path / "undisturbed", threads=1)
    with interrupted(lambda _: True):
        bertie.pretrain(changed, small_shards, tmp_path / "run", threads=1)
    shutil.rmtree(other)
    bertie.pretrain(changed, small_shards, tmp_path / "run", threads=1)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "undisturbed")]
    assert weights[0] == weights[1]
    with pytest.raises(UsageError, match="does not exist"):
        bertie.pretrain(changed, small_shards, tmp_path / "another", threads=1)


def test_hugging_face_model_without_heads_gets_random_heads(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    start = read_initial_checkpoint(minilm, tokenizer)
    message = load_initial_weights(start, new_model(start.config, BERT, 0))
    assert message == f"continuing from {minilm}; randomly initialized: mlm, nsp heads"
