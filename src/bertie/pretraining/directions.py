"""The two models that one has learned to be if its objectives share the sequences: each with one direction and one head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bertie.base import storage
from bertie.checkpoints.folder import write_manifest, write_model
from bertie.checkpoints.model_card import About
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.objectives import AnyObjective
from bertie.objectives.heads import build_heads
from bertie.tokenizers.tokenizer import Tokenizer


def write_directions(
    run: Path, model: Model, tokenizer: Tokenizer, objectives: tuple[AnyObjective, ...], about: About
) -> None:
    """Write RUN/masked and RUN/causal, checkpoints that a library loads as a masked and as a causal language model.

    Nothing is written if the objectives do not share the sequences.
    """
    for objective in objectives:
        config = model.encoder.config
        if objective.share < 1 and isinstance(config, TransformerConfig):
            left = objective.traits.reads_left
            encoder = build_encoder(replace(config, causal=left))
            one = Model(encoder, build_heads([objective], encoder))
            one.load_state_dict(
                {name: tensor for name, tensor in model.state_dict().items() if name in one.state_dict()}
            )
            folder = run / ("causal" if left else "masked")
            with storage.atomic_folder(folder, replace=True) as temporary:
                write_model(temporary, one, tokenizer, about=about)
                write_manifest(temporary)
