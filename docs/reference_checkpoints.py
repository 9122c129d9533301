"""The page of the checkpoints that load, for docs/generate_reference.py."""

from __future__ import annotations

import runpy
from pathlib import Path

import bertie
from reference_markdown import escape, table

TABLE = Path(bertie.__file__).parents[2] / "tests" / "parity" / "hub_table.py"
TOKENIZERS = {
    **{"wordpiece": "WordPiece, lowercased", "cased wordpiece": "WordPiece, cased", "byte-level": "byte-level BPE"},
    **{"unigram": "SentencePiece, unigram", "openai": "BPE with `</w>`"},
}
WEIGHTS = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin", "legacy bin": "pytorch_model.bin"}
SENTENCES = ("modules.json", "1_Pooling/config.json")

CHECKPOINTS = """# Which checkpoints load

Of {all} encoders that people use much, {loading} load. The others are refused in one line, which the table quotes.
[Checkpoints of other models](../how-to/other-models.md) lists the families, and what a folder may hold.

The published files are not part of the tests. Each checkpoint is stood for by a small model with random weights that
transformers builds with the same class, kind of tokenizer, set of files and odd keys of `config.json`. The tests compare its
tokens, hidden states, predictions and vectors with those of the library that wrote it (`tests/parity/test_hub_models.py`).
Please report a published file that behaves otherwise.

{table}"""


def checkpoints() -> str:
    """The encoders that tests/parity/hub_table.py names, and whether they load."""
    models = runpy.run_path(str(TABLE))["HUB_MODELS"]
    rows = [
        (
            f"[{model.name}](https://huggingface.co/{model.name})",
            f"refused: {escape(model.refused)}" if model.refused else "loads",
            model.architecture,
            TOKENIZERS[model.words],
            ", ".join([WEIGHTS[model.weights], *model.tokenizer_files, *SENTENCES * (model.sentences is not None)]),
        )
        for model in sorted(models, key=lambda model: model.name.lower())
    ]
    loading = sum(not model.refused for model in models)
    header = table(["Checkpoint", "Verdict", "Class", "Tokenizer", "Files"], rows)
    return CHECKPOINTS.format(all=len(models), loading=loading, table=header)
