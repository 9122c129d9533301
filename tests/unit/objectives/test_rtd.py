from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.objectives.random_rows import labeled, row, short_recipe
from torch import Tensor

import bertie
from bertie.base.contracts import MicroBatch, Sequence
from bertie.base.errors import UserError
from bertie.batches.collate import collate
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.read import load_weights, read_checkpoint
from bertie.cli import main
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.model.config import TransformerConfig
from bertie.model.encoders.electra import distinct_rows, fill_masks, sample
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence, ReplacedToken
from bertie.objectives.objective import Labeling
from bertie.predict.fill_mask import encode_masked
from bertie.pretraining.initial_weights import load_initial_weights, new_model
from bertie.tasks import Classify
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

OBJECTIVES = (MaskedLM(random_replace_prob=0.0), ReplacedToken(generator_size=0.5))


@pytest.fixture(scope="module")
def config(tiny_config: TransformerConfig) -> TransformerConfig:
    """An encoder that is saved as an ELECTRA."""
    return replace(tiny_config, embedding_size=24, pooler_act="gelu")


def filled(model: Model, micro: MicroBatch) -> MicroBatch:
    """Return what the encoder reads, and the labels of its head."""
    return fill_masks(model.generator, model.heads["mlm"], micro)[1]  # type: ignore[arg-type]


@contextmanager
def constant_generator(model: Model, token: int) -> Iterator[None]:
    """Let the generator predict one token everywhere."""
    bias: Tensor = model.heads["mlm"].bias  # type: ignore[assignment]
    bias.data[token] = 1e4
    yield
    bias.data[token] = 0


def test_every_ordinary_token_has_a_target(small_tokenizer: Tokenizer) -> None:
    before = row(small_tokenizer, 0)
    masked, _, notes = MaskedLM().label(before, Labeling(small_tokenizer, np.random.default_rng(0)))
    after, targets, _ = ReplacedToken().label(
        masked, Labeling(small_tokenizer, np.random.default_rng(0), notes={"mlm": notes})
    )
    assert after is masked
    assert targets.index.tolist() == list(range(200))
    assert targets.label.tolist() == before.input_ids.tolist() != masked.input_ids.tolist()
    special = {n for start in (0, 40, 80, 120) for n in (start, start + 20, start + 39)} | set(range(160, 200))
    assert set(np.flatnonzero(targets.weight == 0)) == special
    assert targets.draw.dtype == np.float32
    assert 0 <= targets.draw.min() < 0.1 < 0.9 < targets.draw.max() < 1
    with pytest.raises(ValueError, match="not masked"):
        ReplacedToken().label(before, Labeling(small_tokenizer, np.random.default_rng(0)))


def test_samples_by_hand() -> None:
    logits = torch.tensor([0.1, 0.0, 0.2, 0.7]).log().expand(6, 4)
    draws = torch.tensor([0.0, 0.09, 0.1, 0.29, 0.31, 1 - 2**-24])
    assert sample(logits, draws).tolist() == [0, 0, 2, 2, 3, 3]
    assert sample(torch.tensor([[-200.0, 0.0, -200.0]]), torch.tensor([0.5])).tolist() == [1]
    assert sample(logits.bfloat16(), draws).tolist()[0] == 0


def test_distinct_rows_by_hand() -> None:
    """The placeholders of masked language modeling share position 0. Their rows go to positions without a target."""
    assert distinct_rows(torch.tensor([5, 2, 7]), 9).tolist() == [2, 5, 7]
    assert distinct_rows(torch.tensor([5, 2, 0, 0, 0]), 9).tolist() == [0, 1, 2, 3, 5]
    assert distinct_rows(torch.tensor([1, 1]), 2).tolist() == [0, 1]


