"""bertie convert"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base import console
from bertie.checkpoints.model_card import CardFacts
from bertie.commands.common import selected
from bertie.commands.flags import JsonResult, Positional
from bertie.predict.convert.export import ExportPrecision, ExportTarget, convert


@dataclass(frozen=True)
class Args:
    """Convert a model for a faster engine or another library, and compare the result with its source."""

    run: Positional[str]
    """Model: a run, a checkpoint folder or a hub id."""
    out: Positional[Path]
    """Folder to write. All commands that take a model read it."""
    to: ExportTarget
    """torch, openvino, onnx: a model for this engine of bertie. hf: a checkpoint for transformers. sentence-transformers:
    a checkpoint for sentence-transformers. transformers.js: a checkpoint with ONNX files for browsers and Node, in fp32,
    fp16 and q8. tf: a TensorFlow checkpoint for Google's code."""
    precision: ExportPrecision = "fp32"
    """Precision of the engine. int8 needs --data."""
    data: Path | None = None
    """Labeled examples, such as the dev set, on which both models are scored. For a model without a task: texts."""
    calibration: Path | None = None
    """Examples or texts on which int8 measures activations; by default --data."""
    max_loss: float = 0.005
    """Largest allowed loss of the metric of the task (such as accuracy), from 0 to 1. If it loses more, nothing is
    written."""
    push: str | None = None
    """Repository of the Hugging Face Hub, OWNER/NAME, or NAME for one of your own, to upload the folder to, once it is
    compared. It must be new or empty. The token is from `hf auth login`, or HF_TOKEN."""
    public: bool = False
    """Create a public repository; by default, only you and your organization see it."""
    card: CardFacts = CardFacts()
    """Facts for the model card, in place of those in the source's."""


def run(args: Args) -> JsonResult:
    options = selected(args, "precision", "data", "calibration", "max_loss", "push", "public", "card")
    result = convert(args.run, args.out, args.to, **options)
    equal = sum(compared["verdict"] == "equal" for compared in result["compared"])
    console.info(
        f"{args.out}: differs from its source by {result['difference']:.1e} of the largest value "
        f"(smallest cosine of a hidden state {result['cosine']:.5f}); {equal} comparisons are equal; "
        f"written in {result['seconds']:.1f} s, checked in {result['check_seconds']:.1f} s"
    )
    return result
