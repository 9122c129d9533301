"""`bertie prune-heads`: a checkpoint in which some heads have no effect, because their weights are zero."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertie.base import console, storage
from bertie.base.errors import UsageError
from bertie.checkpoints.families.family import to_huggingface
from bertie.checkpoints.find import MODEL_FILES, TASK_FILES, find_model_folder, read_weights
from bertie.checkpoints.folder import save_tensors, write_manifest
from bertie.checkpoints.huggingface import from_config_json
from bertie.checkpoints.read import read_checkpoint
from bertie.files.model_folder import ModelFolder
from bertie.inspect.attention import gated, require_transformer
from bertie.inspect.heads.importance import (
    HeadLosses,
    first_sequences,
    head_importance,
    mean_and_error,
    task_losses,
    text_losses,
)
from bertie.inspect.texts import TextFile
from bertie.model.config import TransformerConfig
from bertie.predict.load import load

Heads = list[tuple[int, int]]
"""Layer and head of each, both from 1."""
CARD = "README.md"
OTHER_FILES = (CARD, "config.toml")  # the settings of a run say how long its sequences were


def prune_heads(
    model: str | Path,
    out: str | Path,
    *,
    heads: Iterable[tuple[int, int]] = (),
    lowest: int = 0,
    text: str | Path | None = None,
    text_column: str = "",
    task_data: str | Path | None = None,
    loss_tokens: int = 4096,
    seed: int = 0,
) -> dict[str, Any]:
    """Write a checkpoint in which some heads are disabled: their values and the weights that read them are zero.

    All other tensors and files are copies, so the checkpoint loads wherever the model does, and computes what
    the model computes with these heads masked. The matrices keep their sizes, because the formats of checkpoints have the
    same number of heads in all layers: the model becomes neither smaller nor faster.

    Args:
        model: A source as in `load`.
        out: Output folder.
        heads: The heads to disable, as (layer, head), both from 1.
        lowest: Instead, disable this many heads with the lowest importance (Michel et al. 2019), as `lowest_heads`.
        text: Texts for the loss, as in `Inspection`.
        text_column: Column of the text.
        task_data: Labeled examples for the loss of a fine-tuned model.
        loss_tokens: Maximum number of tokens for the loss.
        seed: Random seed, as in `Inspection`.

    Returns:
        {"out": folder, "heads": list of [layer, head]}; with a text or data also "loss": {"kind", "before", "after",
        "increase", "standard_error", "predictions"}.

    Raises:
        UsageError: A head does not exist, no head was given, or `out` exists.
        UserError: The model has no attention heads, or no loss that the importance could be measured with.
    """
    out, chosen = Path(out), sorted(set(heads))
    storage.require_fresh(out, "the model")
    if bool(chosen) == bool(lowest):
        raise UsageError("give either --heads or --lowest, at least one head")
    if lowest and text is None and task_data is None:
        raise UsageError("--lowest needs --text FILE or --task-data FILE, to measure the importance of the heads")
    if (text is not None and task_data is not None) or (text is None and text_column):
        raise UsageError("give either --text FILE, to which --text-column applies, or --task-data FILE")
    source, predictor = find_model_folder(model), load(model)
    if not source.is_dir():
        raise UsageError(f"{model} is a TensorFlow checkpoint: convert it first, with bertie convert --to hf")
    _require_heads(chosen, lowest, require_transformer(predictor.model.encoder).config)
    losses = None if task_data is None else task_losses(predictor, Path(task_data), loss_tokens, seed)
    if text is not None:
        texts = TextFile(Path(text), predictor.tokenizer, predictor.max_length, text_column)
        losses = text_losses(predictor, first_sequences(texts.blocks(), loss_tokens), seed)
    if lowest and losses is not None:
        chosen = lowest_heads(head_importance(losses), lowest)
    loss = {"loss": _compare(losses, chosen)} if losses is not None else {}
    _write(source, out, chosen)
    return {"out": str(out), "heads": [list(head) for head in chosen], **loss}


def parse_heads(text: str) -> Heads:
    """Read heads as LAYER.HEAD, separated by commas, such as "2.3,4.10".

    Raises:
        UsageError: The text is something else.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := [part for part in parts if not re.fullmatch(r"[1-9]\d{0,5}\.[1-9]\d{0,5}", part)]:
        raise UsageError(f"--heads {wrong[0][:20]!r}: write each head as LAYER.HEAD, from 1, such as 2.3,4.10")
    return [(int(layer), int(head)) for layer, head in (part.split(".") for part in parts)]


