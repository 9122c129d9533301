"""The operations of a model: how texts become sequences, how sequences are computed, and how outputs become predictions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import isqrt
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from bertie.base.contracts import Sequence
from bertie.base.errors import NonFiniteError, UserError
from bertie.inspect.attention import attention_in, shows_attention
from bertie.model.config import TransformerConfig
from bertie.model.heads.vector_modules import Normalize
from bertie.predict import vectors
from bertie.predict.fill_mask import encode_masked
from bertie.predict.predictor import Predictor
from bertie.predict.token_model import TokenModel, filling_head
from bertie.retrieval.index import Index
from bertie.serve.queue import ComputeAll, Lane, QueueShare
from bertie.serve.worker import Failure, Health
from bertie.tasks import Task
from bertie.tasks.inference import outputs
from bertie.tokenizers import truncation
from bertie.tokenizers.truncation import TokenizedText

Operation = Literal["vectors", "tokens", "predict", "fill-mask", "attention"]
MAX_TOP_K = 100  # predictions per mask that a request may ask for
MAX_ATTENTION_TOKENS = 128  # of a text whose attention a request may ask for
PROBE_WORDS = 128  # of the text that tells whether a model computes, and how fast
MAX_PROBABILITIES = 2_500_000  # in an answer with attention: about 20 MB of JSON


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model with its operations. Each operation has a lane in the queue."""

    name: str
    """Name in requests."""
    predictor: Predictor
    """The model."""
    share: QueueShare
    """Its share of the queue."""
    lanes: dict[Operation, Lane]
    """The operations that it offers."""
    vector_width: int
    """Width of its vectors."""
    health: Health
    """Whether it computes."""
    shorter_widths: Collection[int]
    """Smaller widths that its vectors may have, too: their first numbers, scaled to length 1."""
    index: Index | None = None
    """The index that it searches."""

    @property
    def task(self) -> Task | None:
        """The task that it was fine-tuned for."""
        return self.predictor.task

    @property
    def operations(self) -> list[str]:
        """Names of its operations, for clients. Every model embeds, and so also compares, reranks and tokenizes."""
        of_all = ["embeddings", "similarity", "rerank", "tokenize", *["search"] * (self.index is not None)]
        return of_all + [name for name in self.lanes if name not in ("vectors", "tokens")]

    @property
    def normalizes(self) -> bool:
        """Whether its files say that its vectors have length 1."""
        return any(isinstance(module, Normalize) for module in self.predictor.text_embedding.modules)

    @property
    def mask_token(self) -> str | None:
        """The token of the vocabulary that stands for a mask. None: it fills no masks."""
        return self.predictor.tokenizer.special.mask if "fill-mask" in self.lanes else None

    @property
    def attention_tokens(self) -> int | None:
        """Tokens of the longest text whose attention it shows: layers × heads × tokens² is bounded. None: it shows none."""
        if "attention" not in self.lanes:
            return None
        config = self.transformer()
        most = isqrt(MAX_PROBABILITIES // (config.num_hidden_layers * config.num_attention_heads))
        return min(most, MAX_ATTENTION_TOKENS, self.predictor.max_length)

    def reading_at_most(self, tokens: int) -> ServedModel:
        """Return the model with shorter sequences than it can read: what is longer is truncated."""
        predictor = replace(self.predictor, max_length=tokens)
        vars(predictor)["text_tokenizer"] = self.predictor.text_tokenizer  # it takes long to build
        return replace(self, predictor=predictor)

    def encode_prompted(self, texts: list[tuple[str, str]]) -> list[Sequence]:
        """Return the sequences of texts to embed, each after its own prompt: (prompt, text).

        Raises UserError for an invalid text.
        """
        return [
            sequence
            for prompt, group in groupby(texts, itemgetter(0))
            for sequence in self.predictor.text_sequences([text for _, text in group], prompt)
        ]

    def encode_ids(self, ids: Collection[int]) -> Sequence:
        """Return the sequence of a text that the client has tokenized, with or without special tokens.

        Raises:
            UserError: An id is not in the vocabulary.
        """
        tokenizer = self.predictor.tokenizer
        if wrong := [i for i in ids if not 0 <= i < tokenizer.size]:
            raise UserError(f"{wrong[0]} is not an id of the vocabulary: ids run from 0 to {tokenizer.size - 1}")
        ids, (before, after) = list(ids), tokenizer.templates.around
        text = len(ids) - len(after)
        if text >= len(before) and ids[: len(before)] == before and ids[text:] == after:
            ids = ids[len(before) : text]
        read = TokenizedText(np.array(ids, np.int32), None)
        [sequence] = truncation.to_sequences(tokenizer, [read], self.predictor.max_length)
        return sequence

    def encode_masked(self, text: str, candidates: np.ndarray | None = None) -> Sequence:
        """Return the sequence of a text with [MASK]. Raises UserError or UsageError, as `Predictor.fill_mask`.

        candidates: int [K]: the ids among which to choose; None: the vocabulary.
        """
        model = self.token_model()
        [sequence] = model.masked_sequences([encode_masked(model, text)], candidates)
        return sequence

    def encode_attention(self, texts: list[str]) -> Sequence:
        """Return the sequence of a text or a pair of texts, whole. Its target are the characters of each token.

        Raises UserError for an invalid text.
        """
        tokenizer = self.predictor.tokenizer
        parts = truncation.tokenize(tokenizer, texts, offsets=True)
        sequence = truncation.add_special_tokens(tokenizer, parts)
        sources = [""] * len(sequence)
        slices = truncation.text_slices(tokenizer, [len(part.ids) for part in parts])
        for text, part, place in zip(texts, parts, slices, strict=True):
            assert part.offsets is not None
            sources[place] = [text[start:end] for start, end in part.offsets.tolist()]
        return replace(sequence, target=sources)

    @property
    def predicting(self) -> Task:
        """The task, of a model with the operation "predict"."""
        assert self.task is not None
        return self.task

    def reading(self, token: str) -> str:
        """Return a token as it continues a text: with a space before it if it begins a word."""
        tokenizer = self.predictor.tokenizer
        text = tokenizer.spelling(token).decode("utf-8", "replace")
        return text if tokenizer.backend.word_mark in ("Ġ", "▁") or text != token else f" {text}"

    def transformer(self) -> TransformerConfig:
        """Return the configuration of its encoder, which must be a Transformer."""
        config = self.predictor.model.encoder.config
        assert isinstance(config, TransformerConfig)
        return config

    def token_model(self) -> TokenModel:
        """Return the part of the model that fills masks."""
        return self.predictor.token_model(only_masks=True)


def serve_model(
    name: str, predictor: Predictor, capacity: int, shorter_widths: Collection[int], index: Index | None = None
) -> ServedModel:
    """Prepare a model for serving.

    Args:
        name: Name in requests.
        predictor: The model.
        capacity: Most of its tokens that may wait.
        shorter_widths: Smaller widths that its vectors may have, too.
        index: The index that it searches.
    """
    share = QueueShare(name, capacity)
    how = predictor.text_embedding
    embed = partial(vectors.sequence_vectors, predictor.model, how=how)
    tokens = partial(vectors.token_vectors, predictor.model)
    compute: dict[Operation, ComputeAll] = {"vectors": embed, "tokens": tokens}
    if predictor.task is not None and predictor.task.facts.shape != "vectors":  # its outputs are the vectors
        compute["predict"] = partial(outputs, predictor.model, predictor.task)
    if filling_head(predictor.model) is not None:
        compute["fill-mask"] = partial(_fill, predictor)
    if shows_attention(predictor.model.encoder):
        compute["attention"] = partial(attention_in, predictor.model)
    lanes: dict[Operation, Lane] = {
        operation: Lane(partial(_finite, function), share) for operation, function in compute.items()
    }
    probe = vectors.encode(predictor.tokenizer, ["probe " * PROBE_WORDS], min(PROBE_WORDS, predictor.max_length))
    health = Health(partial(_probe, embed, probe), len(probe[0]))
    return ServedModel(name, predictor, share, lanes, predictor.vector_width(), health, shorter_widths, index)


def _finite(compute: ComputeAll, sequences: list[Sequence]) -> list[Any]:
    """Compute sequences. A failure replaces each result that is NaN or infinity: JSON has neither, and nobody needs them."""

    def is_finite(result: Any) -> bool:
        return all(np.isfinite(part).all() for part in (result if isinstance(result, tuple) else (result,)))

    return [result if is_finite(result) else Failure(NonFiniteError()) for result in compute(sequences)]


def _probe(compute: ComputeAll, sequences: list[Sequence]) -> None:
    """Compute sequences. Raises NonFiniteError if a result is NaN or infinity, and what `compute` raises."""
    if any(isinstance(result, Failure) for result in _finite(compute, sequences)):
        raise NonFiniteError


def _fill(predictor: Predictor, sequences: list[Sequence]) -> list[Any]:
    return predictor.token_model(only_masks=True).top_tokens(sequences, MAX_TOP_K)
