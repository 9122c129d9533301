"""`bertie lab`: run a lab file, and write its tables and its page."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bertie.base import config as configuration
from bertie.base import console, storage
from bertie.lab.checks import check
from bertie.lab.config import LabConfig
from bertie.lab.dry_run import dry_run
from bertie.lab.launchers import Work
from bertie.lab.page import markdown, report
from bertie.lab.parts import Parts, read_parts
from bertie.lab.plan import FILE, make_plan, save_plan
from bertie.lab.results import collect
from bertie.lab.schedule import StepScheduler, only_process

SETTINGS, RESULTS, TABLES, PAGE = "lab.json", "results.json", "results.md", "report.html"


def run_lab(
    config: LabConfig | str | dict[str, Any],
    data: str | Path,
    out: str | Path,
    *,
    seeds: tuple[int, ...] = (),
    work: Work = Work(),
    steps: str | Path = "",
    dry: bool = False,
) -> dict[str, Any]:
    """Pre-train, fine-tune and score every cell of a lab file.

    The same call again continues an interrupted lab, and repeats failed steps. Work that several cells need is done
    once. A changed lab file computes only what is new.

    Args:
        config: A LabConfig, a TOML file, the name of a shipped one, or a dict with the content of a file.
        data: The folder to which the paths in the lab file are relative.
        out: Output folder.
        seeds: Replace the seeds of the lab file; empty: keep them.
        work: Where and how the steps run.
        steps: The folder of the steps; empty: `out`/steps. Labs with the same folder share what they have in common.
        dry: Only estimate the time. The text is prepared, and a few training steps are timed.

    Returns:
        {"out": folder, "cells": number, "failed": number of failed steps, "rows": [{"variants", "measures"}]}, or with
        `dry` {"out", "cells", "steps", "hours"}.

    Raises:
        UsageError: The lab file is wrong, or a cell cannot run.
        UserError: A file cannot be read.
    """
    if not isinstance(config, LabConfig):
        config = configuration.load(LabConfig, config, "lab")
    config = replace(config, seeds=tuple(seeds) or config.seeds)
    root, data = Path(out).absolute(), Path(data).absolute()
    storage.remove_leftovers(root, FILE)
    if not any((root / name).exists() for name in (FILE, "steps")):
        storage.require_fresh(root, "the lab")
    plan = make_plan(config, data)
    check(plan)
    parts = read_parts(config, plan, data)
    launcher = work.launcher()
    schedule = StepScheduler(plan, root / FILE, Path(steps).absolute() if steps else root / "steps", work.threads)
    try:
        with only_process(schedule.steps):
            root.mkdir(parents=True, exist_ok=True)
            save_plan(plan, root / FILE)
            storage.write_json(root / SETTINGS, configuration.plain(config))
            if dry:
                return {"out": str(root), "cells": len(plan.cells), **dry_run(schedule, launcher)}
            console.info(
                f"{console.plural(len(plan.cells), 'cell')}, {console.plural(len(plan.steps), 'step')}, of which "
                f"{sum(map(schedule.finished, plan.steps))} are finished; {launcher.slots} at a time, each with "
                f"{console.plural(schedule.threads, 'thread')}"
            )
            schedule.run(launcher, set(plan.steps))
            return _write_results(config, schedule, parts, root)
    finally:
        launcher.close()


def _write_results(config: LabConfig, schedule: StepScheduler, parts: dict[str, Parts], root: Path) -> dict[str, Any]:
    plan = schedule.plan
    results = collect(plan, schedule.steps, schedule.failed, parts)
    machine = " ".join(results.machines)
    rows = [{**asdict(row), "curves": {}} for row in results.rows]
    baselines = {"baselines": results.baselines} if results.baselines else {}
    content = {"title": config.title, "tasks": results.tasks, "machine": machine, "rows": rows, **baselines}
    storage.write_json(root / RESULTS, content)
    storage.write_atomic(root / TABLES, markdown(config, results, machine))
    storage.write_atomic(root / PAGE, report(config, results, machine).html())
    console.info(f"report: {root / PAGE}")
    if len(results.machines) > 1:
        console.warn(f"the models were not trained alike, which may change their scores: {machine}")
    shown = [{"variants": row["variants"], "measures": row["measures"]} for row in rows]
    return {"out": str(root), "cells": len(plan.cells), "failed": len(schedule.failed), "rows": shown}
