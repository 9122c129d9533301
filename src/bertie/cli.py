"""The command line: find the verb, parse its flags, run it, print an error as one line. `commands` holds the verbs."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import sys
import threading
from types import ModuleType
from typing import Any

from bertie import console, storage
from bertie.commands import USUAL, VERBS
from bertie.errors import UsageError, UserError

HELP = """usage: bertie COMMAND ...        (bertie COMMAND --help lists the arguments)

Try it:
  demo                 Train and fine-tune a small BERT on text that comes with Python.

Prepare text:
  tokenizer train      Train a WordPiece vocabulary.
  tokenizer extend     Add the words of a new domain to a vocabulary.
  tokenizer inspect    Show how a vocabulary covers a text; compare two.
  tokenizer encode     Turn text into token ids.
  tokenizer decode     Turn token ids into text.
  prepare              Turn text into token shards for pre-training.

Train:
  plan                 Find the size to pre-train in a given time.
  pretrain             Pre-train a BERT on token shards.
  glove                Train static GloVe vectors on token shards, as a baseline.
  finetune             Fine-tune a BERT on labeled examples.
  glue                 Fine-tune a BERT on the tasks of GLUE and score them.
  lab                  Compare variants of pre-training on your text and tasks.

Use a model:
  evaluate             Score a fine-tuned model on labeled examples.
  score                Score a file of predictions, without a model.
  predict              Predict with a fine-tuned model, one JSON object per line.
  embed                Write the vectors of texts or of their words to a file.
  fill-mask            Predict the tokens or words at [MASK].
  likelihood           Score texts: how probable are they for a model?
  minimal-pairs        Test a model's grammar with pairs of sentences.
  next-sentence        Predict whether one text follows another.
  similarity           Compare texts by the cosines of their vectors.
  generate             Generate text (slow; poor with a masked language model).

Put it into production:
  serve                Serve models over HTTP.
  convert              Convert a model for a faster engine or another library.

Look inside a model:
  inspect              Show what its heads attend to, and which ones it needs.
  prune-heads          Write a model with some heads disabled.

Other:
  runs compare         Compare the learning curves and settings of runs.
  completion           Print a completion script for bash, zsh or fish.

Example:
  bertie tokenizer train texts/ --out tokenizer
  bertie prepare texts/ --tokenizer tokenizer --out shards
  bertie pretrain mini --data shards --out runs/mini
  bertie finetune classify --train train.tsv --dev dev.tsv \\
      --model runs/mini --out runs/classifier
  bertie predict runs/classifier "A fine film."

Text is read from .txt, .jsonl, .csv, .tsv and .parquet files (also compressed: .gz,
.bz2, .xz, .zst), from folders, glob patterns, URLs, and data sets: hf:DATASET.
`bertie --version` prints the version."""

RESUMING = ("demo", "pretrain", "finetune", "glue", "lab", "prepare")


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments after `bertie`; None: those of this process.

    Returns:
        The exit code: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    debug = "--debug" in argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # JSON is UTF-8 in every locale
    main_thread = threading.current_thread() is threading.main_thread()  # the only one that may set signal handlers
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler) if main_thread else None  # like Ctrl-C
    try:
        code = _run(argv)
        print(end="", flush=True)  # raises BrokenPipeError here, not at exit
        return code
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python still flushes at exit
        return 0
    except UserError as error:
        if debug:
            raise
        console.info(f"bertie: {error}")
        return error.exit_code
    except (OSError, MemoryError, RuntimeError, UnicodeEncodeError) as error:
        message = _system_error(error)
        if debug or message is None:
            raise
        console.info(f"bertie: {message} (add --debug for the traceback)")
        return 1
    except KeyboardInterrupt:
        console.info("bertie: interrupted" + "; run the same command again to resume" * (argv[0] in RESUMING))
        return 130
    finally:
        if main_thread:
            signal.signal(signal.SIGTERM, previous)


def _run(argv: list[str]) -> int:
    if argv in ([], ["-h"], ["--help"]):
        print(HELP)
        return 0 if argv else 2
    if argv[1:] in (["-h"], ["--help"]) and (longer := _two_word_verbs(argv[0])):
        print("\n".join(line for line in HELP.splitlines() if line.strip().startswith(tuple(longer))))
        return 0
    if argv == ["--version"]:
        from bertie import __version__

        print(__version__)
        return 0
    name, rest = _verb([_unicode(word) for word in argv])
    command = importlib.import_module(VERBS[name])
    args = _parse(name, command, rest)
    result = command.run(args)
    if args.output.json and result:
        print(json.dumps(result))
    return 0


def _unicode(word: str) -> str:
    """Decode an argument as UTF-8, also in a locale that is not UTF-8.

    Raises:
        UsageError: The argument is not UTF-8.
    """
    try:
        return word if storage.is_unicode(word) else os.fsencode(word).decode("utf-8")
    except UnicodeError as error:
        raise UsageError(f"the argument {word!a} is not UTF-8: rename the file, or convert the text") from error


def _system_error(error: Exception) -> str | None:
    """Describe an error of the machine in one line; None: the error is a bug."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, UnicodeEncodeError):
        message = f"the locale is {error.encoding}, which cannot encode this file name: set LC_ALL=C.UTF-8"
        return message if error.encoding == sys.getfilesystemencoding() != "utf-8" else None
    if "Symlink loop" in str(error):
        return str(error)
    if isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error):
        return "out of memory: use a smaller model or a lower --training.row-tokens"
    return None


def _verb(argv: list[str]) -> tuple[str, list[str]]:
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in VERBS:
            return name, argv[words:]
    if longer := _two_word_verbs(argv[0]):
        raise UsageError(f"incomplete command {argv[0]!r}: use bertie {' or bertie '.join(longer)}")
    raise UsageError(f"unknown command {argv[0]!r}: see bertie --help")


def _two_word_verbs(word: str) -> list[str]:
    """List the verbs of two words whose first word is `word`."""
    return [verb for verb in VERBS if verb.startswith(f"{word} ")]


def _parse(name: str, command: ModuleType, argv: list[str]) -> Any:
    argv = [
        part for word in argv for part in (word.split("=", 1) if word.startswith(("--task=", "--config=")) else [word])
    ]
    if name in ("finetune", "score") and "--task" in argv[:-1]:  # --task KIND replaces the first word
        at = argv.index("--task")
        argv = [argv[at + 1], *argv[:at], *argv[at + 2 :]]
    from bertie.commands.parser import parse  # here, where an interrupt during its import is caught

    default = None
    if name in USUAL:
        has_first_word = bool(argv) and not argv[0].startswith("-")
        if not has_first_word and not {"-h", "--help"} & set(argv):
            word, example = USUAL[name]
            raise UsageError(f"bertie {name} lacks {word}, the first argument" + f", such as {example}" * bool(example))
        default = command.defaults(argv[0] if has_first_word else USUAL[name][1])
    elif name == "glue":
        default = command.defaults(argv[argv.index("--config") + 1] if "--config" in argv[:-1] else "classify")
    return parse(name, command.Args, argv, default)
