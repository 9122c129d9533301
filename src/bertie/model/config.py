"""Sizes and settings of a Transformer encoder, as far as possible under the names of BERT's bert_config.json."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from bertie.base.config import (
    AboveZero,
    Count,
    DropoutRate,
    DropoutRateOrNone,
    LayerCount,
    NotNegative,
    Range,
    Size,
    SizeOrZero,
    check_ranges,
)
from bertie.base.contracts import Batch
from bertie.base.errors import UsageError, require_range
from bertie.model.head_facts import HeadShape
from bertie.model.pooling import Pooling

Activation = Literal["gelu", "gelu_tanh", "relu", "geglu", "swiglu"]
MlmActivation = Literal["default", "silu"]
HeadActivation = Activation | Literal["silu"]
GATED = ("geglu", "swiglu")
PoolerActivation = Literal["tanh", "relu", "gelu"]
HeadLayer = Literal["tanh", "relu", "gelu", "none"]
PooledToken = Literal["first", "last"]
ClassifierPooling = Literal["token", "mean", "late"]
PositionEmbedding = Literal["learned", "sinusoidal", "rotary", "alibi", "none"]
NormPosition = Literal["post", "pre", "modern"]
Norm = Literal["layer", "rms"]
MlmMatrix = Literal["words", "own"]
SavedAs = Literal["first", "xlm-roberta", "camembert", "mpnet"]


@dataclass(frozen=True)
class HeadLayers:
    """Layers of the heads of tasks before their output layer."""

    act: HeadLayer = "tanh"
    """Activation of their dense layer. none: they have no dense layer, and their output layer has no bias."""
    bias: bool = True
    """Whether the dense layer and the layer normalization have biases."""
    norm_eps: float | None = None
    """Constant of a layer normalization after the activation. None: there is no normalization."""
    on_tokens: bool = False
    """Whether heads of single tokens have these layers, too."""


class EncoderFacts:
    """Facts about an encoder that other rooms use, with defaults for encoders that do not set them."""

    hidden_size: int
    vocabulary_heads: tuple[HeadShape, ...] = ()
    """Heads over the vocabulary that this encoder can have. `next` also needs `causal`."""
    text_vector: Pooling = "mean"
    """How the states of the tokens become the vector of a text, unless something else is asked for."""
    classifier_pooling: ClassifierPooling = "token"
    head_dropout_prob: float | None = None
    embedding_size: int = 0
    type_vocab_size: int = 0
    language_embeddings: bool = False
    languages: tuple[str, ...] = ()
    language: str = ""

    @property
    def embedding_width(self) -> int:
        """Size of the word embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def shares_layers(self) -> bool:
        """Whether layers have weights in common."""
        return False

    @property
    def post_norm(self) -> bool:
        """Whether layers normalize the sum of their input and their output."""
        return False

    @property
    def head_layers(self) -> HeadLayers:
        """Layers of the heads of tasks."""
        return HeadLayers()


