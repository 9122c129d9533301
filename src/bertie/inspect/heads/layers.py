"""The geometry of hidden states: anisotropy and self-similarity (Ethayarajh 2019), and linear CKA between layers
(Kornblith et al. 2019), of one model or of two models on the same text.

Memory does not grow with the text. Anisotropy is exact: it comes from sums over all tokens. Self-similarity comes from a
sample of words, and CKA from a sample of tokens.

T  packed tokens    n  sampled tokens    D  hidden size
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bertie.base import seeding
from bertie.base.contracts import Hidden, Sequence
from bertie.base.errors import UserError
from bertie.inspect.attention import Group, read_hidden
from bertie.inspect.tables import InputFindings, Table, TableRow
from bertie.inspect.texts import TextFile
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.run_folder import short_names

SAMPLED_TOKENS = 4096  # for CKA
SAMPLED_WORDS = 500  # for self-similarity
CONTEXTS = 5  # a word counts if it is in at least this many texts, as in Ethayarajh (2019), section 3.2
TOKENS, WORDS = 16, 17  # random streams of the purpose INSPECT


@dataclass(frozen=True, eq=False)
class Sample:
    """Which tokens and words of a text are looked at. It is the same for all models that are compared."""

    special: np.ndarray
    """Ids of the special tokens around a text, which are left out. Unknown tokens count."""
    word_starts: np.ndarray
    """bool [V]: whether an entry of the vocabulary starts a word."""
    max_length: int
    """Texts with more tokens are left out, because one of the models cannot read them."""
    tokens: np.ndarray
    """int64 [n]: the tokens for CKA, sorted. They are numbers among all tokens that count."""
    words: np.ndarray
    """int64: entries of the vocabulary for self-similarity, sorted."""

    @classmethod
    def draw(cls, blocks: Iterable[Many[Sequence]], tokenizer: Tokenizer, max_length: int, seed: int) -> Sample:
        """Draw a sample in one pass over the tokens of a text.

        Args:
            blocks: The text, block by block.
            tokenizer: The tokenizer of the models.
            max_length: Tokens that all models can read.
            seed: Random seed.

        Raises:
            UserError: No token counts, or the tokenizer has no words.
        """
        tokenizer.require_words("the comparison of layers")
        nothing, special = np.zeros(0, np.int64), np.array([tokenizer.cls_id, tokenizer.sep_id])
        counting = cls(special, tokenizer.word_starts_table, max_length, nothing, nothing)
        tokens, contexts = 0, np.zeros(tokenizer.size, np.int64)
        for block in blocks:
            for sequence in block:
                tokens += len(counting.places(sequence))
                contexts[sequence.input_ids[counting.first_words(sequence)]] += 1
        if not tokens:
            raise UserError(f"every text has more than {max_length} tokens, which is more than all models can read")
        of_tokens, of_words = (seeding.generator(seed, seeding.INSPECT, stream) for stream in (TOKENS, WORDS))
        drawn = of_tokens.choice(tokens, min(tokens, SAMPLED_TOKENS), replace=False)
        words = of_words.permutation(np.flatnonzero(contexts >= CONTEXTS))[:SAMPLED_WORDS]
        return replace(counting, tokens=np.sort(drawn), words=np.sort(words))

    def places(self, sequence: Sequence) -> np.ndarray:
        """Return the positions of the tokens that count: all but those around the text."""
        if len(sequence) > self.max_length:
            return np.zeros(0, np.int64)
        return np.flatnonzero(~np.isin(sequence.input_ids, self.special))

    def first_words(self, sequence: Sequence) -> np.ndarray:
        """Return the positions of the tokens that are whole words, once for every word."""
        places = self.places(sequence)
        starts = np.append(sequence.word_starts, True)
        whole = places[starts[places] & starts[places + 1]]
        return whole[np.unique(sequence.input_ids[whole], return_index=True)[1]]


class LayerStates:
    """Sums and samples of the hidden states of one model.

    Use `add` for some sequences, then `see_hidden` for their hidden states, and so on.
    """

    def __init__(self, name: str, sample: Sample):
        """Prepare the analysis. `name`: name of the model in the tables."""
        self.name = name
        self.sample = sample
        self._starts = np.zeros(1, np.int64)
        self._tokens = 0
        self._sums: list[Tensor] = []
        self._word_sums: list[Tensor] = []
        self._contexts = np.zeros(len(sample.words), np.int64)
        self.states: list[Float[Tensor, "n D"]] = []
        """Hidden states of the sampled tokens, by layer. Read them after the last `see_hidden`."""

    def add(self, sequences: Many[Sequence]) -> None:
        """Add sequences; `see_hidden` receives their hidden states next."""
        counts = [len(self.sample.places(sequence)) for sequence in sequences]
        self._starts = self._starts[-1] + np.cumsum([0, *counts])

    def see_hidden(self, group: Group, hidden: Hidden) -> None:
        """Add the hidden states of a group."""
        layers, device = hidden.layers or (), hidden.last.device
        starts = group.batch.ragged.cu_seqlens.tolist()
        rows, numbers, word_rows, words = [], [], [], []
        for sequence, index, start in zip(group.sequences, group.indices, starts, strict=False):
            places = self.sample.places(sequence)
            rows.append(start + places)
            numbers.append(self._starts[index] + np.arange(len(places)))
            first = self.sample.first_words(sequence)
            chosen = first[np.isin(sequence.input_ids[first], self.sample.words)]
            word_rows.append(start + chosen)
            words.append(np.searchsorted(self.sample.words, sequence.input_ids[chosen]))
        row, number, word_row, word = map(np.concatenate, (rows, numbers, word_rows, words))
        place = np.searchsorted(self.sample.tokens, number)
        sampled = self.sample.tokens[np.minimum(place, len(self.sample.tokens) - 1)] == number
        for layer in layers if not self._sums else ():
            size = layer.shape[1]
            self._sums.append(torch.zeros(size, dtype=torch.float64))
            self._word_sums.append(torch.zeros(len(self.sample.words), size, dtype=torch.float64))
            self.states.append(torch.zeros(len(self.sample.tokens), size))
        np.add.at(self._contexts, word, 1)
        self._tokens += len(row)
        index = [torch.as_tensor(kind, device=device) for kind in (row, word_row, row[sampled])]
        for layer, x_TD in enumerate(layers):
            units = x_TD.double() / x_TD.double().norm(dim=1, keepdim=True).clamp(min=1e-300)
            self._sums[layer] += units[index[0]].sum(0).cpu()
            self._word_sums[layer].index_add_(0, torch.as_tensor(word), units[index[1]].cpu())
            self.states[layer][place[sampled]] = x_TD[index[2]].float().cpu()

    def anisotropy(self) -> list[TableRow]:
        """Return rows of the table `anisotropy`."""
        rows: list[TableRow] = []
        count = torch.as_tensor(self._contexts).double()
        used = count >= 2
        for layer, (sums, words) in enumerate(zip(self._sums, self._word_sums, strict=True)):
            cosine = _mean_cosine(sums[None], torch.tensor([float(self._tokens)]))[0]
            same_word = _mean_cosine(words, count)[used].mean()  # NaN: there is no word
            row = {"model": self.name, "layer": layer, "tokens": self._tokens, "anisotropy": float(cosine)}
            similarity = {"self_similarity": float(same_word), "adjusted": float(same_word - cosine)}
            rows.append({**row, "words": int(used.sum()), **similarity})
        return rows


def cka_rows(a: LayerStates, b: LayerStates) -> Iterator[TableRow]:
    """Yield rows of the table `cka`: every layer of a model with every layer of another one, or of itself."""
    ours = [_Centered(layer) for layer in a.states]
    others = ours if a is b else [_Centered(layer) for layer in b.states]
    values: dict[tuple[int, int], dict[str, float]] = {}
    for i, x in enumerate(ours):
        for j, y in enumerate(others):
            known = values.get((j, i)) if a is b else None  # CKA is symmetric
            values[i, j] = known or {"cka": x.cka(y), "cka_debiased": x.debiased_cka(y)}
            yield {"model_a": a.name, "layer_a": i, "model_b": b.name, "layer_b": j, **values[i, j]}


class _Centered:
    """Hidden states of tokens in one layer, with what CKA needs of them.

    With X centered, linear CKA is |XᵀY|² / (|XᵀX| |YᵀY|), in Frobenius norms (Kornblith et al. 2019, equation 4). It is
    biased upward for few tokens: two independent sets of vectors have about D / (n + D). The debiased one uses the unbiased
    estimator of HSIC by Song et al. (2012), equation 5, for the Gram matrices without their diagonals.
    """

    def __init__(self, states: Float[Tensor, "n D"]):
        x = states.double() - states.double().mean(0)
        x = x / x.norm().clamp(min=1e-300) * len(x) ** 0.5  # CKA does not depend on the scale
        self._x = x.float()  # the products of single precision are exact enough, and faster
        self._diagonal = x.square().sum(1)
        self._row_sums = -self._diagonal  # of the Gram matrix without its diagonal: the rows of the whole sum to 0
        self._own = self._inner(self)
        self._own_unbiased = self._unbiased(self)

    def cka(self, other: _Centered) -> float:
        """Return linear CKA, from 0 to 1; NaN if all states of a side are equal."""
        scale = (self._own * other._own) ** 0.5
        return self._inner(other) / scale if scale > 0 else float("nan")

    def debiased_cka(self, other: _Centered) -> float:
        """Return debiased linear CKA; NaN for fewer than four tokens, or if a denominator is not positive."""
        product = self._own_unbiased * other._own_unbiased
        return self._unbiased(other) / product**0.5 if product > 0 and self._own_unbiased > 0 else float("nan")

    def _inner(self, other: _Centered) -> float:
        return float((self._x.T @ other._x).double().square().sum())

    def _unbiased(self, other: _Centered) -> float:
        """Return the unbiased estimate of HSIC, times n (n - 3)."""
        n = len(self._x)
        if n < 4:
            return float("nan")
        trace = self._inner(other) - float(self._diagonal @ other._diagonal)
        sums = float(self._row_sums.sum() * other._row_sums.sum()) / ((n - 1) * (n - 2))
        return trace + sums - 2 / (n - 2) * float(self._row_sums @ other._row_sums)


def _mean_cosine(sums: Float[Tensor, "words D"], count: Float[Tensor, " words"]) -> Float[Tensor, " words"]:
    """Return the mean cosine of all pairs of different vectors, from the sum of their unit vectors. NaN for one vector."""
    return (sums.square().sum(1) - count) / (count * (count - 1))


ANISOTROPY = {
    "model": "the model",
    "layer": "layer, from 1; 0: the embeddings",
    "tokens": "tokens, without special ones",
    "anisotropy": "mean cosine of the hidden states of two random tokens",
    "words": f"words in the self-similarity: a sample of those in at least {CONTEXTS} texts that are one token",
    "self_similarity": "mean cosine of the hidden states of the same word in two texts, averaged over the words",
    "adjusted": "self-similarity minus anisotropy",
}
CKA = {
    "model_a": "a model",
    "layer_a": "its layer, from 1; 0: the embeddings",
    "model_b": "the same model or another one",
    "layer_b": "its layer, from 1; 0: the embeddings",
    "cka": f"linear CKA of the hidden states of up to {SAMPLED_TOKENS:,} random tokens: 1 for equal up to rotation and scale",
    "cka_debiased": "the same without the bias of a finite number of tokens: about 0 for unrelated layers",
}


class LayerComparison:
    """The layers of a model whose hidden states are read in a pass over texts, together with other analyses.

    Before the pass, the other models are checked and a sample is drawn. Give `states` every block of texts (`add`) and its
    hidden states (`see_hidden`). After the pass, `findings` reads the other models, one at a time.
    """

    def __init__(
        self,
        predictor: Predictor,
        texts: TextFile,
        others: Many[str | Path] = (),
        seed: int = 0,
        language: str = "",
        threads: int = 0,
    ):
        """Check the other models and draw a sample of the texts.

        Args:
            predictor: The model.
            texts: The texts, of which nothing was read yet: every other model reads them again.
            others: Models to compare, such as checkpoints of the same run. They need the tokenizer of the model.
            seed: Random seed of the sample.
            language: As in `load`, for the other models.
            threads: As in `load`.

        Raises:
            UsageError: A model is given twice or does not exist.
            UserError: A model has another tokenizer, or no text is short enough for all models.
        """
        name, *names = short_names([predictor.folder, *others])
        self._others = dict(zip(names, others, strict=True))
        self._load = partial(load, language=language, threads=threads)
        max_length = predictor.max_length
        for source in others:
            other = self._load(source)
            if other.tokenizer.fingerprint != predictor.tokenizer.fingerprint:
                raise UserError(
                    f"{source} and {predictor.folder} have different tokenizers, so their tokens cannot be compared: give "
                    "models with the same tokenizer"
                )
            max_length = min(max_length, other.max_length)
        self._texts = replace(texts)
        sample = Sample.draw(replace(texts).blocks(), predictor.tokenizer, max_length, seed)
        self.states = LayerStates(name, sample)
        """Receives the hidden states of the model."""

    def findings(self) -> InputFindings:
        """Read the other models and return the tables `anisotropy` and `cka`."""
        rows, models, sample = [*cka_rows(self.states, self.states)], self.states.anisotropy(), self.states.sample
        for name, source in self._others.items():
            other = LayerStates(name, sample)
            read_layers(self._load(source), replace(self._texts), other)
            rows += cka_rows(self.states, other)
            models += other.anisotropy()
        sizes = {"sampled_tokens": len(sample.tokens), "sampled_words": len(sample.words)}
        facts = {**sizes, "max_length": sample.max_length, "compared": list(self._others)}
        tables = [Table.of_rows("anisotropy", models, ANISOTROPY), Table.of_rows("cka", rows, CKA)]
        return InputFindings("geometry", facts, tables, _summary(*tables))


def inspect_layers(
    predictor: Predictor, texts: TextFile, others: Many[str | Path] = (), seed: int = 0
) -> InputFindings:
    """Describe the layers of a model, and compare them with the layers of others. Arguments, errors: as in `LayerComparison`."""
    layers = LayerComparison(predictor, texts, others, seed)
    read_layers(predictor, texts, layers.states)
    return layers.findings()


def read_layers(predictor: Predictor, texts: TextFile, states: LayerStates) -> None:
    """Show the hidden states of all texts that count to the analysis."""
    for block in texts.blocks():
        short = [sequence for sequence in block if len(sequence) <= states.sample.max_length]
        states.add(short)
        read_hidden(predictor.model, short, states.see_hidden, f"layers of {states.name}")


def _summary(anisotropy: Table, cka: Table) -> list[str]:
    """Describe the last layer, and the layer that differs most from the same layer of another model."""
    model = cka.rows()[0]["model_a"]
    last = [row for row in anisotropy.rows() if row["model"] == model][-1]
    all_tokens, same_word = (
        "unknown: too few texts" if last[name] is None else f"{last[name]:.2f}"
        for name in ("anisotropy", "self_similarity")
    )
    lines = [f"anisotropy of layer {last['layer']}: {all_tokens}; cosine of the same word in two texts: {same_word}"]
    least: dict[str, tuple[float, int]] = {}
    for row in cka.rows():
        if row["model_b"] != model and row["layer_a"] == row["layer_b"] and row["cka_debiased"] is not None:
            pair = row["cka_debiased"], row["layer_a"]
            least[row["model_b"]] = min(pair, least.get(row["model_b"], pair))
    for name, (similarity, layer) in least.items():
        where = f"differs most in layer {layer}, CKA {similarity:.2f}"
        lines.append(f"{name}: {'the same hidden states in all layers' if similarity > 1 - 1e-6 else where}")
    return lines
