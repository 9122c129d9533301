"""The verbs of the command line.

Each verb has a file with `Args`, its arguments, and `run`, which calls the public function and returns the JSON result.
The file is imported only when the verb is used, so `bertie --help` starts without PyTorch. `SHARED = True` in it says that
the ranks of torchrun share the work of the verb; other verbs refuse several ranks.

`flags.py` derives the arguments from `Args`, `parser.py` parses them, `completion.py` prints scripts for shells, and
`common.py` and `model_options.py` have what several commands share. `VERBS` has the verbs with their summaries.
"""

from __future__ import annotations

from typing import NamedTuple

GROUPS = {
    "Try it": {"demo": "Train and fine-tune a small BERT on text that comes with Python."},
    "Prepare text": {
        "tokenizer train": "Train a vocabulary: WordPiece, BPE or unigram.",
        "tokenizer extend": "Add the words of a new domain to a vocabulary.",
        "tokenizer inspect": "Show how a vocabulary covers a text; compare two.",
        "tokenizer encode": "Turn text into token ids.",
        "tokenizer decode": "Turn token ids into text.",
        "prepare": "Turn text into token shards for pre-training.",
    },
    "Train": {
        "plan": "Find the size to pre-train in a given time.",
        "pretrain": "Pre-train a BERT on token shards.",
        "glove": "Train static GloVe vectors on token shards, as a baseline.",
        "data inspect": "Show how bertie reads a file of labeled examples.",
        "finetune": "Fine-tune a BERT on labeled examples.",
        "pairs": "Make pairs for training vectors from nothing but text.",
        "mine": "Find hard negatives for training vectors or a reranker.",
        "distill": "Turn a model into static vectors for a fast search.",
        "glue": "Fine-tune a BERT on the tasks of GLUE and score them.",
        "lab": "Compare variants of pre-training on your text and tasks.",
    },
    "Use a model": {
        "evaluate": "Score a fine-tuned model on labeled examples.",
        "score": "Score a file of predictions, without a model.",
        "predict": "Predict with a fine-tuned model, one JSON object per line.",
        "embed": "Write the vectors of texts or of their words to a file.",
        "fill-mask": "Predict the tokens or words at [MASK].",
        "likelihood": "Score how probable texts are under a model.",
        "minimal-pairs": "Test a model's grammar with pairs of sentences.",
        "next-sentence": "Predict whether one text follows another.",
        "similarity": "Compare texts by the cosines of their vectors.",
        "index": "Index a folder of text for a search.",
        "search": "Find the passages of an index that are nearest to a query.",
        "generate": "Generate text (slow; poor with a masked language model).",
    },
    "Put it into production": {
        "serve": "Serve models over HTTP.",
        "convert": "Convert a model for a faster engine or another library.",
        "verify": "Describe a model folder; compare it with other libraries.",
    },
    "Look inside a model": {
        "inspect": "Show what heads attend to, and which heads a model needs.",
        "prune-heads": "Write a model with some heads disabled.",
    },
    "Other": {
        "runs compare": "Compare the learning curves and settings of runs.",
        "completion": "Print a completion script for bash, zsh or fish.",
    },
}
VERBS = {verb: summary for group in GROUPS.values() for verb, summary in group.items()}
_USES = ("Use a model", "Put it into production", "Look inside a model")
_TRAINING = ("pretrain", "finetune", "mine", "distill", "glue", "lab")
READ_MODELS = {*_TRAINING, *(verb for name in _USES for verb in GROUPS[name])} - {"score"}
"""Verbs that take a model. They have the flags of `flags.Reading`."""


class FirstWord(NamedTuple):
    """The word that determines the flags of a verb, because it names their defaults."""

    name: str
    """Its name in messages; empty: it is no positional argument, and only `flag` gives it."""
    word: str
    """The word whose flags `--help` lists first if it is missing; empty: any."""
    flag: str = ""
    """A flag that gives the word instead."""


USUAL = {
    "pretrain": FirstWord("CONFIG", "mini"),
    "finetune": FirstWord("CONFIG", "classify", "--task"),
    "glue": FirstWord("", "classify", "--config"),
    "data inspect": FirstWord("KIND", "classify", "--task"),
    "evaluate": FirstWord("RUN", ""),
    "score": FirstWord("KIND", "classify", "--task"),
    "predict": FirstWord("RUN", ""),
}


def module(verb: str) -> str:
    """Return the module of a verb."""
    return f"bertie.commands.{verb.replace(' ', '_').replace('-', '_')}"
