"""The tasks of Hugging Face's inference API: from the inputs and parameters of a request to the answer of the task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from scipy.special import expit, softmax

from bertie.errors import UserError
from bertie.predict.fill_mask import MaskPrediction
from bertie.predict.vectors import similarities
from bertie.serve import work
from bertie.serve.dialects import hf_messages as m
from bertie.serve.exchange import Call
from bertie.serve.inputs import Example
from bertie.serve.limits import Refused, check_sizes, field_of
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import MAX_TOP_K, Operation, ServedModel
from bertie.serve.scales import ONLY
from bertie.serve.widths import require_width, shorten_vectors, unit
from bertie.tasks.aggregation import with_aggregation
from bertie.tasks.predictions import Entity, SpanCandidate
from bertie.tasks.word_alignment import split_and_tokenize
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import special_tokens

Given = dict[str, Any]
"""The parameters that a request gives, by name."""
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"sigmoid": expit, "softmax": softmax, "none": np.asarray}
"""What makes scores of the outputs of a head, float [classes], by the name in a request."""
OUTSIDE = "O"
MOST_SHARED = 0.75  # of a window that the next one may share: otherwise a text would cost too many windows
ELSEWHERE = 1 << 20  # size of a work that is not done in the event loop


@dataclass(frozen=True)
class HfTask:
    """A task of the API."""

    operation: Operation
    """What a model must offer."""
    run: Callable[[Call, ServedModel, m.HfInputs, Given], Awaitable[Any]]
    """Computes the answer."""
    parameters: tuple[str, ...] = ()
    """Names of its parameters."""
    predicts: bool = False
    """Whether a model must have been fine-tuned for this task."""


async def extract_features(call: Call, model: ServedModel, inputs: m.HfInputs, given: Given) -> Any:
    """Return one vector for each text."""
    require_width(model, given.get("dimensions"))
    if given.get("encoding_format") == "base64":
        raise _refused("encoding_format", "base64 is for /v1/embeddings: the answer has numbers: omit it")
    if given.get("truncation_direction") == "left":
        raise _refused(
            "truncation_direction", "texts lose their end, not their beginning: send right, or shorter texts"
        )
    if given.get("normalize") is False and model.normalizes:
        raise _refused("normalize", "the model itself normalizes its vectors: send true, or omit it")
    texts, prompt, where = _texts(inputs), given.get("prompt_name"), field_of("inputs", inputs)
    found = await work.embed(call, model, texts, given.get("truncate", True), "inputs", prompt, where)
    normalize, width = given.get("normalize"), given.get("dimensions")
    if normalize is None:
        rows = np.stack(shorten_vectors(model, found.results, width))
    else:
        rows = np.stack(found.results)[:, :width]
        rows = unit(rows) if normalize else rows
    return await call.service.offload(len(rows), json_numbers, rows)


async def compare_sentences(call: Call, model: ServedModel, inputs: m.HfInputs, given: Given) -> list[float]:  # noqa: ARG001
    """Return how similar sentences are to another one."""
    values = _fields(inputs, {"source_sentence": str, "sentences": list})
    source, sentences = values["source_sentence"], values["sentences"]
    if not sentences:
        raise _refused("inputs.sentences", "there is no sentence: give at least one")

    def where(number: int) -> str:
        return f"inputs.sentences[{number - 1}]" if number else "inputs.source_sentence"

    found = await work.embed(call, model, [source, *sentences], True, "inputs.sentences", None, where)
    vectors = np.stack(found.results)
    return json_numbers(similarities(model.predictor.text_embedding.similarity, vectors[:1], vectors[1:])[0])


async def classify_texts(call: Call, model: ServedModel, inputs: m.HfInputs, given: Given) -> list[list[m.HfLabel]]:
    """Return the classes of each text or pair of texts, most probable first."""
    values = [_text_or_pair(value) for value in (inputs if isinstance(inputs, list) else [inputs])]
    apply, where = FUNCTIONS.get(given.get("function_to_apply", "")), field_of("inputs", inputs)
    if apply is None:
        found = await work.predict(call, model, values, True, "inputs", where=where)
    else:
        found = await work.outputs(call, model, values, True, "inputs", "raw", where)
    return [_labels(each, apply or np.asarray)[: given.get("top_k")] for each in found.results]


async def classify_tokens(call: Call, model: ServedModel, inputs: m.HfInputs, given: Given) -> Any:
    """Return the entities of each text."""
    texts, task = _texts(inputs), model.predicting
    strategy = given.get("aggregation_strategy")
    if strategy is None:
        try:
            strategy = "simple" if with_aggregation(task, "simple") else "none"
        except UserError:  # the tags mark no entities
            strategy = "none"
    if OUTSIDE not in given.get("ignore_labels", [OUTSIDE]):
        raise _refused("ignore_labels", f"words outside of entities are not listed: add {OUTSIDE}")
    if (stride := given.get("stride")) is not None:
        window = model.predictor.max_length - special_tokens(model.predictor.tokenizer, 1)
        if strategy == "none":
            raise _refused("stride", "it joins the entities of windows, and aggregation_strategy is none: omit one")
        step = _step(window, stride, "stride")
        task = replace(cast(Any, task), truncation="windows", doc_stride=step)
    where = field_of("inputs", inputs)
    found = await work.predict(call, model, list(texts), True, "inputs", strategy, task, where)
    ignored, single = given.get("ignore_labels", []), strategy == "none"
    answer = [
        [_entity(each, single) for each in prediction.entities or () if each.label not in ignored]
        for prediction in found.results
    ]
    return answer[0] if isinstance(inputs, str) else answer


async def fill_masks(call: Call, model: ServedModel, inputs: m.HfInputs, given: Given) -> Any:
    """Return the tokens at the mask of each text, or at each of several masks."""
    texts, top_k, targets = _texts(inputs), given.get("top_k", 5), given.get("targets")
    if top_k > MAX_TOP_K:
        raise _refused("top_k", f"give at most {MAX_TOP_K} for tokens at masks")
    candidates = None
    if targets is not None:
        targets = [targets] if isinstance(targets, str) else targets
        if not targets:
            raise _refused("parameters.targets", "there is no target: give at least one, or omit it")
        check_sizes(list(map(len, targets)), call.service.limits, "parameters.targets")
        candidates = await call.service.offload(ELSEWHERE, _target_ids, model.predictor.tokenizer, targets)
    found = await work.fill_masks(call, model, texts, top_k, "inputs", candidates, field_of("inputs", inputs))
    answer = await call.service.offload(ELSEWHERE, _fillings, model, texts, found.results)
    return answer[0] if isinstance(inputs, str) else answer


async def answer_question(call: Call, model: ServedModel, inputs: m.HfInputs, given: Given) -> Any:
    """Return the best answer, or the `top_k` best ones."""
    values = _fields(inputs, {"question": str, "context": str})
    question, context = values["question"], values["context"]
    check_sizes(
        [len(question), len(context)],
        call.service.limits,
        "inputs",
        where=("inputs.question", "inputs.context").__getitem__,
    )
    if given.get("top_k", 1) > MAX_TOP_K:
        raise _refused("top_k", f"give at most {MAX_TOP_K}")
    most, task, tokenizer = model.predictor.max_length, cast(Any, model.predicting), model.predictor.tokenizer
    if given.get("max_seq_len", most) < most:
        raise _refused("max_seq_len", f"windows have the {most} tokens that the model reads: omit it")
    changes = {
        "max_answer_length": given.get("max_answer_len", task.max_answer_length),
        "max_query_length": given.get("max_question_len", task.max_query_length),
        "n_best_size": max(task.n_best_size, given.get("top_k", 1)),
    }
    if "handle_impossible_answer" in given:
        changes["threshold"] = (task.threshold or 0.0) if given["handle_impossible_answer"] else None
    if "doc_stride" in given:
        [sized] = await call.service.offload(len(question), tokenizer.encode, [question])
        room = most - special_tokens(tokenizer, 2)
        window = room - min(len(sized), changes["max_query_length"], room // 2)
        changes["doc_stride"] = _step(window, given["doc_stride"], "doc_stride")
    pair: Example = [question, context]
    changed, where = replace(task, **changes), field_of("inputs", inputs)
    found = await work.predict(call, model, [pair], True, "inputs", task=changed, where=where)
    [best] = found.results
    chosen = SpanCandidate(best.answer, best.start, best.end, 0.0, best.probability)
    others = [each for each in best.guesses if (each.start, each.end) != (best.start, best.end)]
    spans = [chosen, *others][: given.get("top_k", 1)]
    words = None
    if given.get("align_to_words"):
        [(_, words)] = await call.service.offload(ELSEWHERE, split_and_tokenize, tokenizer, [context])
    answers = [_answer(context, span, words) for span in spans]
    return answers if given.get("top_k", 1) > 1 else answers[0]


VECTOR_FIELDS = m.HfVectorFields.__struct_fields__
TASKS = {
    "feature-extraction": HfTask("embed", extract_features, VECTOR_FIELDS),
    "sentence-similarity": HfTask("embed", compare_sentences),
    "text-classification": HfTask("predict", classify_texts, ("top_k", "function_to_apply"), True),
    "token-classification": HfTask(
        "predict", classify_tokens, ("aggregation_strategy", "ignore_labels", "stride"), True
    ),
    "fill-mask": HfTask("fill-mask", fill_masks, ("top_k", "targets")),
    "question-answering": HfTask(
        "predict",
        answer_question,
        (
            *("top_k", "align_to_words", "doc_stride", "handle_impossible_answer"),
            *("max_answer_len", "max_question_len", "max_seq_len"),
        ),
        True,
    ),
}


def _refused(param: str, problem: str) -> Refused:
    return Refused(422, "validation", f"{param}: {problem}", param)


def _texts(inputs: m.HfInputs) -> list[str]:
    """Return the texts of inputs that must be texts. Raises Refused."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _refused("inputs", "this task reads a text, or a list of texts")
    return cast(list[str], texts)


