"""Probabilities of tokens in their context: the base of masked words, likelihoods and generation.

P  predictions
V  entries of the vocabulary
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bertie import console
from bertie.contracts import Batch, Sequence
from bertie.errors import UserError
from bertie.model.chunked_loss import CHUNK_LOGITS
from bertie.model.config import TransformerConfig
from bertie.model.model import Model
from bertie.model.vocabulary_heads import CausalLMHead, FillsMasks
from bertie.objectives import CausalLM
from bertie.tasks.inference import infer, require_finite
from bertie.text.tokenizer import Tokenizer

BATCH_TOKENS = 4096  # on a CPU, larger batches are no faster (benchmarks/minimal_pairs.py)
MIN_ROWS = 64  # fewest rows of a product with the matrix of the vocabulary


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
    tokens: np.ndarray | None = None
    """int64: ids whose log probability is wanted: all of them at the only position, or one at each position; None: those of
    all entries."""


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
    head: FillsMasks | CausalLMHead
    """The head."""

    @classmethod
    def masked(cls, folder: Path, tokenizer: Tokenizer, model: Model, max_length: int) -> TokenModel:
        """Return the part of a model that predicts masked tokens.

        Raises:
            UserError: The model has no such head.
        """
        if (found := filling_head(model)) is None:
            raise UserError(
                f"{folder} has no masked-LM head: use a model that was pre-trained with masks, such as with the "
                "objective mlm, and not fine-tuned"
            )
        return cls(folder, tokenizer, model, max_length, *found)

    @classmethod
    def any(cls, folder: Path, tokenizer: Tokenizer, model: Model, max_length: int) -> TokenModel:
        """Return the part of a model that predicts tokens, from both sides or from the left.

        The head of a causal language model has no weights. So a causal encoder without any head is taken for one.

        Raises:
            UserError: The model has no such head.
        """
        found = _causal_head(model) or filling_head(model)
        if found is None:
            raise UserError(
                f"{folder} has no masked-LM or causal-LM head: use a model that was pre-trained with an objective "
                "that predicts tokens, such as mlm or clm, and not fine-tuned"
            )
        return cls(folder, tokenizer, model, max_length, *found)

    @property
    def causal(self) -> bool:
        """Whether the model predicts each token from the tokens before it. Otherwise, it fills masks."""
        return self.model.encoder.config.causal

    @property
    def max_text(self) -> int:
        """Tokens in the longest text. A causal model reads the token that starts a text, and all of its tokens but the last;
        other models read all of them between two special tokens."""
        return self.max_length if self.causal else self.max_length - 2

    def log_distributions(self, contexts: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Predict all entries of the vocabulary at some positions of sequences.

        Args:
            contexts: Sequences, int32 [n], with special tokens and masks, and positions in each, int64 [P], ascending. A
                causal model predicts the token after the position, other models the one at the position.

        Returns:
            For each sequence the natural logarithm of the probabilities, float32 [P, V]. V excludes entries with which
            the matrix of the checkpoint is padded.
        """
        size = self.tokenizer.size

        def compute(batch: Batch, members: list[Sequence]) -> list[np.ndarray]:
            wanted = [cast(_Wanted, member.target).positions for member in members]
            x_PD = self._hidden(batch, wanted)
            parts = [log_p_PV[:, :size].cpu().numpy() for _, log_p_PV in self._chunks(x_PD)]
            return np.split(np.concatenate(parts), np.cumsum([len(positions) for positions in wanted])[:-1])

        return infer(self.model, self.masked_sequences(contexts), compute, BATCH_TOKENS)

    def top_tokens(self, sequences: list[Sequence], top_k: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the most probable tokens at some positions of sequences. The distributions are not kept in memory.

        Args:
            sequences: Sequences of `masked_sequences`.
            top_k: Number of tokens, K; the vocabulary may have fewer.

        Returns:
            For each sequence the ids, int64 [P, K], most probable first, and the natural logarithm of their probabilities,
            float32 [P, K].
        """
        size = self.tokenizer.size

        def compute(batch: Batch, members: list[Sequence]) -> list[tuple[np.ndarray, np.ndarray]]:
            wanted = [cast(_Wanted, member.target).positions for member in members]
            x_PD = self._hidden(batch, wanted)
            best = [log_p_PV[:, :size].topk(min(top_k, size)) for _, log_p_PV in self._chunks(x_PD)]
            bounds = np.cumsum([len(positions) for positions in wanted])[:-1]
            ids, log_p = torch.cat([each.indices for each in best]), torch.cat([each.values for each in best])
            return list(zip(np.split(ids.cpu().numpy(), bounds), np.split(log_p.cpu().numpy(), bounds), strict=True))

        return infer(self.model, sequences, compute, BATCH_TOKENS)

    def masked_sequences(self, contexts: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[Sequence]:
        """Return sequences that remember their positions. contexts: as in `log_distributions`."""
        return [self._sequence(ids, _Wanted(positions)) for ids, positions in contexts]

    def log_probabilities(self, queries: list[Query]) -> np.ndarray:
        """Return the natural logarithm of the probability of each token, float64 [queries].

        Queries with the same sequence and position cost one forward pass together. Two sentences that differ in one
        token, for example, are the same sequence after this token is masked.
        """
        tokens_of: dict[tuple[bytes, int], list[int]] = {}
        places = []
        first: list[Query] = []
        for query in queries:
            key = (query.input_ids.tobytes(), query.position)
            if key not in tokens_of:
                tokens_of[key] = []
                first.append(query)
            places.append((key, len(tokens_of[key])))
            tokens_of[key].append(query.token)
        sequences = [
            self._sequence(query.input_ids, _Wanted(np.array([query.position]), np.array(tokens)))
            for query, tokens in zip(first, tokens_of.values(), strict=True)
        ]
        results = infer(self.model, sequences, self._own_log_probabilities, BATCH_TOKENS)
        found = dict(zip(tokens_of, results, strict=True))
        return np.array([found[key][number] for key, number in places], np.float64)

    def next_log_probabilities(self, sequences: list[np.ndarray]) -> list[np.ndarray]:
        """Return the log probabilities of a causal model for every token of sequences after the first one.

        The model reads all tokens but the last one, which is only predicted.

        Args:
            sequences: int32 [n], each with the token that starts a sequence, and at least one more. n - 1 is at most
                `max_length`.

        Returns:
            float32 [n - 1] for each sequence.
        """

        def compute(batch: Batch, members: list[Sequence]) -> list[np.ndarray]:
            wanted = [cast(_Wanted, member.target) for member in members]
            x_PD = self._hidden(batch, [each.positions for each in wanted])
            labels = np.concatenate([each.tokens for each in wanted if each.tokens is not None])
            label_P = torch.as_tensor(labels, dtype=torch.int64, device=x_PD.device)
            own = [log_p_PV.gather(1, label_P[rows, None])[:, 0] for rows, log_p_PV in self._chunks(x_PD)]
            return np.split(torch.cat(own).cpu().numpy(), np.cumsum([len(member) for member in members])[:-1])

        encoded = [self._sequence(ids[:-1], _Wanted(np.arange(len(ids) - 1), ids[1:])) for ids in sequences]
        return infer(self.model, encoded, compute, BATCH_TOKENS)

    def _own_log_probabilities(self, batch: Batch, members: list[Sequence]) -> list[np.ndarray]:
        wanted = [cast(_Wanted, member.target) for member in members]
        x_PD = self._hidden(batch, [each.positions for each in wanted])
        tokens = [each.tokens for each in wanted if each.tokens is not None]
        counts = np.array([len(each) for each in tokens])
        starts = np.concatenate([[0], np.cumsum(counts)])
        found = []
        for rows, log_p_PV in self._chunks(x_PD):
            row = torch.as_tensor(np.repeat(np.arange(len(log_p_PV)), counts[rows]), device=x_PD.device)
            token = torch.as_tensor(np.concatenate(tokens[rows]), dtype=torch.int64, device=x_PD.device)
            found.append(log_p_PV[row, token].cpu().numpy())
        return np.split(np.concatenate(found), starts[1:-1])

    def _hidden(self, batch: Batch, positions: list[np.ndarray]) -> Float[Tensor, "P D"]:
        """Return the last hidden states at some positions of each sequence. The last layer runs only there.

        Raises:
            UserError: They are not finite.
        """
        starts = batch.ragged.cu_seqlens.tolist()
        ahead = self.head.ahead if isinstance(self.head, FillsMasks) and not self.causal else 0
        index = np.concatenate([own + start - ahead for own, start in zip(positions, starts, strict=False)])
        rows = torch.as_tensor(index, dtype=torch.int64, device=self.model.device)
        if (
            isinstance(self.head, FillsMasks) and self.head.permuted
        ):  # all masks have the same rank: each is predicted from the rest of the text
            batch = replace(batch, order=(batch.input_ids == self.tokenizer.mask_id).long())
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


def tell_generator(model: Model) -> None:
    """Say that an ELECTRA's generator predicts, if the model has one."""
    if model.generator is not None:
        console.info("predictions of the generator, because an ELECTRA itself predicts no tokens")


def filling_head(model: Model) -> tuple[str, FillsMasks] | None:
    """Return the head of a model that predicts masked tokens, with its kind; None if the model has none."""
    heads = {kind: head for kind, head in model.heads.items() if isinstance(head, FillsMasks)}
    return None if model.encoder.config.causal else next(iter(heads.items()), None)


def _causal_head(model: Model) -> tuple[str, FillsMasks | CausalLMHead] | None:
    """Return the head of a causal language model, with its kind; None if the model is none, or was fine-tuned."""
    config = model.encoder.config
    if not isinstance(config, TransformerConfig) or not config.causal:
        return None
    for kind, head in model.heads.items():  # a causal XLM has the head of a masked one
        if isinstance(head, FillsMasks | CausalLMHead):
            return kind, head
    if model.heads or config.embedding_width != config.hidden_size:
        return None
    return CausalLM.kind, CausalLMHead(model.encoder.embeddings.word)
