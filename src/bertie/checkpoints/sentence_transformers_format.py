"""Files of sentence-transformers in a model folder, which make it load there directly: their settings, and writing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from torch import Tensor

from bertie.base import storage
from bertie.base.errors import UsageError
from bertie.model.encoder import EncoderConfig
from bertie.model.heads.pooling_head import PoolingHead
from bertie.model.heads.vector_modules import Dense, Dropout, LayerNorm, Normalize, VectorModule, output_width
from bertie.model.model import Model
from bertie.model.pooling import Pooling

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""How to compare two vectors. euclidean, manhattan: the distance, times −1."""
MODULES, GENERAL = "modules.json", "config_sentence_transformers.json"
LENGTHS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the settings of the module Transformer: today's, and the names in older versions."""
FILES = (MODULES, *LENGTHS, GENERAL, "1_Pooling/config.json")
IN_MODULES = "[0-9]*_*"
"""Pattern of the folders of modules."""
OLD_MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of versions up to 5, in the order in which these concatenate several poolings."""
DEFAULT_PROMPTS = {"query": "", "document": ""}
"""Prompts that every model has."""
SCORE_ACTIVATIONS = {
    "Identity": "torch.nn.modules.linear.Identity",
    "Sigmoid": "torch.nn.modules.activation.Sigmoid",
}
"""Activations of the scores of a cross-encoder, and their names in files."""


@dataclass(frozen=True)
class SentenceEmbedding:
    """How a model computes text vectors from its last layer, and what belongs to that."""

    pooling: tuple[Pooling, ...] = ("mean",)
    """The poolings whose vectors are concatenated."""
    modules: tuple[VectorModule, ...] = ()
    """Modules after the pooling, in this order."""
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled, too."""
    lowercase: bool = False
    """Lowercase texts before the tokenizer reads them."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts to put before each text, by name."""
    default_prompt: str | None = None
    """Name of the prompt that is used if the caller names none. None: no prompt."""
    similarity: Similarity = "cosine"
    """How to compare vectors."""
    dimensions: int | None = None
    """Numbers of a vector that are kept, the first ones. None: all."""
    stated: bool = field(default=False, compare=False)
    """Whether the files or the head of a model say so, which was trained for it. False: bertie's choice for any encoder."""

    def with_pooling(self, pooling: Pooling | None) -> SentenceEmbedding:
        """Return how to compute vectors with another pooling: without modules and truncation, which belong to their own.

        None: unchanged.
        """
        return self if pooling is None else replace(self, pooling=(pooling,), modules=(), dimensions=None)

    def prompt(self, name: str | None, text: str | None) -> str:
        """Return the text to put before each text.

        Args:
            name: Name of a prompt. None: the default one.
            text: The prompt itself, instead of a name.

        Raises:
            UsageError: There is no such prompt, or both are given.
        """
        if text is not None and name is not None:
            raise UsageError(f"the prompt {text[:60]!r} and the name of a prompt, {name[:60]!r}: give one of them")
        name = self.default_prompt if name is None else name
        known = DEFAULT_PROMPTS | dict(self.prompts)
        if text is None and name is not None and name not in known:
            raise UsageError(f"there is no prompt {name[:60]!r}: the model has {', '.join(sorted(known))[:200]}")
        return text if text is not None else "" if name is None else known[name]

    def width(self, states: int) -> int:
        """Return the width of the vectors. states: the width of the hidden states that are pooled."""
        width = output_width(self.modules, states * len(self.pooling))
        return width if self.dimensions is None else min(width, self.dimensions)


def embedding_of(model: Model) -> SentenceEmbedding | None:
    """Return how the head of a model computes text vectors; None if it has no such head."""
    heads = (head for head in model.heads.values() if isinstance(head, PoolingHead))
    for head in heads:
        prompts = dict(zip(DEFAULT_PROMPTS, head.prompts, strict=True)) if any(head.prompts) else {}
        return SentenceEmbedding((head.pooling,), prompts=prompts, stated=True)
    return None


def write(folder: Path, config: EncoderConfig, how: SentenceEmbedding, max_length: int) -> None:
    """Write the files.

    The configuration of the pooling has the keys of all versions: TEI and sentence-transformers up to 5 read a boolean for
    each mode, sentence-transformers from 6 on and vLLM a name.

    Args:
        folder: Model folder.
        config: Configuration of the encoder.
        how: How text vectors are computed.
        max_length: Maximum length of a text in tokens.
    """
    names = [type(module).__name__ for module in how.modules]
    places = [("Transformer", ""), *((name, f"{i}_{name}") for i, name in enumerate(["Pooling", *names], 1))]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(places)
    ]
    storage.write_json(folder / MODULES, listed)
    storage.write_json(folder / LENGTHS[0], {"max_seq_length": max_length, "do_lower_case": how.lowercase})
    general: dict[str, Any] = {"model_type": "SentenceTransformer", "prompts": dict(how.prompts)}
    general |= {"default_prompt_name": how.default_prompt, "similarity_fn_name": how.similarity}
    storage.write_json(folder / GENERAL, general | ({"truncate_dim": how.dimensions} if how.dimensions else {}))
    for _, path in places[1:]:
        (folder / path).mkdir(exist_ok=True)
    chosen: dict[str, Any] = {key: mode in how.pooling for key, mode in OLD_MODES.items()}
    sizes = {"word_embedding_dimension": config.hidden_size, "embedding_dimension": config.hidden_size}
    mode = how.pooling[0] if len(how.pooling) == 1 else list(how.pooling)
    values = {**sizes, **chosen, "pooling_mode": mode, "include_prompt": how.include_prompt}
    storage.write_json(folder / places[1][1] / "config.json", values)
    for module, (_, path) in zip(how.modules, places[2:], strict=True):
        values, tensors = _contents(module)
        if values:
            storage.write_json(folder / path / "config.json", values)
        if tensors:
            content = safetensors.torch.save({name: x.contiguous() for name, x in tensors.items()}, {"format": "pt"})
            storage.write_atomic(folder / path / "model.safetensors", content)


def _contents(module: VectorModule) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the weights of a module."""
    match module:
        case Normalize():
            return {}, {}
        case Dropout(rate):
            return {"dropout": rate}, {}
        case LayerNorm(weight, bias):
            return {"dimension": len(weight)}, {"norm.weight": weight, "norm.bias": bias}
        case Dense(weight, bias, act, residual, projection):
            activation = f"torch.nn.modules.{'linear' if act == 'Identity' else 'activation'}.{act}"
            values = {"in_features": weight.shape[1], "out_features": len(weight), "bias": bias is not None}
            values |= {"activation_function": activation} | ({"use_residual": True} if residual else {})
            tensors = {"linear.weight": weight, "linear.bias": bias, "residual.weight": projection}
            return values, {name: tensor for name, tensor in tensors.items() if tensor is not None}
