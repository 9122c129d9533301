"""Comparison with BERT in transformers: the same outputs from the same weights, in both directions, and the same training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bertie
from bertie.base import seeding
from bertie.base.contracts import MicroBatch, Sequence, Targets
from bertie.batches.collate import collate
from bertie.batches.sentence_pairs import SentencePairs
from bertie.checkpoints.families import bert, family
from bertie.checkpoints.huggingface import shapes_of
from bertie.checkpoints.read import Checkpoint, load_weights, read_checkpoint
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.texts import Example, LabeledTexts
from bertie.files.model_folder import ModelFolder
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.heads.heads import PooledHead
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.model import Model
from bertie.objectives import MaskedLM, NextSentence
from bertie.objectives.heads import build_heads
from bertie.predict.vectors import head_outputs
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.tasks.classify import Classify
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
transformers.utils.logging.disable_progress_bar()
OBJECTIVES = (MaskedLM(), NextSentence())
LENGTHS = (9, 40, 3, 21)
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def read_examples(path: Path) -> list[Example]:
    return valid_examples(Reader(LabeledTexts()).read(path), str(path), strict=True)


@pytest.fixture(scope="module", params=[(2, 256, 4, 1024), pytest.param((12, 768, 12, 3072), marks=pytest.mark.slow)])
def base(request: pytest.FixtureRequest) -> Any:
    """A BERT with both heads and random weights, larger than BERT's initial ones, so that attention is not uniform."""
    torch.manual_seed(0)
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    sizes = dict(zip(names, request.param, strict=True)) | NO_DROPOUT
    initial = 0.03 * (768 / request.param[1]) ** 0.5
    config = transformers.BertConfig(**sizes, initializer_range=initial, attn_implementation="eager")
    return transformers.BertForPreTraining(config).eval()


@pytest.fixture(scope="module")
def our_base(base: Any, small_tokenizer: Tokenizer) -> Model:
    theirs = base.config
    sizes = (theirs.num_hidden_layers, theirs.hidden_size, theirs.num_attention_heads, theirs.intermediate_size)
    config = TransformerConfig(*sizes, 30522, **NO_DROPOUT)
    encoder = build_encoder(config)
    model = Model(encoder, build_heads(OBJECTIVES, encoder))
    own = base.state_dict()
    assert family.untie(bert.FAMILY, own, tied=True) == ""
    weights, unknown = family.from_huggingface(bert.FAMILY, own, {"mlm": "masked", "nsp": "pair"})
    assert unknown == []
    loaded = load_weights(model, Checkpoint(ModelFolder(Path("random")), bert.FAMILY, config, weights, small_tokenizer))
    assert (loaded.initialized, loaded.dropped) == ((), ())
    return model.eval()


