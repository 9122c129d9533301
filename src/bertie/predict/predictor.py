"""Load a model and use it: hidden states, vectors, masked tokens, predictions, scores."""

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

from bertie import console, runtime
from bertie.checkpoints import sentence_transformers_format
from bertie.checkpoints.folder import TASK_FILE, find_model_folder, load_weights, read_checkpoint
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.contracts import Batch, Sequence
from bertie.errors import UsageError, UserError
from bertie.files.sources import split_suffix
from bertie.model.electra import build_generator
from bertie.model.encoder import build_encoder, with_language
from bertie.model.layer_selection import Fixed
from bertie.model.model import Model
from bertie.model.pooling import Pooling
from bertie.model.vocabulary_heads import MaskedLMHead, PermutationLMHead
from bertie.objectives import Objective
from bertie.objectives.heads import build_heads
from bertie.predict.checkpoint_task import checkpoint_task, choose_task, task_json, trained_length
from bertie.predict.vectors import WordPooling, WordVectors, text_vectors, word_vectors
from bertie.tasks import AnyTask, Embed, Tag, Task
from bertie.tasks.data.rows import require_list, valid_examples
from bertie.tasks.evaluation.folder import evaluation_folder, write
from bertie.tasks.inference import infer, predictions
from bertie.tasks.task_json import features_from_json
from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer

Inputs = Iterable[Any]


@dataclass(frozen=True)
class MaskPrediction:
    """A token predicted at a [MASK]."""

    token: str
    """The word piece."""
    probability: float
    """Its probability, 0 to 1."""


def read_task(source: str | Path) -> AnyTask:
    """Read the task that a model was fine-tuned for.

    Args:
        source: As in `load`.

    Raises:
        UsageError: There is no model at `source`.
        UserError: The model is damaged, or was not fine-tuned for a task.
    """
    folder = find_model_folder(source)
    if (folder / TASK_FILE).is_file():
        return task_json(folder)
    checkpoint = read_checkpoint(folder)
    task = checkpoint_task(checkpoint)
    if task is None:
        raise UserError(f"{checkpoint.folder} was not fine-tuned for a task: run `bertie finetune` first")
    return task


