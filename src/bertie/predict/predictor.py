"""A model, loaded: hidden states, masked words, classes, scores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch

from bertie import config as configuration
from bertie import console, runtime, storage
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.folder import (
    TASK_FILE,
    Checkpoint,
    find_model_folder,
    list_checkpoints,
    load_weights,
    read_checkpoint,
)
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.contracts import Batch, Sequence
from bertie.errors import UsageError, UserError
from bertie.model.bert import BertModel
from bertie.model.heads import MaskedLMHead
from bertie.model.layer_selection import Fixed
from bertie.model.pooling import Pooling
from bertie.model.transformer import Encoder
from bertie.objectives import Objective
from bertie.predict.vectors import WordPooling, WordVectors, text_vectors, word_vectors
from bertie.tasks import AnyTask, Embed, Tag, Task
from bertie.tasks.data.rows import join_names, require_list, valid_examples
from bertie.tasks.evaluation.folder import evaluation_folder, write
from bertie.tasks.inference import infer, predictions
from bertie.tasks.task_json import features_from_json, task_from_json
from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer

Inputs = Iterable[Any]


@dataclass(frozen=True)
class MaskPrediction:
    """A word piece for a masked place, and its probability."""

    token: str
    probability: float


def read_task(source: str | Path) -> AnyTask:
    """What a run was fine-tuned for. Errors: as in `load`, and UserError for one that was not."""
    folder = find_model_folder(source)
    if (folder / TASK_FILE).is_file():
        return _task_json(folder)
    checkpoint = read_checkpoint(folder)
    task = _task(checkpoint)
    if task is None:
        raise UserError(f"{checkpoint.folder} was not fine-tuned for a task: run `bertie finetune` on it first")
    return task


def load(source: str | Path, *, task: AnyTask | None = None, threads: int = 0) -> Predictor:
    """Load a run, a checkpoint folder, any BERT folder of Hugging Face's, or a hub id, for use in fp32.

    task: in place of what the run says of its own, with other columns or limits. threads: 0 = all this process may use.
    Errors: UsageError if there is nothing of the kind, UserError if it is damaged.
    """
    runtime.use_threads(threads)
    checkpoint = read_checkpoint(source)
    task = _asked(task, checkpoint)
    encoder = Encoder(checkpoint.config)
    objectives = [kind() for kind in get_args(Objective)]
    heads = {o.kind: o.head(checkpoint.config, encoder) for o in objectives if o.kind in checkpoint.heads}
    reading = features_from_json(checkpoint.task, checkpoint.config, checkpoint.folder / TASK_FILE)
    if task is not None:
        heads[task.kind] = task.head(checkpoint.config, reading.width if reading else checkpoint.config.hidden_size)
    model = BertModel(encoder, heads, reading).eval()
    loaded = load_weights(model, checkpoint)
    if loaded.initialized:
        raise UserError(f"{checkpoint.folder}/model.safetensors lacks the weights of {', '.join(loaded.initialized)}")
    limit = _trained_length(checkpoint)
    return Predictor(checkpoint.folder, checkpoint.tokenizer, model.to(runtime.device()), task, limit)


@dataclass(frozen=True, eq=False)
class Predictor:
    """folder: where it was read from; task: what it was fine-tuned for, if anything.

    max_length: longer texts are cut; for a run, the length it was trained on.
    """

    folder: Path
    tokenizer: Tokenizer = field(repr=False)
    model: BertModel = field(repr=False)
    task: Task | None
    max_length: int

    def hidden_states(self, texts: Iterable[str | tuple[str, str]]) -> list[np.ndarray]:
        """Per text (or pair) float32 [layers + 1, tokens, D]: the embeddings, then every layer's output.

        tokens: [CLS], the text's pieces, [SEP] (and the second text's pieces, [SEP]).
        """
        sequences = self._sequences(list(require_list(texts)))

        def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
            layers = self.model.encoder(batch, all_layers=True).layers
            stacked = torch.stack(list(layers or ())).float().cpu().numpy()
            return np.split(stacked, batch.ragged.cu_seqlens[1:-1].cpu().numpy(), axis=1)

        return infer(self.model, sequences, compute)

    def embed(self, texts: Iterable[str], pooling: Pooling | None = None, layers: Fixed = "last") -> np.ndarray:
        """float32 [n, E], a vector a text. E: the model's width, times 4 with "concat_last_4". Longer texts are cut.

        pooling: left out, that of the task `embed` or of sentence-transformers' files in the folder, with their
        normalisation; where there are none, the mean. Mean and max are of all tokens, [CLS] and [SEP] too.
        Errors: UsageError for what is no choice, or where the model has too few layers; UserError for files that ask for
        what bertie has not.
        """
        own = SentenceEmbedding(pooling, normalize=False) if pooling is not None else self._own_pooling()
        given = list(require_list(texts))
        return text_vectors(self.model, self.tokenizer, given, self.max_length, own.pooling, layers, own.normalize)

    def word_vectors(
        self, texts: Iterable[str | Many[str]], layers: Fixed = "last", word_pooling: WordPooling = "first"
    ) -> list[WordVectors]:
        """Per text (or list of words) a vector of every word, with the words and where they lie: `vectors.word_vectors`."""
        return word_vectors(
            self.model, self.tokenizer, list(require_list(texts)), self.max_length, layers, word_pooling
        )

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[MaskPrediction]]:
        """For every [MASK] in the text its `top_k` likeliest word pieces. Errors: UserError without a [MASK] or a head."""
        if not isinstance(text, str):
            raise UsageError(f"expected a text and got a {type(text).__name__}")
        if type(top_k) is not int or top_k < 1:
            raise UsageError(f"--top-k {top_k}: ask for at least 1 guess")
        if "mlm" not in self.model.heads:
            raise UserError(f"{self.folder} has no masked-LM head: it was not pre-trained, or was fine-tuned since")
        head = cast(MaskedLMHead, self.model.heads["mlm"])
        sequence = self._masked(text)
        places = np.flatnonzero(sequence.input_ids == self.tokenizer.mask_id)
        if not len(places):
            raise UsageError("there is no [MASK] in the text: put one where a word is to be guessed")

        def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
            rows = torch.as_tensor(places, device=self.model.device)
            logits = head.logits(self.model.encoder(batch, rows).last)
            return [logits.float().softmax(-1).cpu().numpy()]

        [probabilities] = infer(self.model, [sequence], compute)
        known = probabilities[:, : self.tokenizer.size]  # a checkpoint may round its vocabulary up
        best = np.argsort(-known, axis=-1, kind="stable")[:, :top_k]
        return [
            [MaskPrediction(token, float(row[i])) for token, i in zip(self.tokenizer.tokens(ids), ids, strict=True)]
            for row, ids in zip(probabilities, best, strict=True)
        ]

    def predict(self, inputs: Inputs) -> list[Any]:
        """A prediction each (`Classified`, `Found` …) of texts, pairs, lists of words, or dicts with the columns of the training
        data, in order. Of a file: `predict_file`."""
        return list(self.predict_stream(inputs))

    def predict_stream(self, inputs: Inputs) -> Iterator[Any]:
        """The same lazily, at constant memory whatever the number of inputs."""
        task = self._require_task()
        return self._predictions(task, task.reader.values(inputs))

    def predict_file(self, path: str | Path) -> Iterator[Any]:
        """The same for the rows of a file; a UserError in place of what cannot be read, in the order of the file."""
        task = self._require_task()
        if isinstance(task, Tag) and Path(path).suffix == ".txt":
            raise UsageError(
                f"{path}: has it columns, or a sentence a line? Call it .conll for columns, or pipe sentences: --input -"
            )
        return self._predictions(task, task.reader.stream(Path(path)))

    def evaluate(
        self, data: str | Path | Inputs, strict: bool = False, out: str | Path | None = None
    ) -> dict[str, Any]:
        """{"scores": {…}, "examples": n, "seconds": s} on labelled examples.

        out: a folder to make, or an earlier one of the same to replace, of predictions.jsonl, scores.json and report.html; it is
        then "out" of the result. All examples and predictions are held in memory, what the model says of tokens is not.
        Errors: UserError for an unknown label; UsageError where `out` holds something else.
        """
        task = self._require_task()
        started = time.monotonic()
        named = Path(data).name if isinstance(data, str | Path) else "examples"
        title = f"{self.folder.absolute().name} on {named}"
        with evaluation_folder(Path(out), title) if out else nullcontext() as folder:
            examples = self._labelled(task, data, strict)
            found = self._predict_all(task, examples)
            scores = task.score(found, examples)
            result = {"scores": scores, "examples": len(examples), "seconds": round(time.monotonic() - started, 3)}
            if folder is None:
                return result
            write(folder, title, task, found, examples, {"of": title, **result})
        return {**result, "out": str(out)}

    def _labelled(self, task: Task, data: str | Path | Inputs, strict: bool) -> list[Any]:
        if isinstance(data, str | Path):
            examples = valid_examples(task.reader.read(Path(data)), str(data), strict)
        else:
            examples = valid_examples(task.reader.values(data), "the examples")
        task.validate(examples)
        return examples

    def _predict_all(self, task: Task, examples: list[Any]) -> list[Any]:
        found: list[Any] = []
        with console.progress("evaluate", len(examples), "examples", passing=True) as bar:
            for prediction in self._predictions(task, examples):
                found.append(prediction)
                bar.advance(1)
        return found

    def _predictions(self, task: Task, examples: Iterable[Any]) -> Iterator[Any]:
        return predictions(self.model, task, self.tokenizer, self.max_length, examples)

    def _require_task(self) -> Task:
        if self.task is None:
            raise UserError(f"{self.folder} was not fine-tuned for a task: run `bertie finetune` on it first")
        return self.task

    def _own_pooling(self) -> SentenceEmbedding:
        if isinstance(self.task, Embed):
            return SentenceEmbedding(self.task.pooling, normalize=False)
        return sentence_transformers_format.read(self.folder) or SentenceEmbedding("mean", normalize=False)

    def _sequences(self, texts: list[str | tuple[str, str]]) -> list[Sequence]:
        kinds = {isinstance(text, tuple) for text in texts}
        if len(kinds) > 1:
            raise UsageError("give either texts or pairs of texts, not both")
        if wrong := [text for text in texts if isinstance(text, tuple) and len(text) != 2]:
            raise UsageError(f"a pair has two texts and this one {len(wrong[0])}: {str(wrong[0])[:60]}")
        first = [text[0] if isinstance(text, tuple) else text for text in texts]
        second = [text[1] for text in texts if isinstance(text, tuple)]
        return truncation.encode(self.tokenizer, first, second or None, max_length=self.max_length)

    def _masked(self, text: str) -> Sequence:
        """The text with each literal [MASK] as the mask token: here, and only here, that is what it means."""
        parts = [self.tokenizer.encode([part])[0] for part in text.split("[MASK]")]
        mask = np.array([self.tokenizer.mask_id], np.int32)
        middle = np.concatenate([parts[0], *(piece for part in parts[1:] for piece in (mask, part))])
        if len(middle) > self.max_length - 2:
            raise UserError(f"the text has {len(middle)} tokens and the model reads {self.max_length - 2}: shorten it")
        ids = np.concatenate([[self.tokenizer.cls_id], middle, [self.tokenizer.sep_id]]).astype(np.int32)
        return Sequence(ids, np.zeros_like(ids), self.tokenizer.word_starts_table[ids])


def _trained_length(checkpoint: Checkpoint) -> int:
    """The longest sequence a run was trained on: positions after it have never been trained.

    Elsewhere what sentence-transformers' files say, or the model's most.
    """
    folder, most = checkpoint.folder, checkpoint.config.max_position_embeddings
    settings = checkpoint.task or _settings(folder)
    where = folder / TASK_FILE if checkpoint.task else _run(folder) / "config.toml"
    phases = settings.get("phases", [])
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
        raise UserError(f"{where}: phases is {str(phases)[:60]}: it must be tables")
    phases = [phase for phase in phases if phase.get("max_length") != 0]  # 0: the layout's
    parts = [settings, settings.get("layout"), *phases]
    limits = [part["max_length"] for part in parts if isinstance(part, dict) and "max_length" in part]
    others = min(most, sentence_transformers_format.max_sequence_length(folder) or most)
    limit = max(limits, default=others) if all(type(limit) is int for limit in limits) else limits
    if type(limit) is not int or not 4 <= limit <= most:
        raise UserError(f"{where}: max_length is {limit!r}: the model reads 4 to {most} tokens")
    return limit


def _task(checkpoint: Checkpoint) -> AnyTask | None:
    """What the checkpoint's head is for, as its task.json says; of others' models, what their head and labels say."""
    if checkpoint.task:
        said = _task_json(checkpoint.folder)
        _require_outputs(checkpoint, said.kind, said.labels)
        return said
    [kind] = [*(checkpoint.heads - {"mlm", "nsp"}), None][:1]
    if kind is None:
        return None
    task = configuration.build(AnyTask, {"kind": kind}, "task")
    if kind not in ("classify", "tag"):
        return task
    outputs = checkpoint.weights.get(f"heads.{kind}.out.weight")
    if outputs is None:
        raise UserError(f"{checkpoint.folder}/model.safetensors lacks the weights of heads.{kind}.out")
    labels = checkpoint.labels or tuple(f"LABEL_{i}" for i in range(len(outputs)))
    _require_outputs(checkpoint, kind, labels)
    return replace(task, labels=labels)


def _asked(task: AnyTask | None, checkpoint: Checkpoint) -> AnyTask | None:
    """What the checkpoint is for, or `task` in its place. Errors: UsageError where that has classes that are not the head's."""
    own = _task(checkpoint)
    if task is None or own is None or task.kind != own.kind or task.labels == own.labels:
        return task or own
    if not task.labels:
        return replace(task, labels=own.labels)
    if checkpoint.task or len(task.labels) != len(own.labels):  # names of others' models, LABEL_0 …, may be put right
        raise UsageError(f"task.labels: the model was trained with {join_names(own.labels)}, in this order")
    return task


def _require_outputs(checkpoint: Checkpoint, kind: str, labels: tuple[str, ...]) -> None:
    outputs = checkpoint.weights.get(f"heads.{kind}.out.weight")
    if labels and outputs is not None and len(labels) != len(outputs):
        where = "task.json" if checkpoint.task else "config.json"
        raise UserError(
            f"{checkpoint.folder}: {where} names {len(labels)} labels and the head has {len(outputs)} outputs"
        )


def _task_json(folder: Path) -> AnyTask:
    """What a folder's task.json says. Errors: UserError."""
    return task_from_json(storage.read_json(folder / TASK_FILE), folder / TASK_FILE)


def _settings(folder: Path) -> dict[str, Any]:
    """config.toml of a run, also for one of its checkpoints; nothing for other folders."""
    path = _run(folder) / "config.toml"
    return configuration.read(path) if path.is_file() else {}


def _run(folder: Path) -> Path:
    """The run that a model folder is, or is a checkpoint of."""
    folder = folder.resolve()
    return folder.parent.parent if folder in list_checkpoints(folder.parent.parent) else folder
