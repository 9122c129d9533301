"""What pre-training starts from: new weights, or those of another model, whose vocabulary the new one may extend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from bertie import config, runtime, seeding
from bertie.checkpoints.folder import Checkpoint, list_checkpoints, load_weights, read_checkpoint
from bertie.checkpoints.training_state import load_optimizer
from bertie.errors import UsageError, UserError
from bertie.model.attention import Kind
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.model.transformer import Encoder, initialize_weights
from bertie.objectives import Objective
from bertie.text.tokenizer import Tokenizer

BY_WORD = ("encoder.embeddings.word.weight", "heads.mlm.bias")  # what has a row for every entry of the vocabulary


def new_model(
    size: BertConfig, objectives: tuple[Objective, ...], seed: int, attention: Kind = "automatic"
) -> BertModel:
    """An encoder and the objectives' heads with BERT's initial weights, a pure function of the seed."""
    encoder = Encoder(size, attention)
    model = BertModel(encoder, {objective.kind: objective.head(size, encoder) for objective in objectives})
    runtime.reseed_torch(seed, seeding.WEIGHTS)
    initialize_weights(model, size.initializer_range)
    return model


def read_initial_checkpoint(source: str | Path, tokenizer: Tokenizer) -> Checkpoint:
    """A checkpoint as a start for text in the vocabulary of `tokenizer`: the checkpoint's own, or one that goes on after it.

    A new word piece gets the mean of the pieces that it used to be cut into. Errors: UsageError for any other
    vocabulary, and what `read_checkpoint` raises.
    """
    checkpoint = read_checkpoint(source)
    old = checkpoint.tokenizer
    if tokenizer.words[: old.size] != old.words or tokenizer.rules != old.rules:
        raise UsageError(
            f"the text was prepared with another vocabulary than that of {source}: prepare it with {source} as "
            "--tokenizer, or with a vocabulary that begins with the same entries and adds new ones"
        )
    pieces = [old.pieces(word) for word in tokenizer.words[old.size :]]

    def grown(rows: Tensor) -> Tensor:
        return torch.cat([rows[: old.size], *(rows[ids].mean(0, keepdim=True) for ids in pieces)])

    weights = {name: grown(tensor) if name in BY_WORD else tensor for name, tensor in checkpoint.weights.items()}
    size = replace(checkpoint.config, vocab_size=tokenizer.size)
    return replace(checkpoint, weights=weights, tokenizer=tokenizer, config=size)


def load_initial_weights(start: Checkpoint, model: BertModel) -> str:
    """Load its weights; returns a line that says what was done."""
    loaded = load_weights(model, start)
    told = [f"going on from {start.folder}"]
    new = sorted({name.split(".")[1] for name in loaded.initialized})
    for what, heads in (("dropped", loaded.dropped), ("new", new)):
        told += [f"{what}: {', '.join(heads)} head"] if heads else []
    return "; ".join(told)


def load_initial_optimizer(start: Checkpoint, model: BertModel, optimizer: torch.optim.Optimizer, kind: str) -> str:
    """Load the state that an optimizer of this kind was in; returns a line that says from where.

    Errors: UsageError where the checkpoint has none, or one of another kind.
    """
    found = [
        path for path in (start.folder, *reversed(list_checkpoints(start.folder))) if (path / "training_state").is_dir()
    ]
    if not found:
        raise UsageError(f"{start.folder} holds no state of an optimizer: leave --init-optimizer out")
    was = _optimizer_of(found[0])
    if was != kind:
        raise UsageError(
            f"{found[0]} was trained by {was}, and its state is none of {kind}: leave --init-optimizer out"
        )
    load_optimizer(found[0], model, optimizer, grown=BY_WORD)
    return f"the optimizer as it was in {found[0]}"


def _optimizer_of(checkpoint: Path) -> str:
    """The kind, which the run says that the checkpoint lies in. Errors: UsageError, UserError."""
    run = checkpoint.resolve().parents[1]
    if checkpoint.resolve().parent.name != "checkpoints" or not (run / "config.toml").is_file():
        raise UsageError(
            f"{checkpoint} does not lie in its run, so nobody knows of which optimizer its state is: give the run, or "
            "leave --init-optimizer out"
        )
    try:
        return str(config.read(run / "config.toml")["optimizer"]["kind"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{run / 'config.toml'} is damaged: it names no optimizer") from error