@pytest.fixture(scope="module")
def sequences() -> list[Sequence]:
    rng = np.random.default_rng(0)
    result = []
    for n in LENGTHS:
        ids, segments = rng.integers(0, 30522, n).astype(np.int32), (np.arange(n) > n // 2).astype(np.int32)
        result.append(Sequence(ids, segments, np.ones(n, bool), pair_label=int(rng.integers(0, 2))))
    return result


def padded(sequences: list[Sequence]) -> dict[str, Tensor]:
    """The sequences as padded inputs of transformers."""

    def rows(arrays: list[np.ndarray]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(
            [torch.as_tensor(a, dtype=torch.int64) for a in arrays], batch_first=True
        )

    return {
        "input_ids": rows([s.input_ids for s in sequences]),
        "token_type_ids": rows([s.token_type_ids for s in sequences]),
        "attention_mask": rows([np.ones(len(s)) for s in sequences]),
    }


def test_logits_agree(base: Any, our_base: Model, sequences: list[Sequence]) -> None:
    mlm, nsp = our_base.heads["mlm"], our_base.heads["nsp"]
    assert isinstance(mlm, MaskedLMHead)
    assert isinstance(nsp, PooledHead)
    batch = collate(sequences, 64).tensors()
    with torch.inference_mode():
        theirs = base(**padded(sequences))
        hidden = our_base.encoder(batch).last
        ours = mlm.logits(hidden).split(LENGTHS), nsp.logits(hidden[batch.ragged.cu_seqlens[:-1]])
    assert theirs.prediction_logits.std() > 0.1  # the logits differ, so that the comparison means something
    for number, (found, n) in enumerate(zip(ours[0], LENGTHS, strict=True)):
        assert (found - theirs.prediction_logits[number, :n]).abs().max() < 2e-5
    assert (ours[1] - theirs.seq_relationship_logits).abs().max() < 2e-5


def test_gradients_of_all_parameters_agree(base: Any, our_base: Model, sequences: list[Sequence]) -> None:
    """One batch with both objectives in single precision. Losses agree, and gradients within a relative error of 1e-4."""
    rng = np.random.default_rng(1)
    batch = collate(sequences, 64)
    index = np.sort(rng.choice(sum(LENGTHS), 12, replace=False))
    placeholders = np.zeros(3, np.int64)  # with weight 0
    mlm = Targets(
        np.append(index, placeholders),
        np.append(rng.integers(0, 30522, 12), placeholders),
        np.repeat(np.float32([1, 0]), [12, 3]),
    )
    nsp = Targets(batch.ragged.cu_seqlens[:-1], batch.pair_label, np.ones(4, np.float32))
    losses = our_base(MicroBatch.of(batch, {"mlm": mlm, "nsp": nsp}).tensors())
    sum(loss.total / loss.count for loss in losses.values()).backward()  # type: ignore[union-attr]

    flat = np.full(sum(LENGTHS), -100)
    flat[index] = mlm.label[:12]
    labels = torch.full((4, max(LENGTHS)), -100)
    for row, part in enumerate(np.split(flat, np.cumsum(LENGTHS)[:-1])):
        labels[row, : len(part)] = torch.as_tensor(part)
    theirs = base(
        **padded(sequences), labels=labels, next_sentence_label=torch.as_tensor(batch.pair_label, dtype=torch.int64)
    )
    theirs.loss.backward()
    ours = sum(float(loss.total.detach() / loss.count) for loss in losses.values())
    assert ours == pytest.approx(theirs.loss.item(), rel=1e-6)

    found = {name: parameter.grad for name, parameter in our_base.named_parameters()}
    gradients = family.to_huggingface(
        bert.FAMILY,
        {name: gradient for name, gradient in found.items() if gradient is not None},
        shapes_of(our_base),
    )
    expected = {name: parameter.grad for name, parameter in base.named_parameters() if parameter.grad is not None}
    assert gradients.keys() == expected.keys()
    assert len(gradients) == 5 + base.config.num_hidden_layers * 16 + 2 + 5 + 2
    for name, gradient in gradients.items():
        if name.endswith("attention.self.key.bias"):  # shifts all scores of a row equally, so its gradient is 0
            assert gradient.abs().max() < 1e-6
            assert expected[name].abs().max() < 1e-6
        else:
            assert (gradient - expected[name]).norm() < 1e-4 * expected[name].norm(), name
    base.zero_grad(set_to_none=True)


@pytest.fixture(scope="module")
def sentences(shared_data: Path) -> list[str]:
    """32 real sentences of 2 to about 60 tokens."""
    return [example.text for example in read_examples(shared_data / "glue" / "SST-2" / "dev.tsv")[:32]]


def max_difference(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


def test_hidden_states_of_minilm_agree(minilm: Path, sentences: list[str]) -> None:
    model = bertie.load(minilm, threads=1)
    packed = model.hidden_states(sentences)
    alone = [model.hidden_states([text])[0] for text in sentences]
    exact = replace(model, model=bertie.load(minilm, threads=1).model.double()).hidden_states(sentences)
    assert max_difference(packed, exact) < 1e-5
    assert max_difference(alone, exact) < 1e-5

    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    for start in range(0, 32, 16):
        inputs = tokenizer(sentences[start : start + 16], padding=True, return_tensors="pt")
        with torch.inference_mode():
            layers = torch.stack(theirs(**inputs, output_hidden_states=True).hidden_states, dim=1).numpy()
        lengths = inputs["attention_mask"].sum(1).tolist()
        expected = [rows[:, :n] for rows, n in zip(layers, lengths, strict=True)]
        assert max_difference(packed[start : start + 16], expected) < 2e-5


@pytest.fixture(scope="module")
def run(small_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pre-training run of a small model."""
    size = TransformerConfig(2, 32, 4, 64, max_position_embeddings=64)
    settings = PretrainTraining(steps=20, batch_size=16, learning_rate=1e-2, row_tokens=512, precision="fp32")
    config = PretrainConfig(size, SentencePairs(max_length=32), OBJECTIVES, AdamW(), LinearDecay(), settings)
    out = tmp_path_factory.mktemp("parity") / "run"
    bertie.pretrain(config, small_shards, out, threads=1)
    return out


def loaded(auto: Any, folder: Path) -> Any:
    """Load a model in transformers, which must find all weights that it needs and no others."""
    model, info = auto.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert not info["unexpected_keys"] or auto is not transformers.AutoModelForPreTraining
    return model.eval()


def compared(folder: Path, head: str) -> None:
    """Compare the outputs of a head with transformers, from texts."""
    found = bertie.verify(folder, "transformers")
    assert found.problem == ""
    assert {each.what: each.verdict for each in found.comparisons}[f"outputs of the head ({head})"] == "equal"


def test_a_run_loads_in_transformers(run: Path) -> None:
    compared(run, "masked LM")
    compared(run, "next sentence prediction")
    both = loaded(transformers.AutoModelForPreTraining, run)
    weights = read_checkpoint(run).weights
    names = {"mlm": "masked", "nsp": "pair"}
    for name, tensor in family.from_huggingface(bert.FAMILY, both.state_dict(), names)[0].items():
        assert torch.equal(weights[name], tensor), name


def test_a_model_saved_by_transformers_is_read(run: Path, tmp_path: Path, small_texts: list[str]) -> None:
    loaded(transformers.AutoModelForPreTraining, run).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(run).save_pretrained(tmp_path)
    models = [bertie.load(folder, threads=1) for folder in (run, tmp_path)]
    texts = [text[:120] for text in small_texts[:5]]
    for kind in ("mlm", "nsp"):
        before, after = (head_outputs(model.model, kind, model.text_sequences(texts, "")) for model in models)
        assert all(map(np.array_equal, before, after))


def test_a_fine_tuned_run_loads_in_transformers(run: Path, tmp_path: Path, small_texts: list[str]) -> None:
    settings = FinetuneTraining(steps=20, batch_size=8, learning_rate=1e-2, precision="fp32")
    config = FinetuneConfig(Classify(), AdamW(), LinearDecay(), settings, max_length=64, hidden_dropout_prob=0.0)
    rows = [
        {"text": text[:80], "text_pair": text[80:160], "label": ("no", "yes")[len(text) % 2]} for text in small_texts
    ]
    bertie.finetune(config, rows[:40], run, tmp_path / "tuned", dev=rows[:40], threads=1)
    theirs = loaded(transformers.AutoModelForSequenceClassification, tmp_path / "tuned")
    assert theirs.config.id2label == {0: "no", 1: "yes"}
    compared(tmp_path / "tuned", "classification")


def test_fine_tuning_has_the_same_losses_as_in_transformers(two_layers: Path, shared_data: Path) -> None:
    """The first 12 losses on MRPC, with the same initial weights, batches, AdamW, schedule and gradient clipping, without
    dropout."""
    steps, size, rate = 12, 4, 5e-4
    data = read_examples(shared_data / "glue" / "MRPC" / "train.tsv")[:100]
    training = FinetuneTraining(steps=steps, batch_size=size, learning_rate=rate, max_grad_norm=1.0, precision="fp32")
    config = FinetuneConfig(
        Classify(),
        AdamW(weight_decay=0.01),
        LinearDecay(warmup=1 / 3),
        training,
        seed=3,
        **NO_DROPOUT,
    )
    ours = bertie.finetune(config, data, two_layers, dev=data[:4], threads=1)

    # A learning rate of 0 gives the initial weights.
    no_training = replace(config, training=replace(training, learning_rate=1e-30, steps=1))
    initial = bertie.finetune(no_training, data, two_layers, dev=data[:4], threads=1).model
    theirs = transformers.BertForSequenceClassification.from_pretrained(
        two_layers, num_labels=2, **NO_DROPOUT, attn_implementation="eager"
    )
    theirs.load_state_dict(family.to_huggingface(bert.FAMILY, initial.state_dict(), shapes_of(initial)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(two_layers)
    not_decayed = [p for name, p in theirs.named_parameters() if "LayerNorm" in name or name.endswith("bias")]
    decayed = [p for name, p in theirs.named_parameters() if "LayerNorm" not in name and not name.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": not_decayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, eps=1e-6)

    def factor(step: int) -> float:
        return (step + 1) / 5 if step < 4 else (steps - step) / (steps - 4)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    order = seeding.generator(3, seeding.EXAMPLES, 0).permutation(len(data))
    losses = []
    for step in range(steps):
        chosen = [data[i] for i in order[step * size : (step + 1) * size]]
        texts, pairs = [e.text for e in chosen], [str(e.text_pair) for e in chosen]
        inputs = tokenizer(texts, pairs, padding=True, truncation=True, max_length=128, return_tensors="pt")
        loss = theirs(**inputs, labels=torch.tensor([int(str(e.label)) for e in chosen])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert len(ours.losses) == steps
    assert max(losses) - min(losses) > 0.05
    assert ours.losses == pytest.approx(losses, rel=1e-4)