def lowest_heads(importance: np.ndarray, count: int) -> Heads:
    """Return the heads with the lowest importance, as (layer, head) from 1. The most important head of a layer is kept.

    Michel et al. (2019) compare the heads after dividing by the norm of their layer. Without that, the loss rises less
    (dev/log/2026-11-25-heads.md).

    Args:
        importance: [layers, heads].
        count: Number of heads.
    """
    layers, heads = importance.shape
    remaining = importance.copy()
    remaining[np.arange(layers), importance.argmax(1)] = np.inf
    order = np.argsort(remaining, axis=None, kind="stable")[:count]
    return sorted((int(i) // heads + 1, int(i) % heads + 1) for i in order)


def _require_heads(chosen: Heads, lowest: int, config: TransformerConfig) -> None:
    """Check the heads against the sizes of the model. Raises UsageError."""
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    if config.shares_layers:
        raise UsageError(
            f"num_hidden_groups is {config.num_hidden_groups}: layers of the model share their weights, so no head can be "
            "disabled in one layer alone"
        )
    if wrong := [head for head in chosen if not (1 <= head[0] <= layers and 1 <= head[1] <= heads)]:
        layer, head = wrong[0]
        raise UsageError(f"there is no head {layer}.{head}: the model has {layers} layers of {heads} heads")
    most = layers * (heads - 1)
    if lowest < 0 or lowest > most:
        raise UsageError(f"--lowest {lowest}: give 1 to {most}, because the most important head of each layer is kept")


def _write(source: Path, out: Path, chosen: Heads) -> None:
    """Write a copy of a model's folder with the heads disabled."""
    with storage.atomic_folder(out) as folder:
        for name in (*MODEL_FILES, *TASK_FILES, *OTHER_FILES):
            if (source / name).is_file():
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / name, folder / name)
        save_tensors(_disabled(source, chosen), folder / "model.safetensors")
        _note(folder / CARD, chosen)
        write_manifest(folder)


@torch.inference_mode()
def _compare(losses: HeadLosses, chosen: Heads) -> dict[str, Any]:
    """Return the loss of the whole model and the loss with the chosen heads masked."""
    gates = torch.ones(losses.shape, device=losses.model.device)
    for layer, head in chosen:
        gates[layer - 1, head - 1] = 0
    before, after, counts = np.zeros((3, len(losses.batches)))
    with console.progress("loss", len(losses.batches), "batches", passing=True) as bar:
        for number, batch in enumerate(losses.batches):
            micro = batch.tensors(losses.model.device)
            loss = losses.loss(micro)
            before[number], counts[number] = float(loss.total), float(loss.count)
            with gated(losses.encoder, gates):
                after[number] = float(losses.loss(micro).total)
            bar.advance(1)
    increase, error = map(float, mean_and_error(after - before, counts))
    means = {"before": before.sum() / counts.sum(), "after": after.sum() / counts.sum(), "increase": increase}
    certainty = {"standard_error": error if np.isfinite(error) else None, "predictions": int(counts.sum())}
    return {"kind": losses.kind, **means, **certainty}


def _disabled(source: Path, chosen: Heads) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint under the names of its file, with zeros in the weights of the chosen heads."""
    checkpoint = read_checkpoint(source)
    family, config, _ = from_config_json(storage.read_json(source / "config.json"), str(source / "config.json"))
    assert isinstance(config, TransformerConfig)
    size = config.hidden_size // config.num_attention_heads
    changed: dict[str, Tensor] = {}
    for layer, head in chosen:
        prefix, columns = f"encoder.layers.{layer - 1}.attention", slice((head - 1) * size, head * size)
        for name in (f"{prefix}.qkv.weight", f"{prefix}.qkv.bias", f"{prefix}.out.weight"):
            if name in checkpoint.weights:  # a model may have no biases
                weight = changed.setdefault(name, checkpoint.weights[name].clone())
                if name.endswith("out.weight"):
                    weight[:, columns] = 0
                elif not config.num_key_value_heads:  # else other heads have the same values
                    weight[config.hidden_size :].chunk(2)[1][columns] = 0
    tensors = read_weights(ModelFolder.of(source))
    for name, tensor in family.write(config, to_huggingface(family, changed, {})).items():
        [in_file] = [key for key in tensors if f".{key}".endswith(f".{name}")]
        tensors[in_file] = tensor
    return tensors


def _note(path: Path, chosen: Heads) -> None:
    """Append the disabled heads to the model card."""
    card = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = ", ".join(f"{layer}.{head}" for layer, head in chosen)
    about = "`bertie prune-heads` set the weights of these heads (LAYER.HEAD, from 1) to zero, so they have no effect:"
    storage.write_atomic(path, f"{card.rstrip()}\n\n## Disabled heads\n\n{about} {names}.\n".lstrip())