def load(source: str | Path, *, task: AnyTask | None = None, language: str = "", threads: int = 0) -> Predictor:
    """Load a model for inference in fp32.

    Args:
        source: A run, a checkpoint folder, a BERT folder in Hugging Face's format, or a hub id.
        task: Replaces the task of the model, to read other columns or to change limits. The model needs a head for it,
            with the same labels.
        language: Language of the texts, for a model with language embeddings. Empty: the one that the model was
            fine-tuned in, or else the first of its languages.
        threads: Processor threads; 0: all that this process may use.

    Returns:
        The model, on the GPU if there is one.

    Raises:
        UsageError: There is no model at `source`, `task` has other labels than the model, or the model does not know
            `language`.
        UserError: The model is damaged.
    """
    runtime.use_threads(threads)
    checkpoint = read_checkpoint(source)
    checkpoint = replace(checkpoint, config=with_language(checkpoint.config, language))
    task = choose_task(task, checkpoint)
    encoder = build_encoder(checkpoint.config)
    generator = build_generator(checkpoint.generator, encoder)
    objectives = [kind() for kind in get_args(Objective)]
    heads = build_heads([o for o in objectives if o.kind in checkpoint.heads], encoder, generator)
    features = features_from_json(checkpoint.task, checkpoint.config, checkpoint.folder / TASK_FILE)
    if task is not None:
        heads[task.kind] = task.head(checkpoint.config, features.width if features else checkpoint.config.hidden_size)
    model = Model(encoder, heads, features, generator).eval()
    result = load_weights(model, checkpoint)
    if result.initialized:
        raise UserError(f"{checkpoint.folder}/model.safetensors lacks the weights of {', '.join(result.initialized)}")
    max_length = trained_length(checkpoint)
    return Predictor(checkpoint.folder, checkpoint.tokenizer, model.to(runtime.device()), task, max_length)


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model with its tokenizer and its task. `load` returns one."""

    folder: Path
    """The folder that the model was loaded from."""
    tokenizer: Tokenizer = field(repr=False)
    """Its tokenizer."""
    model: Model = field(repr=False)
    """The encoder and its heads, in evaluation mode."""
    task: Task | None
    """The task that the model was fine-tuned for; None: it was not."""
    max_length: int
    """Tokens in the longest sequence: for a run, the longest that it was trained on. Longer texts are truncated."""

    def hidden_states(self, texts: Iterable[str | tuple[str, str]]) -> list[np.ndarray]:
        """Return the hidden states of every layer.

        Args:
            texts: Texts, or pairs of texts.

        Returns:
            One array per text, float32 [layers + 1, tokens, D]: the output of the embeddings, then of each layer. The
            tokens are [CLS], the text, [SEP], and for a pair the second text, [SEP]. D is the hidden size.

        Raises:
            UsageError: `texts` mixes texts and pairs.
        """
        sequences = self._sequences(list(require_list(texts)))

        def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
            layers = self.model.encoder(batch, all_layers=True).layers
            stacked = torch.stack(list(layers or ())).float().cpu().numpy()
            return np.split(stacked, batch.ragged.cu_seqlens[1:-1].cpu().numpy(), axis=1)

        return infer(self.model, sequences, compute)

    def embed(self, texts: Iterable[str], pooling: Pooling | None = None, layers: Fixed = "last") -> np.ndarray:
        """Return one vector per text.

        Args:
            texts: Texts; longer ones are truncated to `max_length` tokens.
            pooling: How to pool the tokens, [CLS] and [SEP] included. None: as the task `embed` or the files of
                sentence-transformers in the folder say (with their normalization), else "mean".
            layers: Layers whose hidden states to use.

        Returns:
            float32 [texts, E]. E is the hidden size, times 4 with "concat_last_4".

        Raises:
            UsageError: `pooling` or `layers` is unknown, or the model has too few layers.
            UserError: The files of sentence-transformers ask for a module that bertie does not have.
        """
        how = SentenceEmbedding(pooling, normalize=False) if pooling is not None else self._default_pooling()
        text_list = list(require_list(texts))
        return text_vectors(self.model, self.tokenizer, text_list, self.max_length, how.pooling, layers, how.normalize)

    def word_vectors(
        self, texts: Iterable[str | Many[str]], layers: Fixed = "last", word_pooling: WordPooling = "first"
    ) -> list[WordVectors]:
        """Return one vector per word.

        A text longer than `max_length` tokens is read in overlapping windows. The vector of a word comes from the
        window that has the most context around it.

        Args:
            texts: Texts, whose words are separated by blanks and punctuation (every Chinese character is a word), or
                lists of words.
            layers: Layers whose hidden states to use.
            word_pooling: "first": the vector of the first word piece. "mean": the mean over the pieces of the word.

        Returns:
            For each text its words, their offsets in characters and their vectors, float32 [words, E]. Offsets of a
            list of words are those in the words joined with blanks.

        Raises:
            UsageError: `texts` mixes texts and lists of words, or an argument is unknown.
            UserError: A text is not a valid text.
        """
        return word_vectors(
            self.model, self.tokenizer, list(require_list(texts)), self.max_length, layers, word_pooling
        )

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[MaskPrediction]]:
        """Predict the tokens at every [MASK]. In an ELECTRA with a generator, the generator predicts them.

        Args:
            text: A text with at least one [MASK], or the mask token of the vocabulary, such as <mask>.
            top_k: Number of predictions per [MASK].

        Returns:
            For every [MASK] its `top_k` most probable tokens, most probable first.

        Raises:
            UsageError: `text` has no [MASK], or `top_k` is less than 1.
            UserError: The model has no head for masked tokens, or the text is too long.
        """
        if not isinstance(text, str):
            raise UsageError(f"expected a text and got a {type(text).__name__}")
        if type(top_k) is not int or top_k < 1:
            raise UsageError(f"--top-k {top_k}: give at least 1")
        kind = next((kind for kind in ("mlm", "plm") if kind in self.model.heads), None)
        if kind is None:
            raise UserError(
                f"{self.folder} has no masked-LM head: use a model that was pre-trained with the objective mlm or plm and not "
                "fine-tuned"
            )
        head = cast(MaskedLMHead | PermutationLMHead, self.model.heads[kind])
        sequence = self._masked(text)
        positions = np.flatnonzero(sequence.input_ids == self.tokenizer.mask_id)
        if not len(positions):
            mask = self.tokenizer.special.mask
            raise UsageError(f"there is no {mask} in the text: write {mask} for each token to predict")

        def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
            rows = torch.as_tensor(positions, device=self.model.device)
            if kind == "plm":  # all masks have the same rank: each is predicted from the rest of the text
                batch = replace(batch, order=(batch.input_ids == self.tokenizer.mask_id).long())
            logits = head.logits(self.model.encoder_of(kind)(batch, rows).last)
            return [logits.float().softmax(-1).cpu().numpy()]

        [probabilities] = infer(self.model, [sequence], compute)
        entries = probabilities[:, : self.tokenizer.size]  # the checkpoint's vocabulary may be padded
        best = np.argsort(-entries, axis=-1, kind="stable")[:, :top_k]
        return [
            [MaskPrediction(token, float(row[i])) for token, i in zip(self.tokenizer.tokens(ids), ids, strict=True)]
            for row, ids in zip(probabilities, best, strict=True)
        ]

    def predict(self, inputs: Inputs) -> list[Any]:
        """Predict for inputs in memory; `predict_file` reads a file.

        Args:
            inputs: Texts, pairs of texts, lists of words, or dicts with the columns of the training data.

        Returns:
            One prediction per input, in order: `ClassPrediction`, `NumberPrediction`, `ChoicePrediction`,
            `SpanPrediction`, `TagPrediction` or `SimilarityPrediction`, by the kind of the task.

        Raises:
            UsageError: An input does not fit the task.
            UserError: The model was not fine-tuned for a task.
        """
        return list(self.predict_stream(inputs))

    def predict_stream(self, inputs: Inputs) -> Iterator[Any]:
        """Predict as `predict` does, but lazily: memory does not grow with the number of inputs."""
        task = self._require_task()
        return self._predictions(task, task.reader.values(inputs))

    def predict_file(self, path: str | Path) -> Iterator[Any]:
        """Predict for the rows of a file, lazily and in order.

        Args:
            path: A file of any size, in a format of the training data; labels are not needed.

        Yields:
            One prediction per row, or a `UserError` in its place if the row is unreadable.

        Raises:
            UsageError: The file is missing or does not have the columns of the task.
            UserError: The model was not fine-tuned for a task.
        """
        task = self._require_task()
        if isinstance(task, Tag) and split_suffix(str(path))[0] == ".txt":
            raise UsageError(
                f"{path}: does it hold columns or sentences? Rename it to .conll for columns; pipe sentences: --input -"
            )
        return self._predictions(task, task.reader.stream(Path(path)))

    def evaluate(
        self, data: str | Path | Inputs, strict: bool = False, out: str | Path | None = None
    ) -> dict[str, Any]:
        """Score the model on labeled examples.

        Memory holds all examples and predictions, but not the outputs for single tokens.

        Args:
            data: A file in a format of the training data, or examples as in `predict`, with labels.
            strict: Fail at the first unreadable row of a file, instead of skipping it.
            out: Output folder for predictions.jsonl, scores.json and report.html. Replaces an earlier evaluation.

        Returns:
            {"scores": {metric: value}, "examples": number of examples, "seconds": duration}, and "out" if it was given.

        Raises:
            UsageError: `out` exists and is not an evaluation.
            UserError: A label is unknown, or the model was not fine-tuned for a task.
        """
        task = self._require_task()
        started = time.monotonic()
        data_name = Path(data).name if isinstance(data, str | Path) else "examples"
        title = f"{self.folder.absolute().name} on {data_name}"
        with evaluation_folder(Path(out), title) if out else nullcontext() as folder:
            examples = self._labeled_examples(task, data, strict)
            predicted = self._predict_all(task, examples)
            scores = task.score(predicted, examples)
            result = {"scores": scores, "examples": len(examples), "seconds": round(time.monotonic() - started, 3)}
            if folder is None:
                return result
            write(folder, title, task, predicted, examples, {"of": title, **result})
        return {**result, "out": str(out)}

    def _labeled_examples(self, task: Task, data: str | Path | Inputs, strict: bool) -> list[Any]:
        if isinstance(data, str | Path):
            examples = valid_examples(task.reader.read(Path(data)), str(data), strict)
        else:
            examples = valid_examples(task.reader.values(data), "the examples")
        task.validate(examples)
        return examples

    def _predict_all(self, task: Task, examples: list[Any]) -> list[Any]:
        predicted: list[Any] = []
        with console.progress("evaluate", len(examples), "examples", passing=True) as bar:
            for prediction in self._predictions(task, examples):
                predicted.append(prediction)
                bar.advance(1)
        return predicted

    def _predictions(self, task: Task, examples: Iterable[Any]) -> Iterator[Any]:
        return predictions(self.model, task, self.tokenizer, self.max_length, examples)

    def _require_task(self) -> Task:
        if self.task is None:
            raise UserError(f"{self.folder} was not fine-tuned for a task: run `bertie finetune` first")
        return self.task

    def _default_pooling(self) -> SentenceEmbedding:
        if isinstance(self.task, Embed):
            return SentenceEmbedding(self.task.pooling, normalize=False)
        return sentence_transformers_format.read(self.folder) or SentenceEmbedding("mean", normalize=False)

    def _sequences(self, texts: list[str | tuple[str, str]]) -> list[Sequence]:
        kinds = {isinstance(text, tuple) for text in texts}
        if len(kinds) > 1:
            raise UsageError("expected texts or pairs of texts, not both in one call")
        if wrong := [text for text in texts if isinstance(text, tuple) and len(text) != 2]:
            raise UsageError(f"a pair has two texts and this one has {len(wrong[0])}: {str(wrong[0])[:60]}")
        first = [text[0] if isinstance(text, tuple) else text for text in texts]
        second = [text[1] for text in texts if isinstance(text, tuple)]
        return truncation.encode(self.tokenizer, first, second or None, max_length=self.max_length)

    def _masked(self, text: str) -> Sequence:
        """Encode a text with its literal [MASK] as mask tokens. Elsewhere [MASK] in a text is plain text."""
        mask = np.array([self.tokenizer.mask_id], np.int32)
        texts = text.split(self.tokenizer.vocabulary[self.tokenizer.mask_id])
        if self.tokenizer.algorithm == "bpe":  # the mask of RoBERTa stands for a word with the space before it
            texts = [*(part.rstrip() for part in texts[:-1]), texts[-1]]
        parts = [self.tokenizer.encode([part])[0] for part in texts]
        middle = np.concatenate([parts[0], *(piece for part in parts[1:] for piece in (mask, part))])
        if len(middle) > self.max_length - 2:
            raise UserError(
                f"the text has {len(middle)} tokens and the model reads at most {self.max_length - 2}: shorten it"
            )
        ids = np.concatenate([[self.tokenizer.cls_id], middle, [self.tokenizer.sep_id]]).astype(np.int32)
        return Sequence(ids, np.zeros_like(ids), self.tokenizer.word_starts_table[ids])
