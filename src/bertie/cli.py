"""The command line: find the verb, parse its flags, run it, print an error as one line. `commands` holds the verbs."""

from __future__ import annotations

import importlib
import io
import json
import os
import platform
import signal
import sys
import threading
from contextlib import nullcontext
from typing import Any

from bertie.base import console, storage
from bertie.base.errors import LostRankError, SaidElsewhereError, UsageError, UserError, did_you_mean
from bertie.base.own_code import code_allowed
from bertie.base.threads import torchrun_ranks
from bertie.commands import GROUPS, VERBS, module

LISTED = "\n\n".join(
    "\n".join([f"{title}:", *(f"  {verb:20} {summary}" for verb, summary in group.items())])
    for title, group in GROUPS.items()
)
HELP = f"""usage: bertie COMMAND ...        (bertie COMMAND --help lists the arguments)

{LISTED}

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
INTERRUPTED = 130
RESUMING = ("demo", "pretrain", "finetune", "glue", "lab", "prepare")


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments after `bertie`; None: from this process.

    Returns:
        The exit code: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    flags = set(argv[: argv.index("--")] if "--" in argv else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # JSON is UTF-8 in every locale
    main_thread = threading.current_thread() is threading.main_thread()  # the only one that may set signal handlers
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler) if main_thread else None  # like Ctrl-C
    try:
        try:
            with nullcontext() if "--json" in flags else console.results_on_stdout():
                result, code = _run(argv)
        except SaidElsewhereError as error:
            from bertie.training.rendezvous import wait_until_said

            if error.exit_code:
                wait_until_said()
            return error.exit_code
        except (UserError, OSError, MemoryError, RuntimeError, UnicodeEncodeError, KeyboardInterrupt) as error:
            message, code = _failure(error, argv)
            if message is None or isinstance(error, BrokenPipeError) or ("--debug" in flags and code != INTERRUPTED):
                raise
            result = _say(error, message, code)
        if result and "--json" in flags:
            print(json.dumps(result))
        print(end="", flush=True)  # raises BrokenPipeError here, not at exit
        return code
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python still flushes at exit
        return 0
    finally:
        if main_thread:
            signal.signal(signal.SIGTERM, previous)


def _say(error: BaseException, message: str, code: int) -> dict[str, Any] | None:
    """Print an error. Return it for `--json`, or None if another rank of torchrun prints the same."""
    result = {**(error.result if isinstance(error, UserError) else {}), "error": message, "exit_code": code}
    try:
        rank, count, _ = torchrun_ranks()
    except UsageError:  # it is this error
        rank, count = 0, 1
    where = f" (rank {rank} of {count}, on {platform.node()})" * (rank > 0)
    if count > 1:
        from bertie.training.rendezvous import is_said, say_once

        if not isinstance(error, KeyboardInterrupt):
            same = LostRankError.__name__ if isinstance(error, LostRankError) else message
            return result if say_once(same, lambda: console.info(f"bertie: {message}{where}")) else None
        if rank or is_said():  # all ranks are interrupted, also by torchrun if one has failed
            return None
    console.info(f"bertie: {message}")
    return result


def _run(argv: list[str]) -> tuple[dict[str, Any] | None, int]:
    """Run a command. Returns its result and the exit code."""
    if argv in ([], ["-h"], ["--help"]):
        print(HELP)
        return None, 0 if argv else 2
    if argv[1:] in (["-h"], ["--help"]) and (longer := _two_word_verbs(argv[0])):
        print("\n".join(line for line in HELP.splitlines() if line.strip().startswith(tuple(longer))))
        return None, 0
    if argv == ["--version"]:
        from bertie import __version__

        print(__version__)
        return None, 0
    verb, rest = _verb([_unicode(word) for word in argv])
    words = rest[: rest.index("--")] if "--" in rest else rest
    flags = {word.replace("_", "-") for word in words}
    from bertie.commands.parser import parse  # here, where an interrupt during its import is caught

    with code_allowed("--allow-code" in flags, here=True):
        args = parse(verb, rest)
        command = importlib.import_module(module(verb))
        _, count, _ = torchrun_ranks()
        if args and count > 1 and not getattr(command, "SHARED", False):
            raise UsageError(f"{verb} runs in one process, and torchrun has started {count}: start it without torchrun")
        if "--allow-unused" not in flags:
            return args and command.run(args), 0
        from bertie.checkpoints.read import unused_weights_allowed

        with unused_weights_allowed():
            return args and command.run(args), 0


def _unicode(word: str) -> str:
    """Decode an argument as UTF-8, also in a locale that is not UTF-8.

    Raises:
        UsageError: The argument is not UTF-8.
    """
    try:
        return word if storage.is_unicode(word) else os.fsencode(word).decode("utf-8")
    except UnicodeError as error:
        raise UsageError(f"the argument {word!a} is not UTF-8: rename the file, or convert the text") from error


def _failure(error: BaseException, argv: list[str]) -> tuple[str | None, int]:
    """Describe an error in one line, with its exit code. None: the error is a bug."""
    if isinstance(error, UserError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted" + "; run the same command again to resume" * (argv[0] in RESUMING), INTERRUPTED
    message = None
    if isinstance(error, OSError):
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    elif isinstance(error, UnicodeEncodeError):
        if error.encoding == sys.getfilesystemencoding() != "utf-8":
            message = f"the locale is {error.encoding}, which cannot encode this file name: set LC_ALL=C.UTF-8"
    elif "Symlink loop" in str(error):
        message = str(error)
    elif isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error):
        message = "out of memory: use a smaller model, or lower --training.row-tokens or --batch-tokens"
    return message and f"{message} (add --debug for the traceback)", 1


def _verb(argv: list[str]) -> tuple[str, list[str]]:
    """Split the arguments into the verb and the rest. Raises UsageError."""
    two = " ".join(argv[:2])
    for verb in (two, argv[0]):
        if verb in VERBS:
            return verb, argv[len(verb.split()) :]
    longer = _two_word_verbs(argv[0])
    if longer and (len(argv) == 1 or argv[1].startswith("-")):
        raise UsageError(f"incomplete command {argv[0]!r}: use bertie {' or bertie '.join(longer)}")
    guess = did_you_mean(two, longer or VERBS) or did_you_mean(argv[0], {verb.split()[0] for verb in VERBS})
    raise UsageError(f"unknown command {(two if longer else argv[0])!r}{guess} (see bertie --help)")


def _two_word_verbs(word: str) -> list[str]:
    """List the verbs of two words whose first word is `word`."""
    return [verb for verb in VERBS if verb.startswith(f"{word} ")]