def test_the_generator_fills_masked_tokens_only(config: TransformerConfig, small_tokenizer: Tokenizer) -> None:
    objectives = (MaskedLM(mask_replace_prob=0.1, random_replace_prob=0.8), OBJECTIVES[1])
    numpy = labeled(small_tokenizer, objectives, 0, 1)
    micro = numpy.tensors()
    model = new_model(config, objectives, 0)
    masked, tokens = micro.targets["mlm"], micro.targets["rtd"]
    chosen = masked.index[masked.weight > 0]
    assert 0 < len(chosen) < len(masked.index)  # there are placeholders, too
    with constant_generator(model, 123):
        after = filled(model, micro)
    expected = tokens.label.clone()
    expected[chosen] = 123
    assert torch.equal(after.batch.input_ids, expected)
    replaced = after.targets["rtd"]
    assert replaced.label.sum() == (tokens.label[chosen] != 123).sum() == len(chosen)
    assert torch.equal(replaced.label.nonzero()[:, 0], chosen.sort().values)
    assert torch.equal(replaced.weight, tokens.weight)
    assert set(after.targets) == {"rtd"}
    assert (micro.batch.input_ids.numpy() == numpy.batch.input_ids).all()  # the input is not changed


def test_a_sample_that_is_the_original_token_counts_as_original(
    config: TransformerConfig, small_tokenizer: Tokenizer
) -> None:
    micro = labeled(small_tokenizer, OBJECTIVES, 0).tensors()
    model = new_model(config, OBJECTIVES, 0)
    masked, tokens = micro.targets["mlm"], micro.targets["rtd"]
    chosen = masked.index[masked.weight > 0]
    original = int(tokens.label[chosen[0]])
    with constant_generator(model, original):
        replaced = filled(model, micro).targets["rtd"].label
    assert replaced[chosen[0]] == 0
    assert replaced[chosen].tolist() == (tokens.label[chosen] != original).long().tolist()
    assert replaced.sum() >= len(chosen) - 2


def test_no_gradient_flows_through_the_samples(config: TransformerConfig, small_tokenizer: Tokenizer) -> None:
    micro = labeled(small_tokenizer, OBJECTIVES, 0).tensors()
    model = new_model(config, OBJECTIVES, 0)
    model(micro)["rtd"].total.backward()
    owned = [*model.generator.parameters(), *model.heads["mlm"].parameters()]  # type: ignore[union-attr]
    assert all(parameter.grad is None for parameter in owned)
    assert all(parameter.grad is not None for parameter in model.encoder.parameters())
    model.zero_grad()
    model(micro)["mlm"].total.backward()
    assert all(parameter.grad is not None for parameter in owned)
    shared = {"embeddings.word.weight", "embeddings.position.weight", "embeddings.segment.weight"}
    shared |= {"embeddings.norm.weight", "embeddings.norm.bias"}
    assert {name for name, parameter in model.encoder.named_parameters() if parameter.grad is not None} == shared


def test_sizes_of_the_generators_of_the_paper() -> None:
    """Clark et al. 2020, table 6: 64 wide with one head for small, 256 with four for base and large."""
    small = TransformerConfig(12, 256, 4, 1024, embedding_size=128)
    base, large = TransformerConfig(12, 768, 12, 3072), TransformerConfig(24, 1024, 16, 4096)
    for config, size, wanted in (
        (small, 0.25, (12, 64, 1, 256, 128)),
        (base, 0.333, (12, 256, 4, 1024, 768)),
        (large, 0.25, (24, 256, 4, 1024, 1024)),
    ):
        found = ReplacedToken(generator_size=size).generator(config)
        sizes = (found.num_hidden_layers, found.hidden_size, found.num_attention_heads, found.intermediate_size)
        assert (*sizes, found.embedding_width) == wanted
    assert ReplacedToken(generator_layers=3).generator(small).num_hidden_layers == 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"embedding_size": 0, "pooler_act": "tanh"},
        {"position_embedding": "rotary", "norm_position": "pre"},
        {"embedding_size": 0, "mlm_transform": False},
    ],
    ids=["electra", "bert", "rotary", "bare-head"],
)
def test_a_saved_model_loads_with_its_generator(
    config: TransformerConfig,
    small_tokenizer: Tokenizer,
    tmp_path: Path,
    changes: dict[str, Any],
) -> None:
    objectives = (*OBJECTIVES, NextSentence())
    model = new_model(replace(config, **changes), objectives, 0).eval()
    write_model(tmp_path, model, small_tokenizer)
    loaded = bertie.load(tmp_path).model
    assert loaded.kinds == {objective.kind for objective in objectives}
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    micro = labeled(small_tokenizer, objectives, 0).tensors()
    with torch.no_grad():
        for name, loss in model(micro).items():
            assert loaded(micro)[name].total == loss.total


