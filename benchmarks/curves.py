"""Collect the held-out loss curves of pre-training runs, for docs/training.md.

    bertie pretrain tiny --data SHARDS --out runs/tiny    # likewise for other sizes, finished or not
    python benchmarks/curves.py runs/tiny runs/mini … --out docs/curves

Writes docs/curves.json (the held-out losses of each run, and its machine) and docs/curves.svg (the plot). The published
curves are of the shipped recipes on Simple English Wikipedia.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

from bertie.base import storage
from bertie.training.run_folder import read_metrics

COLUMNS = ("step", "tokens", "seconds", "mlm_loss", "mlm_accuracy", "nsp_accuracy")
MACHINE = ("commit", "versions", "cpu", "threads", "precision")
GREY = "#7d838a"  # readable on white and on black


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    curves = {run.name: [{k: e[k] for k in COLUMNS} for e in read_metrics(run, "eval")] for run in args.runs}
    environments = {run.name: storage.read_json(run / "environment.json") for run in args.runs}
    machines = {name: {key: environment.get(key) for key in MACHINE} for name, environment in environments.items()}
    storage.write_json(args.out.with_suffix(".json"), {"curves": curves, "environments": machines})
    draw(curves, args.out.with_suffix(".svg"))
    print(json.dumps({name: curve[-1] for name, curve in curves.items()}, indent=2))


def draw(curves: dict[str, list[dict[str, float]]], path: Path) -> None:
    style = {
        "text.color": GREY,
        "axes.labelcolor": GREY,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "axes.edgecolor": GREY,
    }
    with plt.rc_context({**style, "svg.hashsalt": "curves", "svg.fonttype": "none", "font.family": "sans-serif"}):  # pyright: ignore[reportArgumentType]
        figure, (loss, nsp) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
        for name, curve in curves.items():
            tokens = [point["tokens"] / 1e6 for point in curve]
            loss.plot(tokens, [point["mlm_loss"] for point in curve], label=name, marker=".")
            nsp.plot(tokens, [100 * point["nsp_accuracy"] for point in curve], label=name, marker=".")
        loss.set_ylabel("masked-LM loss, held out, nats")
        nsp.set_ylabel("next sentence right, held out, %")
        for axes in (loss, nsp):
            axes.set_xlabel("million tokens")
            axes.grid(axis="y", alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        loss.legend(frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
