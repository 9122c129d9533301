"""bertie prune-heads"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base import console
from bertie.commands.common import selected
from bertie.commands.flags import JsonResult, Positional
from bertie.inspect.heads.prune import parse_heads, prune_heads


@dataclass(frozen=True)
class Args:
    """Write a model in which some attention heads are disabled: the weights of their values are zero.

    It loads wherever the model does, and is as large and as slow: the formats of checkpoints have the same number of heads
    in all layers.
    """

    run: Positional[str]
    """Model: a run, a checkpoint folder or a hub id."""
    out: Path
    """Output folder: the model, with the files of the original."""
    heads: str = ""
    """The heads to disable: LAYER.HEAD, both from 1, separated by commas, such as 2.3,4.10."""
    lowest: int = 0
    """Disable the N least important heads instead, as measured by `bertie inspect`. The most important head of each
    layer is kept."""
    text: Path | None = None
    """Texts, to report the loss before and after, in a format of `bertie inspect`. --lowest needs them."""
    text_column: str = ""
    """Column of the text, or its key in .jsonl (empty: text, sentence, tokens or words)."""
    task_data: Path | None = None
    """Labeled examples in place of texts, for a fine-tuned model."""
    loss_tokens: int = 4096
    """Tokens on which the loss is measured: the first of --text, or a sample of --task-data."""
    seed: int = 0
    """Random seed of the masks and of the sample."""


def run(args: Args) -> JsonResult:
    options = selected(args, "lowest", "text", "text_column", "task_data", "loss_tokens", "seed")
    result = prune_heads(args.run, args.out, heads=parse_heads(args.heads), **options)
    names = ", ".join(f"{layer}.{head}" for layer, head in result["heads"])
    console.info(f"{args.out}: {console.plural(len(result['heads']), 'head')} disabled: {names}")
    if loss := result.get("loss"):
        error = "" if loss["standard_error"] is None else f" (standard error {loss['standard_error']:.4f})"
        numbers = f"{loss['before']:.4f} before, {loss['after']:.4f} after, {loss['increase']:+.4f}{error}"
        console.info(f"{loss['kind']} loss on {console.plural(loss['predictions'], 'prediction')}: {numbers}")
    else:
        console.info("the loss was not measured: give --text FILE or --task-data FILE")
    return result
