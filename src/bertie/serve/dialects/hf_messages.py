"""The messages of Hugging Face's inference API: what InferenceClient of huggingface_hub and @huggingface/inference send."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from bertie.serve.dialects.v1_messages import AtLeast0, AtLeast1
from bertie.tasks.aggregation import Strategy

HfInputs = str | list[str | dict[str, str]] | dict[str, str | list[str]]


class HfVectorFields(Struct, forbid_unknown_fields=True):
    """The fields of feature extraction, which clients send beside `inputs`, and others within `parameters`."""

    normalize: bool | None = None
    """true: scale vectors to length 1. false: leave them as they are, if the model itself does not normalize. Without it: as
    the files of the model say."""
    prompt_name: str | None = None
    """Name of the model's prompt that is put before each text."""
    truncate: bool | None = None
    """false refuses texts with more tokens than the model reads, true truncates them, as without it."""
    truncation_direction: Literal["right"] | None = None
    """Only right: texts lose their end."""
    dimensions: int | None = None
    """Width of the vectors: the model's own, or a smaller one that it was trained for. Shorter vectors have length 1, unless
    `normalize` is false."""
    encoding_format: Literal["float"] | None = None
    """Only float: /v1/embeddings has base64."""


class HfParameters(HfVectorFields):
    """The parameters of all tasks. One that another task has is refused."""

    top_k: AtLeast1 | None = None
    """Text classification: classes in the answer, by default all. Fill-mask: tokens per mask, by default 5. Question
    answering: answers, at most 100; without it, or with 1, the answer is an object, not a list."""
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    """Of text classification: what makes scores of the outputs of the head. Without it: as the model was trained."""
    aggregation_strategy: Strategy | None = None
    """Of token classification: how predictions for subwords become entities. Without it: simple, or none if the tags mark no
    entities."""
    ignore_labels: list[str] | None = None
    """Of token classification: labels to leave out. O must be one of them."""
    stride: AtLeast0 | None = None
    """Of token classification: tokens that the windows of a long text share, at most three quarters. Without it: as
    the model was trained."""
    targets: list[str] | str | None = None
    """Of fill-mask: the tokens among which to choose. Of a target that is not in the vocabulary, the first piece
    counts."""
    align_to_words: bool | None = None
    """Of question answering: true extends answers to whole words."""
    doc_stride: AtLeast0 | None = None
    """Of question answering: tokens that the windows of a long context share, at most three quarters. Without it: as
    the model was trained."""
    handle_impossible_answer: bool | None = None
    """Of question answering: whether "no answer", an empty text, may win. Without it: as the model was trained."""
    max_answer_len: AtLeast1 | None = None
    """Of question answering: tokens of the longest answer. Without it: as the model was trained."""
    max_question_len: AtLeast1 | None = None
    """Of question answering: tokens of the question that are read."""
    max_seq_len: AtLeast1 | None = None
    """Of question answering: tokens of a window. Only what the model reads, or more, is possible."""


class HfOptions(Struct, forbid_unknown_fields=True):
    """Options of the hosted service, without effect here: there is no cache, and models are loaded."""

    use_cache: bool | None = None
    wait_for_model: bool | None = None
    use_gpu: bool | None = None


class HfRequest(HfVectorFields, kw_only=True):
    """Inputs of a task."""

    inputs: HfInputs
    """A text, texts, {"text": …, "text_pair": …}, {"source_sentence": …, "sentences": [ … ]}, or {"question": …, "context":
    …}."""
    parameters: HfParameters | None = None
    options: HfOptions | None = None


class HfLabel(Struct):
    """A class with its score."""

    label: str
    score: float


class HfEntity(Struct, omit_defaults=True):
    """An entity, or with the strategy none a subword with a tag."""

    score: float
    word: str
    start: int
    end: int
    entity: str | None = None
    entity_group: str | None = None


class HfToken(Struct):
    """A token predicted at a mask."""

    score: float
    token: int
    token_str: str
    sequence: str
    """The text with the token, as the tokenizer reads it."""


class HfAnswer(Struct):
    """An answer to a question: characters start to end (exclusive) of the context."""

    answer: str
    score: float
    start: int
    end: int


class HfError(Struct):
    """Why a request was refused."""

    error: str
    error_type: str
    """The reason in one word."""


class HfHealth(Struct):
    """The server is ready."""

    status: Literal["ok"]
