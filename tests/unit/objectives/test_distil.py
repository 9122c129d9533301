from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.unit.objectives.random_rows import labeled, row, short_recipe
from tests.unit.small_recipes import interrupted
from torch.utils.flop_counter import FlopCounterMode

import bertie
from bertie.base.errors import UsageError
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import Checkpoint, read_checkpoint
from bertie.model.config import TransformerConfig
from bertie.model.heads.distillation import spaced
from bertie.model.initialization import initialize_weights
from bertie.model.losses.soft_targets import Logits, divergence
from bertie.objectives import Distillation, MaskedLM, NextSentence, ReplacedToken
from bertie.objectives.objective import Labeling
from bertie.pretraining.initial_weights import new_model, read_teacher
from bertie.pretraining.recipe import PretrainConfig
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW

OBJECTIVES = (MaskedLM(), Distillation(initialization="random"))


@pytest.fixture(scope="module")
def teacher(pretrained: Path) -> Checkpoint:
    """Two layers, 32 wide, with segments."""
    return read_checkpoint(pretrained)


@pytest.fixture(scope="module")
def size(tiny_config: TransformerConfig) -> TransformerConfig:
    """A student that is saved as a DistilBERT."""
    return replace(tiny_config, num_hidden_layers=1, type_vocab_size=0, pooler_act="relu")


def random_logits(rows: int, size: int, entries: int, dtype: torch.dtype, grad: bool) -> Logits:
    shapes = ((rows, size), (entries, size), (entries,))
    return Logits(*(torch.randn(shape, dtype=dtype).requires_grad_(grad) for shape in shapes))


def test_targets_are_at_all_tokens_or_at_the_masked_ones(small_tokenizer: Tokenizer) -> None:
    masked, mlm, noted = MaskedLM().label(row(small_tokenizer, 0), Labeling(small_tokenizer, np.random.default_rng(0)))
    given = Labeling(small_tokenizer, np.random.default_rng(0), notes={"mlm": noted})
    after, targets, _ = Distillation().label(masked, given)
    assert after is masked
    assert targets.index.tolist() == list(range(200))
    assert targets.weight.tolist() == [1] * 160 + [0] * 40
    after, targets, _ = Distillation(positions="masked").label(masked, given)
    assert after is masked
    assert targets.index.tolist() == mlm.index.tolist()
    assert targets.weight.tolist() == mlm.weight.tolist()
    with pytest.raises(ValueError, match="not masked"):
        Distillation(positions="masked").label(
            row(small_tokenizer, 0), Labeling(small_tokenizer, np.random.default_rng(0))
        )