def _fields(inputs: m.HfInputs, kinds: dict[str, type]) -> dict[str, Any]:
    """Return the fields of inputs that must be an object with these fields. Raises Refused."""
    names = " and ".join(kinds)
    if not isinstance(inputs, dict):
        raise _refused("inputs", f"this task reads an object with {names}")
    for name in {**kinds, **inputs}:
        if name not in kinds:
            raise _refused(f"inputs.{name[:60]}", f"unknown field: this task reads {names}")
        if not isinstance(inputs.get(name), kinds[name]):
            raise _refused(f"inputs.{name}", "give a text" if kinds[name] is str else "give a list of texts")
    return cast(Any, inputs)


def _text_or_pair(value: Any) -> Example:
    if isinstance(value, str):
        return value
    if "text_pair" in value:
        values = _fields(value, {"text": str, "text_pair": str})
        return [values["text"], values["text_pair"]]
    return _fields(value, {"text": str})["text"]


def _labels(found: Any, apply: Callable[[np.ndarray], np.ndarray]) -> list[m.HfLabel]:
    """Return a function of the scores or probabilities of a text, highest first."""
    scores = getattr(found, "probabilities", None) or {ONLY: found.score}
    values = apply(np.array(list(scores.values()))).tolist()
    return sorted(map(m.HfLabel, scores, values), key=lambda each: -each.score)


