"""Compare a loaded model with what sentence-transformers computes from the same folder: tokens, vectors, similarity, scores."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertie.checkpoints import sentence_transformers_reader
from bertie.checkpoints.find import root_of
from bertie.checkpoints.huggingface import own_features, transformers_heads
from bertie.files.model_folder import ModelFolder
from bertie.model.head_facts import facts_of
from bertie.predict.compare_transformers import ROLES, entries, head_outputs, sequences_of
from bertie.predict.comparison import (
    Compared,
    ComparedTexts,
    attempt,
    calling,
    close,
    equal_or_not,
    not_done,
)
from bertie.predict.predictor import Predictor
from bertie.tasks.predictions import prediction_to_json

DEFAULTS = ("query", "document")
"""Prompts that encode_query and encode_document use."""


def compare(predictor: Predictor, folder: Path) -> list[Compared]:
    """Compare a model with sentence-transformers: SentenceTransformer, or CrossEncoder for a model that scores texts.

    Args:
        predictor: The model, in fp32 on the CPU.
        folder: The folder that sentence-transformers loads: the same, or one that was converted from it.
    """
    above = root_of(ModelFolder(folder))
    root = above.path if above else folder
    scores = predictor.task is not None and facts_of(predictor.model.heads[predictor.task.kind]).shape == "text"
    cross = scores and sentence_transformers_reader.read(folder) is None
    name = "CrossEncoder" if cross else "SentenceTransformer"
    if predictor.tokenizer.adds_around:
        why = "bertie puts special tokens around a text, and the tokenizer of transformers does not"
        return [not_done(name, why, judged=False)]
    if cross and transformers_heads(predictor.model) is None:
        why = own_features(predictor.model) or "this head"
        return [not_done(name, f"no class of transformers has {why}", judged=False)]
    texts = ComparedTexts.of(predictor.tokenizer, predictor.max_length)
    compute = _scores if cross else _vectors

    def run() -> list[Compared]:
        model = _load(name, root)
        if not limited(predictor):
            # sentence-transformers may then read more tokens than there are positions.
            limit = "max_seq_length" if hasattr(type(model), "max_seq_length") else "max_length"
            setattr(model, limit, predictor.max_length)
        return compute(predictor, model, texts)

    return attempt(name, run)


def limited(predictor: Predictor) -> bool:
    """Whether a file of the folder limits texts to a length that the model reads."""
    named = sentence_transformers_reader.max_sequence_length(predictor.folder) or predictor.tokenizer.longest
    return named is not None and named <= predictor.model.encoder.config.max_position_embeddings


def _load(name: str, folder: Path) -> Any:
    """Load a model, in fp32 as bertie computes. It executes no code of the folder."""
    import sentence_transformers  # pyright: ignore[reportMissingImports]

    options = {"model_kwargs": {"dtype": torch.float32}, "local_files_only": True, "trust_remote_code": False}
    with calling():
        return getattr(sentence_transformers, name)(str(folder.absolute()), device="cpu", **options)


def _vectors(predictor: Predictor, model: Any, texts: ComparedTexts) -> list[Compared]:
    given, found = texts.plain, []
    read = getattr(model, "preprocess", None) or model.tokenize
    for what, own, why in (("texts", given, ""), ("texts with special tokens", texts.with_roles, ROLES)):
        ours = [each.input_ids.tolist() for each in predictor.text_sequences(own, "")]
        with calling():
            theirs = [read([text])["input_ids"][0].tolist() for text in own]
        show = partial(entries, predictor.tokenizer)
        found.append(equal_or_not(f"ids of {what}, as the model reads them", own, ours, theirs, show, why))
    for what, prompt, compute in _ways(predictor, model):
        found += attempt(f"vectors of {what}", lambda a=what, b=prompt, c=compute: _way(predictor, a, b, c, given))
    return found + attempt("similarity", lambda: _similarity(predictor, model, given))


def _way(predictor: Predictor, what: str, prompt: str | None, compute: Any, texts: list[str]) -> list[Compared]:
    with calling():
        theirs = list(compute(texts))
    return [close(f"vectors of {what}", texts, list(predictor.embed(texts, prompt_name=prompt)), theirs)]


def _similarity(predictor: Predictor, model: Any, texts: list[str]) -> list[Compared]:
    half = len(texts) // 2
    first, second = texts[:half], texts[half:]
    with calling():
        vectors = [model.encode(part, batch_size=1, show_progress_bar=False) for part in (first, second)]
        theirs = list(np.asarray(model.similarity(*vectors)))
    return [close("similarity", first, list(predictor.similarity(first, second)), theirs)]


def _ways(predictor: Predictor, model: Any) -> list[tuple[str, str | None, Any]]:
    """Return the ways to compute vectors: their names, the name of bertie's prompt, and what computes them there."""
    options = {"batch_size": 1, "show_progress_bar": False}  # some tokenizers have no padding
    ways: list[tuple[str, str | None, Any]] = [("encode", None, lambda texts: model.encode(texts, **options))]
    for name in DEFAULTS:
        if (function := getattr(model, f"encode_{name}", None)) is not None:
            ways.append((f"encode_{name}", name, lambda texts, function=function: function(texts, **options)))
    for name in predictor.text_embedding.prompts:
        what = f'encode with the prompt "{name}"'
        ways.append((what, name, lambda texts, name=name: model.encode(texts, prompt_name=name, **options)))
    return ways


def _scores(predictor: Predictor, model: Any, texts: ComparedTexts) -> list[Compared]:
    assert predictor.task is not None
    pairs, options = texts.pairs, {"batch_size": 1, "show_progress_bar": False}
    with calling():
        scores, plain = (
            [np.atleast_1d(each) for each in model.predict(pairs, activation_fn=function, **options)]
            for function in (None, torch.nn.Identity())
        )
    outputs = head_outputs(predictor, predictor.task.kind, sequences_of(predictor, pairs))
    found = [close("scores without an activation", pairs, outputs, plain)]
    ours = [prediction_to_json(each) for each in predictor.predict(pairs)]
    if "score" in ours[0]:
        named = sentence_transformers_reader.score_activation(predictor.folder, 1)
        why = "" if named else "no file names an activation: bertie gives the output itself, a CrossEncoder its sigmoid"
        found.append(close("scores of predict", pairs, [np.array([each["score"]]) for each in ours], scores, why))
    return found
