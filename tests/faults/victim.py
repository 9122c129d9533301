"""Runs bertie's commands in processes that can be killed cheaply: this one imports everything once and forks for each.

Read from stdin, a line each: {"argv": […], "logs": [FILE, …], "patches": [[NAME, ARGUMENT, …], …]}: one child for each log,
to which it prints, as the ranks of one training where they are several. Answered on stdout, separated by spaces: the
children's process ids as soon as they run, then their exit codes, -9 for one that was killed.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import holding

# What commands import late, here once: seconds for each that the tests start.
import huggingface_hub.repocard_data  # noqa: F401
import rows
import sklearn.metrics  # noqa: F401
import torch._dynamo
from torch.distributed import TCPStore

import bertie
import bertie.corpus.cooccurrence
import bertie.finetuning.finetune
import bertie.predict.embed
import bertie.pretraining.dry_run
import bertie.pretraining.pretrain
from bertie.base import report, runtime, storage
from bertie.checkpoints import folder as model_folder
from bertie.checkpoints import training_state
from bertie.cli import main
from bertie.commands import convert, embed, finetune, glue, parser, pretrain  # noqa: F401
from bertie.predict.convert import export
from bertie.training import trainer, watchdog


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after_save(step: int, act: Callable[[], None]) -> None:
    save = trainer.save_state

    def patched(*args: Any) -> None:
        save(*args)
        if next(value.step for value in args if isinstance(value, training_state.Counters)) == step:
            act()

    trainer.save_state = patched


def die_after_step(step: int) -> None:
    """Right after the checkpoint of that step."""
    after_save(step, die)


def before(what: str, number: int, do: Callable[[], None]) -> None:
    """Just before the `number`th write, renaming or removal whose "name path" (or "fsync") holds all words of `what`."""
    passed = count(1)

    def watched(act: Callable[..., Any]) -> Callable[..., Any]:
        def patched(*args: Any, **named: Any) -> Any:
            paths = [str(value) for value in args if isinstance(value, str | os.PathLike)]
            called = " ".join([act.__name__, *paths[:1]])
            if all(word in called for word in what.split()) and next(passed) == number:
                do()
            return act(*args, **named)

        return patched

    for module, names in (
        (storage, ("write_atomic",)),
        (os, ("fsync", "rename", "replace", "unlink", "rmdir", "truncate")),
        (model_folder, ("save_tensors",)),
        (training_state, ("save_tensors",)),
    ):
        for name in names:
            setattr(module, name, watched(getattr(module, name)))


def die_before(what: str, number: int) -> None:
    before(what, number, die)


def hold_before(place: str, what: str, number: int) -> None:
    holding.listen()
    before(what, number, lambda: holding.wait_for_signal(place))


def hold_torn(place: str, number: int) -> None:
    """In the writing of the `number`th file of tensors, with half of its bytes in it."""
    holding.listen()
    save, count = model_folder.save_file, [0]

    def patched(tensors: Any, path: Path, *arguments: Any) -> None:
        save(tensors, path, *arguments)
        count[0] += 1
        if count[0] == number:
            content = path.read_bytes()
            os.truncate(path, len(content) // 2)
            holding.wait_for_signal(place)
            path.write_bytes(content)

    model_folder.save_file = patched


def impatient_watchdog(seconds: float) -> None:
    watchdog.LEAST_SECONDS = seconds


def hold_at(place: str, title: str, number: int, rank: int = 0) -> None:
    """At the `number`th advance of the progress bar of that title, in one of the ranks."""
    if int(os.environ.get("RANK", "0")) == rank:
        holding.at_progress(place, title, number)


def disk_full_after_step(step: int, largest: int) -> None:
    """From the checkpoint of that step on, no file may grow beyond `largest` bytes."""
    after_save(step, lambda: disk_full(largest))


def forget(part: str) -> None:
    """Restore all of a checkpoint but one part: the weights, the optimizer, the step, or the position in the data."""
    load = training_state.load_state

    def patched(folder: Any, model: Any, optimizer: Any) -> training_state.Counters:
        initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        counters = load(folder, model, optimizer)
        if part == "weights":
            model.load_state_dict(initial)
        if part == "optimizer":
            optimizer.state.clear()
        if part == "step":
            counters.step -= 1
        if part == "position":
            counters.epoch, counters.epoch_step = 0, 0
        return counters

    training_state.load_state = patched


def disk_full(largest: int) -> None:
    """No file may grow beyond `largest` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))


def with_flags(rank: int, *flags: str) -> None:
    """One of the ranks gets these flags, too."""
    global main
    if int(os.environ["RANK"]) == rank:
        command = main
        main = lambda argv: command([*argv, *flags])  # noqa: E731


def with_version(rank: int, version: str) -> None:
    """One of the ranks has another version of bertie."""
    if int(os.environ["RANK"]) == rank:
        bertie.__version__ = version


def with_clock(rank: int, ahead: float) -> None:
    """The clocks of one of the ranks are so many seconds ahead."""
    if int(os.environ["RANK"]) == rank:
        for name in ("time", "monotonic"):
            setattr(time, name, lambda clock=getattr(time, name): clock() + ahead)


def record_rows(folder: str) -> None:
    """Which rows this rank computes."""
    rows.record(Path(folder))


PATCHES = (
    die_after_step,
    die_before,
    hold_before,
    hold_torn,
    hold_at,
    impatient_watchdog,
    disk_full,
    disk_full_after_step,
    forget,
    with_flags,
    with_version,
    with_clock,
    record_rows,
)


def child(order: dict[str, Any], rank: int, port: int) -> int:
    if len(order["logs"]) > 1:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(order["logs"]), "MASTER_PORT": port}
        torchrun = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        os.environ |= {name: str(value) for name, value in ranks.items()} | torchrun
    log = os.open(order["logs"][rank], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
    known = {patch.__name__: patch for patch in PATCHES}
    for name, *arguments in order["patches"]:
        known[name](*arguments)
    return main(order["argv"])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def fork(order: dict[str, Any], rank: int, port: int) -> int:
    pid = os.fork()
    if pid == 0:
        code = 99  # a traceback
        try:
            code = child(order, rank, port)
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


if __name__ == "__main__":
    export.CHECKED_IN = {}  # `convert` compares in bertie only: other libraries take seconds to import
    report._svg = lambda _, description, height: f"<svg>{description}, {height}</svg>"  # drawing takes a third of a run
    parser.parse("pretrain", ["tiny", "--data", "shards", "--out", "run"])  # what reads recipes is kept
    runtime.matrix_rate("fp32", torch.device("cpu"))  # measured once, too
    gc.freeze()  # a collection in a child would copy the memory
    print("ready", flush=True)
    for line in sys.stdin:
        order, port = json.loads(line), free_port()
        pids = [fork(order, rank, port) for rank in range(len(order["logs"]))]
        # As torchrun, in its own process. After the forks: it has threads.
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if len(pids) > 1 else None
        print(*pids, flush=True)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        del store
        print(*codes, flush=True)
