"""The layers of a model, and of other models on the same texts: anisotropy, self-similarity and CKA."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from pathlib import Path

from bertie import console
from bertie.contracts import Sequence
from bertie.errors import UserError
from bertie.inspect.attention import read_hidden
from bertie.inspect.findings import InputFindings
from bertie.inspect.layers import LayerStates, Sample, anisotropy_table, cka_rows, cka_table
from bertie.inspect.tables import Table
from bertie.inspect.texts import TextFile
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.training.run_folder import short_names


@dataclass(frozen=True, eq=False)
class LayerComparison:
    """The layers of a model whose hidden states are read in a pass over texts, together with other analyses.

    Before the pass, `LayerComparison.of` checks the other models and draws a sample. Give `states` every block of texts (`add`)
    and its hidden states (`see_hidden`). After the pass, `findings` reads the other models, one at a time.
    """

    states: LayerStates
    """Receives the hidden states of the model."""
    texts: TextFile
    """The texts, of which nothing was read yet: every other model reads them again."""
    sample: Sample
    """The tokens and words that are looked at."""
    others: dict[str, str | Path] = field(default_factory=dict)
    """The other models: their names in the tables and their sources, as in `load`."""
    language: str = ""
    """Language of the texts, for the other models."""
    threads: int = 0
    """Processor threads, as in `load`."""

    @classmethod
    def of(
        cls,
        predictor: Predictor,
        texts: TextFile,
        others: Many[str | Path] = (),
        seed: int = 0,
        language: str = "",
        threads: int = 0,
    ) -> LayerComparison:
        """Check the other models and draw a sample of the texts.

        Args:
            predictor: The model.
            texts: The texts, of which nothing was read yet.
            others: Models to compare, such as checkpoints of the same run. They need the tokenizer of the model.
            seed: Random seed of the sample.
            language: As in `load`, for the other models.
            threads: As in `load`.

        Raises:
            UsageError: A model is given twice or does not exist.
            UserError: A model has another tokenizer, or no text is short enough for all models.
        """
        names = short_names([predictor.folder, *others])
        max_length = predictor.max_length
        for source in others:
            other = load(source, language=language, threads=threads)
            if other.tokenizer.fingerprint != predictor.tokenizer.fingerprint:
                raise UserError(
                    f"{source} and {predictor.folder} have different tokenizers, so their tokens cannot be compared: give "
                    "models with the same tokenizer"
                )
            max_length = min(max_length, other.max_length)
        unread = replace(texts)
        sample = Sample.draw(_quiet_blocks(replace(unread)), predictor.tokenizer, max_length, seed)
        states = LayerStates(names[0], sample)
        return cls(states, unread, sample, dict(zip(names[1:], others, strict=True)), language, threads)

    def findings(self) -> InputFindings:
        """Read the other models and return the tables `anisotropy` and `cka`."""
        rows, models = list(cka_rows(self.states, self.states)), self.states.anisotropy()
        for name, source in self.others.items():
            other = LayerStates(name, self.sample)
            read_layers(load(source, language=self.language, threads=self.threads), replace(self.texts), other)
            rows += cka_rows(self.states, other)
            models += other.anisotropy()
        facts = {
            "sampled_tokens": len(self.sample.tokens),
            "sampled_words": len(self.sample.words),
            "max_length": self.sample.max_length,
            "compared": list(self.others),
        }
        tables = [anisotropy_table(models), cka_table(rows)]
        return InputFindings("geometry", facts, tables, _summary(*tables))


def inspect_layers(
    predictor: Predictor, texts: TextFile, others: Many[str | Path] = (), seed: int = 0
) -> InputFindings:
    """Describe the layers of a model, and compare them with those of others. Arguments, errors: as in `LayerComparison.of`."""
    layers = LayerComparison.of(predictor, texts, others, seed)
    read_layers(predictor, texts, layers.states)
    return layers.findings()


def read_layers(predictor: Predictor, texts: TextFile, states: LayerStates) -> None:
    """Show the hidden states of all texts that count to the analysis."""
    for block in _quiet_blocks(texts):
        short = [sequence for sequence in block if len(sequence) <= states.max_length]
        states.add(short)
        read_hidden(predictor.model, short, states.see_hidden, f"layers of {states.name}")


def _quiet_blocks(texts: TextFile) -> Iterator[list[Sequence]]:
    """Yield the blocks of texts without warnings: those of the pass that counts are enough."""
    blocks = texts.blocks()
    while True:
        with console.silenced():
            block = next(blocks, None)
        if block is None:
            return
        yield block


def _summary(anisotropy: Table, cka: Table) -> list[str]:
    """Describe the last layer, and the layer that differs most from that of another model."""
    own = cka.rows()[0]["model_a"]
    last = [row for row in anisotropy.rows() if row["model"] == own][-1]
    lines = [
        f"anisotropy of layer {last['layer']}: {_cosine(last['anisotropy'])}; cosine of the same word in two texts: "
        f"{_cosine(last['self_similarity'])}"
    ]
    for name in dict.fromkeys(row["model_b"] for row in cka.rows() if row["model_b"] != own):
        same = [row for row in cka.rows() if row["model_b"] == name and row["layer_a"] == row["layer_b"]]
        known = [row for row in same if row["cka_debiased"] is not None]
        if known:
            least = min(known, key=lambda row: row["cka_debiased"])
            equal = least["cka_debiased"] > 1 - 1e-6
            where = f"differs most in layer {least['layer_a']}, CKA {least['cka_debiased']:.2f}"
            lines.append(f"{name}: {'the same hidden states in all layers' if equal else where}")
    return lines


def _cosine(value: float | None) -> str:
    return "unknown: too few texts" if value is None else f"{value:.2f}"
