"""The dialect of Hugging Face's inference API: what clients send to the URL of an endpoint, and to /models/ID.

Sources: huggingface_hub 2.4 (InferenceClient) and @huggingface/inference 4 with their specifications of tasks, and the
pipelines of transformers 5. A client posts to its base URL itself; which task it means follows from the inputs, the
parameters and the model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from msgspec import structs
from scipy.special import expit, softmax

from bertie.base.errors import UserError
from bertie.predict.fill_mask import MaskPrediction, MaskPredictions
from bertie.predict.vectors import similarities
from bertie.serve import predictions
from bertie.serve.ask import Ask
from bertie.serve.dialects import hf_messages as m
from bertie.serve.dialects.v1 import require_ready
from bertie.serve.exchange import Call, Dialect, Endpoint
from bertie.serve.limits import Refused, unfit
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import MAX_TOP_K, Operation, ServedModel
from bertie.serve.predictions import predict
from bertie.serve.scores import Scores, classify
from bertie.serve.vectors import embed
from bertie.tasks.aggregation import with_aggregation
from bertie.tasks.predictions import SpanCandidate
from bertie.tasks.word_alignment import split_and_tokenize
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import special_tokens

PIPELINE = "/pipeline/"
KEYS = {"source_sentence": "sentence-similarity", "question": "question-answering", "text": "text-classification"}
"""The task of inputs that are an object, by one of its keys."""
Parameters = dict[str, Any]
"""The parameters of a request, by name."""
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"sigmoid": expit, "softmax": softmax, "none": np.asarray}
"""Functions from the outputs of a head, float [classes], to scores, by the name in a request."""
OUTSIDE = "O"
MOST_SHARED = 0.75  # of a window that the next one may share: otherwise a text would cost too many windows
ELSEWHERE = 1 << 20  # size of a work that is not done in the event loop


@dataclass(frozen=True)
class HfTask:
    """A task of the API."""

    operation: Operation
    """The operation that a model must offer."""
    run: Callable[[Ask, m.HfInputs, Parameters], Awaitable[Any]]
    """Computes the answer of a model that offers the operation."""
    parameters: tuple[str, ...] = ()
    """Names of its parameters."""
    predicts: bool = False
    """Whether a model must have been fine-tuned for this task."""


async def extract_features(ask: Ask, inputs: m.HfInputs, parameters: Parameters) -> Any:
    """Return one vector for each text."""
    names = ("truncate", "prompt_name", "dimensions", "normalize")
    settings = {name: parameters[name] for name in names if name in parameters}
    embedded = await embed(replace(ask, fields={"inputs": _texts(inputs)}, **settings))
    return await ask.call.offload(len(embedded.results), json_numbers, embedded.results)


async def compare_sentences(ask: Ask, inputs: m.HfInputs, parameters: Parameters) -> list[float]:  # noqa: ARG001
    """Return how similar sentences are to another one."""
    values = _fields(inputs, {"source_sentence": str, "sentences": list})
    if not values["sentences"]:
        raise unfit("inputs.sentences", "there is no sentence: give at least one")
    fields = {f"inputs.{name}": values[name] for name in ("source_sentence", "sentences")}
    embedded = await embed(replace(ask, fields=fields))
    similarity, rows = embedded.model.predictor.text_embedding.similarity, embedded.results
    return json_numbers(similarities(similarity, rows[:1], rows[1:])[0])


async def classify_texts(ask: Ask, inputs: m.HfInputs, parameters: Parameters) -> list[list[m.HfLabel]]:
    """Return the classes of each text or pair of texts, most probable first."""
    values = list(map(_text_or_pair, inputs)) if isinstance(inputs, list) else _text_or_pair(inputs)
    apply = FUNCTIONS.get(parameters.get("function_to_apply", ""))
    scored = await classify(replace(ask, fields={"inputs": values}, scale="raw" if apply else "model"))
    return [_labels(text, apply or np.asarray)[: parameters.get("top_k")] for text in scored.results]


async def classify_tokens(ask: Ask, inputs: m.HfInputs, parameters: Parameters) -> Any:
    """Return the entities of each text."""
    model = ask.model("predict")
    task, strategy, ignored = (
        model.predicting,
        parameters.get("aggregation_strategy"),
        parameters.get("ignore_labels", [OUTSIDE]),
    )
    if strategy is None:
        try:
            strategy = "simple" if with_aggregation(task, "simple") else "none"
        except UserError:  # the tags mark no entities
            strategy = "none"
    if OUTSIDE not in ignored:
        raise unfit("ignore_labels", f"words outside of entities are not listed: add {OUTSIDE}")
    if (stride := parameters.get("stride")) is not None:
        window = model.predictor.max_length - special_tokens(model.predictor.tokenizer, 1)
        if strategy == "none":
            raise unfit("stride", "it joins the entities of windows, and aggregation_strategy is none: omit one")
        task = replace(cast(Any, task), truncation="windows", doc_stride=_step(window, stride, "stride"))
    tagged = await predict(replace(ask, fields={"inputs": _texts(inputs)}, strategy=strategy, task=task))
    kind = "entity" if strategy == "none" else "entity_group"
    answer = [
        [
            m.HfEntity(entity.score, entity.text, entity.start, entity.end, **{kind: entity.label})
            for entity in prediction.entities or ()
            if entity.label not in ignored
        ]
        for prediction in tagged.results
    ]
    return answer[0] if isinstance(inputs, str) else answer


async def fill_masks(ask: Ask, inputs: m.HfInputs, parameters: Parameters) -> Any:
    """Return the tokens at the mask of each text, or at each of several masks."""
    model, top_k, targets = ask.model("fill-mask"), parameters.get("top_k", 5), parameters.get("targets")
    if top_k > MAX_TOP_K:
        raise unfit("top_k", f"give at most {MAX_TOP_K} for tokens at masks")
    offload, candidates = ask.call.offload, None
    if targets is not None:
        targets = [targets] if isinstance(targets, str) else targets
        replace(ask, fields={"parameters.targets": targets}).check_sizes(list(map(len, targets)))
        candidates = await offload(ELSEWHERE, _target_ids, model.predictor.tokenizer, targets)
    ask = replace(ask, fields={"inputs": _texts(inputs)}, top_k=top_k, candidates=candidates)
    filled = await predictions.fill_masks(ask)
    answer = await offload(ELSEWHERE, _fillings, model, ask.values, filled.results)
    return answer[0] if isinstance(inputs, str) else answer


async def answer_question(ask: Ask, inputs: m.HfInputs, parameters: Parameters) -> Any:
    """Return the best answer, or the `top_k` best ones."""
    values = _fields(inputs, {"question": str, "context": str})
    question, context, top_k = values["question"], values["context"], parameters.get("top_k", 1)
    fields = {f"inputs.{name}": value for name, value in values.items()}
    replace(ask, fields=fields).check_sizes(list(map(len, values.values())))
    if top_k > MAX_TOP_K:
        raise unfit("top_k", f"give at most {MAX_TOP_K}")
    predictor, task = (model := ask.model("predict")).predictor, cast(Any, model.predicting)
    most, tokenizer, offload = predictor.max_length, predictor.tokenizer, ask.call.offload
    if parameters.get("max_seq_len", most) < most:
        raise unfit("max_seq_len", f"windows always have {most} tokens, the limit of the model: omit it")
    changes = {
        "max_answer_length": parameters.get("max_answer_len", task.max_answer_length),
        "max_query_length": parameters.get("max_question_len", task.max_query_length),
        "n_best_size": max(task.n_best_size, top_k),
    }
    if "handle_impossible_answer" in parameters:
        changes["threshold"] = (task.threshold or 0.0) if parameters["handle_impossible_answer"] else None
    if "doc_stride" in parameters:
        [sized] = await offload(len(question), tokenizer.encode, [question])
        room = most - special_tokens(tokenizer, 2)
        window = room - min(len(sized), changes["max_query_length"], room // 2)
        changes["doc_stride"] = _step(window, parameters["doc_stride"], "doc_stride")
    answers = await predict(replace(ask, fields={"inputs": (question, context)}, task=replace(task, **changes)))
    [best] = answers.results
    chosen = SpanCandidate(best.answer, best.start, best.end, 0.0, best.probability)
    others = [guess for guess in best.guesses if (guess.start, guess.end) != (best.start, best.end)]
    words = None
    if parameters.get("align_to_words"):
        [(_, words)] = await offload(ELSEWHERE, split_and_tokenize, tokenizer, [context])
    spans = [_answer(context, span, words) for span in [chosen, *others][:top_k]]
    return spans if top_k > 1 else spans[0]


VECTOR_FIELDS = m.HfVectorFields.__struct_fields__
QUESTION_FIELDS = (
    *("top_k", "align_to_words", "doc_stride", "handle_impossible_answer"),
    *("max_answer_len", "max_question_len", "max_seq_len"),
)
TASKS = {
    "feature-extraction": HfTask("vectors", extract_features, VECTOR_FIELDS),
    "sentence-similarity": HfTask("vectors", compare_sentences),
    "text-classification": HfTask("predict", classify_texts, ("top_k", "function_to_apply"), True),
    "token-classification": HfTask(
        "predict", classify_tokens, ("aggregation_strategy", "ignore_labels", "stride"), True
    ),
    "fill-mask": HfTask("fill-mask", fill_masks, ("top_k", "targets")),
    "question-answering": HfTask("predict", answer_question, QUESTION_FIELDS, True),
}


def _texts(inputs: m.HfInputs) -> str | list[str]:
    """Return inputs that must be texts. Raises Refused."""
    if isinstance(inputs, dict) or not all(isinstance(text, str) for text in inputs):
        raise unfit("inputs", "this task reads a text, or a list of texts")
    return cast(Any, inputs)


def _fields(inputs: m.HfInputs, kinds: dict[str, type]) -> dict[str, Any]:
    """Return the fields of inputs that must be an object with these fields. Raises Refused."""
    names = " and ".join(kinds)
    if not isinstance(inputs, dict):
        raise unfit("inputs", f"this task reads an object with {names}")
    for name in {**kinds, **inputs}:
        if name not in kinds:
            raise unfit(f"inputs.{name[:60]}", f"unknown field: this task reads {names}")
        if not isinstance(inputs.get(name), kinds[name]):
            raise unfit(f"inputs.{name}", "give a text" if kinds[name] is str else "give a list of texts")
    return cast(Any, inputs)


def _text_or_pair(value: Any) -> str | tuple[str, str]:
    if isinstance(value, str):
        return value
    if "text_pair" in value:
        values = _fields(value, {"text": str, "text_pair": str})
        return values["text"], values["text_pair"]
    return _fields(value, {"text": str})["text"]


def _labels(scores: Scores, apply: Callable[[np.ndarray], np.ndarray]) -> list[m.HfLabel]:
    """Return a function of the scores of a text, highest first."""
    values = apply(np.array(list(scores.probabilities.values()))).tolist()
    return sorted(map(m.HfLabel, scores.probabilities, values), key=lambda label: -label.score)


def _step(window: int, shared: int, param: str) -> int:
    """Return the tokens from the start of a window to the start of the next, if they share some. Raises Refused."""
    most = int(MOST_SHARED * window)
    if shared > most:
        raise unfit(param, f"windows of {window} tokens share at most {most} here: give less")
    return window - shared


def _target_ids(tokenizer: Tokenizer, targets: list[str]) -> np.ndarray:
    """Return the id of each target, or of its first piece, each once. Raises Refused."""
    known = {token: number for number, token in enumerate(tokenizer.vocabulary)}
    ids: dict[int, None] = {}
    for number, target in enumerate(targets):
        pieces = [known[target]] if target in known else tokenizer.encode([target])[0].tolist()
        if not pieces:
            raise unfit(f"parameters.targets[{number}]", "it has no tokens: give words")
        ids[pieces[0]] = None
    return np.array(list(ids))


def _fillings(model: ServedModel, texts: list[str], results: list[MaskPredictions]) -> list[Any]:
    """Return the predictions at each mask of each text; of a text with one mask, the predictions alone."""
    tokenizer = model.predictor.tokenizer
    ids = {token: number for number, token in enumerate(tokenizer.vocabulary)}

    def token(guess: MaskPrediction, left: list[int], right: list[int]) -> m.HfToken:
        number = ids[guess.token]
        sequence = tokenizer.decode([*left, number, *right])
        return m.HfToken(guess.probability, number, tokenizer.decode([number]), sequence)

    answer = []
    for text, masks in zip(texts, results, strict=True):
        sequence = model.encode_masked(text)
        hidden = tokenizer.special_ids if len(masks) == 1 else []
        rows = []
        for place, guesses in zip(sequence.target.positions.tolist(), masks, strict=True):
            parts = sequence.input_ids[:place], sequence.input_ids[place + 1 :]
            left, right = (part[~np.isin(part, hidden)].tolist() for part in parts)
            rows.append([token(guess, left, right) for guess in guesses])
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


async def infer(call: Call, request: m.HfRequest) -> Any:
    """Do the task that the inputs, the parameters and the model mean."""
    return await _infer(call, request, "", "")


async def infer_with(call: Call, request: m.HfRequest) -> Any:
    """Do the task that the inputs, the parameters and the named model mean, or the task after /pipeline/ in the path."""
    model, _, task = call.request.path_params["model"].partition(PIPELINE)
    return await _infer(call, request, model, task)


async def pipeline(call: Call, request: m.HfRequest) -> Any:
    """Do a named task: feature-extraction, sentence-similarity, text-classification, token-classification, fill-mask or
    question-answering. A model may follow: /pipeline/TASK/MODEL."""
    task, _, model = call.request.path_params["task"].partition("/")
    return await _infer(call, request, model, task)


async def health(call: Call, _: None) -> m.HfHealth:
    """Tell whether to send requests to this process."""
    require_ready(call)
    return m.HfHealth("ok")


SUMMARY = "A task, as huggingface_hub and @huggingface/inference ask for it"
ENDPOINTS = (
    Endpoint("POST", "/", infer, SUMMARY),
    Endpoint("POST", "/models/{model:path}", infer_with, f"{SUMMARY}, with a model"),
    Endpoint("POST", "/pipeline/{task:path}", pipeline, "A named task"),
    Endpoint("GET", "/health", health, "Readiness", protected=False, statuses=(503,)),
)

HF = Dialect("hf", "/hf", ENDPOINTS, lambda refused: m.HfError(refused.message, refused.reason), m.HfError)


async def _infer(call: Call, request: m.HfRequest, name: str, task: str) -> Any:
    model = _model(call, name)
    parameters = _parameters(request)
    task = task or _meant(model, request.inputs, parameters)
    if task not in TASKS:
        raise Refused(404, "task", f"there is no task {task[:60]!r}: the tasks are {', '.join(TASKS)}", "task")
    chosen = TASKS[task]
    ask = Ask(call, model.name, {})
    trained = _own_task(ask.model(chosen.operation))
    if chosen.predicts and trained != task:
        raise Refused(
            422, "operation", f"the model {model.name} was not fine-tuned for {task}, but for {trained}", "model"
        )
    if wrong := [field for field in parameters if field not in chosen.parameters]:
        raise unfit(wrong[0], f"{task} has no such parameter: omit it")
    return await chosen.run(ask, request.inputs, parameters)


def _model(call: Call, name: str) -> ServedModel:
    """Return a model by its name, or by an id of the hub whose last part is its name. Raises Refused."""
    last = name.rpartition("/")[2]
    known = call.service.models
    return call.service.model(last if name not in known and last in known else name, "vectors")


def _parameters(request: m.HfRequest) -> Parameters:
    """Return the parameters that are given, within `parameters` or beside `inputs`. Raises Refused if one is given twice."""
    nested = request.parameters or m.HfParameters()
    named = [(name, getattr(request, name)) for name in VECTOR_FIELDS] + list(structs.asdict(nested).items())
    values: Parameters = {}
    for name, value in named:
        if value is not None:
            if name in values:
                raise unfit(name, "it is given twice: omit one")
            values[name] = value
    return values


def _own_task(model: ServedModel) -> str:
    """Return the task of the hub that a model was fine-tuned for. Empty: none."""
    return model.predicting.facts.hub_tag if "predict" in model.lanes else ""


def _meant(model: ServedModel, inputs: m.HfInputs, parameters: Parameters) -> str:
    """Return the task that a request means which names none."""
    if isinstance(inputs, dict):
        if named := [task for key, task in KEYS.items() if key in inputs]:
            return named[0]
        raise unfit("inputs", f"give a text, texts, or an object with one of {', '.join(KEYS)}")
    if any(field in VECTOR_FIELDS for field in parameters):
        return "feature-extraction"
    if trained := _own_task(model):
        return trained
    texts = inputs if isinstance(inputs, list) else [inputs]
    masks = model.mask_token is not None and any(isinstance(text, str) and model.mask_token in text for text in texts)
    return "fill-mask" if masks or {"targets", "top_k"} & parameters.keys() else "feature-extraction"
