"""Vectors of tokens from their characters: ELMo's character CNN (Peters et al. 2018; Kim et al. 2016, sections 2.2 and 2.3).

T  packed tokens    V  vocabulary entries    U  distinct entries of a batch
K  characters of an entry, with markers and padding    C  size of the vector of a character
F  filters of all widths    E  size of the vector of a token
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.config import Range, check_ranges
from bertie.base.errors import UsageError
from bertie.tokenizers.spelling import SYMBOLS, spelling_table
from bertie.tokenizers.tokenizer import Tokenizer

GATE_BIAS = -2.0  # a highway layer begins by passing most of its input on
ENTRIES_MULTIPLE = 64  # fewer different shapes, for each of which oneDNN prepares a convolution


@dataclass(frozen=True)
class Subwords:
    """An embedding for each entry of the vocabulary. It is also the output matrix of `bilm`."""

    kind: Literal["subwords"] = "subwords"


@dataclass(frozen=True)
class Characters:
    """A CNN over the characters of each entry of the vocabulary, as in ELMo. `bilm` has an output matrix of its own."""

    kind: Literal["characters"] = "characters"
    filters: tuple[int, ...] = (32, 32, 64, 128, 256, 512, 1024)
    """Number of filters that read 1, 2, 3 … characters."""
    character_size: Annotated[int, Range(1, 10_000)] = 16
    """Size of the vector of a character."""
    highway_layers: Annotated[int, Range(0, 100)] = 2
    """Number of highway layers between the filters and the projection to the size of the embeddings."""
    max_characters: Annotated[int, Range(3, 1000)] = 50
    """Characters of an entry: bytes of UTF-8, and a marker at each end. Longer entries lose their end. The time of the
    filters grows with it. 20 suffice for BERT's English vocabularies; other scripts have 2 to 4 bytes per letter."""

    def __post_init__(self) -> None:
        check_ranges("model.input", self)
        if not 1 <= len(self.filters) <= self.max_characters or not all(1 <= n <= 1_000_000 for n in self.filters):
            expected = f"1 to 1,000,000 filters for each of 1 to max_characters {self.max_characters} widths"
            raise UsageError(f"model.input.filters is {list(self.filters)}: give {expected}")

    @property
    def features(self) -> int:
        """Number of filters of all widths."""
        return sum(self.filters)

    def products(self, size: int) -> int:
        """Return the multiplications for one entry. size: size of the embeddings."""
        positions = [self.max_characters - width + 1 for width in range(1, len(self.filters) + 1)]
        filters = sum(
            n * count * width for width, (n, count) in enumerate(zip(positions, self.filters, strict=True), 1)
        )
        highways = self.highway_layers * 2 * self.features**2
        return self.character_size * filters + highways + self.features * size


TokenInput = Subwords | Characters


class CharacterCNN(nn.Module):
    """Filters over characters, their maximum over all positions, highway layers, and a projection to size E.

    The vector of a token depends on its vocabulary entry only, so it is computed once for each distinct entry of a batch.
    The spelling of the entries is not a weight: `spell` derives it from the tokenizer, and model folders do not hold it.
    """

    table: Int[Tensor, "V K"]

    def __init__(self, config: Characters, entries: int, size: int):
        super().__init__()
        self.symbols = nn.Parameter(torch.empty(SYMBOLS, config.character_size))
        self.filters = nn.ModuleList(
            nn.Conv1d(config.character_size, count, width) for width, count in enumerate(config.filters, 1)
        )
        self.highways = nn.ModuleList(
            nn.Linear(config.features, 2 * config.features) for _ in range(config.highway_layers)
        )
        self.project = nn.Linear(config.features, size)
        # No symbol is negative: a model whose entries are not spelled yet fails, instead of computing nonsense.
        unknown = torch.full((entries, config.max_characters), -1, dtype=torch.int32)
        self.register_buffer("table", unknown, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the random initial vectors of the characters, as in ELMo's code: uniform within ±1."""
        nn.init.uniform_(self.symbols, -1, 1)

    def spell(self, tokenizer: Tokenizer) -> None:
        """Set the spelling of the entries. `tokenizer` has V entries."""
        self.table.copy_(torch.from_numpy(spelling_table(tokenizer, self.table.shape[1])))

    def forward(self, ids_T: Int[Tensor, " T"]) -> Float[Tensor, "T E"]:
        ids_U, place_T = _distinct(ids_T, len(self.table))
        x_UCK = F.embedding(self.table[ids_U], self.symbols).transpose(1, 2)
        x_UF = torch.cat([F.relu(filters(x_UCK).max(2).values) for filters in self.filters], 1)
        for highway in self.highways:
            new_UF, gate_UF = highway(x_UF).chunk(2, 1)
            x_UF = torch.lerp(x_UF, F.relu(new_UF), torch.sigmoid(gate_UF + GATE_BIAS))
        return F.embedding(place_T, self.project(x_UF))


def _distinct(ids_T: Int[Tensor, " T"], entries: int) -> tuple[Int[Tensor, " U"], Int[Tensor, " T"]]:
    """Return the distinct ids of a batch in ascending order, and the place of each token's id among them.

    On a CPU, U is their number, rounded up to a multiple of `ENTRIES_MULTIPLE`. Elsewhere it is the smaller one of T and V:
    the number would make the host wait for the GPU, whose batches are large and use most of the vocabulary anyway. The
    surplus places hold id 0.
    """
    used_V = torch.zeros(entries, dtype=torch.int64, device=ids_T.device).index_fill_(0, ids_T, 1)
    place_T = (used_V.cumsum(0) - 1)[ids_T]
    size = min(len(ids_T), entries)
    if ids_T.device.type == "cpu":
        size = -(-int(used_V.sum()) // ENTRIES_MULTIPLE) * ENTRIES_MULTIPLE
    return ids_T.new_zeros(size).scatter_(0, place_T, ids_T), place_T
