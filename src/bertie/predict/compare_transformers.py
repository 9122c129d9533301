"""Compare a loaded model with what transformers computes from the same folder: tokens, hidden states, heads, predictions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bertie import storage
from bertie.checkpoints.huggingface import own_features, transformers_heads
from bertie.console import plural
from bertie.contracts import Batch, Sequence
from bertie.errors import UserError
from bertie.model.head_facts import HeadShape, facts_of
from bertie.predict.comparison import (
    LONG,
    ORDINARY,
    TEXTS,
    Compared,
    ComparedTexts,
    OtherError,
    attempt,
    calling,
    close,
    equal_or_not,
    not_done,
)
from bertie.predict.engines.graph import POOLED
from bertie.predict.predictor import Predictor
from bertie.tasks.inference import infer
from bertie.tasks.predictions import prediction_to_json
from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer
from bertie.text.tokenizer_folder import FILES

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
"""What loads a head of each shape."""
POOLING = [CLASSES[shape] for shape in ("text", "choice", "pair")]
"""Those that need the pooler of a BERT."""
OVER_VOCABULARY = ("masked", "next")
NO_CLASS = "transformers has no class for it, or one with other inputs"
ROLES = "a special token in a text is text in bertie"
AROUND = (
    "the tokenizer of transformers puts no special tokens around a text, bertie does; its models get the same ids here"
)
NO_TOKENIZER = "the folder has no tokenizer files; bertie knows its vocabulary"
UNLIMITED = 1_000_000
SHOWN = 16
"""Tokens that are shown of a difference."""
MASKED, FILLED = 4, 100
"""ComparedTexts with a mask, and tokens for it among which the best ones of transformers must be."""


def compare(predictor: Predictor, folder: Path) -> list[Compared]:
    """Compare a model with transformers.

    Args:
        predictor: The model, in fp32 on the CPU.
        folder: The folder that transformers loads: the same, or one that was converted from it.
    """
    texts = ComparedTexts.of(predictor.tokenizer, predictor.max_length)
    tokenizer = None
    if any((folder / name).is_file() for name in FILES):
        try:
            tokenizer = _load("AutoTokenizer", folder)
        except OtherError as error:
            return [not_done("loading the tokenizer", str(error))]
        found = attempt("tokens", lambda: _tokens(predictor, tokenizer, texts))
    else:
        found = [not_done("tokens", NO_TOKENIZER, judged=False)]
    found += attempt("hidden states", lambda: _states(predictor, tokenizer, folder, texts))
    for kind in sorted(predictor.model.heads):
        name = facts_of(predictor.model.heads[kind]).name
        found += attempt(f"head ({name})", lambda kind=kind: _head(predictor, kind, tokenizer, folder, texts))
    return found


def _states(predictor: Predictor, tokenizer: Any, folder: Path, texts: ComparedTexts) -> list[Compared]:
    model, found = _load("AutoModel", folder), []
    for what, given in (("texts", texts.plain), ("pairs", texts.pairs)):
        inputs = _not_empty(predictor, given)
        ours = _hidden_states(predictor, sequences_of(predictor, inputs))
        theirs = [_run(predictor, model, tokenizer, each).last_hidden_state[0] for each in inputs]
        found.append(close(f"last hidden states of {what}", inputs, ours, [each.numpy() for each in theirs]))
    return found


def _load(name: str, folder: Path) -> Any:
    """Load a model, in fp32 as bertie computes, or a tokenizer of transformers. It executes no code of the folder.

    Raises:
        OtherError: transformers does not load it, or lacks weights, which it would make at random.
    """
    import transformers  # pyright: ignore[reportMissingImports]

    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    path = str(folder.absolute())
    with calling():
        if name == "AutoTokenizer":
            return transformers.AutoTokenizer.from_pretrained(path, **options)
        kind = getattr(transformers, name)
        model, info = kind.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **options)
    missing = sorted(key for key in info["missing_keys"] if name in POOLING or "pooler" not in key)
    if missing:
        found = f"{', '.join(missing[:2])}{' …' * (len(missing) > 2)}"
        raise OtherError(f"transformers finds no weights for {plural(len(missing), 'tensor')}: {found}")
    return model.eval()


def _tokens(predictor: Predictor, tokenizer: Any, texts: ComparedTexts) -> list[Compared]:
    own, length = predictor.tokenizer, predictor.max_length
    found = []
    for what, given, why in (("texts", texts.plain, ""), ("texts with special tokens", texts.with_roles, ROLES)):
        ours = own.encode_with_offsets(given)
        with calling():
            theirs = [tokenizer(text, add_special_tokens=False, return_offsets_mapping=True) for text in given]
        ids = [encoding.ids for encoding in ours], [each["input_ids"] for each in theirs]
        found.append(equal_or_not(f"token ids of {what}", given, *ids, lambda ids: entries(own, ids), why))
        if not why:
            places = zip(given, ours, theirs, strict=True)
            pairs = [(_places(t, a.offsets), _places(t, b["offset_mapping"])) for t, a, b in places]
            first, second = ([pair[side] for pair in pairs] for side in (0, 1))
            found.append(equal_or_not("offsets of tokens", given, first, second))
    long = LONG * (1 + 5 * length // len(LONG))
    longs = [long] * (len(own.encode([long])[0]) > length)
    for what, given, limit in (
        ("sequences of texts", texts.plain, UNLIMITED),
        ("sequences of pairs", texts.pairs, UNLIMITED),
        (f"a text that is truncated to {length:,} tokens", longs, length),
        ("a pair of such texts", [(text, text) for text in longs], length),
    ):
        if not given:
            continue
        sequences = sequences_of(predictor, given, limit)
        encoded = [_encode(tokenizer, each, limit) for each in given]
        ours = [list(zip(each.input_ids.tolist(), each.token_type_ids.tolist(), strict=True)) for each in sequences]
        theirs = [
            list(zip(each["input_ids"], each.get("token_type_ids") or repeat(0), strict=False)) for each in encoded
        ]
        show, why = partial(_typed, own), AROUND if own.adds_around else ""
        found.append(equal_or_not(f"ids and token types in {what}", given, ours, theirs, show, why))
    return found


def _typed(tokenizer: Tokenizer, tokens: list[tuple[int, int]]) -> str:
    """Return tokens with their types for people."""
    types = " ".join(str(kind) for _, kind in tokens[:SHOWN])
    return f"{entries(tokenizer, [token for token, _ in tokens])}, types {types}"


def entries(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return the entries of ids for people."""
    return " ".join(tokenizer.vocabulary[i] if i < tokenizer.size else f"({i})" for i in ids[:SHOWN])


