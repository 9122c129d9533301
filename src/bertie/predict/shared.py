"""A loaded model whose predictions the ranks of torchrun share."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from bertie.predict.predictor import Predictor
from bertie.training.sharing import Sharing


def shared(model: Predictor, share: Sharing) -> Predictor:
    """Return a loaded model that shares its work on examples and texts with the models of other ranks.

    Ranks other than 0 call it with nothing, such as `predict([])`, and then compute what rank 0 sends.

    Raises:
        UsageError: On all ranks, if one has loaded another model, or another engine, than rank 0.
    """
    if share.ranks.count > 1:
        facts = {"the engine": model.engine, "the checksum of the model": _checksum(model)}
        share.ranks.require_same(facts, "give all ranks the same")
    return replace(model, share=share)


def _checksum(model: Predictor) -> str:
    checksum = 0
    for weight in model.model.parameters():
        checksum = zlib.crc32(np.ascontiguousarray(weight.detach().float().cpu().numpy()).data, checksum)
    return str(checksum)
