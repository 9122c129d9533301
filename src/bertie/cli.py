"""The command line: finds the verb, reads its flags, runs it, prints errors as a line. The verbs are in `commands`."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import signal
import sys
import threading
from types import ModuleType
from typing import Any

from bertie import console, storage
from bertie.commands import USUAL, VERBS
from bertie.errors import UsageError, UserError

HELP = """usage: bertie VERB …        (bertie VERB --help says more)

  demo                                   the whole way, on text that every Python carries, in minutes
  tokenizer train TEXT… --out DIR        a WordPiece vocabulary from your text
  tokenizer extend TOKENIZER TEXT… --out DIR              words of a new field for one that stands
  tokenizer inspect TOKENIZER [TOKENIZER] --text TEXT…    how it fits a text, side by side
  tokenizer encode TOKENIZER "…"         text to ids
  tokenizer decode TOKENIZER ID…         and back
  prepare TEXT… --tokenizer DIR --out SHARDS              token shards
  pretrain CONFIG --data SHARDS --out RUN                 a BERT; the same command again resumes
  finetune CONFIG --train FILE --dev FILE --model RUN --out RUN     or --task KIND for CONFIG
  glue FOLDER --model RUN --out OUT      the tasks of GLUE: scores, and the leaderboard's files
  evaluate RUN --data FILE               scores on labelled examples
  score --task KIND --data FILE --predictions FILE        the same of a file of predictions, without a model
  predict RUN [--input FILE] [TEXT…]     one JSON object a line
  embed RUN --input FILE --out X.npy     vectors of texts, or of their words
  fill-mask RUN "… [MASK] …"             the likeliest words
  runs compare RUN RUN…                  their curves beside each other, and where they differ
  completion bash|zsh|fish               a script for the shell, which completes verbs, recipes and flags

TEXT is .txt, .jsonl, .csv, .tsv or .parquet files, also .gz, .bz2, .xz or .zst; folders, patterns, URLs, hf:DATASET."""

RESUMING = ("demo", "pretrain", "finetune", "glue", "prepare")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong use."""
    argv = sys.argv[1:] if argv is None else argv
    debug = "--debug" in argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # JSON lines are UTF-8, whatever the locale
    here = threading.current_thread() is threading.main_thread()  # only it may say what a signal does
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if here else None  # as Ctrl-C
    try:
        code = _run(argv)
        print(end="", flush=True)  # here a broken pipe can still be caught
        return code
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout, for what Python still flushes at its end
        return 0
    except UserError as error:
        if debug:
            raise
        console.info(f"bertie: {error}")
        return error.exit_code
    except (OSError, MemoryError, RuntimeError, UnicodeEncodeError) as error:
        trouble = _trouble(error)
        if debug or trouble is None:
            raise
        console.info(f"bertie: {trouble} (--debug shows where)")
        return 1
    except KeyboardInterrupt:
        console.info("bertie: stopped" + "; the same command goes on where it was" * (argv[0] in RESUMING))
        return 130
    finally:
        if here:
            signal.signal(signal.SIGTERM, before)


def _run(argv: list[str]) -> int:
    if argv in ([], ["-h"], ["--help"]):
        print(HELP)
        return 0 if argv else 2
    if argv[1:] in (["-h"], ["--help"]) and (longer := _longer(argv[0])):
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
    """An argument as the UTF-8 that it is, where the locale knows less. Errors: UsageError where it is none."""
    try:
        return word if storage.is_unicode(word) else os.fsencode(word).decode("utf-8")
    except UnicodeError as error:
        raise UsageError(f"the argument {word!a} is not UTF-8: rename the file, or convert the text") from error


def _trouble(error: Exception) -> str | None:
    """What the machine refuses, in a line; None for what is a bug."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, UnicodeEncodeError):
        told = f"the locale is {error.encoding}, which names of files cannot be written in: set LC_ALL=C.UTF-8"
        return told if error.encoding == sys.getfilesystemencoding() != "utf-8" else None
    if "Symlink loop" in str(error):
        return str(error)
    if isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error):
        return "out of memory: take a smaller model, or fewer --training.row-tokens"
    return None


def _verb(argv: list[str]) -> tuple[str, list[str]]:
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in VERBS:
            return name, argv[words:]
    if longer := _longer(argv[0]):
        raise UsageError(f"{argv[0]} is half of a command: bertie {' or bertie '.join(longer)}")
    raise UsageError(f"unknown command {argv[0]!r}; bertie --help lists them")


def _longer(word: str) -> list[str]:
    """The verbs of two words that begin with this one."""
    return [verb for verb in VERBS if verb.startswith(f"{word} ")]


def _parse(name: str, command: ModuleType, argv: list[str]) -> Any:
    argv = [
        part for word in argv for part in (word.split("=", 1) if word.startswith(("--task=", "--config=")) else [word])
    ]
    if name in ("finetune", "score") and "--task" in argv[:-1]:  # --task KIND stands for the first word
        at = argv.index("--task")
        argv = [argv[at + 1], *argv[:at], *argv[at + 2 :]]
    import tyro  # here, where an interrupt during its import is caught

    default = None
    if name in USUAL:
        named = bool(argv) and not argv[0].startswith("-")
        if not named and not {"-h", "--help"} & set(argv):
            word, usual = USUAL[name]
            raise UsageError(f"bertie {name}: the first word is the {word}" + f", such as {usual}" * bool(usual))
        default = command.defaults(argv[0] if named else USUAL[name][1])
    elif name == "glue":
        default = command.defaults(argv[argv.index("--config") + 1] if "--config" in argv[:-1] else "classify")
    markers = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff, tyro.conf.SuppressFixed)
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints), contextlib.redirect_stdout(sys.stdout or io.StringIO()):
            return tyro.cli(command.Args, args=argv, default=default, config=markers, prog=f"bertie {name}")
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        complaint = _one_line(complaints.getvalue())
        hint = "no flag changes a kind: say it in a TOML file that extends this one; " if ".kind" in complaint else ""
        raise UsageError(f"{complaint} ({hint}bertie {name} --help)") from stop


def _one_line(complaint: str) -> str:
    """The parser's framed complaint as a sentence: what comes before its rules and hints."""
    lines = [re.sub(r"[│╭╮╰╯─]+|-{5,}", "", line).strip() for line in complaint.splitlines()]
    told = " ".join(line for line in lines[1:] if line)
    told = re.split(r"\s*(?:For full helptext|Argument helptext)", told)[0]
    return re.sub(r"Missing from (bertie [\w -]+):?", r"\1 lacks", told).replace(" (required)", "").strip()