def _places(text: str, offsets: Any) -> list[tuple[int, int]]:
    """Return offsets without the white space around a token, which tokenizers count differently."""
    found = []
    for start, end in offsets:
        own = text[start:end]
        first = end - len(own.lstrip())
        found.append((first, max(first, start + len(own.rstrip()))))
    return found


def _encode(tokenizer: Any, given: str | tuple[str, str], limit: int, **options: Any) -> Any:
    """Encode a text or a pair as a user of transformers does."""
    texts = (given,) if isinstance(given, str) else given
    with calling():
        return tokenizer(*texts, truncation=True, max_length=limit, **options)


def sequences_of(predictor: Predictor, given: list[Any], limit: int = 0) -> list[Sequence]:
    """Return the sequences of texts or pairs, of at most `limit` tokens; 0: as the model reads."""
    first = [each if isinstance(each, str) else each[0] for each in given]
    second = [each[1] for each in given if not isinstance(each, str)]
    limit = limit or predictor.max_length
    return truncation.encode(predictor.tokenizer, first, second or None, max_length=limit) if first else []


def _not_empty(predictor: Predictor, given: list[Any]) -> list[Any]:
    """Return the inputs with tokens. transformers runs no others; some tokenizers add no special tokens."""
    return [each for each, own in zip(given, sequences_of(predictor, given), strict=True) if len(own)]


def _hidden_states(predictor: Predictor, sequences: list[Sequence]) -> list[np.ndarray]:
    def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
        return np.split(predictor.model.encoder(batch).last.float().numpy(), batch.ragged.cu_seqlens[1:-1].numpy())

    return infer(predictor.model, sequences, compute)


