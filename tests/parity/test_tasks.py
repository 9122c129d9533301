"""Fine-tuning of every task compared with transformers and sentence-transformers: the first 12 losses, on real data.

Both sides have the same initial weights, a part of a real model, examples, order, AdamW, schedule and gradient
clipping, in fp32 without dropout. The other libraries encode the examples with their own tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bertie
from bertie.base import seeding
from bertie.checkpoints.families import bert, family
from bertie.checkpoints.huggingface import shapes_of
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.tasks import AnyTask, Choose, Embed, Regress, Span, Tag
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
STEPS, SIZE, RATE, LENGTH = 12, 4, 1e-3, 96
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def tokenizer(two_layers: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(two_layers)


def ours(task: AnyTask, data: list[Any], two_layers: Path, **settings: Any) -> tuple[list[float], Any]:
    """Return the losses of bertie, and the model with the initial weights."""
    training = FinetuneTraining(
        steps=STEPS, batch_size=SIZE, learning_rate=RATE, precision="fp32", row_tokens=2 * LENGTH
    )
    config = FinetuneConfig(
        task,
        AdamW(weight_decay=0.01),
        LinearDecay(warmup=1 / 3),
        training,
        seed=3,
        max_length=LENGTH,
        **NO_DROPOUT,
        **settings,
    )
    losses = bertie.finetune(config, data, two_layers, dev=data[:4], threads=1).losses
    initial = replace(config, training=replace(training, learning_rate=1e-30, steps=1))  # leaves the initial weights
    return losses, bertie.finetune(initial, data, two_layers, dev=data[:4], threads=1).model


def theirs(model: nn.Module, units: int, loss_of: Callable[[list[int]], Tensor]) -> list[float]:
    """Return the losses of the other library, step by step.

    `loss_of` returns the loss of a batch, given example indices.
    """
    undecayed = [p for name, p in model.named_parameters() if "LayerNorm" in name or name.endswith("bias")]
    decayed = [p for name, p in model.named_parameters() if "LayerNorm" not in name and not name.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": undecayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    factor = lambda step: (step + 1) / 5 if step < 4 else (STEPS - step) / (STEPS - 4)  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    order = seeding.generator(3, seeding.EXAMPLES, 0).permutation(units)
    losses = []
    for step in range(STEPS):
        loss = loss_of(order[step * SIZE : (step + 1) * SIZE].tolist())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def peer(kind: str, two_layers: Path, start: Any, **choices: Any) -> Any:
    model = getattr(transformers, kind).from_pretrained(
        two_layers, attn_implementation="eager", **NO_DROPOUT, **choices
    )
    lacks = model.load_state_dict(
        family.to_huggingface(bert.FAMILY, start.state_dict(), shapes_of(start)), strict=False
    ).missing_keys
    assert not [name for name in lacks if "pooler" not in name]
    return model.train()


def require_equal(found: list[float], expected: list[float]) -> None:
    assert len(found) == STEPS
    assert max(expected) - min(expected) > 0.002 * max(expected)
    # A ranking loss near 0 is log(1 + small): fp32 rounds the sum to about 1e-7, whatever the loss.
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_losses_of_regress(two_layers: Path, shared_data: Path, tokenizer: Any) -> None:
    data = list(islice(Regress().reader.read(shared_data / "glue" / "STS-B" / "train.tsv"), 200))
    losses, start = ours(Regress(), data, two_layers)
    model = peer("AutoModelForSequenceClassification", two_layers, start, num_labels=1, problem_type="regression")
    numbers = torch.tensor([float(example.label) for example in data], dtype=torch.float64)
    standardized = ((numbers - numbers.mean()) / numbers.std(correction=0)).float()

    def loss_of(chosen: list[int]) -> Tensor:
        texts = [data[i].text for i in chosen], [data[i].text_pair for i in chosen]
        inputs = tokenizer(*texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        return model(**inputs, labels=standardized[chosen]).loss

    require_equal(losses, theirs(model, len(data), loss_of))


def test_losses_of_choose(two_layers: Path, shared_data: Path, tokenizer: Any) -> None:
    data = list(islice(Choose().reader.read(shared_data / "choice" / "codah" / "full_data.tsv"), 200))
    losses, start = ours(Choose(), data, two_layers)
    model = peer("AutoModelForMultipleChoice", two_layers, start)

    def loss_of(chosen: list[int]) -> Tensor:
        first = [data[i].context for i in chosen for _ in data[i].endings]
        second = [ending for i in chosen for ending in data[i].endings]
        inputs = tokenizer(first, second, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        inputs = {name: value.view(len(chosen), 4, -1) for name, value in inputs.items()}
        return model(**inputs, labels=torch.tensor([data[i].label for i in chosen])).loss

    require_equal(losses, theirs(model, len(data), loss_of))


def test_losses_of_tag(two_layers: Path, shared_data: Path, tokenizer: Any) -> None:
    [path] = (shared_data / "ner").glob("*train*")
    data = list(islice(Tag().reader.read(path), 200))
    losses, start = ours(Tag(), data, two_layers)
    labels = sorted({tag for sentence in data for tag in sentence.tags})
    model = peer("AutoModelForTokenClassification", two_layers, start, num_labels=len(labels))

    def loss_of(chosen: list[int]) -> Tensor:
        words = [list(data[i].words) for i in chosen]
        inputs = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
        assert inputs["input_ids"].shape[1] <= LENGTH
        gold = torch.full(inputs["input_ids"].shape, -100)
        for row, i in enumerate(chosen):
            before = None
            for place, word in enumerate(inputs.word_ids(row)):
                if word is not None and word != before:
                    gold[row, place] = labels.index(data[i].tags[word])
                before = word
        return model(**inputs, labels=gold).loss

    require_equal(losses, theirs(model, len(data), loss_of))


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_losses_of_span(two_layers: Path, shared_data: Path, tokenizer: Any, version: str) -> None:
    """The loss of transformers includes padding in the softmax over tokens, so each window is computed by itself."""
    data = list(islice(Span().reader.read(shared_data / "squad" / f"train-v{version}-subset.json"), 60))
    losses, start = ours(Span(doc_stride=32), data, two_layers)
    model = peer("AutoModelForQuestionAnswering", two_layers, start)
    features = []
    for question in data:
        query = question.question
        window = LENGTH - 3 - len(tokenizer(query, add_special_tokens=False)["input_ids"])
        found = tokenizer(
            query,
            question.context,
            truncation="only_second",
            max_length=LENGTH,
            stride=window - 32,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for number in range(len(found["input_ids"])):
            features.append((found, number, answer_positions(question, found, number)))

    def loss_of(chosen: list[int]) -> Tensor:
        losses_of_windows = []
        for found, number, (first, last) in (features[i] for i in chosen):
            names = ("input_ids", "token_type_ids", "attention_mask")
            inputs = {name: torch.tensor([found[name][number]]) for name in names}
            gold = {"start_positions": torch.tensor([first]), "end_positions": torch.tensor([last])}
            losses_of_windows.append(model(**inputs, **gold).loss)
        return torch.stack(losses_of_windows).mean()

    require_equal(losses, theirs(model, len(features), loss_of))


def answer_positions(question: Any, found: Any, number: int) -> tuple[int, int]:
    """Return the first and last token of the answer in a window, from offsets like transformers' example scripts."""
    if not question.answers:
        return 0, 0
    [answer] = question.answers[:1]
    start, end = answer.start, answer.start + len(answer.text)
    offsets, sides = found["offset_mapping"][number], found.sequence_ids(number)
    inside = [i for i, side in enumerate(sides) if side == 1]
    if offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return 0, 0
    first = max(i for i in inside if offsets[i][0] <= start)
    last = min(i for i in inside if offsets[i][1] >= end)
    return first, last


