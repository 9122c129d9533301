"""One rank of a training that ranks.py starts with torchrun: it records the rows that it computes, and how it starts.

    torchrun … ranks_side.py '{"rows": FOLDER, "begun": TIME}' pretrain …

The file RANK.start in the folder gets the seconds after TIME at which the last start of this rank had passed each stage.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ASKED, *ARGUMENTS = sys.argv[1:]
ORDER = json.loads(ASKED)
TIMES = {"Python": time.time() - ORDER["begun"]}
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

import rows  # noqa: E402

from bertie.cli import main  # noqa: E402
from bertie.pretraining import pretrain  # noqa: E402
from bertie.training import trainer  # noqa: E402
from bertie.training.distributed import Ranks  # noqa: E402


def passed(stage: str) -> None:
    TIMES.setdefault(stage, time.time() - ORDER["begun"])


def timed(module: Any, name: str, stage: str) -> None:
    act: Callable[..., Any] = getattr(module, name)

    def patched(*args: Any, **named: Any) -> Any:
        result = act(*args, **named)
        passed(stage)
        return result

    setattr(module, name, patched)


def time_joining() -> None:
    join = pretrain.process_group

    @contextmanager
    def patched() -> Iterator[Ranks]:
        with join() as ranks:
            passed("ranks have met")
            yield ranks

    pretrain.process_group = patched


def time_first_step() -> None:
    train_steps = trainer.train_steps

    def patched(*args: Any) -> Iterator[Any]:
        passed("weights are equal")
        for result in train_steps(*args):
            if "first step" not in TIMES:
                passed("first step")
                (Path(ORDER["rows"]) / f"{os.environ.get('RANK', 0)}.start").write_text(json.dumps(TIMES))
            yield result

    trainer.train_steps = patched


passed("imports")
rows.record(Path(ORDER["rows"]))
time_first_step()
time_joining()
timed(pretrain, "open_shards", "shards are verified")
timed(pretrain, "set_up", "set up")
sys.exit(main(ARGUMENTS))
