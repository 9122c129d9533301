"""Phases of a run: most steps on short sequences, the last ones on long ones (Devlin et al. 2018, appendix A.2), or most
steps with few layers, the last ones with all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertie.base.config import Count, PositiveFraction, ranges
from bertie.base.errors import UsageError
from bertie.batches.layouts import Layout
from bertie.batches.loader import Loader, StepShape
from bertie.batches.mixture import MixtureLoader
from bertie.corpus.shards import Shards


@dataclass(frozen=True)
class Phase:
    """A part of the run with its own sequence length, batch size, number of layers and mixture of data sets."""

    share: PositiveFraction
    """Fraction of all steps. The shares of all phases sum to 1."""
    max_length: Count = 0
    """Longest sequence in tokens; 0: `max_length` of the layout."""
    batch_size: Count = 0
    """Sequences of full length per step; 0: `batch_size` of the training settings."""
    layers: Count = 0
    """Layers of a new model that are computed and trained, the first ones; 0: all. The others begin as the identity and join in
    a later phase: a shallow model makes more steps in the same time, and early ones are as good (after Gong et al. 2019).
    With init_from, all layers are trained from the first step on."""
    weights: tuple[float, ...] = ()
    """How often a row is of each data set, if there are several, such as more of the best text in the last phase. By default
    `weights` of the recipe."""

    __post_init__ = ranges("phases")


@dataclass(frozen=True, eq=False)
class ResolvedPhase:
    """A phase with its defaults filled in."""

    first_step: int
    """The first step of the phase, counted from 0 in the run."""
    end_step: int
    """The first step after the phase."""
    layout: Layout
    batch_size: int
    shape: StepShape
    static_epochs: int = 0
    shuffle_tokens: int = 0
    weights: tuple[float, ...] = ()
    layers: int = 0

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.end_step - self.first_step

    @property
    def tokens(self) -> int:
        """Tokens of a step, filler included."""
        return self.shape.rows * self.shape.row_tokens

    def loader(self, shards: Shards, seed: int) -> Loader | MixtureLoader:
        """Create the loader of the phase's rows."""
        settings = self.shape, seed, self.static_epochs, self.shuffle_tokens
        parts = shards.by_name.values() if self.weights else (shards,)
        loaders = tuple(Loader(part.train, shards.tokenizer, self.layout, *settings) for part in parts)
        return MixtureLoader(loaders, self.weights) if self.weights else loaders[0]


def resolve_phases(
    phases: tuple[Phase, ...],
    layout: Layout,
    batch_size: int,
    row_tokens: int,
    steps: int,
    static_epochs: int = 0,
    shuffle_tokens: int = 0,
    weights: tuple[float, ...] = (),
) -> list[ResolvedPhase]:
    """Fill in the defaults of phases, and convert their shares to steps.

    Args:
        phases: The phases; if there are none, the whole run is one phase.
        layout: The layout, whose `max_length` is the default.
        batch_size: The default batch size.
        row_tokens: Approximate number of tokens per row.
        steps: Steps of the run.
        static_epochs: Epochs whose sequences and masks are repeated; 0: none.
        shuffle_tokens: Most tokens that are shuffled together; 0: all.
        weights: The default weights of the data sets.

    Raises:
        UsageError: If the shares do not sum to 1, if a phase has no step, or if its length is invalid.
    """
    if phases and abs((total := sum(phase.share for phase in phases)) - 1) > 1e-6:
        raise UsageError(f"phases: the shares sum to {total:g}: they must sum to 1")
    resolved: list[ResolvedPhase] = []
    share = 0.0
    for number, phase in enumerate(phases or (Phase(1.0),)):
        share += phase.share
        first_step = resolved[-1].end_step if resolved else 0
        later = max(len(phases) - number - 1, 0)  # each of them has a step, however short the run is
        end_step = min(round(share * steps), steps - later) if later else steps
        if end_step <= first_step:
            raise UsageError(f"phases.{number} is less than one of {steps} steps: raise share or training.steps")
        try:
            phase_layout = replace(layout, max_length=phase.max_length or layout.max_length)
        except UsageError as error:
            raise UsageError(str(error).replace("layout", f"phases.{number}")) from error
        size = phase.batch_size or batch_size
        shape = StepShape.of(size, phase_layout.max_length, row_tokens)
        settings = static_epochs, shuffle_tokens, phase.weights or weights, phase.layers
        resolved.append(ResolvedPhase(first_step, end_step, phase_layout, size, shape, *settings))
    return resolved


def phase_index(phases: list[ResolvedPhase], step: int) -> int:
    """Return the index of the phase that a step (from 0) belongs to."""
    return next(number for number, phase in enumerate(phases) if step < phase.end_step)