@pytest.mark.parametrize(
    ("pooling", "scored"),
    [
        ("mean", True),
        ("cls", False),
        ("max", True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("mean", False), ("cls", True), ("max", False))),
    ],
)
def test_losses_of_embed(two_layers: Path, shared_data: Path, tokenizer: Any, scored: bool, pooling: str) -> None:
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="needs the package sentence-transformers"
    )
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer import losses as made
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    data = list(islice(Embed().reader.read(shared_data / "glue" / "STS-B" / "train.tsv"), 200 if scored else 600))
    if not scored:  # bertie takes no text that equals the right one for a negative, so that all differ here
        by_text = {side: {each.texts[side].lower(): each for each in data} for side in (0, 1)}
        data = [
            replace(each, label=None)
            for each in data
            if all(by_text[i][each.texts[i].lower()] is each for i in by_text)
        ]
        data = data[:200]
    losses, start = ours(Embed(pooling=pooling, positives=None if scored else "pairs"), data, two_layers)  # pyright: ignore[reportArgumentType]
    module = Transformer(str(two_layers), model_kwargs={"attn_implementation": "eager"}, config_kwargs=NO_DROPOUT)
    encoder = module.auto_model
    encoder.load_state_dict(family.to_huggingface(bert.FAMILY, start.state_dict(), shapes_of(start)), strict=False)
    pooled = Pooling(encoder.config.hidden_size, pooling_mode=pooling)
    model = sentence_transformers.SentenceTransformer(modules=[module, pooled], device="cpu").train()
    objective = made.CosineSimilarityLoss(model) if scored else made.MultipleNegativesRankingLoss(model)
    scores = [float(example.label) for example in data] if scored else [0.0]

    def loss_of(chosen: list[int]) -> Tensor:
        sides = [[data[i].text for i in chosen], [data[i].text_pair for i in chosen]]
        inputs = [tokenizer(side, padding=True, return_tensors="pt") for side in sides]
        low, high = min(scores), max(scores)
        gold = torch.tensor([(scores[i] - low) / (high - low) for i in chosen]) if scored else torch.tensor([])
        return objective([dict(each) for each in inputs], gold)

    require_equal(losses, theirs(model, len(data), loss_of))
