"""Probes of a loaded model and what sentence-transformers computes from its folder: tokens, vectors, similarity, scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertie.checkpoints import sentence_transformers_reader
from bertie.checkpoints.find import root_of
from bertie.checkpoints.huggingface import own_features, transformers_heads
from bertie.files.model_folder import ModelFolder
from bertie.predict.convert.compare_transformers import ROLES, entries
from bertie.predict.convert.compared_texts import ComparedTexts, sequences_of
from bertie.predict.convert.comparison import Compared, OtherError, Probe, calling, not_done, standardized
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import head_outputs
from bertie.tasks.predictions import prediction_to_json

DEFAULTS = ("query", "document")
"""Prompts that encode_query and encode_document use."""
ONE_BY_ONE = {"batch_size": 1, "show_progress_bar": False}  # some tokenizers have no padding


def probes(predictor: Predictor, folder: Path) -> Iterator[Probe | Compared]:
    """Yield what is compared with sentence-transformers: SentenceTransformer, or CrossEncoder for a model that scores texts.

    Args:
        predictor: The model, in fp32 on the CPU.
        folder: The folder that sentence-transformers loads: the same, or one that was converted from it.
    """
    scores = predictor.task is not None and predictor.task.facts.shape == "text"
    cross = scores and sentence_transformers_reader.read(folder) is None
    name = "CrossEncoder" if cross else "SentenceTransformer"
    if predictor.tokenizer.adds_around:
        why = "bertie puts special tokens around a text, and the tokenizer of transformers does not"
        yield not_done(name, why, judged=False)
    elif cross and transformers_heads(predictor.model) is None:
        features = own_features(predictor.model) or "this head"
        yield not_done(name, f"no class of transformers has {features}", judged=False)
    else:
        root = root_of(ModelFolder(folder))
        try:
            model = _load(name, root.path if root else folder, predictor)
        except OtherError as error:
            yield not_done(name, str(error))
            return
        texts = ComparedTexts.of(predictor.tokenizer, predictor.max_length)
        yield from (_scores if cross else _vectors)(predictor, model, texts)


def limited(predictor: Predictor) -> bool:
    """Return whether a file of the folder limits texts to a length that the model reads."""
    named = sentence_transformers_reader.max_sequence_length(predictor.folder) or predictor.tokenizer.longest
    return named is not None and named <= predictor.model.encoder.config.max_position_embeddings


def _load(name: str, folder: Path, predictor: Predictor) -> Any:
    """Load a model, in fp32 as bertie computes. It executes no code of the folder."""
    import sentence_transformers  # pyright: ignore[reportMissingImports]

    options = {"model_kwargs": {"dtype": torch.float32}, "local_files_only": True, "trust_remote_code": False}
    with calling():
        model = getattr(sentence_transformers, name)(str(folder.absolute()), device="cpu", **options)
        if not limited(predictor):  # sentence-transformers may then read more tokens than there are positions
            limit = "max_seq_length" if hasattr(type(model), "max_seq_length") else "max_length"
            setattr(model, limit, predictor.max_length)
    return model


def _vectors(predictor: Predictor, model: Any, texts: ComparedTexts) -> Iterator[Probe]:
    tokenizer, plain = predictor.tokenizer, texts.plain
    read = getattr(model, "preprocess", None) or model.tokenize
    for what, inputs, why in (("texts", plain, ""), ("texts with special tokens", texts.with_roles, ROLES)):
        ours = [entries(tokenizer, item.input_ids.tolist()) for item in predictor.text_sequences(inputs, "")]

        def theirs(inputs: list[str] = inputs) -> list[list[str]]:
            return [entries(tokenizer, read([text])["input_ids"][0].tolist()) for text in inputs]

        yield Probe(f"ids of {what}, as the model reads them", inputs, ours, theirs, 0.0, why)
    for what, prompt, encode, options in _ways(predictor, model):
        ours = list(predictor.embed(plain, prompt_name=prompt))
        yield Probe(f"vectors of {what}", plain, ours, lambda e=encode, o=options: list(e(plain, **ONE_BY_ONE, **o)))
    first, second = plain[: len(plain) // 2], plain[len(plain) // 2 :]

    def similarity() -> list[Any]:
        return list(np.asarray(model.similarity(*(model.encode(part, **ONE_BY_ONE) for part in (first, second)))))

    yield Probe("similarity", first, list(predictor.similarity(first, second)), similarity)


def _ways(predictor: Predictor, model: Any) -> Iterator[tuple[str, str | None, Any, dict[str, str]]]:
    """Yield the ways to compute vectors: their names, the name of bertie's prompt, the method there and its options."""
    yield "encode", None, model.encode, {}
    for name in DEFAULTS:
        if hasattr(model, f"encode_{name}"):
            yield f"encode_{name}", name, getattr(model, f"encode_{name}"), {}
    for name in predictor.text_embedding.prompts:
        yield f'encode with the prompt "{name}"', name, model.encode, {"prompt_name": name}


def _scores(predictor: Predictor, model: Any, texts: ComparedTexts) -> Iterator[Probe]:
    assert predictor.task is not None
    pairs = texts.pairs

    def scores(activation: Any) -> list[np.ndarray]:
        return list(map(np.atleast_1d, model.predict(pairs, activation_fn=activation, **ONE_BY_ONE)))

    outputs = head_outputs(predictor.model, predictor.task.kind, sequences_of(predictor, pairs))
    why = standardized(predictor.folder)
    yield Probe("scores without an activation", pairs, outputs, lambda: scores(torch.nn.Identity()), by_design=why)
    ours = list(map(prediction_to_json, predictor.predict(pairs)))
    if "score" in ours[0]:
        named = sentence_transformers_reader.score_activation(predictor.folder, 1)
        why = (
            why if named else "no file names an activation: bertie gives the output itself, a CrossEncoder its sigmoid"
        )
        results = [np.array([prediction["score"]]) for prediction in ours]
        yield Probe("scores of predict", pairs, results, lambda: scores(None), by_design=why)