@dataclass(frozen=True)
class TransformerConfig(EncoderFacts):
    """Sizes and settings of a Transformer encoder. The defaults are BERT's.

    BERT-base has 12 layers of size 768 with 12 heads and intermediate size 3072.
    """

    vocabulary_heads = ("masked", "next")
    kind: Literal["transformer"] = field(default="transformer", kw_only=True)
    num_hidden_layers: LayerCount
    """Number of Transformer layers."""
    hidden_size: Size
    """Size of the hidden states. It must be a multiple of num_attention_heads."""
    num_attention_heads: Size
    """Number of attention heads in each layer."""
    num_key_value_heads: SizeOrZero = field(default=0, kw_only=True)
    """Number of heads of keys and values. Equally many attention heads share each (grouped queries). 0: each has its own."""
    intermediate_size: Size
    """Size of the feed-forward layer inside each Transformer layer, usually 4 × hidden_size."""
    vocab_size: Count = 0
    """Number of entries of the vocabulary. 0: the size of the tokenizer's vocabulary."""
    max_position_embeddings: Size = 512
    """Maximum sequence length, in tokens."""
    type_vocab_size: SizeOrZero = 2
    """Number of segment ids (token types); 0: no segment embeddings."""
    language_embeddings: bool = False
    """Add an embedding of the language to the inputs, as in XLM. The layout must be translations."""
    languages: tuple[str, ...] = ()
    """Names of the languages, in the order of their embeddings. By default, the languages of the shards."""
    language: str = ""
    """Language of the texts in fine-tuning and prediction, unless you choose another; empty: the first of `languages`."""
    embedding_size: SizeOrZero = 0
    """Size of the embeddings. If it is not hidden_size, a linear layer projects them, as in ELECTRA; 0: hidden_size."""
    num_hidden_groups: int = 0
    """Number of groups of consecutive layers with the same weights. 0: every layer has its own weights."""
    position_embedding: PositionEmbedding = "learned"
    """How the model knows positions. learned, sinusoidal: vectors added to the word embeddings. rotary: rotation of
    queries and keys (RoPE). alibi: attention scores fall with the distance. none: not at all."""
    rotary_base: Annotated[float, Range(1, above=True)] = 10_000.0
    """Base of rotary positions: the larger it is, the slower the rotation of the slowest pair of dimensions."""
    local_attention: Annotated[int, Range(0, 1_000_000, multiple=2)] = 0
    """Tokens that a token sees in local layers, half of them before it and half after it. 0: all layers are global."""
    global_attention_every: LayerCount = 3
    """Interval of the global layers, of which the first layer is one. Only with local_attention."""
    local_rotary_base: Annotated[float, Range(1, above=True)] = 10_000.0
    """Base of rotary positions in local layers."""
    relative_bias_buckets: Annotated[int, Range(0, 1_000_000, multiple=4)] = 0
    """Buckets of distances between tokens. Each has a learned bias of the attention scores of a head, the same in all
    layers, as in MPNet. It must be a multiple of 4. 0: no such biases."""
    disentangled_distances: SizeOrZero = 0
    """Distances, to each side, whose embeddings are a part of the attention scores (disentangled attention), as in DeBERTa.
    Larger distances count as the largest one. 0: attention as in BERT."""
    disentangled_buckets: SizeOrZero = 0
    """Embeddings, to each side, for these distances: far ones share them. 0: each distance has its own."""
    disentangled_norm: bool = False
    """Apply layer normalization to the embeddings of distances."""
    conv_kernel_size: Annotated[int, Range(0, 999)] = 0
    """Tokens that a convolution of the embeddings sees, an odd number. Its result is added to the output of the first layer, as
    in DeBERTa's largest models. 0: none. It needs disentangled_distances."""
    conv_act: PoolerActivation = "tanh"
    """Activation of this convolution."""
    norm_position: NormPosition = "post"
    """Place of layer normalization. post: after each residual connection, as in BERT. pre: before each block and after the
    last layer, as in GPT-2; the embeddings are not normalized. modern: as pre, but the embeddings are normalized instead of
    the input of the first attention, and task heads have a dense layer with normalization, as in ModernBERT."""
    norm: Norm = "layer"
    """Normalization. layer: to mean 0 and variance 1. rms: division by the root of the mean square (RMSNorm), without biases."""
    embedding_norm: bool = True
    """Normalize the embeddings. The first GPT does not. norm_position pre never does."""
    causal: bool = False
    """Let each token attend only to itself and earlier tokens (a left-to-right model, such as GPT)."""
    use_bias: bool = True
    """Use bias vectors in linear layers and layer normalization."""
    norm_bias: bool = False
    """Use bias vectors in layer normalization even if use_bias is false."""
    hidden_act: Activation = "gelu"
    """Activation function. gelu: exact GELU, as in BERT's first release. gelu_tanh: its tanh approximation, as in later
    releases. geglu, swiglu: GELU or SiLU of one half of the feed-forward layer, multiplied with the other half; the heads of
    pre-training have GELU."""
    pooler_act: HeadLayer = "tanh"
    """Activation of the pooler of task heads. tanh: BERT and RoBERTa. relu: DistilBERT. gelu: ELECTRA. none: heads for texts are
    one matrix, without a pooler and a bias, as in GPT."""
    classifier_pooling: ClassifierPooling = "token"
    """Input of the heads of tasks for whole texts, unless the task sets another one; next sentence prediction always reads
    [CLS]. token: the state of [CLS], or of the last token if the model is causal. mean: the mean of the states of all tokens,
    as in the published models of ModernBERT. late: the mean over all tokens of the activations of the head's dense layer, as in
    EuroBERT's. In transformers, only these two have mean, and only EuroBERT has late: bertie saves other models with them in
    its own format."""
    mlm_transform: bool = True
    """Give the masked-LM head a dense layer, an activation and layer normalization before the output matrix, as in
    BERT. XLM has only the output matrix and a bias."""
    mlm_matrix: MlmMatrix = "words"
    """The output matrix of the masked-LM head. words: the matrix of the word embeddings, with a bias. own: another matrix,
    without a bias."""
    mlm_act: MlmActivation = "default"
    """Activation of the heads of pre-training. default: the activation of the encoder, or GELU if it is gated."""
    hidden_dropout_prob: DropoutRate = 0.1
    """Dropout probability after the embeddings and after each attention and feed-forward block."""
    attention_probs_dropout_prob: DropoutRate = 0.1
    """Dropout probability of the attention weights."""
    head_dropout_prob: DropoutRateOrNone = None
    """Dropout probability before the output layer of heads for texts and tokens. If it is omitted, hidden_dropout_prob."""
    initializer_range: AboveZero = 0.02
    """Standard deviation of the initial weights."""
    layer_norm_eps: NotNegative = 1e-12
    """Constant that layer normalization adds to the variance."""
    saved_as: SavedAs = "first"
    """Family of checkpoints (`model_type` in config.json) in whose format the model is saved, if several families have its
    structure. first: the first of them. The model computes the same."""

    def __post_init__(self) -> None:
        if self.embedding_size == self.hidden_size:  # without a projection, as files of other libraries are read back
            object.__setattr__(self, "embedding_size", 0)
        if self.num_key_value_heads == self.num_attention_heads:
            object.__setattr__(self, "num_key_value_heads", 0)
        check_ranges("model", self)
        require_range("model", self, "num_hidden_groups", low=0, high=self.num_hidden_layers)
        heads, size = self.num_attention_heads, self.hidden_size
        if self.shares_layers and (self.local_attention or self.norm_position == "modern"):
            raise UsageError(
                "model.num_hidden_groups does not work with local_attention or norm_position modern: change one"
            )
        if size % heads:
            raise UsageError(f"model.hidden_size {size} is not a multiple of {heads} heads: change one of them")
        if self.position_embedding == "rotary" and size // heads % 2:
            raise UsageError(f"model.position_embedding rotary needs even heads: model.hidden_size is {size}")
        if self.pooler_act == "none" and self.norm_position == "modern":
            raise UsageError(
                "model.pooler_act none does not work with norm_position modern: set model.pooler_act to gelu"
            )
        if not self.mlm_transform and self.embedding_width != size:
            raise UsageError(f"model.mlm_transform false needs model.embedding_size {size}, equal to model.hidden_size")
        self._check_attention()
        if (self.languages or self.language) and not self.language_embeddings:
            raise UsageError("model.languages and model.language need model.language_embeddings: set it to true")
        if len(set(self.languages)) < len(self.languages):
            raise UsageError(f"model.languages has a name twice: {', '.join(self.languages)}")
        if self.language and self.languages and self.language not in self.languages:
            raise UsageError(f"model.language is {self.language!r}: choose from {', '.join(self.languages)}")

    def _check_attention(self) -> None:
        """Check the settings of attention. Raises UsageError."""
        heads, groups, kernel = self.num_attention_heads, self.num_key_value_heads, self.conv_kernel_size
        with_positions = self.position_embedding in ("rotary", "alibi")
        if self.disentangled and (self.causal or self.local_attention or self.relative_bias_buckets or with_positions):
            raise UsageError(
                "model.disentangled_distances does not work with causal, local, rotary, alibi or biased attention: "
                "set it to 0, or change the attention"
            )
        if kernel and not (kernel % 2 and self.disentangled):
            raise UsageError(
                f"model.conv_kernel_size is {kernel}: give an odd number, and set model.disentangled_distances"
            )
        if self.disentangled and self.disentangled_buckets == 1:
            raise UsageError("model.disentangled_buckets is 1: give 0, or 2 or more")
        if groups and (heads % groups or self.disentangled):
            raise UsageError(
                f"model.num_key_value_heads is {groups}: give a divisor of {heads}, without disentangled_distances"
            )

    @property
    def knows_order(self) -> bool:
        """Whether the model can tell in which order its two texts stand."""
        by_positions = self.position_embedding != "none" or self.relative_bias_buckets or self.disentangled_distances
        return bool(by_positions) or self.type_vocab_size > 1 or self.causal

    @property
    def language_id(self) -> int:
        """Number of the language of texts whose sequences have no language ids."""
        return self.languages.index(self.language) if self.language and self.languages else 0

    @property
    def key_value_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def shares_layers(self) -> bool:
        """Whether layers have weights in common."""
        return 0 < self.num_hidden_groups < self.num_hidden_layers

    def group(self, layer: int) -> int:
        """Return the number of the weights of a layer, both counted from 0."""
        return layer * (self.num_hidden_groups or self.num_hidden_layers) // self.num_hidden_layers

    @property
    def head_layers(self) -> HeadLayers:
        """Layers of the heads of tasks."""
        if self.norm_position != "modern":
            return HeadLayers(self.pooler_act)
        return HeadLayers(self.pooler_act, self.use_bias, self.layer_norm_eps, on_tokens=True)

    def window(self, layer: int) -> int | None:
        """Return how far a token sees to each side in a layer, counted from 0. None: the layer is global."""
        is_global = not self.local_attention or layer % self.global_attention_every == 0
        return None if is_global else self.local_attention // 2

    def products(self, batch: Batch, rows: np.ndarray) -> float:
        """Return the multiplications of a forward pass with the last layer at some rows. batch: NumPy arrays."""
        width, layers, embedding = self.hidden_size, self.num_hidden_layers, self.embedding_width
        keys = width * self.key_value_heads // self.num_attention_heads
        lengths = batch.ragged.lengths.astype(np.float64)
        tokens = lengths.sum()
        queries = np.diff(np.searchsorted(rows, batch.ragged.cu_seqlens))  # of each sequence, in the last layer
        feed_forward = width * self.intermediate_size * (3 if self.gated else 2)
        per_token = tokens * (2 * width * (width + keys) + feed_forward)
        windows = Counter(self.window(layer) for layer in range(layers - 1))
        attended = sum(count * _attended(lengths, window) for window, count in windows.items())
        last = tokens * 2 * width * keys + len(rows) * (2 * width * width + feed_forward)
        last += 2 * width * (lengths * queries).sum()
        projection = tokens * embedding * width if embedding != width else 0
        projection += tokens * self.conv_kernel_size * width * width
        return float(projection + (layers - 1) * per_token + 2 * width * attended + last)

    @property
    def disentangled(self) -> bool:
        """Whether attention is disentangled: only the plain engine computes it."""
        return self.disentangled_distances > 0

    @property
    def post_norm(self) -> bool:
        return self.norm_position == "post"

    @property
    def pooled_token(self) -> PooledToken:
        """The token that stands for the whole sequence: [CLS], or in a causal model the last one, which sees all others."""
        return "last" if self.causal else "first"

    @property
    def head_act(self) -> HeadActivation:
        """Activation of the heads of pre-training."""
        if self.mlm_act != "default":
            return self.mlm_act
        return "gelu" if self.gated else self.hidden_act

    @property
    def gated(self) -> bool:
        """Whether the activation multiplies one half of the feed-forward layer with the other half."""
        return self.hidden_act in GATED


def _attended(lengths: np.ndarray, window: int | None) -> float:
    """Return the number of pairs of tokens that attend to each other."""
    reach = lengths - 1 if window is None else np.minimum(window, lengths - 1)
    return float((lengths * (2 * reach + 1) - reach * (reach + 1)).sum())