def test_damaged_sizes_of_a_generator_are_reported(
    config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    write_model(tmp_path, new_model(config, OBJECTIVES, 0), small_tokenizer)
    path = tmp_path / "config.json"
    values = bertie.base.storage.read_json(path)
    assert values["generator"] == {
        **{"num_hidden_layers": 2, "hidden_size": 16},
        **{"num_attention_heads": 2, "intermediate_size": 32},
    }
    for damage, message in (
        (None, "does not describe the generator"),
        ({"hidden_size": 16}, r"generator\.num_hidden_layers is None"),
        (values["generator"] | {"hidden_size": "16"}, r"generator\.hidden_size is '16'"),
        (values["generator"] | {"hidden_size": 15}, "not a multiple of 2 heads"),
        (values["generator"] | {"hidden_size": 10**6}, r"generator\.\S+ should be"),
    ):
        bertie.base.storage.write_json(path, values | {"generator": damage})
        with pytest.raises(UserError, match=message):
            read_checkpoint(tmp_path)


@pytest.fixture(scope="module")
def run(config: TransformerConfig, small_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("electra") / "run"
    bertie.pretrain(short_recipe(config, *OBJECTIVES), small_shards, folder, threads=1)
    return folder


def test_fill_mask_asks_the_generator(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fill-mask", str(run), "The [MASK] in the", "--json"]) == 0
    output = capsys.readouterr()
    assert "predictions of the generator" in output.err
    model = bertie.load(run)
    [found] = model.fill_mask("The [MASK] in the", top_k=500)
    assert sum(prediction.probability for prediction in found) == pytest.approx(1, abs=1e-4)
    ids, [position] = encode_masked(model.token_model(), "The [MASK] in the")
    sequence = Sequence(ids, np.zeros_like(ids), np.ones(len(ids), bool))
    hidden = model.model.generator(collate([sequence], 64).tensors())  # type: ignore[misc]
    p = model.model.heads["mlm"].logits(hidden.last)[position].softmax(-1)  # type: ignore[operator]
    assert json.loads(output.out)["masks"][0][0]["token"] == found[0].token
    assert found[0].probability == pytest.approx(float(p.detach().max()), rel=1e-4)


def test_fine_tuning_drops_the_generator(run: Path, small_texts: list[str], tmp_path: Path) -> None:
    training = FinetuneTraining(steps=2, batch_size=8, learning_rate=1e-3, precision="fp32")
    config = FinetuneConfig(Classify(), AdamW(), LinearDecay(), training, max_length=32)
    rows = [{"text": text[:60], "label": "ab"[i % 2]} for i, text in enumerate(small_texts[:24])]
    tuned = bertie.finetune(config, rows[:16], run, tmp_path / "tuned", dev=rows[16:], threads=1)
    assert tuned.model.generator is None
    assert tuned.model.kinds == {"classify"}
    assert not any(name.startswith("generator") for name in read_checkpoint(tmp_path / "tuned").weights)
    assert bertie.load(run).embed(["The end"]).shape == (1, 32)


def test_a_run_continues_from_another_with_or_without_its_generator(
    run: Path, config: TransformerConfig, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    start = read_checkpoint(run)
    same = new_model(start.config, OBJECTIVES, 1)
    assert load_initial_weights(start, same) == f"continuing from {run}"
    smaller = new_model(start.config, (OBJECTIVES[0], ReplacedToken(generator_layers=1)), 1)
    message = load_initial_weights(start, smaller)
    assert (
        message
        == f"continuing from {run}; dropped: generator and mlm head; randomly initialized: generator and mlm head"
    )
    plain = new_model(start.config, (MaskedLM(),), 1)
    before = plain.heads["mlm"].state_dict()["bias"].clone()
    message = load_initial_weights(start, plain)
    assert message == f"continuing from {run}; dropped: generator and mlm, rtd heads; randomly initialized: mlm head"
    assert torch.equal(plain.heads["mlm"].state_dict()["bias"], before)
    write_model(tmp_path, plain, small_tokenizer)
    assert load_weights(new_model(config, OBJECTIVES, 1), read_checkpoint(tmp_path)).dropped == ("mlm",)
