"""The kinds of steps of a lab. Each is a frozen dataclass that names its settings and the steps that it needs (`needs`).

A step has a folder, `STEPS/ID`, which only its own process writes. `run` resumes what an earlier process left there. A step is
finished when its folder has result.json, which `worker` writes last.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import safe_open

from bertie.base import config as configuration
from bertie.base import storage
from bertie.base.errors import UsageError
from bertie.checkpoints.folder import MANIFEST
from bertie.corpus.executors import LocalExecutor
from bertie.corpus.prepare import prepare
from bertie.corpus.readers import ReaderOptions
from bertie.corpus.vocabulary import train_tokenizer
from bertie.finetuning.finetune import finetune
from bertie.finetuning.recipe import FinetuneConfig
from bertie.finetuning.sweep import has_failed
from bertie.lab.config import Budget, LabText
from bertie.pretraining.glove import GloveConfig, glove
from bertie.pretraining.pretrain import pretrain, set_up
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.step_cost import flops_per_step, seconds_per_step
from bertie.tasks.evaluation.folder import PREDICTIONS
from bertie.tasks.scoring import labeled_examples
from bertie.tokenizers.special_tokens import LINE_BREAK
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.run_folder import read_metrics
from bertie.training.run_report import DEV

StepOutcome = dict[str, Any]
"""The contents of result.json of a step."""
RESULT = "result.json"
RUN, SUMS, WEIGHTS = "run", "sums.npy", "model.safetensors"
TOKENIZER, SHARDS = "tokenizer", "shards"


@dataclass(frozen=True)
class Workplace:
    """Where a step runs."""

    steps: Path
    """The folder of all steps."""
    step: str
    """The id of this one."""
    threads: int
    """Number of CPU threads."""

    @property
    def folder(self) -> Path:
        """The folder of this step."""
        return self.steps / self.step


@dataclass(frozen=True)
class VocabularyStep:
    """Train the vocabulary."""

    text: LabText
    files: tuple[str, ...]
    """The text files with hashes of their contents: another text is another step."""
    kind: Literal["vocabulary"] = "vocabulary"

    def run(self, at: Workplace) -> StepOutcome:
        train = partial(
            train_tokenizer,
            self.text.inputs,
            at.folder / TOKENIZER,
            algorithm=self.text.algorithm,
            vocab_size=self.text.vocab_size,
            normalization=NormalizerOptions(not self.text.cased, drop_punctuation=self.text.drop_punctuation),
            user_tokens=[LINE_BREAK] if self.text.line_breaks else [],
            reader_options=ReaderOptions(text_field=self.text.text_field),
            executor=LocalExecutor(at.threads),
        )
        _write_once(train, at.folder / TOKENIZER)
        return {"entries": Tokenizer.load(at.folder / TOKENIZER).size}


def _write_once(write: Callable[[], object], path: Path) -> None:
    """Write `path` unless it exists. Unfinished work is resumed, or removed if its text has other dates or it is of another
    version."""
    if path.exists():
        return
    try:
        write()
    except storage.OtherWorkError:
        storage.discard_work(path)
        write()


@dataclass(frozen=True)
class ShardsStep:
    """Tokenize the text."""

    text: LabText
    vocabulary: str
    kind: Literal["shards"] = "shards"

    def run(self, at: Workplace) -> StepOutcome:
        tokenize = partial(
            prepare,
            self.text.inputs,
            Tokenizer.load(at.steps / self.vocabulary / TOKENIZER),
            at.folder / SHARDS,
            eval_share=self.text.eval_share,
            language=self.text.language,
            reader_options=ReaderOptions(text_field=self.text.text_field),
            executor=LocalExecutor(at.threads),
        )
        _write_once(tokenize, at.folder / SHARDS)
        return {"splits": storage.read_json(at.folder / SHARDS / "manifest.json")["splits"]}


@dataclass(frozen=True)
class MeasureStep:
    """Turn a budget in floating-point operations or seconds into a number of optimizer steps, equal for all seeds."""

    recipe: PretrainConfig
    budget: Budget
    shards: str
    models: tuple[str, ...] = ()
    """As in `PretrainStep`."""
    kind: Literal["measure"] = "measure"

    def run(self, at: Workplace) -> StepOutcome:
        setup = set_up(self.recipe, at.steps / self.shards / SHARDS, at.folder / RUN, at.threads, SINGLE_PROCESS)
        cost = flops_per_step(setup) if self.budget.unit == "flops" else seconds_per_step(setup)
        return {"steps": round(self.budget.amount / cost)}


@dataclass(frozen=True)
class PretrainStep:
    """Pre-train a model."""

    recipe: PretrainConfig
    shards: str
    keep_checkpoints: bool
    """Whether a cell uses a checkpoint of this run. Otherwise they are deleted at the end."""
    measure: str = ""
    """The step that determines training.steps; empty: the recipe has them."""
    models: tuple[str, ...] = ()
    """The weights of other models that the recipe names, with hashes of their contents: other weights are another step."""
    kind: Literal["pretrain"] = "pretrain"

    def run(self, at: Workplace) -> StepOutcome:
        recipe, run = self.recipe, at.folder / RUN
        if self.measure:
            recipe = with_steps(recipe, storage.read_json(at.steps / self.measure / RESULT)["steps"])
        pretrain(recipe, at.steps / self.shards / SHARDS, run, threads=at.threads)
        last = read_metrics(run, "train")[-1]
        cost = {"steps": recipe.training.steps, "tokens": last["tokens"], "seconds": last["seconds"]}
        return {"parameters": _parameters(run), **cost, "evaluations": read_metrics(run, "eval")}


@dataclass(frozen=True)
class GloveStep:
    """Train GloVe vectors."""

    settings: GloveConfig
    shards: str
    kind: Literal["glove"] = "glove"

    def run(self, at: Workplace) -> StepOutcome:
        run = at.folder / RUN
        if not (run / MANIFEST).is_file():
            glove(at.steps / self.shards / SHARDS, run, self.settings, threads=at.threads)
        return {"parameters": _parameters(run), "evaluations": []}


@dataclass(frozen=True)
class FinetuneStep:
    """Fine-tune a model on a task, and score it."""

    recipe: FinetuneConfig
    train: str
    dev: str
    files: tuple[str, ...]
    """Hashes of the contents of the two files."""
    model: str
    """The step that trained the model."""
    checkpoint: int = 0
    """Use the checkpoint after this many steps; 0: the final model."""
    kind: Literal["finetune"] = "finetune"

    def run(self, at: Workplace) -> StepOutcome:
        recipe, run, model = self.recipe, at.folder / RUN, at.steps / self.model / RUN
        if (run / MANIFEST).is_file() and not (run / WEIGHTS).is_file():
            shutil.rmtree(run)  # the user has deleted its result, and `tidy` the weights
        if self.checkpoint:
            model = model / "checkpoints" / f"step-{self.checkpoint:08d}"
        tuned = finetune(recipe, self.train, model, run, dev=self.dev, threads=at.threads)
        examples = labeled_examples(recipe.task.reader, self.dev, recipe.strict)
        path = run / DEV / PREDICTIONS
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = zip(lines, examples, strict=True)
        predictions = [tuned.task.read_prediction(json.loads(line), example, str(path)) for line, example in pairs]
        scores = tuned.task.score(predictions, examples)
        metric = recipe.metric or next(name for name in (tuned.task.metric, *scores) if name in scores)
        sums = tuned.task.sums(predictions, examples).get(metric)
        if sums is not None:
            np.save(at.folder / SUMS, sums[1])
        result = {"metric": metric, "scores": scores, "formula": sums[0] if sums else None}
        result |= {"failed": has_failed(metric, scores, tuned.task, examples)}
        return result | {"seconds": read_metrics(run, "train")[-1]["seconds"]}


def with_steps(recipe: PretrainConfig, steps: int) -> PretrainConfig:
    """Return a recipe with another number of steps.

    Raises:
        UsageError: The budget is less than one step.
    """
    if steps < 1:
        raise UsageError("the budget is less than one step: raise budget.amount, or lower training.batch_size")
    return replace(recipe, training=replace(recipe.training, steps=steps))


LabStep = VocabularyStep | ShardsStep | MeasureStep | PretrainStep | GloveStep | FinetuneStep


def needs(step: LabStep) -> tuple[str, ...]:
    """Return the steps that a step needs: those that its fields name."""
    return tuple(filter(None, (getattr(step, name, "") for name in ("vocabulary", "shards", "measure", "model"))))


def step_id(step: LabStep) -> str:
    """Return the name of the step's folder: its kind, and a hash of its settings and of the steps that it needs.

    Settings with their default value do not count, so a new setting of bertie does not change the names.
    """
    text = json.dumps(configuration.plain(step, defaults=False), sort_keys=True)
    return f"{step.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def tidy(step: LabStep, at: Workplace) -> None:
    """Delete what no other step reads, after the result is saved: checkpoints, and the weights of fine-tuned models."""
    if isinstance(step, FinetuneStep) or (isinstance(step, PretrainStep) and not step.keep_checkpoints):
        shutil.rmtree(at.folder / RUN / "checkpoints", ignore_errors=True)
    if isinstance(step, FinetuneStep):
        (at.folder / RUN / WEIGHTS).unlink(missing_ok=True)


def _parameters(model: Path) -> int:
    """Return the number of weights in a model folder."""
    with safe_open(model / WEIGHTS, "np") as file:
        return sum(int(np.prod(file.get_slice(name).get_shape())) for name in file.keys())  # noqa: SIM118 - no mapping
