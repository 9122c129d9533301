"""Importance of heads: gradients against finite differences, masking against zeroed weights."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bertie
from bertie.base.contracts import Batch, MicroBatch, Ragged, Targets
from bertie.base.errors import UserError
from bertie.checkpoints.folder import write_model
from bertie.inspect.attention import gated
from bertie.inspect.heads.importance import (
    HeadLosses,
    first_sequences,
    head_importance,
    masked_losses,
    mean_and_error,
    task_losses,
    text_losses,
)
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.encoders.electra import build_generator
from bertie.model.initialization import initialize_weights
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.objectives import MaskedLM, ReplacedToken
from bertie.objectives.heads import build_heads
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.tasks import Choose, Classify, Embed, Tag
from bertie.tasks.task import build_head
from bertie.tasks.task_json import features_from_json, to_task_json
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer

ROWS = [("a long one: the gat gatun in the fet", "x"), ("the sh the", "y"), ("go the fet", "x")] * 2


def losses_of(predictor: Predictor, seed: int = 0) -> HeadLosses:
    sequences = truncation.encode(predictor.tokenizer, [text for text, _ in ROWS], max_length=32)
    return text_losses(predictor, sequences, seed)


def electra(config: TransformerConfig, tokenizer: Tokenizer, folder: Path) -> Predictor:
    torch.manual_seed(0)
    encoder = build_encoder(config)
    generator = build_generator(ReplacedToken(generator_size=0.5).generator(config), encoder)
    model = Model(encoder, build_heads([MaskedLM(), ReplacedToken()], encoder, generator), generator=generator)
    initialize_weights(model, 0.3)
    return Predictor(folder, tokenizer, model.eval(), None, 64)


def causal(config: TransformerConfig, tokenizer: Tokenizer, folder: Path) -> Predictor:
    torch.manual_seed(0)
    model = Model(build_encoder(replace(config, causal=True, norm_position="pre", type_vocab_size=0)), {})
    initialize_weights(model, 0.3)
    return Predictor(folder, tokenizer, model.eval(), None, 64)


TASKS = {
    "classify": (Classify(labels=("x", "y")), "classify.tsv"),
    "pooled": (Classify(labels=("x", "y"), pooling="max", paired=True), "pairs.tsv"),
    "tag": (Tag(labels=("X", "Y")), "tag.conll"),
    "choose": (Choose(), "choose.jsonl"),
    "embed": (Embed(), "similar.tsv"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labeled examples of every task."""
    folder = tmp_path_factory.mktemp("data")
    pairs = "".join(f"{text}\tthe gat\t{label}\n" for text, label in ROWS)
    (folder / "pairs.tsv").write_text(f"text\ttext_pair\tlabel\n{pairs}")
    (folder / "similar.tsv").write_text("text\ttext_pair\n" + "".join(f"{text}\t{text} go\n" for text, _ in ROWS))
    (folder / "classify.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS))
    words = ["".join(f"{word} {label.upper()}\n" for word in text.split()) for text, label in ROWS]
    (folder / "tag.conll").write_text("\n".join(words))
    endings = {"ending0": "the gat", "ending1": "go the fet in"}
    rows = [json.dumps({"context": text, **endings, "label": int(label == "x")}) for text, label in ROWS]
    (folder / "choose.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def tuned(kind: str, config: TransformerConfig, tokenizer: Tokenizer, folder: Path) -> Path:
    """Write a model with a random head for a task."""
    task, _ = TASKS[kind]
    torch.manual_seed(0)
    values = to_task_json(task, 32, "last", 0)
    reading = features_from_json(values, task, config, "the task")
    model = Model(build_encoder(config), {task.kind: build_head(task, config, 32)}, reading)
    initialize_weights(model, 0.3)
    write_model(folder, model, tokenizer, values)
    return folder


def without_head(encoder: TransformerEncoder, layer: int, head: int) -> None:
    """Set the weights of a head to zero. They are 8 columns of the output projection."""
    encoder.layers[layer].attention.out.weight.data[:, 8 * head : 8 * head + 8] = 0  # type: ignore[union-attr]


def total_loss(losses: HeadLosses, model: Model) -> np.ndarray:
    with torch.inference_mode():
        return np.array([float(model(micro.tensors())[losses.kind].total) for micro in losses.batches])


@pytest.fixture(params=["mlm", "clm", "rtd", *TASKS])
def losses(
    request: pytest.FixtureRequest,
    pretrained: Path,
    tiny_config: TransformerConfig,
    small_tokenizer: Tokenizer,
    data: Path,
    tmp_path: Path,
) -> HeadLosses:
    kind = request.param
    if kind == "mlm":
        return losses_of(load(pretrained))
    if kind in ("clm", "rtd"):
        return losses_of((causal if kind == "clm" else electra)(tiny_config, small_tokenizer, tmp_path))
    predictor = load(tuned(kind, tiny_config, small_tokenizer, tmp_path))
    return task_losses(predictor, data / TASKS[kind][1], max_tokens=1000, seed=0)


def test_masking_a_head_equals_zeroed_weights(losses: HeadLosses) -> None:
    whole, without, counts = masked_losses(losses)
    np.testing.assert_allclose(whole, total_loss(losses, losses.model), rtol=1e-5)
    assert counts.sum() > 5
    for layer, head in ((0, 1), (1, 3)):
        changed = deepcopy(losses.model)
        assert isinstance(changed.encoder, TransformerEncoder)
        without_head(changed.encoder, layer, head)
        for copied, kept in zip(changed.heads.values(), losses.model.heads.values(), strict=True):
            if hasattr(kept, "word"):  # the word embeddings, which are no submodule of the head
                copied.word = (changed.encoder.embeddings.word,)
        expected = total_loss(losses, changed)
        np.testing.assert_allclose(without[layer, head], expected, rtol=1e-4)
        assert np.abs(expected - whole).max() > 1e-4


def test_importance_equals_a_finite_difference(losses: HeadLosses) -> None:
    """Every batch here is one text (or example), or compares its texts."""
    encoder = losses.model.encoder.double()
    losses.model.double()
    assert isinstance(encoder, TransformerEncoder)
    found = head_importance(losses)
    assert found.min() >= 0
    if losses.kind == "embed":  # a batch has two pairs, which have gradients of their own
        assert found.max() > 0
        return
    count = sum(micro.counts[losses.kind] for micro in losses.batches)
    for layer, head in ((0, 2), (1, 0)):
        expected = 0.0
        for micro in losses.batches:
            assert len(np.unique(micro.batch.example)) == 1
            ends = []
            for step in (1e-3, -1e-3):
                gates = torch.ones(2, 4, dtype=torch.float64)
                gates[layer, head] += step
                with torch.inference_mode(), gated(encoder, gates):
                    ends.append(float(losses.model(micro.tensors())[losses.kind].total))
            expected += abs(ends[0] - ends[1]) / 2e-3
        assert found[layer, head] == pytest.approx(expected / count, rel=2e-3, abs=1e-7)


def test_importance_of_texts_does_not_depend_on_the_batches(pretrained: Path) -> None:
    """The sizes of the gradients add up, not the gradients, which could cancel each other."""
    single = losses_of(load(pretrained))
    assert len(single.batches) == len(ROWS)
    joined = replace(single, batches=[join(single.batches)])
    np.testing.assert_allclose(head_importance(joined), head_importance(single), rtol=1e-4, atol=1e-7)


def join(batches: list[MicroBatch]) -> MicroBatch:
    """Put batches of one text each into one."""
    lengths = [len(micro.batch.input_ids) for micro in batches]
    starts = np.cumsum([0, *lengths])
    arrays = {name: np.concatenate([micro.batch.arrays[name] for micro in batches]) for name in batches[0].batch.arrays}
    ragged = Ragged(starts.astype(np.int32), 32)
    index = [micro.rows[micro.targets["mlm"].index] + start for micro, start in zip(batches, starts, strict=False)]
    label, weight = (np.concatenate([getattr(m.targets["mlm"], name) for m in batches]) for name in ("label", "weight"))
    return MicroBatch.of(Batch(**arrays, ragged=ragged), {"mlm": Targets(np.concatenate(index), label, weight)})


def test_only_the_first_tokens_are_used(small_tokenizer: Tokenizer) -> None:
    sequences = truncation.encode(small_tokenizer, [text for text, _ in ROWS])
    size = len(sequences[0]) + len(sequences[1])
    assert first_sequences([sequences[:5], sequences[5:]], size) == sequences[:2]
    assert first_sequences([sequences], 1) == sequences[:1]


def test_the_error_of_a_mean_is_that_of_independent_batches() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    means, errors = [], []
    for _ in range(400):
        counts = rng.integers(5, 30, 16).astype(float)
        totals = 0.3 * counts + rng.normal(size=16) * np.sqrt(counts)
        mean, error = mean_and_error(totals[None], counts)
        means.append(mean[0])
        errors.append(error[0])
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)
    assert np.isnan(mean_and_error(np.ones((1, 1)), np.ones(1))[1]).all()


def test_a_model_without_a_head_is_skipped_with_a_reason(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", Model(build_encoder(tiny_config), {}), small_tokenizer)
    (tmp_path / "text.txt").write_text("go\nthe gat\n")
    result = bertie.inspect_model(tmp_path / "model", bertie.Inspection(text=tmp_path / "text.txt"), tmp_path / "out")
    assert "head_importance" not in result["tables"]
    assert "no trained head" in result["loss"]["skipped"]
    assert "skipped, because" in capsys.readouterr().err


def test_a_loss_that_is_no_number_is_an_error(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, data: Path, tmp_path: Path
) -> None:
    predictor = load(tuned("classify", tiny_config, small_tokenizer, tmp_path))
    for parameter in predictor.model.heads.parameters():
        parameter.data.fill_(3e38)
    with pytest.raises(UserError, match="the loss is NaN or infinity"):
        bertie.inspect_model(predictor, bertie.Inspection(task_data=data / "classify.tsv"), tmp_path / "out")


def test_a_fine_tuned_model_needs_labeled_data(
    tiny_config: TransformerConfig, small_tokenizer: Tokenizer, data: Path, pretrained: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    folder = tuned("classify", tiny_config, small_tokenizer, tmp_path / "model")
    (tmp_path / "text.txt").write_text("go\nthe gat\n")
    texts = bertie.Inspection(text=tmp_path / "text.txt")
    result = bertie.inspect_model(folder, texts, tmp_path / "out")
    assert "give --task-data FILE" in result["loss"]["skipped"]
    labeled = bertie.Inspection(task_data=data / "classify.tsv", loss_tokens=60)
    result = bertie.inspect_model(folder, labeled, tmp_path / "out")
    assert result["tables"] == ["head_importance"]
    assert (result["loss"]["kind"], result["loss"]["tokens"]) == ("classify", pytest.approx(52, abs=9))
    with pytest.raises(UserError, match="not fine-tuned for a task"):
        bertie.inspect_model(pretrained, labeled, tmp_path / "out")