@pytest.mark.parametrize("chunk", [1, 7 * 50, 1 << 23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_divergence_agrees_with_torch(chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.model.losses.chunked_loss.CHUNK_LOGITS", chunk)
    torch.manual_seed(0)
    ours, theirs = random_logits(23, 8, 50, dtype, True), random_logits(23, 6, 50, dtype, False)
    weight = torch.rand(23).round(decimals=1).to(dtype)
    total, hits = divergence(ours, theirs, weight, 2.0)
    logits, target = ours.x @ ours.matrix.T + ours.bias, theirs.x @ theirs.matrix.T + theirs.bias
    log_q, log_p = (logits / 2).log_softmax(1), (target / 2).log_softmax(1)
    expected = (F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(1) * weight).sum()
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(hits, ((logits.argmax(1) == target.argmax(1)) * weight).sum())
    gradients = [torch.autograd.grad(3 * loss, list(ours)) for loss in (total, expected)]
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        torch.testing.assert_close(divergence(ours, theirs, weight, 2.0)[0], total.detach())


def test_an_evaluation_computes_the_logits_and_no_gradients() -> None:
    ours, theirs = random_logits(23, 8, 50, torch.float32, True), random_logits(23, 6, 50, torch.float32, False)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        divergence(ours, theirs, torch.ones(23), 2.0)
    assert counter.get_total_flops() == 2 * 23 * (8 + 6) * 50


def test_the_divergence_uses_half_precision_products_under_autocast() -> None:
    torch.manual_seed(0)
    ours, theirs = random_logits(23, 8, 50, torch.float32, True), random_logits(23, 8, 50, torch.float32, False)
    exact = divergence(ours, theirs, torch.ones(23), 2.0)[0]
    with torch.autocast("cpu", torch.bfloat16):
        total, _ = divergence(ours, theirs, torch.ones(23), 2.0)
    assert total.dtype == torch.float32
    assert total != exact
    torch.testing.assert_close(total, exact, rtol=0.02, atol=0)
    gradients = [torch.autograd.grad(loss, list(ours)) for loss in (total, exact)]
    for found, expected in zip(*gradients, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0.1, atol=0.02 * float(expected.abs().max()))


def test_a_copy_of_the_teacher_has_no_loss(teacher: Checkpoint, small_tokenizer: Tokenizer) -> None:
    """The student has dropout in training, the teacher never has."""
    size = replace(teacher.config, hidden_dropout_prob=0.5)  # type: ignore[type-var]
    dropping = replace(teacher, config=size)
    objectives = (MaskedLM(), Distillation())
    model = new_model(size, objectives, 0, teacher=dropping).train()
    objectives[1].initialize(model, None)  # type: ignore[arg-type]
    micro = labeled(small_tokenizer, OBJECTIVES, 0).tensors()
    assert float((loss := model(micro)["distil"]).total.detach() / loss.count) > 0.1
    loss = model.eval()(micro)["distil"]
    assert float(loss.total.detach() / loss.count) == pytest.approx(0, abs=1e-5)
    assert loss.hits == loss.count


def test_the_teacher_is_not_part_of_the_model(
    size: TransformerConfig, teacher: Checkpoint, small_tokenizer: Tokenizer
) -> None:
    model, alone = new_model(size, OBJECTIVES, 0, teacher=teacher), new_model(size, OBJECTIVES, 0)
    assert model.teacher is not None
    assert model.size == alone.size
    assert model.state_dict().keys() == alone.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, alone.state_dict()[name])
    before = [parameter.clone() for part in model.teacher for parameter in part.parameters()]
    optimizer = AdamW().build(model)
    optimizer.param_groups[0]["lr"] = 1e-2
    losses = model.train()(labeled(small_tokenizer, OBJECTIVES, 0).tensors())
    torch.stack([loss.total for loss in losses.values()]).sum().backward()
    optimizer.step()
    after = [parameter for part in model.teacher for parameter in part.parameters()]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in after)
    assert not any(module.training for part in model.teacher for module in part.modules())
    assert {parameter.dtype for part in model.double().teacher or () for parameter in part.parameters()} == {
        torch.float64
    }


def test_layers_are_evenly_spaced() -> None:
    assert spaced(12, 6) == [0, 2, 4, 7, 9, 11]  # as in DistilBERT's release
    assert spaced(4, 2) == [0, 3]
    assert spaced(5, 5) == [0, 1, 2, 3, 4]
    assert spaced(3, 1) == [0]


def test_the_student_begins_with_weights_of_the_teacher(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    theirs = new_model(replace(tiny_config, num_hidden_layers=5), (MaskedLM(),), 3)
    initialize_weights(theirs, 0.3)
    write_model(tmp_path, theirs, small_tokenizer)
    smaller = replace(tiny_config, num_hidden_layers=3, type_vocab_size=0, max_position_embeddings=40)
    objective = Distillation()
    model = new_model(smaller, (MaskedLM(), objective), 0, teacher=read_checkpoint(tmp_path))
    objective.initialize(model, None)  # type: ignore[arg-type]
    wanted = theirs.state_dict()
    for name, tensor in model.state_dict().items():
        for ours, source in ((1, 2), (2, 4)):
            name = name.replace(f"encoder.layers.{ours}.", f"encoder.layers!{source}.")
        assert torch.equal(tensor, wanted[name.replace("!", ".")][: len(tensor)])
    untouched = Distillation(initialization="random")
    model = new_model(smaller, (MaskedLM(), untouched), 0, teacher=read_checkpoint(tmp_path))
    untouched.initialize(model, None)  # type: ignore[arg-type]
    assert not torch.equal(model.encoder.embeddings.word.weight, theirs.encoder.embeddings.word.weight)


@pytest.fixture(scope="module")
def recipe(size: TransformerConfig, pretrained: Path) -> PretrainConfig:
    return short_recipe(size, MaskedLM(), Distillation(teacher=str(pretrained)))


def with_distil(recipe: PretrainConfig, **changes: Any) -> PretrainConfig:
    return replace(recipe, objectives=(recipe.objectives[0], replace(recipe.objectives[1], **changes)))


def test_teachers_that_do_not_fit_are_refused(
    recipe: PretrainConfig, tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    def saved(name: str, tokenizer: Tokenizer, objectives: tuple[Any, ...], **changes: Any) -> str:
        config = replace(tiny_config, **{"vocab_size": tokenizer.size} | changes)
        (tmp_path / name).mkdir()
        write_model(tmp_path / name, new_model(config, objectives, 0), tokenizer)
        return str(tmp_path / name)

    other = Tokenizer.build([*small_tokenizer.vocabulary[:-1], "other"])
    electra = saved("electra", small_tokenizer, (MaskedLM(), ReplacedToken(generator_size=0.5)), embedding_size=24)
    for source, message in (
        ("", r"teacher is empty: .* --objectives\.1\.teacher"),
        (str(tmp_path / "missing"), r"objectives\.distil\.teacher: .*missing does not exist"),
        (saved("words", other, (MaskedLM(),)), "has a different vocabulary from the shards"),
        (saved("bare", small_tokenizer, (NextSentence(),)), "has no masked-LM head"),
        (electra, "has no masked-LM head"),
        (saved("short", small_tokenizer, (MaskedLM(),), max_position_embeddings=31), r"31 tokens: .*max_length 32"),
        (saved("narrow", small_tokenizer, (MaskedLM(),), hidden_size=16), r"model\.hidden_size is 32, .*cosine_weight"),
        (
            saved("inner", small_tokenizer, (MaskedLM(),), intermediate_size=48),
            r"model\.intermediate_size is 64, .* 48",
        ),
        (saved("pre", small_tokenizer, (MaskedLM(),), norm_position="pre"), r"model\.norm_position is post, .* pre"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            read_teacher(with_distil(recipe, teacher=source), small_tokenizer)
        assert "\n" not in str(caught.value)
    narrow = with_distil(
        recipe, teacher=str(tmp_path / "narrow"), cosine_weight=0.0, initialization="random", positions="masked"
    )
    checkpoint = read_teacher(narrow, small_tokenizer)
    model = new_model(replace(narrow.model, vocab_size=500), narrow.objectives, 0, teacher=checkpoint)
    assert model(labeled(small_tokenizer, narrow.objectives, 0).tensors())["distil"].total > 0
    deeper = replace(recipe, model=replace(recipe.model, num_hidden_layers=3))
    with pytest.raises(UsageError, match=r"model\.num_hidden_layers is 3, .* 2"):
        read_teacher(deeper, small_tokenizer)
    assert read_teacher(replace(recipe, objectives=(MaskedLM(),)), small_tokenizer) is None


def test_a_run_is_saved_as_a_distilbert_without_its_teacher(
    recipe: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    bertie.pretrain(recipe, small_shards, run, threads=1)
    model = bertie.load(run)
    assert model.model.kinds == {"mlm"}
    assert bertie.base.storage.read_json(run / "config.json")["architectures"] == ["DistilBertForMaskedLM"]
    assert len(model.fill_mask("The [MASK] in the")[0]) == 5
    checkpoint = run / "checkpoints" / "step-00000008" / "model.safetensors"
    assert checkpoint.read_bytes() == (run / "model.safetensors").read_bytes()
    records = (run / "metrics.jsonl").read_text()
    assert '"distil_loss"' in records
    assert '"distil_accuracy"' in records


def test_a_stopped_run_resumes_with_the_same_teacher_only(
    recipe: PretrainConfig, pretrained: Path, small_shards: Path, tmp_path: Path
) -> None:
    source, kept, run = tmp_path / "teacher", tmp_path / "kept", tmp_path / "run"
    shutil.copytree(pretrained, source)
    config = with_distil(recipe, teacher=str(source))
    bertie.pretrain(config, small_shards, tmp_path / "undisturbed", threads=1)
    with interrupted(lambda counters: counters.step == 5):
        bertie.pretrain(config, small_shards, run, threads=1)
    source.rename(kept)
    with pytest.raises(UsageError, match=r"objectives\.distil\.teacher: .* does not exist"):
        bertie.pretrain(config, small_shards, run, threads=1)
    other = new_model(read_checkpoint(kept).config, (MaskedLM(),), 5)
    source.mkdir()
    write_model(source, other, read_checkpoint(kept).tokenizer)
    with pytest.raises(UsageError, match=r"other weights of objectives\.distil\.teacher"):
        bertie.pretrain(config, small_shards, run, threads=1)
    shutil.rmtree(source)
    kept.rename(source)
    bertie.pretrain(config, small_shards, run, threads=1)
    for file in ("model.safetensors", "checkpoints/step-00000008/training_state/optimizer.safetensors"):
        assert (run / file).read_bytes() == (tmp_path / "undisturbed" / file).read_bytes()
    shutil.rmtree(source)
    assert bertie.pretrain(config, small_shards, run, threads=1)["finished_before"]
