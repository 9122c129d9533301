"""Probes of a loaded model and what transformers computes from its folder: tokens, hidden states, heads, predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import asdict
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor

from bertie.base import storage
from bertie.base.console import plural
from bertie.base.errors import UserError
from bertie.checkpoints.huggingface import own_features, transformers_heads
from bertie.model.head_facts import HeadShape, facts_of
from bertie.predict.convert.compared_texts import LONG, ComparedTexts, sequences_of
from bertie.predict.convert.comparison import Compared, OtherError, Probe, calling, not_done, standardized
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import head_outputs, token_vectors
from bertie.tasks.predictions import prediction_to_json
from bertie.tasks.tag_tokens import Strategy
from bertie.tokenizers.folder import FILES
from bertie.tokenizers.tokenizer import Tokenizer

CLASSES: dict[HeadShape, str] = {
    "text": "AutoModelForSequenceClassification",
    "choice": "AutoModelForMultipleChoice",
    "tokens": "AutoModelForTokenClassification",
    "start_end": "AutoModelForQuestionAnswering",
    "pair": "AutoModelForNextSentencePrediction",
    "masked": "AutoModelForMaskedLM",
    "next": "AutoModelForCausalLM",
    "replaced": "AutoModelForPreTraining",
}
"""The class that loads a head of each shape."""
POOLING = [CLASSES[shape] for shape in ("text", "choice", "pair")]
"""The classes that need the pooler of a BERT."""
NO_CLASS = "transformers has no class for it, or one with other inputs"
ROLES = "a special token in a text is text in bertie"
AROUND = (
    "the tokenizer of transformers puts no special tokens around a text, bertie does; its models get the same ids here"
)
UNLIMITED = 1_000_000
MASKED, FILLED = 4, 100
"""Texts with a mask, and tokens for it among which the best ones of transformers must be."""


def probes(predictor: Predictor, folder: Path) -> Iterator[Probe | Compared]:
    """Yield what is compared with transformers.

    Args:
        predictor: The model, in fp32 on the CPU.
        folder: The folder that transformers loads: the same, or one that was converted from it.
    """
    other = Transformers(predictor, folder)
    texts = ComparedTexts.of(predictor.tokenizer, predictor.max_length)
    if any((other.folder / name).is_file() for name in FILES):
        try:
            other.load("AutoTokenizer")
        except OtherError as error:
            yield not_done("loading the tokenizer", str(error))
            return
        yield from _tokens(predictor, other, texts)
    else:
        why = "the folder has no tokenizer files; bertie knows its vocabulary"
        yield not_done("tokens", why, judged=False)
    for what, inputs in (("texts", texts.plain), ("pairs", texts.pairs)):
        inputs = _with_tokens(predictor, inputs)
        ours = token_vectors(predictor.model, sequences_of(predictor, inputs))
        yield Probe(f"last hidden states of {what}", inputs, ours, lambda i=inputs: other.hidden_states(i))
    for kind in sorted(predictor.model.heads):
        yield from _head(predictor, kind, other, texts)


class Transformers:
    """A folder in transformers, in fp32 as bertie computes. It executes no code of the folder.

    Whatever the library raises is an `OtherError`.
    """

    def __init__(self, predictor: Predictor, folder: Path):
        """Load nothing yet.

        Args:
            predictor: The same model in bertie, whose ids it gets if its own tokenizer adds no special tokens.
            folder: The folder.
        """
        self.predictor = predictor
        self.folder = folder
        self.load = cache(self._load)

    def _load(self, name: str) -> Any:
        """Load a tokenizer or a model by the name of a class.

        Raises:
            OtherError: transformers does not load it, or lacks weights, which it would make at random.
        """
        import transformers  # pyright: ignore[reportMissingImports]

        load = partial(getattr(transformers, name).from_pretrained, str(self.folder.absolute()))
        options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        with calling():
            if name == "AutoTokenizer":
                return load(**options)
            model, info = load(dtype=torch.float32, output_loading_info=True, **options)
        missing = sorted(key for key in info["missing_keys"] if name in POOLING or "pooler" not in key)
        if missing:
            names = f"{', '.join(missing[:2])}{' …' * (len(missing) > 2)}"
            raise OtherError(f"transformers finds no weights for {plural(len(missing), 'tensor')}: {names}")
        return model.eval()

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self.load("AutoTokenizer")

    def encode(self, text: str | tuple[str, str], limit: int, **options: Any) -> Any:
        """Encode a text or a pair as a user of transformers does."""
        texts = (text,) if isinstance(text, str) else text
        return self.tokenizer(*texts, truncation=True, max_length=limit, **options)

    def run(self, name: str, text: str | tuple[str, str]) -> Any:
        """Run a model on a text or a pair."""
        predictor = self.predictor
        if predictor.tokenizer.adds_around:
            [sequence] = sequences_of(predictor, [text])
            ids = torch.from_numpy(sequence.input_ids).long()[None]
            inputs: dict[str, Tensor] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        else:
            inputs = self.encode(text, predictor.max_length, return_tensors="pt")
        if name == CLASSES["choice"]:
            inputs = {key: tensor[None] for key, tensor in inputs.items()}
        with torch.inference_mode():
            return self.load(name)(**inputs)

    def hidden_states(self, inputs: Many[Any]) -> list[np.ndarray]:
        """Return the last hidden states of each text or pair."""
        return [self.run("AutoModel", text).last_hidden_state[0].numpy() for text in inputs]

    def outputs(self, name: str, inputs: Many[Any]) -> list[np.ndarray]:
        """Return the outputs of a head for each text or pair."""
        outputs = [self.run(name, text) for text in inputs]
        if name == CLASSES["start_end"]:
            return [torch.stack([output.start_logits[0], output.end_logits[0]], -1).numpy() for output in outputs]
        return [output.logits[0].numpy() for output in outputs]

    def pipeline(self, task: str, shape: HeadShape, inputs: Many[str], **options: Any) -> list[Any]:
        """Return what a pipeline gives for each text."""
        import transformers  # pyright: ignore[reportMissingImports]

        make: Any = transformers.pipeline
        run = make(task, model=self.load(CLASSES[shape]), tokenizer=self.tokenizer, device="cpu")
        return [run(text, **options) for text in inputs]

    def tags(self, sentences: Many[list[str]]) -> list[list[str]]:
        """Return the tag of each word: the one of its first token. In byte-level BPE, a blank is before each word."""
        model, tags = self.load(CLASSES["tokens"]), []
        blank = " " * (self.predictor.tokenizer.backend.word_mark == "Ġ")
        for words in sentences:
            inputs = self.tokenizer([blank + word for word in words], is_split_into_words=True, return_tensors="pt")
            with torch.inference_mode():
                labels = [model.config.id2label[i] for i in model(**inputs).logits[0].argmax(-1).tolist()]
            first = {word: place for place, word in reversed(list(enumerate(inputs.word_ids()))) if word is not None}
            tags.append([labels[first[word]] for word in range(len(words))])
        return tags


def _tokens(predictor: Predictor, other: Transformers, texts: ComparedTexts) -> Iterator[Probe]:
    tokenizer, length = predictor.tokenizer, predictor.max_length

    def exact(what: str, inputs: Many[Any], ours: Many[Any], theirs: Callable[[Any], Any], why: str = "") -> Probe:
        return Probe(what, inputs, ours, lambda: [theirs(text) for text in inputs], 0.0, why)

    plain = partial(other.tokenizer, add_special_tokens=False, return_offsets_mapping=True)
    for what, inputs, why in (("texts", texts.plain, ""), ("texts with special tokens", texts.with_roles, ROLES)):
        ids = [entries(tokenizer, encoding.ids) for encoding in tokenizer.encode_with_offsets(inputs)]
        yield exact(f"token ids of {what}", inputs, ids, lambda text: entries(tokenizer, plain(text)["input_ids"]), why)
    encoded = tokenizer.encode_with_offsets(texts.plain)
    offsets = [_places(text, encoding.offsets) for text, encoding in zip(texts.plain, encoded, strict=True)]
    yield exact("offsets of tokens", texts.plain, offsets, lambda text: _places(text, plain(text)["offset_mapping"]))
    long = LONG * (1 + 5 * length // len(LONG))
    longs = [long] * (len(tokenizer.encode([long])[0]) > length)
    for what, inputs, limit in (
        ("sequences of texts", texts.plain, UNLIMITED),
        ("sequences of pairs", texts.pairs, UNLIMITED),
        (f"a text that is truncated to {length:,} tokens", longs, length),
        ("a pair of such texts", [(text, text) for text in longs], length),
    ):
        sequences = sequences_of(predictor, inputs, limit)
        ours = [entries(tokenizer, item.input_ids.tolist(), item.token_type_ids.tolist()) for item in sequences]

        def theirs(text: Any, limit: int = limit) -> list[str]:
            encoding = other.encode(text, limit)
            return entries(tokenizer, encoding["input_ids"], encoding.get("token_type_ids") or repeat(0))

        if inputs:
            yield exact(f"ids and token types in {what}", inputs, ours, theirs, AROUND if tokenizer.adds_around else "")


def entries(tokenizer: Tokenizer, ids: Many[int], types: Any = None) -> list[str]:
    """Return each id with its entry of the vocabulary, and its token type if there are types: "the·12", "the·12·0"."""
    names = [f"{tokenizer.vocabulary[i] if i < tokenizer.size else ''}·{i}" for i in ids]
    return names if types is None else [f"{name}·{kind}" for name, kind in zip(names, types, strict=False)]


def _places(text: str, offsets: Any) -> list[tuple[int, int]]:
    """Return offsets without the white space around a token, which tokenizers count differently."""
    places = []
    for start, end in offsets:
        token = text[start:end]
        first = end - len(token.lstrip())
        places.append((first, max(first, start + len(token.rstrip()))))
    return places


def _with_tokens(predictor: Predictor, inputs: Many[Any]) -> list[Any]:
    """Return the inputs with tokens. transformers runs no others; some tokenizers add no special tokens."""
    return [text for text, sequence in zip(inputs, sequences_of(predictor, inputs), strict=True) if len(sequence)]


def _head(predictor: Predictor, kind: str, other: Transformers, texts: ComparedTexts) -> Iterator[Probe | Compared]:
    """Yield the probes of the outputs of a head, and of what a user calls to get predictions."""
    facts = facts_of(predictor.model.heads[kind])
    what, shape = f"outputs of the head ({facts.name})", facts.shape
    if shape is None or shape not in CLASSES:
        if shape != "vectors":
            yield not_done(what, NO_CLASS, judged=False)
        return
    if features := own_features(predictor.model):
        yield not_done(what, f"no class of transformers reads {features}", judged=False)
        return
    try:
        other.load(CLASSES[shape])
    except OtherError as error:  # a fault if the folder says that it holds such a head
        path = other.folder / "config.json"
        named = not path.is_file() or storage.read_json(path).get("architectures")
        known = transformers_heads(predictor.model) is not None
        yield not_done(what, str(error) if known else NO_CLASS, judged=bool(named) and known)
        return
    sizes = map(len, sequences_of(predictor, texts.sentences, UNLIMITED))
    # pipelines do not truncate
    short = [text for text, size in zip(texts.sentences, sizes, strict=True) if size < predictor.max_length - 2]
    inputs: list[Any] = texts.pairs
    if shape in ("masked", "next"):  # whose outputs are large
        inputs = short
    elif shape not in ("choice", "pair", "start_end"):
        inputs = _with_tokens(predictor, texts.plain) + texts.pairs * (shape == "text")
    ours = [head_outputs(predictor.model, kind, sequences_of(predictor, [text]))[0] for text in inputs]
    yield Probe(what, inputs, ours, lambda: other.outputs(CLASSES[shape], inputs), by_design=standardized(other.folder))
    compared = {"text": _classes, "tokens": _tags, "masked": _masks}.get(shape)
    # pipelines have the tokenizer's ids
    if compared and short and not predictor.tokenizer.adds_around and (predictor.task or shape == "masked"):
        try:
            yield from compared(predictor, other, short)
        except (UserError, OtherError) as error:  # a task that reads no plain texts is no fault
            yield not_done("predictions", str(error), judged=isinstance(error, OtherError))


def _classes(predictor: Predictor, other: Transformers, texts: list[str]) -> Iterator[Probe]:
    ours = list(map(prediction_to_json, predictor.predict(texts)))
    single = "score" in ours[0]
    why = standardized(other.folder)
    if single and other.load(CLASSES["text"]).config.problem_type != "regression":
        why = "one output: bertie gives it, or what the files of sentence-transformers say; the pipeline its sigmoid"

    def theirs() -> list[Any]:
        answers = other.pipeline("text-classification", "text", texts, top_k=None)
        scores = [sorted((item["label"], item["score"]) for item in answer) for answer in answers]
        return [labels[0][1:] if single else labels for labels in scores]

    named = "scores" if "scores" in ours[0] else "probabilities"
    results = [[item["score"]] if single else sorted(item[named].items()) for item in ours]
    yield Probe('predictions of pipeline("text-classification")', texts, results, theirs, by_design=why)


def _tags(predictor: Predictor, other: Transformers, texts: list[str]) -> Iterator[Probe]:
    sentences = [text.split() for text in texts]
    tags = [prediction.tags for prediction in predictor.predict(sentences)]
    yield Probe("tags of words", sentences, tags, lambda: other.tags(sentences), 0.0)
    form, task = getattr(predictor.task, "form", None), cast(Any, predictor.task)
    why = "" if form and form.scheme == "bio" else "the pipeline knows the scheme bio only"
    why = why if task.in_place else "the run was trained on lists of words, and reads a text as a list of its words"
    for strategy in get_args(Strategy)[1:] if form else ("none",):
        ours = [
            _entities(text, found.entities)
            for text, found in zip(texts, predictor.predict(texts, strategy), strict=True)
        ]

        def theirs(strategy: str = strategy) -> list[Any]:
            answers = other.pipeline("token-classification", "tokens", texts, aggregation_strategy=strategy)
            return [_entities(text, answer) for text, answer in zip(texts, answers, strict=True)]

        yield Probe(f"entities of pipeline, aggregation_strategy={strategy}", texts, ours, theirs, 0.0, why)


def _entities(text: str, found: Many[Any]) -> list[list[Any]]:
    """Return the entities of bertie or of the pipeline: their places, without white space around them, and their kinds."""
    rows = [each if isinstance(each, dict) else {"entity": each.label, **asdict(each)} for each in found]
    places = _places(text, [(row["start"], row["end"]) for row in rows])
    return [[*place, row.get("entity_group") or row["entity"]] for place, row in zip(places, rows, strict=True)]


def _masks(predictor: Predictor, other: Transformers, texts: list[str]) -> Iterator[Probe | Compared]:
    name, tokenizer = 'pipeline("fill-mask")', predictor.tokenizer
    if other.tokenizer.mask_token is None:
        yield not_done(name, "no file names the mask token, and transformers needs it", judged=False)
        return
    if other.tokenizer.split_special_tokens:
        yield not_done(name, "split_special_tokens: a mask in a text is text in transformers", judged=False)
        return
    mask = tokenizer.vocabulary[tokenizer.mask_id]
    inputs = [" ".join([*text.split()[:3], mask, *text.split()[4:]]) for text in texts[:MASKED]]
    with calling():
        answers = other.pipeline("fill-mask", "masked", inputs, top_k=5)
    ours, theirs = [], []
    for text, answer in zip(inputs, answers, strict=True):
        best = answer if isinstance(answer[0], dict) else answer[-1]  # several masks: two roles have the same token
        filled = {guess.token: guess.probability for guess in predictor.fill_mask(text, FILLED)[-1]}
        ours.append(np.array([filled.get(tokenizer.vocabulary[guess["token"]], 0.0) for guess in best]))
        theirs.append(np.array([guess["score"] for guess in best]))
    yield Probe(f"masked tokens of {name}", inputs, ours, lambda: theirs)
