"""Compare a converted model with its source: hidden states, outputs of heads, scores, and the results of other libraries.

S  sequences    L  length of the longest one
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch

from bertie import console
from bertie.contracts import Batch, Sequence
from bertie.errors import UserError
from bertie.predict.engines.graph import Graph, quietly
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.tasks.data.unlabeled import UnlabeledReader
from bertie.tasks.inference import infer
from bertie.text import truncation

TOLERANCE = 1e-4
"""Largest difference of fp32, relative to the largest value."""
MIN_COSINE = 0.98
"""Smallest cosine of a hidden state in bf16 with that of the source."""
CHECKED_TEXTS = 16
"""Texts whose vectors are compared with those of sentence-transformers."""
GridOutputs = Callable[[np.ndarray, np.ndarray, np.ndarray], list[np.ndarray]]
"""From input_ids, attention_mask and token_type_ids, int64 [S, L], to all outputs of a graph."""


def sequences(predictor: Predictor, data: str | Path | None) -> list[Sequence]:
    """Return real inputs of a model.

    Args:
        predictor: The model.
        data: Examples of its task; for a model without a task, texts. None: texts that come with Python.

    Raises:
        UsageError: The file is missing or does not fit the task.
        UserError: It holds nothing readable.
    """
    if data is not None and predictor.task is not None:
        examples = [each for each in predictor.task.reader.stream(Path(data)) if not isinstance(each, UserError)]
        found = predictor.task.encode(examples, predictor.tokenizer, predictor.max_length) if examples else []
    else:
        plain = own_texts() if data is None else texts(data)
        found = truncation.encode(predictor.tokenizer, plain, None, max_length=predictor.max_length) if plain else []
    if not found:
        raise UserError(f"{data}: no readable examples in it")
    return found


def texts(path: str | Path) -> list[str]:
    """Return the readable texts of a file."""
    rows = UnlabeledReader().stream(Path(path))
    return [row if isinstance(row, str) else " ".join(row) for row in rows if not isinstance(row, UserError)]


def own_texts() -> list[str]:
    """Return paragraphs of Python's documentation, which every machine has, of very different lengths."""
    paragraphs = (part for text in topics.topics.values() for part in text.split("\n\n"))
    return [" ".join(part.split()) for part in paragraphs if len(part) > 20][:2000:20]


