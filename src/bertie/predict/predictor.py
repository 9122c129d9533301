"""A loaded model: hidden states, vectors, masked tokens, predictions, scores. `load.load` returns one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertie.base import config as configuration
from bertie.base import console
from bertie.base.contracts import Batch, Sequence
from bertie.base.errors import UsageError, UserError
from bertie.base.notebook import NotebookDict, NotebookList
from bertie.checkpoints.sentence_transformers_format import SentenceEmbedding
from bertie.examples.texts import pairs_of
from bertie.examples.unlabeled import Text, UnlabeledReader
from bertie.model.heads import layer_selection
from bertie.model.heads.layer_selection import Fixed
from bertie.model.heads.vector_modules import Dense, LayerNorm
from bertie.model.model import Model
from bertie.model.pooling import Pooling
from bertie.predict.engines.files import EngineName
from bertie.predict.fill_mask import Filling, MaskPrediction, WordSearch, fill_tokens, fill_words, score_candidates
from bertie.predict.generation import Generation, generate
from bertie.predict.likelihood import TextScore, score_stream, with_nan
from bertie.predict.sentence_pairs import next_sentence
from bertie.predict.token_model import TokenModel, left_head
from bertie.predict.vectors import WordPooling, WordVectors, encode, sequence_vectors, similarities, word_vectors
from bertie.tasks import Task
from bertie.tasks.aggregation import Strategy, with_aggregation
from bertie.tasks.evaluation.folder import PAGE, evaluation_folder, write
from bertie.tasks.inference import Share, infer, predictions
from bertie.tasks.relevance import relevance
from bertie.tasks.scoring import labeled_examples
from bertie.tokenizers import truncation
from bertie.tokenizers.lowercase import lowercased
from bertie.tokenizers.tokenizer import Tokenizer

Inputs = Iterable[Any]
TEXTS = UnlabeledReader()  # finds the texts of frames and of dicts


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model with its tokenizer and its task. `load` returns one. Several threads may use it at once."""

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
    engine: EngineName = "plain"
    """The engine that computes the encoder."""
    text_embedding: SentenceEmbedding = SentenceEmbedding()
    """How `embed` computes vectors unless the caller names a pooling."""
    share: Share = field(default=map, repr=False)
    """The function that computes blocks of examples: `map`, or for `predict` and `evaluate` the ranks of torchrun."""

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
        sequences = self._sequences(list(TEXTS.values(texts)))

        def compute(batch: Batch, _: list[Sequence]) -> list[np.ndarray]:
            layers = self.model.encoder(batch, all_layers=True).layers
            stacked = torch.stack(list(layers or ())).float().cpu().numpy()
            return np.split(stacked, batch.ragged.cu_seqlens[1:-1].cpu().numpy(), axis=1)

        return infer(self.model, sequences, compute)

    def embed(
        self,
        texts: Iterable[str],
        pooling: Pooling | None = None,
        layers: Fixed = "last",
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> np.ndarray:
        """Return one vector per text, as `SentenceTransformer.encode` for a folder of sentence-transformers.

        Args:
            texts: Texts; longer ones are truncated to `max_length` tokens.
            pooling: How to pool the tokens, [CLS] and [SEP] included, without normalization, Dense and truncation. None: as
                the task `embed` or the files of sentence-transformers in the folder say, else "mean".
            layers: Layers whose hidden states to use.
            prompt_name: Name of the model's prompt that is put before each text. "query" is what `encode_query` uses,
                "document" what `encode_document` uses. None: the model's default, usually none.
            prompt: A prompt of your own instead; "" for none.

        Returns:
            float32 [texts, E]. E is `vector_width`.

        Raises:
            UsageError: `pooling`, `layers` or the prompt is unknown, or the model has too few layers.
            UserError: A text is invalid, or has no tokens, and the tokenizer adds none.
        """
        width = self.vector_width(pooling, layers)
        how = self.text_embedding.with_pooling(pooling)
        sequences = self.text_sequences(list(TEXTS.values(texts)), how.prompt(prompt_name, prompt))
        vectors = sequence_vectors(self.model, sequences, how, layers)
        return np.stack(vectors) if vectors else np.zeros((0, width), np.float32)

    def text_sequences(self, texts: list[str], prompt: str) -> list[Sequence]:
        """Return the sequences of texts to embed, with a prompt before each. Raises UserError for an invalid text."""
        return encode(self.text_tokenizer, texts, self.max_length, prompt)

    def vector_width(self, pooling: Pooling | None = None, layers: Fixed = "last") -> int:
        """Return the width of the vectors of `embed`: usually the hidden size, times 4 with "concat_last_4".

        Raises:
            UsageError: As `embed`.
        """
        for kind, name, value in ((Pooling, "pooling", pooling or "mean"), (Fixed, "layers", layers)):
            configuration.build(kind, value, name)
        how = self.text_embedding.with_pooling(pooling)
        if layers != "last" and any(isinstance(module, Dense | LayerNorm) for module in how.modules):
            raise UsageError(f"--layers {layers}: the model's Dense and LayerNorm read the last layer: add --pooling")
        return how.width(layer_selection.selected_width(layers, self.model.encoder.config))

    @cached_property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer of texts to embed, with lowercasing first if the model's files say so."""
        return lowercased(self.tokenizer) if self.text_embedding.lowercase else self.tokenizer

    def word_vectors(
        self, texts: Iterable[str | Many[str]], layers: Fixed = "last", word_pooling: WordPooling = "first"
    ) -> list[WordVectors]:
        """Return one vector per word.

        A text longer than `max_length` tokens is read in overlapping windows. The vector of a word comes from the
        window that has the most context around it.

        Args:
            texts: Texts, whose words are separated by spaces and punctuation (every Chinese character is a word), or
                lists of words.
            layers: Layers whose hidden states to use.
            word_pooling: "first": the vector of the first word piece. "mean": the mean over the pieces of the word.

        Returns:
            For each text its words, their offsets in characters and their vectors, float32 [words, E]. Offsets of a
            list of words refer to the words joined with spaces.

        Raises:
            UsageError: `texts` mixes texts and lists of words, or an argument is unknown.
            UserError: A text is not a valid text.
        """
        items = list(TEXTS.values(texts))
        return word_vectors(self.model, self.tokenizer, items, self.max_length, layers, word_pooling)

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
        return NotebookList(fill_tokens(self._masked_model(text), text, top_k))

    def fill_words(self, text: str, how: WordSearch = WordSearch(max_pieces=3)) -> list[list[Filling]]:
        """Predict words of one or several pieces at every [MASK], while the other masks remain. Errors are as of `fill_mask`."""
        return NotebookList(fill_words(self._masked_model(text), text, how, joint=False))

    def fill_jointly(self, text: str, how: WordSearch = WordSearch()) -> list[Filling]:
        """Predict all masks of a text together. Return the best fillings; raise the same errors as `fill_mask`."""
        [fillings] = fill_words(self._masked_model(text), text, how, joint=True)
        return NotebookList(fillings)

    def score_candidates(self, text: str, candidates: Many[str], joint: bool = False) -> list[list[Filling]]:
        """Score given words at every [MASK], or with `joint` all combinations of them for all masks.

        Returns:
            For every [MASK] (with `joint`: once) the candidates, most probable first, with their shares.

        Raises:
            UsageError: As `fill_mask`, or a candidate is empty, unknown to the vocabulary, or repeated.
            UserError: As `fill_mask`.
        """
        return NotebookList(score_candidates(self._masked_model(text), text, candidates, joint))

    def pseudo_log_likelihood(
        self, texts: Iterable[str], within_word: bool = False, from_left: bool = False
    ) -> np.ndarray:
        """Return the pseudo-log-likelihood of texts (Salazar et al. 2020), or the exact one of a causal model.

        Args:
            texts: Texts.
            within_word: Also mask the later pieces of the word of each predicted token (Kauf and Ivanova 2023).
            from_left: The exact one of a model that reads both ways.

        Returns:
            float64 [texts], in nats: the sum over the tokens of a text, without [CLS] and [SEP]. NaN, with a warning, for
            a text without tokens or with more than the model reads.

        Raises:
            UserError: The model predicts no tokens, or every text is refused.
        """
        return with_nan(
            score if isinstance(score, UserError) else score.log_likelihood
            for score in self.score_tokens(texts, within_word, from_left)
        )

    def score_tokens(
        self, texts: Iterable[Text | UserError], within_word: bool = False, from_left: bool = False
    ) -> Iterator[TextScore | UserError]:
        """Yield likelihoods as `pseudo_log_likelihood`, by token, lazily; a `UserError` for a text that cannot be scored."""
        return score_stream(self.token_model(from_left=from_left), TEXTS.values(texts), within_word)

    def next_sentence(self, pairs: Iterable[tuple[str, str]]) -> np.ndarray:
        """Return the probability that the second text of each pair follows the first one.

        A model that was trained on sentence order only distinguishes this order from the reverse.

        Returns:
            float64 [pairs]. NaN, with a warning, for a pair that is too long or has a text without tokens.

        Raises:
            UserError: The model has no head for sentence pairs, or every pair is refused.
        """
        return next_sentence(self.model, self.tokenizer, self.folder, self.max_length, pairs_of(pairs))

    def similarity(
        self,
        texts: Iterable[str],
        others: Iterable[str] | None = None,
        pooling: Pooling | None = None,
        layers: Fixed = "last",
        prompt_name: str | None = None,
    ) -> np.ndarray:
        """Compare the vectors of texts with the vectors of other texts, or of the same ones.

        The result is the cosine, or what the files of sentence-transformers name: dot product, or a distance times −1.

        The arguments are as in `embed`. Returns float32 [texts, others].
        """
        vectors = self.embed(texts, pooling, layers, prompt_name)
        second = vectors if others is None else self.embed(others, pooling, layers, prompt_name)
        return similarities(self.text_embedding.similarity, vectors, second)

    def rerank(self, query: str, texts: Iterable[str], label: str = "") -> np.ndarray:
        """Score how relevant texts are for a query: higher is more relevant.

        A model that was fine-tuned on pairs reads the query with each text (a cross-encoder): the score is its number, or
        the probability of the class `label`, by default the one with a name such as "1", "yes" or "relevant". For other
        models, the score is the `similarity` of the vectors, with the prompts "query" and "document".

        Returns:
            float64 [texts]. Raises UsageError if `label` is unknown, or unclear.
        """
        text_list = list(TEXTS.values(texts))
        if (score := relevance(self.task, label)) is None:
            vectors = [self.embed([query], prompt_name="query"), self.embed(text_list, prompt_name="document")]
            return similarities(self.text_embedding.similarity, *vectors)[0].astype(np.float64)
        return np.array(list(map(score, self.predict([(query, text) for text in text_list]))), np.float64)

    def generate(self, prompt: str = "", how: Generation = Generation()) -> list[str]:
        """Generate texts that begin with `prompt`: slow, and poor with a masked language model. See `Generation`.

        Raises:
            UsageError: Gibbs sampling from a causal model.
            UserError: The model predicts no tokens, or prompt and length are too long.
        """
        from_left = how.method == "left-to-right" and left_head(self.model) is not None
        return generate(self.token_model(from_left=from_left), prompt, how)

    def token_model(self, only_masks: bool = False, from_left: bool = False) -> TokenModel:
        """Return the part of the model that predicts tokens, `only_masks`, or only `from_left`. Raises UserError without it."""
        return TokenModel.of(self.folder, self.tokenizer, self.model, self.max_length, only_masks, from_left)

    def predict(self, inputs: Inputs, aggregation_strategy: Strategy | None = None) -> list[Any]:
        """Predict for inputs in memory; `predict_file` reads a file.

        Args:
            inputs: Texts, pairs of texts, lists of words, lists of a context and its endings, or dicts with the columns of
                the training data; also a frame of pandas or polars, a dataset, or a dict of columns.
            aggregation_strategy: Of a tagger: how predictions for subwords become entities: "words", as it was trained, or
                "first", "average", "max", "simple" or "none", as in transformers' pipeline. None: "words".

        Returns:
            One prediction per input, in order: `ClassPrediction`, `NumberPrediction`, `NumbersPrediction`,
            `ChoicePrediction`, `SpanPrediction`, `TagPrediction`, `SimilarityPrediction` or `RelevancePrediction`, by the kind of
            the task.

        Raises:
            UsageError: An input, or the strategy, does not fit the task.
            UserError: The model was not fine-tuned for a task.
        """
        task = with_aggregation(self._require_task(), aggregation_strategy)
        examples = list(task.reader.values(inputs))
        return NotebookList(self._predictions(task, examples), (example.texts for example in examples))

    def predict_stream(self, inputs: Inputs, aggregation_strategy: Strategy | None = None) -> Iterator[Any]:
        """Predict as `predict` does, but lazily: memory does not grow with the number of inputs."""
        task = with_aggregation(self._require_task(), aggregation_strategy)
        return self._predictions(task, task.reader.values(inputs))

    def predict_file(self, path: str | Path, aggregation_strategy: Strategy | None = None) -> Iterator[Any]:
        """Predict for the rows of a file, lazily and in order.

        Args:
            path: A file of any size, in a format of the training data; labels are not needed.
            aggregation_strategy: As in `predict`.

        Yields:
            One prediction per row, or a `UserError` in its place if the row is unreadable.

        Raises:
            UsageError: The file is missing or does not have the columns of the task, or the strategy does not fit it.
            UserError: The model was not fine-tuned for a task.
        """
        task = with_aggregation(self._require_task(), aggregation_strategy)
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
        task, started = self._require_task(), time.monotonic()
        of = Path(data).name if isinstance(data, str | Path) else "examples"
        title = f"{self.folder.absolute().name} on {of}"
        with evaluation_folder(Path(out), title) if out else nullcontext() as folder:
            examples = labeled_examples(task.reader, data, strict)
            task.validate(examples)
            predicted: list[Any] = []
            with console.progress("evaluate", len(examples), "examples", passing=True) as bar:
                for prediction in self._predictions(task, examples):
                    predicted.append(prediction)
                    bar.advance(1)
            scores = NotebookDict(task.score(predicted, examples))
            result = {"scores": scores, "examples": len(examples), "seconds": round(time.monotonic() - started, 3)}
            if folder is None:
                return NotebookDict(result)
            write(folder, title, task, predicted, examples, {"of": title, **result})
        return NotebookDict({**result, "out": str(out)}, Path(str(out)) / PAGE)

    def _predictions(self, task: Task, examples: Iterable[Any]) -> Iterator[Any]:
        return predictions(self.model, task, self.tokenizer, self.max_length, examples, self.share)

    def _require_task(self) -> Task:
        if self.task is None:
            raise UserError(f"{self.folder} was not fine-tuned for a task: run `bertie finetune` first")
        return self.task

    def _sequences(self, texts: list[str | tuple[str, str]]) -> list[Sequence]:
        if len({isinstance(text, tuple) for text in texts}) > 1:
            raise UsageError("expected texts or pairs of texts, not both in one call")
        if wrong := [text for text in texts if isinstance(text, tuple) and len(text) != 2]:
            raise UsageError(f"a pair has two texts and this one has {len(wrong[0])}: {str(wrong[0])[:60]}")
        first = [text[0] if isinstance(text, tuple) else text for text in texts]
        second = [text[1] for text in texts if isinstance(text, tuple)]
        return truncation.encode(self.tokenizer, first, second or None, max_length=self.max_length)

    def _masked_model(self, text: str) -> TokenModel:
        if not isinstance(text, str):
            raise UsageError(f"expected a text and got a {type(text).__name__}")
        return self.token_model(only_masks=True)
