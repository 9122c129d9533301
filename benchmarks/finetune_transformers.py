"""The peer of finetune_quality.py: models and tokenizers of transformers in a plain PyTorch loop.

There is one class per kind of task. Batches are padded to their longest sequence. The loop uses AdamW with weight decay
of matrices, gradient clipping at 1 and the linear schedule of transformers. Answer spans are found as in its
question-answering examples: the 20 best starts and ends, at most 30 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from bertie.examples.tag_form import TagForm
from bertie.tasks.example_sums import class_sums, number_sums, scores, tag_sums
from bertie.tasks.predictions import SpanCandidate, SpanPrediction
from bertie.tasks.squad_metrics import best_threshold, squad_scores
from finetune_settings import WARMUP, Setting

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
EVAL_BATCH = 32
STEP = 128
Scores = dict[str, float]


def run(folder: Path, setting: Setting, train: list[Any], dev: list[Any], seed: int, same_start: bool) -> Scores:
    """Fine-tune with a seed, and score on dev.

    same_start: initialize the task head with the standard deviation that bertie uses.
    """
    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    made, held = (KINDS[setting.kind](tokenizer, part, train, setting.max_length) for part in (train, dev))
    model = made.build(folder)
    if same_start:
        head = getattr(model, "classifier", None) or model.qa_outputs
        torch.nn.init.normal_(head.weight, std=0.02 * math.sqrt(768 / model.config.hidden_size))
    descend(model, made, setting, seed)
    model.eval()
    outputs: list[Any] = []
    with torch.inference_mode():
        for start in range(0, len(held.units), EVAL_BATCH):
            outputs += held.outputs(model(**held.inputs(held.units[start : start + EVAL_BATCH])))
    return held.score(outputs)


def descend(model: Any, made: Texts, setting: Setting, seed: int) -> None:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    spared = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=setting.learning_rate, eps=1e-6, fused=True)
    steps = setting.epochs * -(-len(made.units) // setting.batch_size)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(WARMUP * steps), steps)
    model.train()
    for epoch in range(setting.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(made.units))
        for start in range(0, len(order), setting.batch_size):
            chosen = [made.units[i] for i in order[start : start + setting.batch_size]]
            model(**made.inputs(chosen)).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


class Texts:
    """Classification of one text or two; base class of the other kinds."""

    architecture = "AutoModelForSequenceClassification"

    def __init__(self, tokenizer: Any, examples: list[Any], train: list[Any], max_length: int):
        self.tokenizer, self.units, self.max_length = tokenizer, examples, max_length
        self.labels = sorted({str(example.label) for example in train})

    def build(self, folder: Path) -> Any:
        return self.load(folder, num_labels=len(self.labels))

    def load(self, folder: Path, **choices: Any) -> Any:
        return getattr(transformers, self.architecture).from_pretrained(folder, **DROPOUT, **choices)

    def inputs(self, units: list[Any]) -> dict[str, Tensor]:
        texts = [[example.text for example in units]]
        texts += [[example.text_pair for example in units]] if units[0].text_pair is not None else []
        found = self.tokenizer(*texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt")
        return {**found, "labels": torch.tensor([self.target(example) for example in units])}

    def target(self, example: Any) -> float:
        return self.labels.index(str(example.label))

    def outputs(self, said: Any) -> list[Any]:
        return list(said.logits.numpy())

    def score(self, outputs: list[Any]) -> Scores:
        found = [self.labels[int(row.argmax())] for row in outputs]
        return scores(class_sums([str(example.label) for example in self.units], found, self.labels))


class Numbers(Texts):
    def build(self, folder: Path) -> Any:
        return self.load(folder, num_labels=1, problem_type="regression")

    def target(self, example: Any) -> float:
        return float(example.label)

    def score(self, outputs: list[Any]) -> Scores:
        gold = [float(example.label) for example in self.units]
        return scores(number_sums(gold, [float(row[0]) for row in outputs]))


class Endings(Texts):
    architecture = "AutoModelForMultipleChoice"

    def build(self, folder: Path) -> Any:
        return self.load(folder)

    def inputs(self, units: list[Any]) -> dict[str, Tensor]:
        first = [example.context for example in units for _ in example.endings]
        second = [ending for example in units for ending in example.endings]
        found = self.tokenizer(
            first, second, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        shaped = {name: value.view(len(units), -1, value.shape[1]) for name, value in found.items()}
        return {**shaped, "labels": torch.tensor([example.label for example in units])}

    def score(self, outputs: list[Any]) -> Scores:
        right = [int(row.argmax()) == example.label for row, example in zip(outputs, self.units, strict=True)]
        return {"accuracy": float(np.mean(right))}


class Words(Texts):
    architecture = "AutoModelForTokenClassification"

    def __init__(self, tokenizer: Any, examples: list[Any], train: list[Any], max_length: int):
        self.tokenizer, self.units, self.max_length = tokenizer, examples, max_length
        self.labels = sorted({tag for sentence in train for tag in sentence.tags})

    def inputs(self, units: list[Any]) -> dict[str, Tensor]:
        words = [list(sentence.words) for sentence in units]
        found = self.tokenizer(
            words,
            is_split_into_words=True,
            padding=True,
            truncation=True,
            max_length=self.max_length,
            return_tensors="pt",
        )
        gold = torch.full(found["input_ids"].shape, -100)
        self.read: list[dict[int, int]] = []
        for row, sentence in enumerate(units):
            places: dict[int, int] = {}
            for place, word in enumerate(found.word_ids(row)):
                if word is not None:
                    places.setdefault(word, place)
            for word, place in places.items():
                tag = sentence.tags[word]
                gold[row, place] = self.labels.index(tag) if tag in self.labels else -100
            self.read.append(places)
        return {**found, "labels": gold}

    def outputs(self, said: Any) -> list[Any]:
        best = said.logits.argmax(-1)
        return [
            {word: self.labels[int(best[row, place])] for word, place in places.items()}
            for row, places in enumerate(self.read)
        ]

    def score(self, outputs: list[Any]) -> Scores:
        found = [
            [tags.get(word, "O") for word in range(len(sentence.words))]
            for tags, sentence in zip(outputs, self.units, strict=True)
        ]
        return scores(tag_sums([list(sentence.tags) for sentence in self.units], found, TagForm("bio")))


class Answers(Texts):
    """Question answering. A unit is a window: (number of the question, its features, number of the window)."""

    architecture = "AutoModelForQuestionAnswering"

    def __init__(self, tokenizer: Any, examples: list[Any], train: list[Any], max_length: int):
        self.tokenizer, self.examples = tokenizer, examples
        self.second = any(not question.answers for question in train)
        self.units = []
        for number, question in enumerate(examples):
            asked = tokenizer(question.question, add_special_tokens=False)["input_ids"]
            found = tokenizer(
                question.question,
                question.context,
                truncation="only_second",
                max_length=max_length,
                stride=max_length - 3 - len(asked) - STEP,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            self.units += [(number, found, window) for window in range(len(found["input_ids"]))]

    def build(self, folder: Path) -> Any:
        return self.load(folder)

    def inputs(self, units: list[Any]) -> dict[str, Tensor]:
        names = ("input_ids", "token_type_ids", "attention_mask")
        rows = [{name: found[name][window] for name in names} for _, found, window in units]
        padded = self.tokenizer.pad(rows, return_tensors="pt")
        places = torch.tensor([self.place(number, found, window) for number, found, window in units])
        return {**padded, "start_positions": places[:, 0], "end_positions": places[:, 1]}

    def place(self, number: int, found: Any, window: int) -> tuple[int, int]:
        answers = self.examples[number].answers
        offsets, sides = found["offset_mapping"][window], found.sequence_ids(window)
        inside = [i for i, side in enumerate(sides) if side == 1]
        if not answers:
            return 0, 0
        start, end = answers[0].start, answers[0].start + len(answers[0].text)
        if offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
            return 0, 0
        first = max(i for i in inside if offsets[i][0] <= start)
        return first, min(i for i in inside if offsets[i][1] >= end)

    def outputs(self, said: Any) -> list[Any]:
        return list(zip(said.start_logits.numpy(), said.end_logits.numpy(), strict=True))

    def score(self, outputs: list[Any]) -> Scores:
        found: list[dict[str, Any]] = [{"null": np.inf, "spans": []} for _ in self.examples]
        for (number, features, window), (starts, ends) in zip(self.units, outputs, strict=True):
            found[number]["null"] = min(found[number]["null"], starts[0] + ends[0])
            found[number]["spans"] += self.spans(features, window, starts, ends)
        guessed = [self.guess(question, each) for question, each in zip(self.examples, found, strict=True)]
        answers = {each.id: each.answer for each in guessed}
        if self.second:
            threshold = best_threshold(guessed, self.examples)
            answers = {each.id: each.guesses[0].text if each.null_score <= threshold else "" for each in guessed}
        return squad_scores(answers, self.examples)

    def spans(self, features: Any, window: int, starts: Any, ends: Any) -> list[tuple[float, int, int]]:
        offsets, sides = features["offset_mapping"][window], features.sequence_ids(window)
        best = [np.argsort(-side[: len(sides)])[:20] for side in (starts, ends)]
        return [
            (float(starts[i] + ends[j]), offsets[i][0], offsets[j][1])
            for i in best[0]
            for j in best[1]
            if sides[i] == sides[j] == 1 and i <= j < i + 30
        ]

    def guess(self, question: Any, found: dict[str, Any]) -> SpanPrediction:
        score, start, end = max(found["spans"], default=(-np.inf, 0, 0))
        text = question.context[start:end]
        null = float(np.clip(found["null"] - score, -1e9, 1e9))
        return SpanPrediction(question.id, text, start, end, 0.0, null, [SpanCandidate(text, start, end, score, 0.0)])


KINDS: dict[str, Callable[..., Any]] = {
    "classify": Texts,
    "regress": Numbers,
    "choose": Endings,
    "tag": Words,
    "span": Answers,
}
