"""Starting, killing and comparing runs."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
STEPS = 12  # of the pre-training that most tests disturb: more than two epochs
TIMING = (
    "seconds",
    "tokens_per_second",
    "utilization",
    "longest_wait",
    "awaited_rank",
    "metrics_bytes",
    "metrics_sha256",
)
OF_EVALUATIONS = ("evaluation_pending", "eval_step", "eval_loss", "eval_set", "best_step", "best_loss", "best_eval_set")
OF_EVALUATIONS += ("evaluations_without_improvement",)
TINY = (
    "--model.num-hidden-layers 1 --model.hidden-size 32 --model.num-attention-heads 2 --model.intermediate-size 64 "
    "--model.hidden-dropout-prob 0.1 --layout.max-length 32 --training.batch-size 16 --training.row-tokens 256 "
    "--training.max-eval-tokens 600 --training.eval-every 5 --training.checkpoint-every 3 --training.precision fp32 "
    "--threads 1"
)


@dataclass
class Victim:
    """A command that was started: one process, or several ranks, of which `pid`, `text` and `code` are the first's."""

    pids: list[int]
    logs: list[Path]
    answers: Any
    codes: list[int] | None = None

    @property
    def pid(self) -> int:
        return self.pids[0]

    @property
    def code(self) -> int | None:
        return self.codes[0] if self.codes else None

    @property
    def texts(self) -> list[str]:
        return [log.read_text(encoding="utf-8") if log.exists() else "" for log in self.logs]

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def errors(self) -> list[str]:
        """The messages of errors that any rank has printed."""
        return [line for text in self.texts for line in text.splitlines() if line.startswith("bertie: ")]

    def wait_until(self, true: Callable[[], object], seconds: float = 1200) -> bool:
        """Whether it became true before the command ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if true():
                return True
            if not self.alive():
                return bool(true())
            time.sleep(0.002)
        raise TimeoutError(f"nothing happened: {self.text}")

    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def started(self, run: Path) -> bool:
        """Whether it said that it is training, or that it goes on where it stood."""
        resumes = any((run / "checkpoints").glob("step-*"))
        return any(word in self.text for word in (["resuming"] if resumes else ["unigram model", "starting from"]))

    def kill(self, how: int = signal.SIGKILL) -> int:
        """Returns the exit code: another one than -9 where it had ended before."""
        if self.codes is None:
            for pid in self.pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, how)
        return self.wait()

    def go_on(self, rank: int = 0) -> None:
        """End the wait of one that `Nursery.start_held` started."""
        os.kill(self.pids[rank], signal.SIGUSR1)

    def wait(self) -> int:
        if self.codes is None:
            self.codes = [int(word) for word in self.answers.readline().split()]
        return self.codes[0]


@dataclass
class Nursery:
    """Starts commands, one at a time, by forking a process that has imported everything."""

    server: subprocess.Popen[str]
    folder: Path
    number: int = 0
    last: Victim | None = None

    def start(self, argv: list[str], *patches: list[Any], ranks: int = 1) -> Victim:
        if self.last:
            self.last.kill()  # where a test failed before it could
        self.number += 1
        logs = [self.folder / f"{self.number}-{rank}.log" for rank in range(ranks)]
        for log in logs:
            log.unlink(missing_ok=True)
        order = {"argv": argv, "logs": [str(log) for log in logs], "patches": patches}
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        self.last = Victim([int(word) for word in self.server.stdout.readline().split()], logs, self.server.stdout)
        return self.last

    def start_held(self, argv: list[str], name: str, *arguments: Any, ranks: int = 1) -> Victim:
        """Return once it waits for a signal at the point of that patch (hold_… in victim.py), or has ended before it."""
        place = self.folder / f"{self.number + 1}.held"
        place.unlink(missing_ok=True)
        victim = self.start(argv, [name, str(place), *arguments], ranks=ranks)
        victim.wait_until(place.exists)
        return victim

    def run(self, argv: list[str], *patches: list[Any]) -> tuple[int, str]:
        """The exit code, and what was printed."""
        victim = self.start(argv, *patches)
        return victim.wait(), victim.text

    def finish(self, argv: list[str]) -> None:
        """Run a command to its end, which must be a good one."""
        code, text = self.run(argv)
        assert code == 0, text

    def die(self, argv: list[str], *patch: Any) -> None:
        """Run a command until a patch kills it."""
        code, text = self.run(argv, list(patch))
        assert code == -signal.SIGKILL, text


@contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    """folder: for the logs."""
    command = [sys.executable, str(Path(__file__).with_name("victim.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=os.environ | ONE_THREAD) as server:
        assert server.stdin
        assert server.stdout
        assert server.stdout.readline() == "ready\n"
        yield Nursery(server, folder)
        server.stdin.close()


def pretrain_command(shards: Path, out: Path, steps: int = STEPS) -> list[str]:
    flags = ["--data", str(shards), "--out", str(out), "--training.steps", str(steps)]
    return ["pretrain", "tiny", *flags, *TINY.split()]


def finetune_command(examples: Path, model: Path, out: Path) -> list[str]:
    """examples: folder of train.jsonl and dev.jsonl."""
    data = ["--train", str(examples / "train.jsonl"), "--dev", str(examples / "dev.jsonl")]
    flags = "--max-length 32 --training.batch-size 8 --training.checkpoint-every 2 --training.eval-every 3"
    flags += " --training.epochs 3 --training.learning-rate 3e-3"
    machine = "--training.precision fp32 --threads 1"
    return ["finetune", "classify", *data, "--model", str(model), "--out", str(out), *flags.split(), *machine.split()]


def without_timing(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMING}


def content(run: Path) -> dict[str, Any]:
    """All of a run that must not depend on when it was killed, by file name."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = str(path.relative_to(run))
        if path.name == "counters.json":
            found[name] = without_timing(json.loads(path.read_text()))
        elif path.name == "metrics.jsonl":
            found[name] = [without_timing(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name == "report.html":  # without the run's name, and its speed
            found[name] = re.sub(r"<p>[\d,]+ steps, .*?</p>", "", path.read_text().replace(f">{run.name}", ">"))
        elif path.name not in ("environment.json", "manifest.json"):  # these hold the time, or sums of what does
            found[name] = path.read_bytes()
    return found


def differences(one: Path, other: Path) -> list[str]:
    """The files in which two runs differ. A checkpoint that an interrupt saved during an evaluation lacks its result, and may
    then be the best one, instead of the next that other runs save.

    An interrupt also saves steps that other runs do not save, and then an older one is removed earlier. So if both runs have
    as many checkpoints and the same newest one, older ones are compared if both have them.
    """
    left, right = content(one), content(other)
    kept = [sorted(path.name for path in run.glob("checkpoints/*")) for run in (one, other)]
    if len(kept[0]) == len(kept[1]) and kept[0][-1:] == kept[1][-1:]:
        only = set(kept[0]) ^ set(kept[1])
        left, right = (
            {name: side[name] for name in side if not only & set(Path(name).parts)} for side in (left, right)
        )
    for name in [name for name in left.keys() & right.keys() if name.endswith("counters.json")]:
        pending = left[name]["evaluation_pending"] or right[name]["evaluation_pending"]
        same_best = ("best_step",) if left[name]["best_loss"] == right[name]["best_loss"] else ()
        for side in (left, right):
            left_out = OF_EVALUATIONS if pending else same_best
            side[name] = {key: value for key, value in side[name].items() if key not in left_out}
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def holds(folder: Path, place: Path, title: str, number: int, rank: int | None = None) -> dict[str, str]:
    """The environment in which any command waits, once, at that advance of a progress bar. folder: for a module."""
    here = f"if {rank is None} or os.environ.get('RANK') == '{rank}':"
    lines = ["import os, sys", f"sys.path.append({str(Path(__file__).parent)!r})", here]
    lines += ["    import holding", f"    holding.at_progress({str(place)!r}, {title!r}, {number})"]
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | ONE_THREAD | {"PYTHONPATH": path}


def wait_for(place: Path, process: subprocess.Popen[str]) -> None:
    """Until the process waits at the point of `holds`."""
    until = time.monotonic() + 1200
    while not place.exists():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < until, "it hangs"
        time.sleep(0.01)


def half_written(run: Path) -> set[str]:
    """Checkpoints that a living process is writing, or a killed one left behind."""
    return {path.name for path in (run / "checkpoints").glob(".step-*.tmp-*")}


@dataclass
class Toll:
    kills: int = 0
    in_saves: int = 0


def in_training(command: list[str], rng: random.Random, steps: int) -> list[Any]:
    """For `Nursery.start_held`: after one of the first `steps` steps of a process."""
    return ["hold_at", command[0], rng.randint(1, steps)]


def in_save(rng: random.Random, torn: bool = True) -> list[Any]:
    """For `Nursery.start_held`: before a file of a checkpoint is written or renamed, or (torn) with half of one written."""
    whole = ["hold_before", ".step-", rng.randint(2, 20)]
    return rng.choice([whole, ["hold_torn", rng.randint(1, 4)]]) if torn else whole


def disturb(nursery: Nursery, command: list[str], run: Path, rng: random.Random, kills: int, steps: int = 8) -> Toll:
    """Start the command and kill it, until it was killed `kills` times while it trained, or is done.

    Every other kill falls into the writing of a checkpoint; the others come up to 3 ms after one of the first `steps` steps.
    """
    toll = Toll()
    while toll.kills < kills:
        before = half_written(run)
        if toll.kills % 2:
            victim = nursery.start_held(command, *in_save(rng))
        else:
            victim = nursery.start_held(command, *in_training(command, rng, steps))
            if victim.alive():
                victim.go_on()
                time.sleep(rng.uniform(0, 0.003))  # it may fall anywhere: between two writes or within one
        code = victim.kill()
        assert code in (0, -signal.SIGKILL), victim.text
        if code == 0:
            break
        toll.kills += 1
        toll.in_saves += bool(half_written(run) - before)
    return toll
