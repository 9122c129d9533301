"""The keys of a lab file (TOML). Field docstrings are the documentation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from bertie.base.config import Count, Positive, Range, check_ranges, ranges
from bertie.base.errors import UsageError

TomlTable = dict[str, Any]
MEAN = "mean of tasks"
"""The measure that is the mean over all tasks."""


@dataclass(frozen=True)
class Budget:
    """The length of every pre-training. It replaces training.steps of the recipes."""

    amount: Annotated[float, Range(0, 1e30, above=True)]
    """Optimizer steps, tokens (filler included), floating-point operations, or seconds of training steps."""
    unit: Literal["steps", "tokens", "flops", "seconds"]
    """Quantity that is equal in all cells. flops are counted from the first rows of the text, seconds measured on a few steps."""

    __post_init__ = ranges("budget")


@dataclass(frozen=True)
class LabText:
    """The text, its vocabulary and its shards."""

    inputs: tuple[str, ...]
    """Text files or folders, relative to the data folder."""
    text_field: str = "text"
    """Key or column of the text, in all files but .txt."""
    algorithm: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """Kind of vocabulary: WordPiece, byte-level BPE, or unigram."""
    vocab_size: Positive = 8000
    """Number of entries of the vocabulary."""
    cased: bool = False
    """Keep case and accents."""
    drop_punctuation: bool = False
    """Drop punctuation (WordPiece only)."""
    line_breaks: bool = False
    """Give line breaks an entry of the vocabulary, so that the model reads where lines end."""
    eval_share: Annotated[float, Range(0, 0.99, above=True)] = 0.01
    """Share of the documents that are held out."""
    language: str = "en"
    """Language of the text for sentence splitting, a two-letter code."""

    def __post_init__(self) -> None:
        if not self.inputs:
            raise UsageError("text.inputs is empty: name text files or folders")
        check_ranges("text", self)
        for key in ("cased", "drop_punctuation"):
            if self.algorithm != "wordpiece" and getattr(self, key):
                raise UsageError(f"text.{key} is for text.algorithm wordpiece, not {self.algorithm}: remove text.{key}")


@dataclass(frozen=True)
class LabTask:
    """A task on which the pre-trained models are fine-tuned and scored."""

    name: str
    """Name in tables."""
    train: str
    """Training examples: a file, relative to the data folder."""
    dev: str
    """Examples to score."""
    finetune: TomlTable
    """A fine-tuning recipe, as in a TOML file of `bertie finetune`. It usually extends the one of its kind of task."""
    parts: str = ""
    """A text file with a line for each example of `dev`: the name of its part. Each part then has a score, too."""
    baselines: str = ""
    """A JSON file of scores to compare with, such as {"chance": {"PART": 0.5}}. The key of all examples is the name of the
    task."""


@dataclass(frozen=True)
class Variant:
    """The changes of a variant. Its tables are merged into the tables of the base, as in a TOML file that extends another one."""

    name: str
    """Name in tables."""
    text: TomlTable = field(default_factory=dict)
    """Changes of `text`."""
    pretrain: TomlTable = field(default_factory=dict)
    """Changes of `pretrain`."""
    glove: TomlTable | None = None
    """Settings of GloVe vectors, which take the place of pre-training."""
    finetune: TomlTable = field(default_factory=dict)
    """Changes of the fine-tuning recipe of every task."""
    tasks: dict[str, TomlTable] = field(default_factory=dict)
    """Changes of the fine-tuning recipes of single tasks, by the name of the task. They are applied last."""
    budget: TomlTable = field(default_factory=dict)
    """Changes of `budget`."""
    checkpoint: Count = 0
    """Fine-tune the checkpoint after this many steps of pre-training; 0: the final model."""

    def __post_init__(self) -> None:
        check_ranges(f"the variant {self.name}", self)
        if self.glove is not None and (self.pretrain or self.budget):
            other = "pretrain" if self.pretrain else "budget"
            raise UsageError(f"the variant {self.name} has glove, which replaces pre-training, and {other}: remove one")


@dataclass(frozen=True)
class Axis:
    """Alternatives. Each cell has one of them."""

    name: str
    """Name in tables."""
    variants: tuple[Variant, ...]
    """The alternatives. Differences are relative to the first one."""


@dataclass(frozen=True)
class LabConfig:
    """A lab file. Its cells are all combinations of the variants of its axes, each with every seed."""

    title: str
    """Title of the page."""
    question: str
    """Question that the comparison answers. Shown below the title."""
    text: TomlTable
    """The text, its vocabulary and its shards."""
    pretrain: TomlTable
    """A pre-training recipe, as in a TOML file of `bertie pretrain`. It usually extends a shipped one."""
    axes: tuple[Axis, ...]
    """The axes of variation."""
    tasks: tuple[LabTask, ...] = ()
    """Tasks for fine-tuning. Without tasks, only the losses of pre-training are compared."""
    seeds: tuple[int, ...] = (0,)
    """Random seeds. Each is used for pre-training and for fine-tuning."""
    pretrain_seed: Annotated[int | None, Range(0)] = None
    """Pre-train each model once, with this seed: `seeds` are then for fine-tuning only. Intervals do not cover other
    pre-trainings."""
    budget: Budget | None = None
    """The length of every pre-training, except where a variant changes it. Without it, each recipe's training.steps."""

    def __post_init__(self) -> None:
        check_ranges("lab", self)
        tasks = [task.name for task in self.tasks]
        variants = {f"axes.{axis.name}.variants": [variant.name for variant in axis.variants] for axis in self.axes}
        for key, names in {"axes": [axis.name for axis in self.axes], "seeds": [*self.seeds], **variants}.items():
            if not names:
                raise UsageError(f"{key} is empty: give at least one")
            _require_distinct(key, names)
        _require_distinct("tasks", tasks)
        for name in tasks:
            if name == MEAN or name.endswith(("_loss", "_accuracy")):
                raise UsageError(f"tasks has the name {name!r}, which another measure has: rename the task")
        for variant in (variant for axis in self.axes for variant in axis.variants):
            if unknown := sorted(variant.tasks.keys() - {*tasks}):
                known = ", ".join(tasks) or "none"
                raise UsageError(f"the variant {variant.name} has tasks.{unknown[0]}: the tasks of the lab are {known}")
        if min(self.seeds) < 0:
            raise UsageError(f"seeds has {min(self.seeds)}: give numbers from 0")


def _require_distinct(key: str, names: list[Any]) -> None:
    if len(set(names)) < len(names):
        raise UsageError(f"{key}: the same name occurs twice in {', '.join(map(str, names))}")