def _inputs(predictor: Predictor, tokenizer: Any, given: str | tuple[str, str]) -> dict[str, Tensor]:
    """Return the inputs of a class of transformers: what its tokenizer returns, or bertie's ids if it adds no special tokens."""
    if not predictor.tokenizer.adds_around:
        return _encode(tokenizer, given, predictor.max_length, return_tensors="pt")
    [own] = sequences_of(predictor, [given])
    ids = torch.from_numpy(own.input_ids).long()[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _run(predictor: Predictor, model: Any, tokenizer: Any, given: str | tuple[str, str]) -> Any:
    inputs = _inputs(predictor, tokenizer, given)
    with torch.inference_mode(), calling():
        return model(**inputs)


def _head(predictor: Predictor, kind: str, tokenizer: Any, folder: Path, texts: ComparedTexts) -> list[Compared]:
    """Compare the outputs of a head, and what a user calls to get predictions."""
    facts = facts_of(predictor.model.heads[kind])
    what = f"outputs of the head ({facts.name})"
    if facts.shape is None or facts.shape not in CLASSES:
        return [] if facts.shape == "vectors" else [not_done(what, NO_CLASS, judged=False)]
    if own := own_features(predictor.model):
        return [not_done(what, f"no class of transformers reads {own}", judged=False)]
    try:
        model = _load(CLASSES[facts.shape], folder)
    except OtherError as error:  # a fault if the folder says that it holds such a head
        path = folder / "config.json"
        named = not path.is_file() or storage.read_json(path).get("architectures")
        known = transformers_heads(predictor.model) is not None
        return [not_done(what, str(error) if known else NO_CLASS, judged=bool(named) and known)]
    short = [text for text in texts.plain if text in TEXTS[ORDINARY]]
    # pipelines do not truncate
    short = [text for text in short if len(sequences_of(predictor, [text], UNLIMITED)[0]) < predictor.max_length - 2]
    if facts.shape in ("choice", "pair", "start_end"):
        inputs: list[Any] = texts.pairs
    elif facts.shape in OVER_VOCABULARY:
        inputs = short
    else:
        inputs = _not_empty(predictor, texts.plain) + texts.pairs * (facts.shape == "text")
    ours = [head_outputs(predictor, kind, sequences_of(predictor, [each]))[0] for each in inputs]
    theirs = [_their_outputs(predictor, model, tokenizer, each, facts.shape) for each in inputs]
    found = [close(what, inputs, ours, theirs)]
    compared = {"text": _classes, "tokens": _tags, "masked": _masks}.get(facts.shape)
    if predictor.tokenizer.adds_around:  # pipelines have the tokenizer's ids
        compared = None
    if compared is not None and short and (predictor.task is not None or facts.shape == "masked"):
        try:
            found.append(compared(predictor, model, tokenizer, short))
        except UserError as error:  # the task reads no plain texts
            found.append(not_done("predictions", str(error), judged=False))
    return found


def head_outputs(predictor: Predictor, kind: str, sequences: list[Sequence]) -> list[np.ndarray]:
    """Return the outputs of a head: [C] for each sequence, or [tokens, C]."""
    model = predictor.model
    pooled, last = facts_of(model.heads[kind]).shape in POOLED, model.encoder.config.pooled_token == "last"
    logits = cast(Callable[[Tensor], Tensor], model.heads[kind].logits)

    def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
        bounds = batch.ragged.cu_seqlens
        rows = torch.arange(len(batch.input_ids)) if not pooled else bounds[1:] - 1 if last else bounds[:-1]
        if (encoder := model.encoder_of(kind)) is not model.encoder:
            return np.split(logits(encoder(batch, rows).last).float().numpy(), bounds[1:-1].numpy())
        hidden = model.head_inputs(model.encoder_states(batch, rows), batch, rows).last
        found = logits(hidden).float().numpy()
        return list(found) if pooled else np.split(found, bounds[1:-1].numpy())

    return infer(model, sequences, compute)


def _their_outputs(predictor: Predictor, model: Any, tokenizer: Any, given: Any, shape: HeadShape) -> np.ndarray:
    inputs = _inputs(predictor, tokenizer, given)
    if shape == "choice":
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    with torch.inference_mode(), calling():
        output = model(**inputs)
    if shape == "start_end":
        return torch.stack([output.start_logits[0], output.end_logits[0]], -1).numpy()
    return output.logits[0].numpy()


def _pipeline(task: str, model: Any, tokenizer: Any, **options: Any) -> Callable[[str], Any]:
    import transformers  # pyright: ignore[reportMissingImports]

    with calling():
        make: Any = transformers.pipeline
        made = make(task, model=model, tokenizer=tokenizer, device="cpu")

    def run(given: str) -> Any:
        with calling():
            return made(given, **options)

    return run


def _classes(predictor: Predictor, model: Any, tokenizer: Any, texts: list[str]) -> Compared:
    run = _pipeline("text-classification", model, tokenizer, top_k=None)
    ours = [prediction_to_json(each) for each in predictor.predict(texts)]
    theirs = [{each["label"]: each["score"] for each in run(text)} for text in texts]
    what = 'predictions, and those of pipeline("text-classification")'
    if "probabilities" in ours[0]:
        if ours[0]["probabilities"].keys() != theirs[0].keys():
            names = [sorted(each["probabilities"]) for each in ours], [sorted(each) for each in theirs]
            return equal_or_not(f"class names of {what}", texts, *names)
        own = [np.array([each["probabilities"][label] for label in theirs[0]]) for each in ours]
        return close(what, texts, own, [np.array([each[label] for label in theirs[0]]) for each in theirs])
    why = (
        "one output: bertie gives the output, or what the files of sentence-transformers say; the pipeline its sigmoid"
    )
    own = [np.array([each["score"]]) for each in ours]
    regression = model.config.problem_type == "regression"
    return close(what, texts, own, [np.array(list(each.values())) for each in theirs], "" if regression else why)


def _tags(predictor: Predictor, model: Any, tokenizer: Any, texts: list[str]) -> Compared:
    sentences = [text.split() for text in texts]
    try:
        ours = [each.tags for each in predictor.predict(sentences)]
    except UserError as error:
        return not_done("tags of words", str(error), judged=False)
    theirs = []
    for words in sentences:
        with calling(), torch.inference_mode():
            inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
            labels = [model.config.id2label[i] for i in model(**inputs).logits[0].argmax(-1).tolist()]
        first = {word: place for place, word in reversed(list(enumerate(inputs.word_ids()))) if word is not None}
        theirs.append([labels[first[word]] for word in range(len(words))])
    return equal_or_not("tags of words", texts, ours, theirs, " ".join)


def _masks(predictor: Predictor, model: Any, tokenizer: Any, texts: list[str]) -> Compared:
    if tokenizer.mask_token is None:
        return not_done(
            'pipeline("fill-mask")', "no file names the mask token, and transformers needs it", judged=False
        )
    if tokenizer.split_special_tokens:
        return not_done(
            'pipeline("fill-mask")', "split_special_tokens: a mask in a text is text in transformers", judged=False
        )
    run, vocabulary = _pipeline("fill-mask", model, tokenizer, top_k=5), predictor.tokenizer.vocabulary
    mask = vocabulary[predictor.tokenizer.mask_id]
    given = [" ".join([*text.split()[:3], mask, *text.split()[4:]]) for text in texts[:MASKED]]
    ours, theirs = [], []
    for text in given:
        answer = run(text)
        last = (
            answer if isinstance(answer[0], dict) else answer[-1]
        )  # several masks, if another role has the same token
        best = {vocabulary[each["token"]]: each["score"] for each in last}
        own = predictor.fill_mask(text, top_k=FILLED)[-1]
        found = {each.token: each.probability for each in own}
        ours.append(np.array([found.get(token, 0.0) for token in best]))
        theirs.append(np.array(list(best.values())))
    return close('masked tokens, and those of pipeline("fill-mask")', given, ours, theirs)
