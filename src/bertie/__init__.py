"""bertie turns text into BERT models: vocabulary, corpus preparation, pre-training, fine-tuning, prediction.

    import bertie
    model = bertie.load("runs/mine")
    model.fill_mask("the cat sat on the [MASK].")

The public names are those in `__all__`. Each is imported at its first use, so `import bertie` is fast and does not load
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bertie import threads as threads  # sets environment variables that torch reads when it loads

if TYPE_CHECKING:
    from bertie.demo.main import demo
    from bertie.errors import UsageError, UserError
    from bertie.finetuning.finetune import finetune
    from bertie.finetuning.glue import glue
    from bertie.inspect.inspect import Inspection, inspect_model
    from bertie.inspect.prune import prune_heads
    from bertie.lab.lab import run_lab
    from bertie.predict.embed import embed
    from bertie.predict.export import convert
    from bertie.predict.fill_mask import WordSearch
    from bertie.predict.generation import Generation
    from bertie.predict.load import load
    from bertie.predict.minimal_pairs import minimal_pairs
    from bertie.predict.predictor import Predictor
    from bertie.predict.search import search
    from bertie.predict.verify import verify
    from bertie.pretraining.budget_plan import plan
    from bertie.pretraining.glove import GloveConfig
    from bertie.pretraining.glove import glove as glove
    from bertie.pretraining.pretrain import pretrain
    from bertie.tasks.inspect_data import inspect_data
    from bertie.tasks.scoring import score
    from bertie.text.prepare import prepare
    from bertie.text.tokenizer import Tokenizer
    from bertie.text.vocabulary import extend_tokenizer, train_tokenizer
    from bertie.training.compare import compare

__version__ = "0.1.0"
__all__ = [
    "Generation",
    "GloveConfig",
    "Inspection",
    "Predictor",
    "Tokenizer",
    "UsageError",
    "UserError",
    "WordSearch",
    "__version__",
    "compare",
    "convert",
    "demo",
    "embed",
    "extend_tokenizer",
    "finetune",
    "glove",
    "glue",
    "inspect_data",
    "inspect_model",
    "load",
    "minimal_pairs",
    "plan",
    "prepare",
    "pretrain",
    "prune_heads",
    "run_lab",
    "score",
    "search",
    "train_tokenizer",
    "verify",
]

_HOMES = {
    "Generation": "bertie.predict.generation",
    "Predictor": "bertie.predict.predictor",
    "Tokenizer": "bertie.text.tokenizer",
    "UsageError": "bertie.errors",
    "UserError": "bertie.errors",
    "WordSearch": "bertie.predict.fill_mask",
    "compare": "bertie.training.compare",
    "convert": "bertie.predict.export",
    "demo": "bertie.demo.main",
    "embed": "bertie.predict.embed",
    "extend_tokenizer": "bertie.text.vocabulary",
    "finetune": "bertie.finetuning.finetune",
    "GloveConfig": "bertie.pretraining.glove",
    "glove": "bertie.pretraining.glove",
    "glue": "bertie.finetuning.glue",
    "Inspection": "bertie.inspect.inspect",
    "inspect_model": "bertie.inspect.inspect",
    "inspect_data": "bertie.tasks.inspect_data",
    "load": "bertie.predict.load",
    "minimal_pairs": "bertie.predict.minimal_pairs",
    "plan": "bertie.pretraining.budget_plan",
    "prepare": "bertie.text.prepare",
    "pretrain": "bertie.pretraining.pretrain",
    "prune_heads": "bertie.inspect.prune",
    "run_lab": "bertie.lab.lab",
    "score": "bertie.tasks.scoring",
    "search": "bertie.predict.search",
    "verify": "bertie.predict.verify",
    "train_tokenizer": "bertie.text.vocabulary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertie' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # replaces the subpackage `demo`, which importing it has set as an attribute
    return value


def __dir__() -> list[str]:
    return __all__
