"""Probabilities of tokens in their context: the base of masked words, likelihoods and generation.

P  predictions
V  entries of the vocabulary
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bertie.base import console
from bertie.base.contracts import Batch, Sequence
from bertie.base.errors import UserError
from bertie.model.attention.segment_memory import reads_documents
from bertie.model.head_facts import facts_of
from bertie.model.heads.vocabulary_heads import BringsVocabularyHead, FillsMasks, PredictsNext, VocabularyHead
from bertie.model.losses.chunked_loss import CHUNK_LOGITS
from bertie.model.model import Model
from bertie.objectives import CausalLM
from bertie.tasks.inference import infer, require_finite
from bertie.tokenizers.tokenizer import Tokenizer

BATCH_TOKENS = 4096  # on a CPU, larger batches are no faster (benchmarks/minimal_pairs.py)
MIN_ROWS = 64  # fewest rows of a product with the matrix of the vocabulary


Placed = tuple[np.ndarray, np.ndarray]
"""A sequence, and positions in it."""
TopTokens = tuple[np.ndarray, np.ndarray]
"""The ids of the best tokens at some positions, and their log probabilities."""


class Query(NamedTuple):
    """A token to predict at a position of a sequence. The mask token may stand at several positions."""

    input_ids: np.ndarray
    """int32 [n]: the sequence, with special tokens."""
    position: int
    """Position of the token."""
    token: int
    """Its id."""


class _Wanted(NamedTuple):
    """`Sequence.target` in this file."""

    positions: np.ndarray
    """int64 [P]: positions at which tokens are predicted, ascending."""
    tokens: np.ndarray | None
    """int [P, K]: K ids at each position whose log probability is wanted; None: of all entries."""


_Select = Callable[[Float[Tensor, "P V"], slice], list[Tensor]]
"""Selects from the log probabilities of some rows, which it may change: [rows, …] each."""


@dataclass(frozen=True, eq=False)
class TokenModel:
    """The part of a model that predicts tokens: an encoder with a head over the vocabulary."""

    folder: Path
    """The model's folder, for messages."""
    tokenizer: Tokenizer
    """Its tokenizer."""
    model: Model
    """The model. In an ELECTRA, its generator predicts."""
    max_length: int
    """Tokens in the longest sequence, special tokens included."""
    kind: str
    """Key of the head in the model."""
    head: FillsMasks | PredictsNext
    """The head."""
    from_left: bool = False
    """Whether a model that reads both ways reads from the left."""

    @classmethod
    def of(
        cls,
        folder: Path,
        tokenizer: Tokenizer,
        model: Model,
        max_length: int,
        only_masks: bool = False,
        from_left: bool = False,
    ) -> TokenModel:
        """Return the part of a model that predicts tokens, from both sides or from the left.

        The head of a causal language model has no weights. So a causal encoder without any head is taken for one.

        Args:
            folder: The model's folder, for messages.
            tokenizer: Its tokenizer.
            model: The model.
            max_length: Tokens in the longest sequence, special tokens included.
            only_masks: Whether it must predict masked tokens.
            from_left: Whether it must read from the left.

        Raises:
            UserError: The model has no such head.
        """
        if from_left and not model.encoder.config.causal:
            if (left := left_head(model)) is None:
                raise UserError(f"{folder} reads both sides of a token, and was not trained to read from the left")
            return cls(folder, tokenizer, model, max_length, *left, from_left=True)
        named_head = filling_head(model) or (None if only_masks else _causal_head(model))
        if named_head is None:
            lacks, needs = "masked-LM or causal-LM", "an objective that predicts tokens, such as mlm or clm"
            if only_masks:
                lacks, needs = "masked-LM", "masks, such as with the objective mlm"
            remedy = f"use a model that was pre-trained with {needs}, and not fine-tuned"
            raise UserError(f"{folder} ({model.encoder.config.kind}) has no {lacks} head: {remedy}")
        return cls(folder, tokenizer, model, max_length, *named_head)

    @property
    def causal(self) -> bool:
        """Whether the model predicts each token from the tokens before it. Otherwise, it fills masks."""
        return self.from_left or self.model.encoder.config.causal

    @property
    def start(self) -> list[int]:
        """The token before a text for a causal model. GPT's vocabulary, which has no special token but <unk>, has none."""
        return [] if self.tokenizer.special.cls is None else [self.tokenizer.cls_id]

    @property
    def max_text(self) -> int:
        """Tokens in the longest text. A causal model reads what starts a text, and all of its tokens but the last; other models
        read all of them and special tokens. A model that reads in segments has no limit."""
        if reads_documents(self.model.encoder.config):
            return sys.maxsize
        if self.causal:
            return self.max_length + 1 - len(self.start)
        return self.max_length - sum(map(len, self.tokenizer.templates.around))

    def log_distributions(self, contexts: Iterable[Placed]) -> list[np.ndarray]:
        """Predict all entries of the vocabulary at some positions of sequences.

        Args:
            contexts: Sequences, int32 [n], with special tokens and masks, and positions in each, int64 [P], ascending. A
                causal model predicts the token after the position, other models the one at the position.

        Returns:
            For each sequence the natural logarithm of the probabilities, float32 [P, V]. V excludes entries with which
            the matrix of the checkpoint is padded.
        """
        results = self._predict(self.masked_sequences(contexts), lambda _: lambda log_p_PV, _: [log_p_PV.cpu()])
        return [log_p_PV for [log_p_PV] in results]

    def top_tokens(self, sequences: list[Sequence], top_k: int) -> list[TopTokens]:
        """Return the most probable tokens at some positions of sequences. The distributions are not kept in memory.

        Args:
            sequences: Sequences of `masked_sequences`.
            top_k: Number of tokens, K; the vocabulary or the candidates may be fewer.

        Returns:
            For each sequence the ids, int64 [P, K], most probable first, and the natural logarithm of their probabilities,
            float32 [P, K].
        """

        def choose(wanted: list[_Wanted]) -> _Select:
            candidates = [
                ids for item in wanted for ids in ([None] * len(item.positions) if item.tokens is None else item.tokens)
            ]

            def best(log_p_PV: Tensor, rows: slice) -> list[Tensor]:
                for row, ids in enumerate(candidates[rows]):
                    if ids is not None:
                        log_p_K = log_p_PV[row, ids]
                        log_p_PV[row] = -torch.inf
                        log_p_PV[row, ids] = log_p_K
                log_p_PK, ids_PK = log_p_PV.topk(min(top_k, self.tokenizer.size))
                return [ids_PK, log_p_PK]

            return best

        counts = [None if item.tokens is None else item.tokens.shape[1] for item in _wanted(sequences)]
        results = zip(self._predict(sequences, choose), counts, strict=True)
        return [(ids_PK[:, :count], log_p_PK[:, :count]) for (ids_PK, log_p_PK), count in results]

    def masked_sequences(self, contexts: Iterable[Placed], candidates: np.ndarray | None = None) -> list[Sequence]:
        """Return sequences that remember their positions.

        Args:
            contexts: As in `log_distributions`.
            candidates: int [K]: the ids among which `top_tokens` chooses; None: the vocabulary.
        """
        return [
            self._sequence(ids, _Wanted(at, None if candidates is None else np.tile(candidates, (len(at), 1))))
            for ids, at in contexts
        ]

    def log_probabilities(self, queries: list[Query]) -> np.ndarray:
        """Return the natural logarithm of the probability of each token, float64 [queries].

        Queries with the same sequence and position cost one forward pass together. Two sentences that differ in one
        token, for example, are the same sequence after this token is masked.
        """
        keys = [(query.input_ids.tobytes(), query.position) for query in queries]
        tokens_of: dict[tuple[bytes, int], list[int]] = {}
        for key, query in zip(keys, queries, strict=True):
            tokens_of.setdefault(key, []).append(query.token)
        most = max(map(len, tokens_of.values()), default=0)
        sequences = [
            self._sequence(np.frombuffer(ids, np.int32), _Wanted(np.array([at]), np.resize(tokens, (1, most))))
            for (ids, at), tokens in tokens_of.items()
        ]
        log_p = {key: iter(row) for key, [row] in zip(tokens_of, self._of_tokens(sequences), strict=True)}
        return np.array([next(log_p[key]) for key in keys], np.float64)

    def next_log_probabilities(self, sequences: list[np.ndarray]) -> list[np.ndarray]:
        """Return the log probabilities of a causal model for every token of sequences after the first one.

        The model reads all tokens but the last one, which is only predicted.

        Args:
            sequences: int32 [n], each at least two tokens. n - 1 is at most `max_length`.

        Returns:
            float32 [n - 1] for each sequence.
        """
        encoded = [self._sequence(ids[:-1], _Wanted(np.arange(len(ids) - 1), ids[1:, None])) for ids in sequences]
        return [log_p_P1[:, 0] for log_p_P1 in self._of_tokens(encoded)]

    def _of_tokens(self, sequences: list[Sequence]) -> list[np.ndarray]:
        """Return the log probabilities of the tokens that each sequence names, float32 [P, K]. K is the same for all."""

        def gather(wanted: list[_Wanted]) -> _Select:
            tokens = np.concatenate([item.tokens for item in wanted if item.tokens is not None]).astype(np.int64)
            tokens_PK = torch.from_numpy(tokens).to(self.model.device)
            return lambda log_p_PV, rows: [log_p_PV.gather(1, tokens_PK[rows])]

        return [log_p_PK for [log_p_PK] in self._predict(sequences, gather)]

    def _predict(
        self, sequences: list[Sequence], selector: Callable[[list[_Wanted]], _Select]
    ) -> list[tuple[np.ndarray, ...]]:
        """Return for each sequence the parts of its log probabilities that the selector chooses, [P, …] each."""

        def compute(batch: Batch, members: list[Sequence]) -> list[tuple[np.ndarray, ...]]:
            wanted = _wanted(members)
            x_PD, select = self._hidden(batch, [item.positions for item in wanted]), selector(wanted)
            parts = [select(log_p_PV[:, : self.tokenizer.size], rows) for rows, log_p_PV in self._chunks(x_PD)]
            columns = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
            bounds = np.cumsum([len(item.positions) for item in wanted])[:-1]
            return list(zip(*(np.split(column, bounds) for column in columns), strict=True))

        return infer(self.model, sequences, compute, BATCH_TOKENS)

    def _hidden(self, batch: Batch, positions: list[np.ndarray]) -> Float[Tensor, "P D"]:
        """Return the last hidden states at positions of each sequence. The last layer runs only there.

        Raises:
            UserError: They are not finite.
        """
        ahead = self.head.ahead if isinstance(self.head, FillsMasks) and not self.causal else 0
        starts = batch.ragged.cu_seqlens.tolist()
        index = np.concatenate([at + start - ahead for at, start in zip(positions, starts, strict=False)])
        rows = torch.as_tensor(index, dtype=torch.int64, device=self.model.device)
        # If all masks have the same rank, each is predicted from the rest of the text.
        if isinstance(self.head, FillsMasks) and self.head.permuted:
            batch = replace(batch, order=(batch.input_ids == self.tokenizer.mask_id).long())
        if self.from_left:
            causal = torch.ones(len(batch.ragged.lengths), dtype=torch.bool, device=rows.device)
            batch = replace(batch, ragged=replace(batch.ragged, causal=causal))
        x_PD = self.model.encoder_of(self.kind)(batch, rows).last
        require_finite(x_PD)
        return x_PD

    def _chunks(self, x_PD: Float[Tensor, "P D"]) -> Iterable[tuple[slice, Float[Tensor, "P V"]]]:
        """Yield log probabilities for some rows at a time: all of them would not fit into the cache."""
        size = max(MIN_ROWS, CHUNK_LOGITS // self.model.encoder.config.vocab_size)
        for start in range(0, len(x_PD), size):
            rows = slice(start, min(start + size, len(x_PD)))
            yield rows, self.head.logits(x_PD[rows]).float().log_softmax(-1)

    def _sequence(self, ids: np.ndarray, wanted: _Wanted) -> Sequence:
        return Sequence(ids, np.zeros_like(ids), self.tokenizer.word_starts_table[ids], target=wanted)


def _wanted(members: list[Sequence]) -> list[_Wanted]:
    return [cast(_Wanted, member.target) for member in members]


def tell_generator(model: Model) -> None:
    """Say that an ELECTRA's generator predicts, if the model has one."""
    if model.generator is not None:
        console.info("predictions of the generator, because an ELECTRA itself predicts no tokens")


def filling_head(model: Model) -> tuple[str, FillsMasks] | None:
    """Return the head of a model that predicts masked tokens, with its kind; None if the model has none."""
    heads = {
        k: head for k, head in model.heads.items() if isinstance(head, FillsMasks) and facts_of(head).shape != "next"
    }
    return None if model.encoder.config.causal else next(iter(heads.items()), None)


def left_head(model: Model) -> tuple[str, PredictsNext] | None:
    """Return the head for the next token of a model that reads both ways, with its kind; None if it has none."""
    heads = ((kind, head) for kind, head in model.heads.items() if facts_of(head).shape == "next")
    return None if model.encoder.config.causal else cast(tuple[str, PredictsNext] | None, next(heads, None))


def _causal_head(model: Model) -> tuple[str, FillsMasks | PredictsNext] | None:
    """Return the head of a causal language model, with its kind; None if the model is none, or was fine-tuned."""
    config = model.encoder.config
    if "next" not in config.vocabulary_heads or not config.causal:
        return None
    for kind, head in model.heads.items():
        if isinstance(head, FillsMasks):  # a causal XLM has the head of a masked one
            return kind, head
        if facts_of(head).shape == "next":
            return kind, cast(PredictsNext, head)
    word = model.encoder.embeddings.word
    if model.heads or isinstance(model.encoder, BringsVocabularyHead) or word.embedding_dim != config.hidden_size:
        return None
    return CausalLM.kind, VocabularyHead(word)
