"""The mean attention of each head, over any amount of text (Clark et al. 2019, sections 3.1 to 3.3).

A number is a mean over the tokens that could attend to such a key. So a causal model has no attention to the next token,
the first token of a text has none to the previous one, and a layer with local attention has attention to [SEP] only from the
tokens near it. The uniform head, for comparison, attends to all tokens of the text, or in a causal model to those so far.

S  sequences of a group    L  length of the longest one, in tokens    N  heads
C  means: the statistics, then the attention at each distance
"""

from __future__ import annotations

import unicodedata
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bertie.inspect.attention import Group, head_names
from bertie.inspect.tables import HEAD, Table
from bertie.model.transformer import TransformerEncoder
from bertie.tokenizers.tokenizer import Tokenizer

REACH = 10  # largest distance in the table of distances, in tokens
DISTANCES = range(-REACH, REACH + 1)
STATISTICS = {
    "to_cls": "mean attention to [CLS], the first token of the text",
    "to_sep": "mean attention to [SEP]",
    "to_punctuation": "mean attention to tokens of punctuation, all of them together",
    "to_previous": "mean attention to the previous token",
    "to_next": "mean attention to the next token",
    "to_self": "mean attention to the token itself",
    "to_same": "mean attention to the other occurrences of the same token, over the tokens that occur again",
    "entropy": "mean entropy of the attention, in nats",
    "cls_entropy": "mean entropy of the attention from [CLS], in nats",
    "distance": "mean distance between a token and the tokens that it attends to, in tokens",
}
_NAMES = list(STATISTICS)
_DISTANCE_MEANING = {
    **HEAD,
    "distance": "position of the attended token relative to the attending one, in tokens; negative: before it",
    "attention": "mean attention over the tokens that see a token at this distance; empty where no token does",
    "uniform": "the same for a head that attends to all tokens equally",
}


def short_name(statistic: str) -> str:
    """Return the name of a statistic as it is shown, such as "to [CLS]" for "to_cls"."""
    parts = {"cls": "[CLS]", "sep": "[SEP]"}
    return " ".join(parts.get(part, part) for part in statistic.split("_"))


class _Grid(NamedTuple):
    """Properties of a group that are the same in all layers."""

    keys: Float[Tensor, "S 3 K"]
    """1 where a pair of query and key is of a kind: [SEP], punctuation, same token. K: L × L pairs."""
    sees: dict[int | None, Float[Tensor, " C"]]
    """Number of tokens that each mean is over, in the layers with each window; None: in those that see the whole text."""
    uniform: Float[Tensor, "S N L L"]
    """The attention of a single head (N = 1) that attends to all tokens of the text equally."""


class HeadStatistics:
    """Sums of the statistics of all heads. Its size does not depend on the text."""

    def __init__(self, encoder: TransformerEncoder, tokenizer: Tokenizer):
        """Start with no text.

        Args:
            encoder: The encoder whose attention is read.
            tokenizer: Its tokenizer, which knows the special tokens and punctuation.
        """
        self.encoder, config = encoder, encoder.config
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id
        self.punctuation = torch.as_tensor(punctuation_ids(tokenizer))
        heads = (config.num_hidden_layers, config.num_attention_heads)
        means = len(_NAMES) + len(DISTANCES)
        self.sums = torch.zeros(*heads, means, dtype=torch.float64)
        self.windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
        self.sees = {window: torch.zeros(means, dtype=torch.float64) for window in (None, *self.windows)}
        self.uniform = torch.zeros(means, dtype=torch.float64)
        self.grid: _Grid | None = None

    def see(self, group: Group, layer: int, probabilities: Float[Tensor, "S N L L"]) -> None:
        """Add the attention of one layer, counted from 0. The layers of a group come in order."""
        if layer == 0 or self.grid is None:
            self.grid = self._grid_of(group)
            self.uniform += _sums(self.grid, self.grid.uniform)[0].cpu()
            for window, sees in self.grid.sees.items():
                self.sees[window] += sees.cpu()
        self.sums[layer] += _sums(self.grid, probabilities).cpu()

    def tables(self) -> list[Table]:
        """Return the tables `heads`, `uniform_head` and `distances`."""
        layer, head = head_names(self.encoder)
        sees = torch.stack([self.sees[window] for window in self.windows])
        means = (self.sums / sees[:, None]).flatten(0, 1).numpy()
        uniform = (self.uniform / self.sees[None]).numpy()
        columns: dict[str, Any] = {"layer": layer, "head": head, **dict(zip(_NAMES, means.T, strict=False))}
        row: dict[str, Any] = dict(zip(_NAMES, uniform[:, None], strict=False))
        tables = [Table("heads", columns, HEAD | STATISTICS), Table("uniform_head", row, STATISTICS)]
        possible = np.flatnonzero(self.sees[None].numpy()[len(_NAMES) :] > 0)
        place = np.tile(possible, len(layer))
        distances = {
            **{"layer": layer.repeat(len(possible)), "head": head.repeat(len(possible))},
            "distance": np.array(DISTANCES)[place],
            "attention": means[:, len(_NAMES) + possible].flatten(),
            "uniform": uniform[len(_NAMES) + place],
        }
        return [*tables, Table("distances", distances, _DISTANCE_MEANING)]

    def _grid_of(self, group: Group) -> _Grid:
        valid, ids = group.valid, group.input_ids
        visible = valid[:, :, None] & valid[:, None, :]
        if self.encoder.config.causal:
            visible = visible.tril()
        positions = torch.arange(ids.shape[1], device=ids.device)
        is_sep = (ids == self.sep_id) & (positions > 0)
        is_punctuation = torch.isin(ids, self.punctuation.to(ids.device))
        kinds = [is_sep[:, None, :].expand_as(visible), is_punctuation[:, None, :].expand_as(visible)]
        kinds.append((ids[:, :, None] == ids[:, None, :]) & (positions[:, None] != positions))
        keys = torch.stack(kinds, 1)
        sees = {window: _sees(valid, visible, keys, window) for window in self.sees}
        uniform = visible / visible.sum(-1, keepdim=True).clamp(min=1)
        return _Grid(keys.flatten(2).float(), sees, uniform[:, None])