def grid(members: list[Sequence]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return input_ids, attention_mask and token_type_ids of sequences, padded at the end."""
    shape = (len(members), max(map(len, members)))
    ids, mask, segments = (np.zeros(shape, np.int64) for _ in range(3))
    for i, each in enumerate(members):
        own = slice(len(each))
        ids[i, own], mask[i, own], segments[i, own] = each.input_ids, 1, each.token_type_ids
    return ids, mask, segments


def graph_differences(graph: Graph, computed: GridOutputs, members: list[Sequence]) -> dict[str, float]:
    """Return the largest difference of each output of a graph in another library, relative to torch's largest value.

    The grids have padding, and different sizes. Outputs at padding do not count.
    """
    worst: dict[str, float] = {}
    for group in (members[:5], members[5:6], sorted(members, key=len)[-2:]):
        if not group:
            continue
        ids, mask, segments = grid(group)
        with torch.inference_mode():
            expected = graph(*(torch.from_numpy(array) for array in (ids, mask, segments)))
        for name, theirs, ours in zip(graph.outputs, computed(ids, mask, segments), expected, strict=True):
            right = ours.numpy()
            difference = np.abs(theirs - right)
            if right.shape[:2] == mask.shape:
                difference = difference[mask == 1]
            worst[name] = max(worst.get(name, 0.0), float(difference.max() / np.abs(right).max()))
    return worst


def hidden_differences(source: Predictor, converted: Predictor, members: list[Sequence]) -> dict[str, Any]:
    """Compare the last hidden states of two models.

    Returns:
        {"difference", "cosine"}: as `convert` returns them.
    """
    return _differences(_hidden_states(source, members), _hidden_states(converted, members))


def _hidden_states(predictor: Predictor, members: list[Sequence]) -> np.ndarray:
    def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
        return np.split(predictor.model.encoder(batch).last.numpy(), batch.ragged.cu_seqlens[1:-1].numpy())

    return np.concatenate(infer(predictor.model, members, compute))


def _differences(ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    difference = float(np.abs(ours - theirs).max() / max(float(np.abs(ours).max()), 1e-12))
    return {"difference": difference, "cosine": float(_cosines(ours, theirs).min())}


def _cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return (ours * theirs).sum(1) / np.maximum(norms, 1e-12)


def other_library(source: Predictor, folder: Path, library: str, members: list[Sequence]) -> dict[str, Any]:
    """Compare the source with what another library computes from a folder, or bertie itself if it is not installed.

    Google's code needs an old TensorFlow, so its files are read back by bertie.
    """
    if library == "tf":
        return hidden_differences(source, load(folder, engine="plain"), members)
    package = {"hf": "transformers", "sentence-transformers": "sentence_transformers"}[library]
    if importlib.util.find_spec(package) is None:
        console.warn(f"{package} is not installed: the result was compared with bertie only")
        return hidden_differences(source, load(folder, engine="plain"), members)
    if library == "hf":
        return _transformers(source, folder, members)
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    given = own_texts()[:CHECKED_TEXTS]
    with quietly():  # it deprecates keys that older versions need
        theirs = SentenceTransformer(str(folder), device="cpu").encode(given, show_progress_bar=False)
    return _differences(source.embed(given), np.asarray(theirs))


def _transformers(source: Predictor, folder: Path, members: list[Sequence]) -> dict[str, Any]:
    from transformers import AutoModel  # pyright: ignore[reportMissingImports]

    with quietly():  # on heads and poolers, which are not compared
        model = AutoModel.from_pretrained(folder).eval()
    found = []
    for each in members:
        ids, mask, segments = (torch.from_numpy(array) for array in grid([each]))
        given = {"input_ids": ids, "attention_mask": mask}
        if getattr(model.config, "type_vocab_size", 0) > 1:
            given["token_type_ids"] = segments
        with torch.inference_mode():
            found.append(model(**given).last_hidden_state[0].numpy())
    return _differences(_hidden_states(source, members), np.concatenate(found))


def require_close(precision: str, found: dict[str, Any]) -> None:
    """Raise UserError if the differences are larger than the precision explains. int8 is judged by its scores."""
    worst = max([found["difference"] if precision == "fp32" else 0.0, *found.get("outputs", {}).values()])
    if not worst <= TOLERANCE:
        difference = f"{worst:.1e}, relative to its largest value"
        raise UserError(f"the result differs from its source by {difference}: report this bug")
    if precision == "bf16" and not found["cosine"] >= MIN_COSINE:
        raise UserError(f"bf16 changes a hidden state to a cosine of {found['cosine']:.3f}: this model needs fp32")
    if not np.isfinite(found["cosine"]):
        raise UserError("the result has non-finite hidden states: use another precision")


def compare_scores(source: Predictor, converted: Predictor, data: str | Path) -> dict[str, Any]:
    """Score two models on labeled examples, or compare their vectors of texts if they have no task.

    Returns:
        {"scores", "source_scores", "metric", "loss"}: as `convert` returns them.
    """
    if source.task is None:
        plain = texts(data)
        cosine = float(_cosines(source.embed(plain), converted.embed(plain)).mean())
        before, after = {"cosine": 1.0}, {"cosine": cosine}
    else:
        before, after = (predictor.evaluate(data)["scores"] for predictor in (source, converted))
    metric = "cosine" if source.task is None else source.task.metric
    return {"scores": after, "source_scores": before, "metric": metric, "loss": before[metric] - after[metric]}
