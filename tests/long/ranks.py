"""Pre-train with several ranks, kill them, and compare with one process. Not run by pytest.

    python tests/long/ranks.py                      # all checks
    python tests/long/ranks.py --only resizes --kills 5

Prints a line for each check. If one fails, the exit code is 1. The checks:

- counts: 3, 8 and 64 ranks have the losses of one process up to rounding, and compute the same rows, each once.
- kill: of the largest number of ranks, one is killed. The others end, and the next ones resume.
- resizes: one rank, or all, are killed at random moments, and the next ones are between 1 and 8.
- torchrun: it starts the ranks, one is killed, and it restarts them.
- machines: torchrun on two of them, in network namespaces if that is permitted, else on the loopback interface. One is
  lost, or both, and rank 0 moves to the one without the run.

In the first three, the ranks are forks of a process that has imported everything. Losses are compared relative to those of
one process, up to TOLERANCE: single precision rounds to 6e-8, sums of several ranks are rounded in another order, and the
differences grow with the steps. Rows are compared by their hashes (tests/faults/rows.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import rows
from clusters import Training, start, wait_until
from environments import free_port, parser_of
from killing import Nursery, Victim, nursery
from safetensors.numpy import load_file

from bertie.corpus.prepare import prepare
from bertie.corpus.vocabulary import train_tokenizer
from bertie.demo.corpus import python_documents

TOLERANCE = 1e-5
# A row is a pass of its own: its number seeds the dropout, so that masks do not depend on the ranks.
TINY = (
    "--model.hidden-size 32 --model.num-attention-heads 2 --model.intermediate-size 64 --model.hidden-dropout-prob 0.1 "
    "--layout.max-length 32 --training.row-tokens 32 --training.micro-batch 1 --training.max-eval-tokens 600 "
    "--training.eval-every 10 --training.precision fp32 --threads 1"
)
EVERY = 3  # steps between checkpoints


@dataclass
class Work:
    """What the checks share."""

    folder: Path
    shards: Path
    nursery: Nursery
    asked: argparse.Namespace
    failed: int = 0

    def say(self, name: str, wrong: list[str], figures: str = "") -> None:
        self.failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'ok':8}{name}{': ' * bool(figures)}{figures}", flush=True)
        for line in wrong[:5]:
            print(f"        {line}", flush=True)

    def command(self, run: Path | str, row_number: int) -> list[str]:
        """bertie's arguments for a run whose steps have so many rows."""
        places = ["--data", str(self.shards), "--out", str(run), "--training.steps", str(self.asked.steps)]
        sizes = ["--training.batch-size", str(row_number), "--training.checkpoint-every", str(EVERY)]
        return ["pretrain", "tiny", *places, *TINY.split(), *sizes]

    def start(self, place: Path, row_number: int, ranks: int) -> Victim:
        record = ["record_rows", str(place / "rows")]
        return self.nursery.start(self.command(place / "run", row_number), record, ranks=ranks)

    def alone(self, row_number: int) -> Path:
        """A run of one process."""
        place = self.folder / f"alone {row_number}"
        if not place.exists():
            self.start(place, row_number, 1).wait()
        return place

    def differences(self, place: Path, row_number: int, run: Path | None = None) -> tuple[list[str], str]:
        """What is wrong with a finished run and its rows, compared with one process, and how much it differs."""
        alone, run = self.alone(row_number), run or place / "run"
        found, expected = records(run), records(alone / "run")
        names = ("split", "step", "epoch", "tokens", "lr")
        ours, theirs = ([[record.get(name) for name in names] for record in each] for each in (found, expected))
        if ours != theirs:
            return [f"metrics.jsonl has other steps: {len(ours)} records, and {len(theirs)} of one process"], ""
        loss = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(found, expected, strict=True))
        one, other = (load_file(each / "model.safetensors") for each in (run, alone / "run"))
        sizes = (
            sum(float((part**2).sum()) for part in each)
            for each in ([one[n] - other[n] for n in other], other.values())
        )
        weight = math.sqrt(next(sizes) / next(sizes))
        wrong = [f"losses differ by up to {loss:.1e}"] if loss > TOLERANCE else []
        wrong += rows.wrong_rows(place / "rows", alone / "rows")
        return wrong, f"losses differ by up to {loss:.1g}, weights by {weight:.1g} of their norm"


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def make_shards(folder: Path) -> Path:
    """Shards of so little text that a run has several epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.jsonl"
    lines = [json.dumps({"text": document.text[:2000]}) + "\n" for document in python_documents()[:120]]
    text.write_text("".join(lines))
    tokenizer = train_tokenizer([text], folder / "tokenizer", vocab_size=600)
    prepare([text], tokenizer, folder / "shards", eval_share=0.05)
    return folder / "shards"


def counts(work: Work) -> None:
    for ranks in work.asked.ranks:
        place, begun = work.folder / f"{ranks} ranks", time.monotonic()
        started = work.start(place, 64, ranks)
        started.wait()
        seconds = time.monotonic() - begun
        if any(started.codes or [1]):
            work.say(f"{ranks} ranks", [f"exit codes {started.codes}: {started.texts}"])
        else:
            wrong, figures = work.differences(place, 64)
            work.say(f"{ranks} ranks, {work.asked.steps} steps of 64 rows", wrong, f"{figures}; {seconds:.0f} s")


def kill(work: Work) -> None:
    ranks, rng, place = max(work.asked.ranks), random.Random(work.asked.seed), work.folder / "killed"
    started, victim = work.start(place, 64, ranks), rng.randrange(ranks)
    started.wait_until(lambda: rows.steps_begun(place / "rows", set()) > work.asked.steps // 2)
    os.kill(started.pids[victim], signal.SIGKILL)
    begun = time.monotonic()
    started.wait()
    name = f"{ranks} ranks, rank {victim} killed"
    name += f", the others ended within {time.monotonic() - begun:.0f} s"
    wrong = (
        [] if started.codes == [-9 if rank == victim else 1 for rank in range(ranks)] else [f"codes {started.codes}"]
    )
    work.start(place, 64, ranks).wait()
    different, figures = work.differences(place, 64)
    resumed = [attempt.first for attempt in rows.attempts(place / "rows")]
    if len(resumed) != 2 or not resumed[-1]:
        wrong.append(f"attempts began after steps {resumed}")
    work.say(name, wrong + different, f"resumed after step {resumed[-1]}; {figures}")


def resizes(work: Work) -> None:
    rng, kills, number = random.Random(work.asked.seed), 0, 0
    while kills < work.asked.kills:
        place = work.folder / f"resized {number}"
        done = disturb(work, place, rng, work.asked.kills - kills)
        kills, number = kills + len(done), number + 1
        wrong, figures = work.differences(place, 8)
        begun = rows.attempts(place / "rows")
        lost = max((max(one.rows) + 1 - other.first for one, other in pairwise(begun)), default=0)
        if lost > 2 * EVERY:
            wrong.append(f"{lost} steps were lost at once, of checkpoints every {EVERY}")
        what = ", ".join(f"{count} × {name}" for name, count in sorted(Counter(done).items()))
        work.say(f"{what}", wrong, f"{len(begun)} attempts made steps, a kill undid {lost} steps at most; {figures}")


def disturb(work: Work, place: Path, rng: random.Random, kills: int) -> list[str]:
    """Start, kill and resize a run until it is done, and has been killed so often at most. Returns what was done."""
    done: list[str] = []
    while True:
        ranks = rng.randint(1, 8)
        started = work.start(place, 8, ranks)
        if len(done) < kills:
            reached_moment(started, place / "rows", rng)
            one = rng.random() < 0.5
            victims = [rng.choice(started.pids)] if one else started.pids
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        started.wait()
        codes = started.codes or [1]
        if not any(codes):
            return done
        known = ("bertie: another rank has ended", "did not join")  # one of the others says it
        expected = bool(started.errors) == (1 in codes) and all(
            any(each in line for each in known) for line in started.errors
        )
        if (
            len(done) >= kills
            or -signal.SIGKILL not in codes
            or not set(codes) <= {0, 1, -signal.SIGKILL}
            or not expected
        ):
            raise SystemExit(f"exit codes {codes}: {started.texts}")
        done.append(f"1 of {ranks} ranks" if one else f"all {ranks} ranks")


def reached_moment(started: Victim, place: Path, rng: random.Random) -> None:
    """Wait for a random moment: in the start, or up to 50 ms after one of the first steps."""
    known = {path.stem.split("-")[0] for path in place.glob("*.rows")}
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0, 3))  # any moment will do
        return
    steps = rng.randint(1, 12)
    with suppress(StopIteration):
        started.wait_until(lambda: rows.steps_begun(place, known) >= steps)
    time.sleep(rng.uniform(0, 0.05))


def ended(training: Training) -> list[str]:
    """Wait for the end of a training. Returns what is wrong."""
    code = training.wait()
    return [f"exit code {code}: {training.texts} {training.output[-2000:]}"] if code else []


def start_up(place: Path) -> str:
    """The seconds after which the slowest rank had passed each stage."""
    times = [json.loads(path.read_text()) for path in place.glob("*.start")]
    return ", ".join(f"{stage} {max(each[stage] for each in times):.0f}" for stage in times[0])


def torchrun(work: Work) -> None:
    ranks, place = work.asked.torchrun, work.folder / "torchrun"
    (place / "rows").mkdir(parents=True)
    options = "--standalone", "--max-restarts", "1"
    with start(place / "logs", work.command(place / "run", 64), ranks, place / "rows", *options) as training:
        wait_until(lambda: rows.steps_begun(place / "rows", set()) > work.asked.steps // 2, training.process)
        first = start_up(place / "rows")
        os.kill(training.ranks[random.Random(work.asked.seed).randrange(ranks)], signal.SIGKILL)
        wrong, figures = ended(training), ""
    if not wrong:
        wrong, figures = work.differences(place, 64)
        begun = [attempt.first for attempt in rows.attempts(place / "rows")]
        figures += f"; attempts began after steps {begun}; seconds of the first start: {first}"
    work.say(f"{ranks} ranks of torchrun, one killed, restarted", wrong, figures)


@dataclass
class Machine:
    address: str
    inside: list[str]
    """How to run a command on it."""


@contextmanager
def two_machines() -> Iterator[list[Machine]]:
    """Two network namespaces, which need root; otherwise the loopback interface stands for both."""
    names, ports, addresses = ([f"{what}{end}" for end in (1, 2)] for what in ("bertie-", "bertie-veth", "10.77.0."))
    steps = [f"netns add {name}" for name in names]
    steps.append(f"link add {ports[0]} netns {names[0]} type veth peer name {ports[1]} netns {names[1]}")
    for name, port, address in zip(names, ports, addresses, strict=True):
        steps += [f"-n {name} addr add {address}/24 dev {port}"]
        steps += [f"-n {name} link set {device} up" for device in ("lo", port)]
    try:
        if shutil.which("ip") and all(
            subprocess.run(["ip", *step.split()], check=False).returncode == 0 for step in steps
        ):
            # Otherwise gloo uses the address of the host's name, which all namespaces have in common.
            variables = [["env", f"GLOO_SOCKET_IFNAME={port}"] for port in ports]
            each = zip(addresses, names, variables, strict=True)
            yield [Machine(address, ["ip", "netns", "exec", name, *env]) for address, name, env in each]
        else:
            yield [Machine("127.0.0.1", []), Machine("127.0.0.1", [])]
    finally:
        for name in names:
            if shutil.which("ip"):
                subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


@dataclass
class Cluster:
    """Two machines with two ranks each, and a disk each. The run is on that of rank 0 only."""

    work: Work
    place: Path
    machines: list[Machine]
    port: int = 0
    number: int = 0

    def start(self, machine: int, first: int = 0) -> Training:
        """first: the machine that is to have rank 0."""
        disk, self.number = self.place / f"disk {machine}", self.number + 1
        disk.mkdir(parents=True, exist_ok=True)
        (self.place / "rows").mkdir(exist_ok=True)
        master = self.machines[first].address
        options = ["--nnodes", "2", "--node-rank", str(int(machine != first)), "--master-addr", master]
        options += ["--master-port", str(self.port)]
        if not first:
            options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{master}:{self.port}"]
            options += ["--rdzv-id", "x", "--local-addr", self.machines[machine].address, "--max-restarts", "3"]
            # torchrun asks the host's name for its addresses, and namespaces have the name in common.
            options += ["--rdzv-conf", f"is_host={int(machine == first)}"]
        # torchrun (2.13) publishes the address of rank 0 once. Without this setting, a machine that comes later waits for it.
        inside = [*self.machines[machine].inside, "env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
        command = self.work.command("run", 8)
        logs = self.place / f"logs {self.number} of machine {machine}"
        return start(logs, command, 2, self.place / "rows", *options, cwd=disk, inside=inside)

    def start_both(self, first: int = 0) -> list[Training]:
        self.port = free_port()
        return [self.start(machine, first) for machine in (0, 1)]


def machines(work: Work) -> None:
    with two_machines() as found:
        where = "in namespaces" if found[0].inside else "on the loopback interface"
        for lost in ("the second", "the first", "both"):
            place = work.folder / f"lost {lost}"
            wrong, figures = lose(Cluster(work, place, found), lost)
            if not wrong:
                wrong, more = work.differences(place, 8, place / "disk 0" / "run")
                begun = [attempt.first for attempt in rows.attempts(place / "rows")]
                figures += f"attempts began after steps {begun}; {more}"
            if any((place / "disk 1").iterdir()):
                wrong.append("the second machine has files")
            work.say(f"2 machines {where}, lost {lost}", wrong, figures)


def lose(cluster: Cluster, lost: str) -> tuple[list[str], str]:
    """Lose machines in the middle of a run, and complete it."""
    both, wrong, said = cluster.start_both(), list[str](), ""
    try:
        wait_until(lambda: rows.steps_begun(cluster.place / "rows", set()) > 10, both[0].process)
        if lost == "the second":  # the first one waits for it
            both[1].kill()
            both[1] = cluster.start(1)
        else:  # its torchrun has the store of the rendezvous
            both[0].kill()
            begun = time.monotonic()
            if both[1].wait() == 0:
                wrong.append("the second machine ended as if it were done")
            said = f"the other one ended within {time.monotonic() - begun:.0f} s; "
            if lost == "both":
                both = cluster.start_both(first=1)
                texts = [text for each in both for text in (each.wait(), each.texts)[1]]
                if len(texts) != 4 or sum("(rank 0), which writes the run" in text for text in texts) != 1:
                    wrong.append(f"not refused once: {texts}")
                lines = [line for text in texts for line in text.splitlines() if line.startswith("bertie: ")]
                said += f"with rank 0 on the second: {lines}; "
            both = cluster.start_both()
        return wrong + ended(both[0]) + ended(both[1]), said
    finally:
        for each in both:
            each.kill()


CHECKS: tuple[Callable[[Work], None], ...] = (counts, kill, resizes, torchrun, machines)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=[each.__name__ for each in CHECKS], default=[])
    parser.add_argument("--ranks", type=int, nargs="+", default=[3, 8, 64], help="for counts; the largest one for kill")
    parser.add_argument("--steps", type=int, default=36, help="of all runs")
    parser.add_argument("--kills", type=int, default=50, help="for resizes")
    parser.add_argument("--torchrun", type=int, default=8, help="ranks for torchrun; 64 need 24 GB of memory")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--folder", type=Path, help="keep all files here")
    asked = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name, nursery(Path(name)) as place:
        folder = (asked.folder or Path(name)).absolute()
        work = Work(folder, make_shards(folder), place, asked)
        for each in CHECKS:
            if not asked.only or each.__name__ in asked.only:
                each(work)
    print(f"{work.failed} failed, {time.monotonic() - begun:.0f} s")
    return int(work.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