def _sees(
    valid: Bool[Tensor, "S L"], visible: Bool[Tensor, "S L L"], keys: Bool[Tensor, "S 3 L L"], window: int | None
) -> Float[Tensor, " C"]:
    """Count the tokens that each mean is over, in the layers with a window: those that see such a key."""
    if window is not None:
        visible = visible.triu(-window).tril(window)
    tokens, sees_kind = valid.sum(), (keys & visible[:, None]).any(-1).sum((0, 2))
    distances = _along_distances(visible.sum(0)[None].double())[0]
    first, previous, following, itself = (visible[:, :, 0].sum(), *(distances[REACH + d] for d in (-1, 1, 0)))
    numbers = [first, *sees_kind[:2], previous, following, itself, sees_kind[2], tokens, len(valid), tokens]
    sees = torch.tensor([float(number) for number in numbers], dtype=torch.float64, device=valid.device)
    return torch.cat([sees, distances])


def punctuation_ids(tokenizer: Tokenizer) -> np.ndarray:
    """Return the ids of the entries that consist of punctuation, int64.

    Punctuation is what BERT's tokenizer splits off: Unicode's categories P, and all ASCII characters that are not letters,
    digits or space. Special tokens are no punctuation.
    """
    special = set(tokenizer.special_ids.tolist())
    texts = (tokenizer.spelling(entry).decode("utf-8", "replace").strip() for entry in tokenizer.vocabulary)
    ids = [i for i, text in enumerate(texts) if text and i not in special and all(map(_is_punctuation, text))]
    return np.array(ids, np.int64)


def _is_punctuation(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")


def _sums(grid: _Grid, probabilities: Float[Tensor, "S N L L"]) -> Float[Tensor, "N C"]:
    """Return the sums over all tokens of a group, in float64."""
    total_NLL = probabilities.sum(0).double()
    sep, punctuation, same = (probabilities.flatten(2) @ grid.keys.mT).sum(0, dtype=torch.float64).unbind(-1)
    logarithms = (probabilities + 1e-30).log_()  # 0 times this is 0
    entropy_SNL = -logarithms.mul_(probabilities).sum(-1)
    distances = _along_distances(total_NLL)
    previous, following, itself = (distances[:, REACH + d] for d in (-1, 1, 0))
    positions = torch.arange(total_NLL.shape[-1], device=total_NLL.device)
    away = (total_NLL * (positions[:, None] - positions).abs()).sum((1, 2))
    entropy = entropy_SNL.sum((0, 2), dtype=torch.float64)
    cls_entropy = entropy_SNL[:, :, 0].sum(0, dtype=torch.float64)
    cls = total_NLL[:, :, 0].sum(-1)
    columns = [cls, sep, punctuation, previous, following, itself, same, entropy, cls_entropy, away]
    return torch.cat([torch.stack(columns, -1), distances], -1)


def _along_distances(total_NLL: Float[Tensor, "N L L"]) -> Float[Tensor, "N distances"]:
    """Return the sum over all pairs at each distance from -REACH to REACH."""
    reach = min(REACH, total_NLL.shape[-1] - 1)
    diagonals = [total_NLL.diagonal(d, 1, 2).sum(-1) for d in range(-reach, reach + 1)]
    return torch.nn.functional.pad(torch.stack(diagonals, -1), (REACH - reach, REACH - reach))