def _entity(found: Entity, single: bool) -> m.HfEntity:
    kind = {"entity" if single else "entity_group": found.label}
    return m.HfEntity(found.score, found.text, found.start, found.end, **kind)


def _step(window: int, shared: int, param: str) -> int:
    """Return the tokens from the start of a window to the start of the next, if they share some. Raises Refused."""
    most = int(MOST_SHARED * window)
    if shared > most:
        raise _refused(param, f"windows of {window} tokens share at most {most} here: give less")
    return window - shared


def _target_ids(tokenizer: Tokenizer, targets: list[str]) -> np.ndarray:
    """Return the id of each target, or of its first piece, each once. Raises Refused."""
    known = {token: number for number, token in enumerate(tokenizer.vocabulary)}
    found = []
    for number, target in enumerate(targets):
        pieces = [known[target]] if target in known else tokenizer.encode([target])[0].tolist()
        if not pieces:
            raise _refused(f"parameters.targets[{number}]", "it has no tokens: give words")
        found.append(pieces[0])
    return np.array(list(dict.fromkeys(found)))


def _fillings(model: ServedModel, texts: list[str], results: list[list[list[MaskPrediction]]]) -> list[Any]:
    """Return the predictions at each mask of each text; of a text with one mask, those of this mask."""
    tokenizer = model.predictor.tokenizer
    ids = {token: number for number, token in enumerate(tokenizer.vocabulary)}
    answer = []
    for text, masks in zip(texts, results, strict=True):
        sequence = model.encode_masked(text)
        rows = []
        for place, guesses in zip(sequence.target.positions.tolist(), masks, strict=True):
            before, after = sequence.input_ids[:place].tolist(), sequence.input_ids[place + 1 :].tolist()
            hidden = set(tokenizer.special_ids.tolist()) if len(masks) == 1 else set()
            shown = ([i for i in part if i not in hidden] for part in (before, after))
            left, right = shown
            rows.append(
                [
                    m.HfToken(
                        guess.probability,
                        ids[guess.token],
                        tokenizer.decode([ids[guess.token]]),
                        tokenizer.decode([*left, ids[guess.token], *right]),
                    )
                    for guess in guesses
                ]
            )
        answer.append(rows[0] if len(rows) == 1 else rows)
    return answer


def _answer(context: str, span: SpanCandidate, words: np.ndarray | None) -> m.HfAnswer:
    """Return an answer, extended to the words in which it starts and ends. words: int [words, 2], where each stands."""
    start, end = span.start, span.end
    if words is not None and start < end:
        first, last = (int(np.searchsorted(words[:, 0], at, "right")) - 1 for at in (start, end - 1))
        start = int(words[first, 0]) if first >= 0 and start < words[first, 1] else start
        end = int(words[last, 1]) if last >= 0 and end <= words[last, 1] else end
    return m.HfAnswer(context[start:end], span.probability, start, end)
