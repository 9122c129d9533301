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

from bertie.base import threads as threads  # sets environment variables that torch reads when it loads

if TYPE_CHECKING:
    from bertie.base.errors import UsageError as UsageError
    from bertie.base.errors import UserError as UserError
    from bertie.corpus.prepare import prepare as prepare
    from bertie.corpus.vocabulary import extend_tokenizer as extend_tokenizer
    from bertie.corpus.vocabulary import train_tokenizer as train_tokenizer
    from bertie.demo.main import demo as demo
    from bertie.finetuning.finetune import finetune as finetune
    from bertie.finetuning.glue import glue as glue
    from bertie.inspect.heads.prune import prune_heads as prune_heads
    from bertie.inspect.inspect import Inspection as Inspection
    from bertie.inspect.inspect import inspect_model as inspect_model
    from bertie.lab.lab import run_lab as run_lab
    from bertie.predict.convert.export import convert as convert
    from bertie.predict.convert.verify import verify as verify
    from bertie.predict.embed import embed as embed
    from bertie.predict.fill_mask import WordSearch as WordSearch
    from bertie.predict.generation import Generation as Generation
    from bertie.predict.load import load as load
    from bertie.predict.minimal_pairs import minimal_pairs as minimal_pairs
    from bertie.predict.predictor import Predictor as Predictor
    from bertie.pretraining.budget_plan import plan as plan
    from bertie.pretraining.glove import GloveConfig as GloveConfig
    from bertie.pretraining.glove import glove as glove
    from bertie.pretraining.pretrain import pretrain as pretrain
    from bertie.retrieval.distill import distill as distill
    from bertie.retrieval.evaluate import evaluate_search as evaluate_search
    from bertie.retrieval.index import Index as Index
    from bertie.retrieval.index import index as index
    from bertie.retrieval.index import open_index as open_index
    from bertie.retrieval.index import search as search
    from bertie.retrieval.mine import mine as mine
    from bertie.retrieval.own_text import own_pairs as own_pairs
    from bertie.tasks.inspect_data import inspect_data as inspect_data
    from bertie.tasks.scoring import score as score
    from bertie.tokenizers.tokenizer import Tokenizer as Tokenizer
    from bertie.training.compare import compare as compare

__version__ = "0.1.0"
_HOMES = {
    "Generation": "bertie.predict.generation",
    "GloveConfig": "bertie.pretraining.glove",
    "Index": "bertie.retrieval.index",
    "Inspection": "bertie.inspect.inspect",
    "Predictor": "bertie.predict.predictor",
    "Tokenizer": "bertie.tokenizers.tokenizer",
    "UsageError": "bertie.base.errors",
    "UserError": "bertie.base.errors",
    "WordSearch": "bertie.predict.fill_mask",
    "compare": "bertie.training.compare",
    "convert": "bertie.predict.convert.export",
    "demo": "bertie.demo.main",
    "distill": "bertie.retrieval.distill",
    "embed": "bertie.predict.embed",
    "evaluate_search": "bertie.retrieval.evaluate",
    "extend_tokenizer": "bertie.corpus.vocabulary",
    "finetune": "bertie.finetuning.finetune",
    "glove": "bertie.pretraining.glove",
    "glue": "bertie.finetuning.glue",
    "index": "bertie.retrieval.index",
    "inspect_data": "bertie.tasks.inspect_data",
    "inspect_model": "bertie.inspect.inspect",
    "load": "bertie.predict.load",
    "mine": "bertie.retrieval.mine",
    "minimal_pairs": "bertie.predict.minimal_pairs",
    "open_index": "bertie.retrieval.index",
    "own_pairs": "bertie.retrieval.own_text",
    "plan": "bertie.pretraining.budget_plan",
    "prepare": "bertie.corpus.prepare",
    "pretrain": "bertie.pretraining.pretrain",
    "prune_heads": "bertie.inspect.heads.prune",
    "run_lab": "bertie.lab.lab",
    "score": "bertie.tasks.scoring",
    "search": "bertie.retrieval.index",
    "train_tokenizer": "bertie.corpus.vocabulary",
    "verify": "bertie.predict.convert.verify",
}
__all__ = sorted([*_HOMES, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertie' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # replaces the subpackage `demo`, which importing it has set as an attribute
    return value


def __dir__() -> list[str]:
    return __all__
