"""Random faults for runs: kills, SIGTERM, a full disk, truncated and altered files."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from killing import Nursery, Victim, differences, in_save, in_training

UNTOUCHED = (".lock", "README.md", "report.html")  # nothing is read from these


@dataclass
class Torment:
    """Disturbs the runs of one command. landed: how often each way hit a run that had begun and was not done."""

    nursery: Nursery
    command: list[str]
    run: Path
    rng: random.Random
    steps: int
    landed: dict[str, int] = field(default_factory=dict)

    def once(self, way: str) -> bool:
        """Start the command and inject one fault. Return whether the command finished. Its messages are checked."""
        return {
            "kill": self._kill,
            "kill while saving": self._kill_while_saving,
            "term": self._term,
            "full disk": self._fill_disk,
            "flipped byte": lambda: self._damage("flipped byte", _flip),
            "truncated file": lambda: self._damage("truncated file", _cut),
        }[way]()

    def _count(self, way: str, code: int, expected: int, victim: Victim) -> bool:
        assert code in (0, expected), f"{way}: exit code {code}: {victim.text}"
        assert "Traceback" not in victim.text, victim.text
        self.landed[way] = self.landed.get(way, 0) + (code == expected)
        return code == 0

    def _kill(self) -> bool:
        victim = self.nursery.start_held(self.command, *in_training(self.command, self.rng, self.steps))
        return self._count("kill", victim.kill(), -signal.SIGKILL, victim)

    def _kill_while_saving(self) -> bool:
        victim = self.nursery.start_held(self.command, *in_save(self.rng))
        return self._count("kill while saving", victim.kill(), -signal.SIGKILL, victim)

    def _term(self) -> bool:
        victim = self.nursery.start_held(self.command, *in_training(self.command, self.rng, self.steps))
        return self._count("term", victim.kill(signal.SIGTERM), 130, victim)

    def _fill_disk(self) -> bool:
        """Limit the size of files from one of the next checkpoints on."""
        steps = [int(path.name[5:]) for path in (self.run / "checkpoints").glob("step-*")]
        every = int(self.command[self.command.index("--training.checkpoint-every") + 1])
        step = max(steps, default=0) + every * self.rng.randint(1, 2)
        size = max((path.stat().st_size for path in self.run.rglob("*.safetensors")), default=100_000)
        patch = ["disk_full_after_step", step, self.rng.randrange(1000, size)]
        victim = self.nursery.start(self.command, patch)
        code = victim.wait()
        if code == 1:
            assert f"bertie: cannot write {self.run}" in victim.text, victim.text
        return self._count("full disk", code, 1, victim)

    def _damage(self, way: str, act: Callable[[Path, random.Random], None]) -> bool:
        """Kill the run and damage one of its files. It must report the file, or not need it. Then restore the file.

        If the newest checkpoint is damaged, the run may also set it aside and resume from the previous one.
        """
        if self._kill():
            return True
        files = [
            path
            for path in self.run.rglob("*")
            if path.is_file() and path.name not in UNTOUCHED and path.stat().st_size
        ]
        files = [path for path in files if ".tmp-" not in str(path) and "damaged-" not in str(path)]
        path = self.rng.choice(sorted(files))
        whole = path.read_bytes()
        act(path, self.rng)
        damaged = path.read_bytes()
        victim = self.nursery.start(self.command)
        victim.wait_until(lambda: victim.started(self.run) or "bertie: " in victim.text)
        code = victim.kill()
        assert code in (0, 1, 2, -signal.SIGKILL), f"{path}: {victim.text}"
        assert "Traceback" not in victim.text, victim.text
        if code in (1, 2):
            assert f"bertie: {self.run}" in victim.text or str(path) in victim.text, f"{path}: {victim.text}"
        self.landed[way] = self.landed.get(way, 0) + 1
        if path.exists() and path.read_bytes() == damaged:
            path.write_bytes(whole)
        for aside in (self.run / "checkpoints").glob("damaged-*"):
            shutil.rmtree(aside)
        return code == 0


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


WAYS = ("kill", "kill while saving", "term", "full disk", "flipped byte", "truncated file")


def torment(
    nursery: Nursery,
    command: Callable[[Path], list[str]],
    folder: Path,
    alone: Path,
    rng: random.Random,
    each: int,
    steps: int,
) -> Iterator[tuple[dict[str, int], list[str]]]:
    """Disturb runs until each way has landed `each` times; after every run all that landed so far, and what differs.

    alone: a run of the same command that was left alone. steps: within which of a process's steps it is hit.
    """
    landed = dict.fromkeys(WAYS, 0)
    while min(landed.values()) < each:
        run = folder / f"run{sum(landed.values())}"
        one = Torment(nursery, command(run), run, rng, steps, landed)
        missing = [way for way in WAYS if landed[way] < each]
        any(one.once(way) for way in rng.sample(missing, len(missing)))  # until it gets done in spite of one
        code, text = nursery.run(command(run))
        assert code == 0, text
        yield landed, differences(run, alone)
