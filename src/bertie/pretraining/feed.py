"""What pre-training reads: rows of a corpus, labelled by the objectives, as the micro-batches of this rank."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice

from bertie import seeding
from bertie.batches.collate import collate, join
from bertie.batches.layouts import Layout, SentencePairsEpoch
from bertie.batches.loader import Position, Step, StepPlan
from bertie.batches.prefetch import prefetch
from bertie.contracts import Batch, MicroBatch, Sequence, Targets
from bertie.errors import UsageError, UserError
from bertie.objectives import Objective
from bertie.pretraining.phases import ResolvedPhase, plan_steps
from bertie.text.shards import Corpus, Shards
from bertie.text.tokenizer import Tokenizer
from bertie.training.distributed import Ranks

EVAL_ROW_TOKENS = 4096  # tokens that are masked and read together when evaluating, whatever a row of training holds


@dataclass(frozen=True, eq=False)
class Feed:
    """A run's steps. micro_batch: most rows of one forward pass; workers: processes that prepare steps ahead.

    Rows are labelled one by one, as a pure function of (seed, epoch, step, row), so neither how many of them a forward
    pass takes, nor which rank has them, nor who prepares them changes what is read.
    """

    phases: list[ResolvedPhase]
    shards: Shards
    objectives: tuple[Objective, ...]
    seed: int
    micro_batch: int
    workers: int
    ranks: Ranks

    def __post_init__(self) -> None:
        """Errors: UsageError where the ranks cannot share a step's rows."""
        for number, leg in enumerate(self.phases):
            if leg.shape.rows % self.ranks.count:
                raise UsageError(
                    f"a step of phase {number + 1} is {leg.shape.rows} rows of {leg.shape.row_tokens} tokens, which "
                    f"{self.ranks.count} ranks cannot share equally: lower training.row_tokens (training.batch_size × the "
                    "phase's max_length must be a multiple of row_tokens × ranks), or raise training.batch_size"
                )

    def steps(self, first: int, position: Position) -> Generator[Step]:
        """This rank's part of every step, from `first` on, where the run stands at `position`."""

        def part(worker: int, workers: int) -> Iterator[Step]:
            plans = plan_steps(self.phases, self.shards, self.seed, first, position)
            return map(self.build, islice(plans, worker, None, workers))

        return prefetch(part, self.workers)

    def build(self, plan: StepPlan) -> Step:
        own = self.ranks.own_range(plan.rows)
        size = rows_per_pass(len(own), self.micro_batch)
        return Step(self.micro_batches(plan, own, size), plan.position, plan.after, first=own.start // size)

    def micro_batches(self, plan: StepPlan, rows: range, size: int) -> list[MicroBatch]:
        """These rows of a step, labelled, `size` together."""
        at = (seeding.LABELS, plan.position.epoch, plan.position.step)
        labelled = [
            label_row(plan.row(row), self.objectives, self.shards.tokenizer, self.seed, *at, row) for row in rows
        ]
        return [join(labelled[start : start + size]) for start in range(0, len(labelled), size)]


def rows_per_pass(rows: int, most: int) -> int:
    """How many rows a forward pass takes: as many as may be, and equally many each time."""
    return next(size for size in range(min(most, rows), 0, -1) if rows % size == 0)


def label_row(
    batch: Batch, objectives: tuple[Objective, ...], tokenizer: Tokenizer, seed: int, *stream: int
) -> tuple[Batch, dict[str, Targets]]:
    """Let every objective corrupt a row and say what it wants predicted: a pure function of the seed and stream."""
    targets: dict[str, Targets] = {}
    for number, objective in enumerate(objectives):
        batch, targets[objective.kind] = objective.label(batch, tokenizer, seeding.generator(seed, *stream, number))
    return batch, targets


def eval_batches(
    objectives: tuple[Objective, ...], layout: Layout, corpus: Corpus, tokenizer: Tokenizer, most: int
) -> list[MicroBatch]:
    """At most `most` tokens of held-out text, laid out and masked once and for all: the same for every step, run and seed.

    Errors: UserError where they are too short for a single sequence.
    """
    groups: list[list[Sequence]] = [[]]
    tokens = 0
    for sequence in _first(layout.epoch(corpus, tokenizer, 0, 0), most):
        if groups[-1] and tokens + len(sequence) > EVAL_ROW_TOKENS:
            groups.append([])
            tokens = 0
        groups[-1].append(sequence)
        tokens += len(sequence)
    if not groups[0]:
        raise UserError("the held-out documents are all of a single token: prepare more text")
    batches = [collate(group, layout.max_length) for group in groups]
    return [
        join([label_row(batch, objectives, tokenizer, 0, seeding.EVAL_LABELS, i)]) for i, batch in enumerate(batches)
    ]


def _first(epoch: SentencePairsEpoch, tokens: int) -> Iterator[Sequence]:
    """Sequences of an epoch, at least one, while they have no more than `tokens` together."""
    read = 0
    for window in range(epoch.windows):
        for span in epoch.window(window):
            if read and read + len(span) > tokens:
                return
            read += len(span)
            yield epoch.sequence(span)
