"""The dialect of Hugging Face's inference API: what clients send to the URL of an endpoint, and to /models/ID.

Sources: huggingface_hub 2.4 (InferenceClient) and @huggingface/inference 4 with their specifications of tasks, and the
pipelines of transformers 5. A client posts to its base URL itself; which task it means follows from the inputs, the
parameters and the model.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from bertie.serve.ask import Ask
from bertie.serve.dialects import hf_messages as m
from bertie.serve.dialects.dialect import require_ready
from bertie.serve.dialects.hf_tasks import TASKS, VECTOR_FIELDS
from bertie.serve.exchange import Call, Dialect, Endpoint, json_response
from bertie.serve.limits import Refused
from bertie.serve.operations import ServedModel

PIPELINE = "/pipeline/"
KEYS = {"source_sentence": "sentence-similarity", "question": "question-answering", "text": "text-classification"}
"""The task of inputs that are an object, by one of its keys."""


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


async def health(call: Call, _: None) -> Response:
    """Tell whether to send requests to this process."""
    require_ready(call)
    return json_response(m.HfHealth("ok"))


def form(refused: Refused) -> m.HfError:
    """Return the message of an error."""
    return m.HfError(refused.message, refused.reason)


SUMMARY = "A task, as huggingface_hub and @huggingface/inference ask for it"
ENDPOINTS = (
    Endpoint("POST", "/", infer, SUMMARY, Any, m.HfRequest),
    Endpoint("POST", "/models/{model:path}", infer_with, f"{SUMMARY}, with a model", Any, m.HfRequest),
    Endpoint("POST", "/pipeline/{task:path}", pipeline, "A named task", Any, m.HfRequest),
    Endpoint("GET", "/health", health, "Readiness", m.HfHealth, protected=False, statuses=(503,)),
)

HF = Dialect("hf", "/hf", ENDPOINTS, form, m.HfError)


async def _infer(call: Call, request: m.HfRequest, name: str, task: str) -> Any:
    model = _model(call, name)
    given = _given(request)
    task = task or _meant(model, request.inputs, given)
    if task not in TASKS:
        raise Refused(404, "task", f"there is no task {task[:60]!r}: the tasks are {', '.join(TASKS)}", "task")
    chosen = TASKS[task]
    ask = Ask(call, model.name, {})
    own = _own_task(ask.model(chosen.operation))
    if chosen.predicts and own != task:
        raise Refused(422, "operation", f"the model {model.name} was not fine-tuned for {task}, but for {own}", "model")
    if wrong := [field for field in given if field not in chosen.parameters]:
        raise Refused(422, "validation", f"{wrong[0]}: {task} has no such parameter: omit it", wrong[0])
    answer = await chosen.run(ask, request.inputs, given)
    size = len(answer) if isinstance(answer, list) else 1
    return await call.service.offload(size, json_response, answer)


def _model(call: Call, name: str) -> ServedModel:
    """Return a model by its name, or by an id of the hub whose last part is its name. Raises Refused."""
    last = name.rpartition("/")[2]
    known = call.service.models
    return call.service.model(last if name not in known and last in known else name, "vectors")


def _given(request: m.HfRequest) -> dict[str, Any]:
    """Return the parameters that are given, within `parameters` or beside `inputs`. Raises Refused if one is given twice."""
    found: dict[str, Any] = {}
    parameters = request.parameters or m.HfParameters()
    for owner, fields in ((request, VECTOR_FIELDS), (parameters, parameters.__struct_fields__)):
        for field in fields:
            if (value := getattr(owner, field)) is not None:
                if field in found:
                    raise Refused(422, "validation", f"{field}: it is given twice: omit one", field)
                found[field] = value
    return found


def _own_task(model: ServedModel) -> str:
    """Return the task of the hub that a model was fine-tuned for. Empty: none."""
    return model.predicting.facts.hub_tag if "predict" in model.lanes else ""


def _meant(model: ServedModel, inputs: m.HfInputs, given: dict[str, Any]) -> str:
    """Return the task that a request means which names none."""
    if isinstance(inputs, dict):
        for key, task in KEYS.items():
            if key in inputs:
                return task
        raise Refused(
            422, "validation", f"inputs: give a text, texts, or an object with one of {', '.join(KEYS)}", "inputs"
        )
    if any(field in VECTOR_FIELDS for field in given):
        return "feature-extraction"
    if own := _own_task(model):
        return own
    texts = inputs if isinstance(inputs, list) else [inputs]
    masks = model.mask_token is not None and any(isinstance(text, str) and model.mask_token in text for text in texts)
    return "fill-mask" if masks or {"targets", "top_k"} & given.keys() else "feature-extraction"
