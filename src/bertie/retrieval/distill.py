"""Distill a model into static vectors: one for each token. Their mean is the vector of a text (Model2Vec, Tulkens 2024).

At first, the vector of a token is what the teacher computes of this token alone, whitened, times a weight that falls with its
frequency (SIF, Arora et al. 2017). Texts improve it by a ridge regression of the teacher's vectors on bags of tokens.

N texts    V vocabulary    E width of a vector
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from bertie.base import console, storage
from bertie.base.errors import UserError
from bertie.checkpoints.folder import write_manifest, write_model
from bertie.checkpoints.model_card import About
from bertie.examples.queries.collection import Collection
from bertie.model.encoder import build_encoder
from bertie.model.encoders.static import StaticConfig
from bertie.model.model import Model
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import sequence_vectors
from bertie.retrieval.passages import WHOLE_FILES, read_documents
from bertie.retrieval.system import DenseSearch
from bertie.tasks.inference import SEQUENCES_AT_ONCE
from bertie.tokenizers.truncation import TokenizedText, add_special_tokens

WEIGHT = 3e-5  # a token with this probability has half the weight of a rare one
NOISE = 0.01  # directions with a smaller share of the largest singular value are left out
RIDGE, STEPS = 0.1, 30  # strength of the ridge, relative to the mean of the diagonal; steps of conjugate gradients
MAX_TEXTS = 10_000  # that the teacher reads


def distill(
    model: str | Path | Predictor, out: str | Path, texts: str | Path | Iterable[str | Path] | None = None
) -> dict[str, Any]:
    """Write a small, fast model with static vectors that are near the vectors of another model, the teacher.

    The new model has one vector per token. The vector of a text is the mean of the vectors of its tokens.

    Args:
        model: The teacher: a loaded model, or a source as in `load`.
        out: Folder to create. It must not exist.
        texts: Files and folders of text to learn from, or a folder as BEIR's, best those that will be searched; the first 10,000
            documents are read. None: only the vocabulary.

    Returns:
        {"model": folder, "vectors": their number, "width", "texts": number of texts that the teacher has read}.

    Raises:
        UsageError: `out` exists.
        UserError: The teacher is static, or there are no texts.
    """
    storage.require_fresh(folder := Path(out), "the vectors")
    teacher = model if isinstance(model, Predictor) else load(model)
    if not teacher.model.encoder.config.num_hidden_layers:
        raise UserError(
            f"{teacher.folder}: the model has no layers, so its vectors are static already: give another one"
        )
    documents = read_documents(texts, WHOLE_FILES) if texts else ()
    chosen = [document.text for document in islice(documents, MAX_TEXTS) if document.text.strip()]
    if texts and not chosen:
        raise UserError("--texts: all are empty: give others, or none")
    vectors_VE, directions = _of_vocabulary(teacher)
    if chosen:
        vectors_VE = _learned(teacher, chosen, vectors_VE, directions)
    size, width = vectors_VE.shape
    encoder = build_encoder(StaticConfig(width, size))
    encoder.embeddings.word.weight.data.copy_(torch.from_numpy(vectors_VE))
    source = f"{teacher.folder.absolute().name} with {console.plural(len(chosen), 'text')}"
    about = f"{size:,} static vectors of width {width}, distilled from {source}"
    with storage.atomic_folder(folder) as temporary:
        write_model(temporary, Model(encoder, {}), teacher.tokenizer, about=About(f"{about}."))
        write_manifest(temporary)
    console.info(f"{folder}: {about}")
    return {"model": str(folder), "vectors": size, "width": width, "texts": len(chosen)}


def _of_vocabulary(teacher: Predictor) -> tuple[np.ndarray, np.ndarray]:
    """Return the first vectors, [V, E], and the directions of the teacher's space that they consist of: [E, its width].

    The weights assume that the vocabulary is in the order of frequency, which falls as 1 / rank (Zipf).
    """
    entries, tokenizer, found = teacher.tokenizer.ordinary_ids, teacher.tokenizer, list[np.ndarray]()
    with console.progress("embed", len(entries), "entries of the vocabulary") as bar:
        for start in range(0, len(entries), SEQUENCES_AT_ONCE):
            part = entries[start : start + SEQUENCES_AT_ONCE].astype(np.int32)
            alone = [add_special_tokens(tokenizer, [TokenizedText(entry, None)]) for entry in part[:, None]]
            found += sequence_vectors(teacher.model, alone, teacher.text_embedding)
            bar.advance(len(alone))
    left, sizes, right = np.linalg.svd(np.stack(found) - np.mean(found, 0), full_matrices=False)
    used = np.array([not tokenizer.vocabulary[i].startswith("[unused") for i in entries])
    frequency = used / np.maximum(np.cumsum(used), 1)
    weights = WEIGHT / (WEIGHT + frequency / frequency.sum())
    vectors_VE = np.zeros((tokenizer.size, left.shape[1]), np.float32)  # special tokens stay 0
    vectors_VE[entries] = left * (sizes > NOISE * sizes[0]) * weights[:, None]
    return vectors_VE, right


def _learned(teacher: Predictor, texts: list[str], first_VE: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the vectors X with the smallest |A X - T|² + λ |X - first|², where T are the teacher's vectors of texts.

    A has the counts of the tokens of each text, scaled so that its first vector has length 1.
    """
    from sklearn.linear_model import Ridge

    documents = {str(number): text for number, text in enumerate(texts)}
    target_NE = DenseSearch(teacher).document_vectors(Collection(documents, {}, {})) @ directions.T
    bags = [sequence.input_ids for sequence in teacher.text_sequences(texts, "")]
    ids, text_of = np.concatenate(bags), np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
    counts_NV = sparse.csr_array((first_VE[ids].any(1).astype(np.float32), (text_of, ids)), (len(bags), len(first_VE)))
    lengths_N = np.linalg.norm(counts_NV @ first_VE, axis=1)
    kept = (lengths_N > 0) & ~np.isnan(target_NE).any(1)
    a_NV = sparse.diags_array(1 / lengths_N[kept]) @ counts_NV[kept]
    missing_NE = target_NE[kept] - target_NE[kept].mean(0) - a_NV @ first_VE
    ridge = RIDGE * np.square(a_NV.data).sum() / len(first_VE)
    fitted = Ridge(ridge, fit_intercept=False, solver="sparse_cg", max_iter=STEPS).fit(a_NV, missing_NE)
    return first_VE + fitted.coef_.T.astype(np.float32)
