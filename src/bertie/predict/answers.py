"""What a user gets from a model: tokens, vectors, predictions, outputs of heads. Two models that are the same give the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bertie.console import plural
from bertie.contracts import Sequence
from bertie.errors import UserError
from bertie.predict.compare_transformers import head_outputs
from bertie.predict.comparison import Compared, ComparedTexts, close, equal_or_not
from bertie.predict.predictor import Predictor
from bertie.tasks.predictions import prediction_to_json

EMBEDDED_TEXTS = 8


@dataclass(frozen=True)
class CallResults:
    """The results of one call for several inputs."""

    what: str
    """The call, for people."""
    inputs: list[Any]
    values: list[Any]
    """One result for each input: arrays if they are numbers, or values that are equal or not."""
    exact: bool


def answers(predictor: Predictor, sequences: list[Sequence]) -> list[CallResults]:
    """Ask a model.

    Args:
        predictor: The model.
        sequences: Real inputs, for the heads of pre-training.
    """
    texts = ComparedTexts.of(predictor.tokenizer, predictor.max_length)
    every = [*texts.plain, *texts.with_roles]
    found = [
        CallResults("settings", *zip(*_settings(predictor).items(), strict=True), exact=True),  # pyright: ignore
        CallResults("token ids", every, [ids.tolist() for ids in predictor.tokenizer.encode(every)], exact=True),
    ]
    given = texts.plain[:EMBEDDED_TEXTS]
    how = predictor.text_embedding
    prompts = {how.prompt(name, None): name for name in ("document", "query", None)}
    for prompt, name in prompts.items():
        vectors = list(predictor.embed(given, prompt_name=name))
        found.append(
            CallResults(f"vectors with the prompt {prompt[:40]!r}" if prompt else "vectors", given, vectors, False)
        )
    found.append(CallResults("similarity", given, list(predictor.similarity(given)), exact=False))
    found += _predictions(predictor, texts)
    for kind in sorted(predictor.model.heads):
        if predictor.task is None or kind != predictor.task.kind:
            outputs = head_outputs(predictor, kind, sequences[:EMBEDDED_TEXTS])
            found.append(CallResults(f"outputs of the head {kind}", list(range(len(outputs))), outputs, exact=False))
    return found


def compare(ours: list[CallResults], theirs: list[CallResults]) -> list[Compared]:
    """Compare the answers of two models to the same questions."""
    calls = [[f"{each.what}: {plural(len(each.values), 'input')}" for each in answers] for answers in (ours, theirs)]
    if calls[0] != calls[1]:
        return [equal_or_not("calls", ["all"], calls[:1], calls[1:])]
    pairs = zip(ours, theirs, strict=True)
    return [(equal_or_not if a.exact else close)(a.what, a.inputs, a.values, b.values) for a, b in pairs]


def _settings(predictor: Predictor) -> dict[str, Any]:
    """Return what changes results, as far as it is no number."""
    how = predictor.text_embedding
    modules = [type(module).__name__ for module in how.modules]
    settings = asdict(replace(how, modules=(), prompts=dict(how.prompts), stated=False)) | {"modules": modules}
    return {"task": predictor.task, "max_length": predictor.max_length} | settings


def _predictions(predictor: Predictor, texts: ComparedTexts) -> Iterator[CallResults]:
    """Yield the predictions for each kind of input that the task takes."""
    task = predictor.task
    sentences = [pair[0] for pair in texts.pairs[:EMBEDDED_TEXTS]]
    forms: dict[str, list[Any]] = {
        "texts": sentences,
        "pairs": texts.pairs,
        "words": [text.split() for text in sentences],
        "endings": [[*pair, "another ending"] for pair in texts.pairs[:EMBEDDED_TEXTS]],
    }
    for form, inputs in forms.items() if task is not None else ():
        try:
            found = [prediction_to_json(each) for each in predictor.predict(inputs)]
        except UserError:  # the task takes other inputs
            continue
        names = [_parts(each, numbers=False) for each in found]
        numbers = [np.array(_parts(each, numbers=True), np.float64) for each in found]
        yield CallResults(f"predictions for {form}", inputs, names, exact=True)
        yield CallResults(f"numbers of predictions for {form}", inputs, numbers, exact=False)


def _parts(value: Any, numbers: bool) -> list[Any]:
    """Return the leaves of a JSON value: the fractional numbers, or all others and the keys."""
    if isinstance(value, dict):
        value = [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        return [part for each in value for part in _parts(each, numbers)]
    return [value] if isinstance(value, float) == numbers else []
