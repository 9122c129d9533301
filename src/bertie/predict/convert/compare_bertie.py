"""Probes of two models of bertie that must give a user the same: settings, tokens, vectors, predictions, outputs of heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import asdict, replace
from typing import Any

from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.predict.convert.compared_texts import ComparedTexts
from bertie.predict.convert.comparison import TOLERANCE, Probe
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import head_outputs
from bertie.tasks.predictions import prediction_to_json

EMBEDDED_TEXTS = 8


def probes(predictor: Predictor, other: Callable[[], Predictor], sequences: list[Sequence]) -> Iterator[Probe]:
    """Yield what is compared with another model.

    Args:
        predictor: The model.
        other: Returns the other model. The probes need it, but do not keep `predictor`.
        sequences: Real inputs, for the heads of pre-training.
    """

    def probe(
        what: str, inputs: Many[Any], ask: Callable[[Predictor], Many[Any]], tolerance: float = TOLERANCE
    ) -> Probe:
        return Probe(what, inputs, ask(predictor), lambda: ask(other()), tolerance)

    texts = ComparedTexts.of(predictor.tokenizer, predictor.max_length)
    settings = _settings(predictor)
    yield probe("settings", [*settings], lambda model: [*_settings(model).items()], 0.0)
    every = [*texts.plain, *texts.with_roles]
    yield probe("token ids", every, lambda model: [ids.tolist() for ids in model.tokenizer.encode(every)], 0.0)
    few = texts.plain[:EMBEDDED_TEXTS]
    prompts = {predictor.text_embedding.prompt(name, None): name for name in ("document", "query", None)}
    for prompt, name in prompts.items():
        what = f"vectors with the prompt {prompt[:40]!r}" if prompt else "vectors"
        yield probe(what, few, lambda model, name=name: list(model.embed(few, prompt_name=name)))
    yield probe("similarity", few, lambda model: list(model.similarity(few)))
    sentences = [pair[0] for pair in texts.pairs[:EMBEDDED_TEXTS]]
    forms: dict[str, list[Any]] = {
        "texts": sentences,
        "pairs": texts.pairs,
        "words": [text.split() for text in sentences],
        "endings": [[*pair, "another ending"] for pair in texts.pairs[:EMBEDDED_TEXTS]],
    }
    for form, inputs in forms.items() if predictor.task is not None else ():
        try:
            yield probe(f"predictions for {form}", inputs, lambda model, inputs=inputs: _predictions(model, inputs))
        except UserError:  # the task takes other inputs
            continue
    numbers = range(len(sequences[:EMBEDDED_TEXTS]))
    for kind in sorted(predictor.model.heads):
        if predictor.task is None or kind != predictor.task.kind:
            ask = lambda model, kind=kind: head_outputs(model.model, kind, sequences[:EMBEDDED_TEXTS])  # noqa: E731
            yield probe(f"outputs of the head {kind}", numbers, ask)


def _settings(predictor: Predictor) -> dict[str, Any]:
    """Return what changes results, as far as it is no number of a model."""
    how = predictor.text_embedding
    modules = [type(module).__name__ for module in how.modules]
    settings = asdict(replace(how, modules=(), prompts=dict(how.prompts), stated=False)) | {"modules": modules}
    task = predictor.task and predictor.task.without_scale()
    general = {"task": task, "heads": sorted(predictor.model.heads), "max_length": predictor.max_length}
    return general | settings


def _predictions(predictor: Predictor, inputs: list[Any]) -> list[dict[str, Any]]:
    return list(map(prediction_to_json, predictor.predict(inputs)))
