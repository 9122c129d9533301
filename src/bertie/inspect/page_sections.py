"""The parts of inspect.html that need no script: relations, coreference, layers and probes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bertie.console import percent, plural
from bertie.inspect.tables import Table
from bertie.report import Page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST_WORDS = 50  # relations with fewer words are only in tables/
CURVES = 6  # layers that are drawn by step: as many as there are colors
FEWEST_CHECKPOINTS = 3  # fewer checkpoints are drawn as other models are
TableRows = list[dict[str, Any]]


def add_relations(page: Page, tables: Mapping[str, Table]) -> None:
    """Add the best head for every frequent relation."""
    if "relations" not in tables:
        return
    page.heading("Relations")
    page.paragraph(
        "The best head for every relation, beside the best word at a fixed distance. Head and distance are chosen on half of the "
        "sentences and measured on the other half. Intervals are 95 % bootstrap intervals over sentences."
    )
    rows = [row for row in tables["relations"].rows() if row["held_out_words"] and row["words"] >= FEWEST_WORDS]
    rows.sort(key=lambda row: -row["held_out_gain"])
    better = sum(row["held_out_gain_low"] is not None and row["held_out_gain_low"] > 0 for row in rows)
    page.paragraph(
        f"For {better} of {plural(len(rows), 'relation')} with at least {FEWEST_WORDS} words, the whole interval of the gain is "
        "above 0: these heads find more than a distance."
    )
    header = ("Relation", "Words", "Head", "attends to", "Accuracy", "Baseline", "Word at", "Gain", "Interval")
    page.table(header, [_relation(row) for row in rows])


def _relation(row: dict[str, Any]) -> tuple[Any, ...]:
    target = row["held_out_direction"].rpartition(" ")[2]
    shares = (percent(row["held_out_accuracy"]), percent(row["held_out_baseline"]))
    offset = _signed(row["held_out_offset"], "d")
    return (row["relation"], row["words"], _head(row), target, *shares, offset, *_gain(row))


def add_coreference(page: Page, tables: Mapping[str, Table]) -> None:
    """Add the best head for every type of mention."""
    if "coreference_best" not in tables:
        return
    page.heading("Coreference")
    page.paragraph(
        "The best head for every type of mention, beside the best rule. Both are chosen on half of the texts and measured on "
        "the other half."
    )
    rows = [row for row in tables["coreference_best"].rows() if row["held_out_mentions"]]
    header = ("Mention", "Mentions", "Head", "Accuracy", "Baseline", "Rule", "Gain", "Interval")
    page.table(header, [_mention(row) for row in rows])


def _mention(row: dict[str, Any]) -> tuple[Any, ...]:
    shares = (percent(row["held_out_accuracy"]), percent(row["held_out_baseline"]))
    return (row["mention_type"], row["mentions"], _head(row), *shares, row["held_out_rule"], *_gain(row))


def _head(row: dict[str, Any]) -> str:
    return f"{row['held_out_layer']}.{row['held_out_head']}"


def _gain(row: dict[str, Any]) -> tuple[str, str]:
    """Return the gain in points, and its interval."""
    gain, low, high = (row[f"held_out_{name}"] for name in ("gain", "gain_low", "gain_high"))
    interval = "–" if low is None else f"{_signed(100 * low, '.1f')} to {_signed(100 * high, '.1f')}"
    return _signed(100 * gain, ".1f"), interval


def _signed(value: float, digits: str) -> str:
    return f"{value:+{digits}}".replace("-", "−")


def add_layers(page: Page, tables: Mapping[str, Table]) -> None:
    """Add anisotropy and similarity of the layers."""
    if "anisotropy" not in tables:
        return
    page.heading("Layers")
    page.paragraph(
        "Layer 0 is the embeddings. Anisotropy is the mean cosine of the hidden states of two random tokens (Ethayarajh 2019). "
        "CKA is 1 for layers whose hidden states are equal up to rotation and scale (Kornblith et al. 2019); here without the "
        "bias of a finite number of tokens."
    )
    [*own] = [row for row in tables["cka"].rows() if row["model_a"] == row["model_b"]]
    others = _by([row for row in tables["cka"].rows() if row["model_a"] != row["model_b"]], "model_b")
    steps = _steps(others)
    models = {name: rows for name, rows in _by(tables["anisotropy"].rows(), "model").items() if name not in steps}
    series = {name: _points(rows, "anisotropy") for name, rows in models.items()}
    if len(models) == 1:
        [rows] = models.values()
        series = {"two tokens": _points(rows, "anisotropy"), "same word": _points(rows, "self_similarity")}
    page.line_chart(series, "layer", "mean cosine")
    size = 1 + max(row["layer_a"] for row in own)
    grid = np.full((size, size), np.nan)
    for row in own:
        grid[row["layer_a"], row["layer_b"]] = np.nan if row["cka_debiased"] is None else row["cka_debiased"]
    page.picture(lambda axes: _heat_map(axes, grid), "CKA of two layers", "CKA of all pairs of layers", height=4.2)
    _add_comparison(page, own, {name: rows for name, rows in others.items() if name not in steps})
    _add_checkpoints(page, {steps[name]: others[name] for name in sorted(steps, key=lambda name: steps[name])})


def _add_comparison(page: Page, own: TableRows, others: dict[str, TableRows]) -> None:
    """Draw the similarity of equal layers of the model and of others. The model itself is at 1."""
    if others:
        same = {name: _same_layer(rows) for name, rows in {own[0]["model_a"]: own, **others}.items()}
        curves = {name: _points(rows, "cka_debiased", "layer_a") for name, rows in same.items()}
        page.line_chart(curves, "layer", "CKA with the same layer of another model")


def _add_checkpoints(page: Page, checkpoints: dict[int, TableRows]) -> None:
    """Draw the similarity of each layer of the model and of its checkpoints, by step."""
    layers: dict[int, TableRows] = {}
    for step, rows in checkpoints.items():
        for row in _same_layer(rows):
            layers.setdefault(row["layer_a"], []).append({"step": step, "cka": row["cka_debiased"]})
    if layers:
        drawn = sorted(set(np.linspace(0, max(layers), CURVES).round().astype(int).tolist()))
        names = {layer: f"layer {layer}" if layer else "embeddings" for layer in drawn}
        curves = {name: _points(layers[layer], "cka", "step") for layer, name in names.items()}
        page.line_chart(curves, "step of the checkpoint", "CKA with the same layer of a checkpoint")


def _steps(models: dict[str, TableRows]) -> dict[str, int]:
    """Return the steps of checkpoints of one run, if there are enough to draw them by step."""
    found = {name: re.fullmatch(r"(?:(.*)[/\\])?step-(\d+)", name) for name in models}
    steps = {name: int(match[2]) for name, match in found.items() if match}
    folders = {match[1] for match in found.values() if match}
    return steps if len(steps) >= FEWEST_CHECKPOINTS and len(folders) == 1 else {}


def _same_layer(rows: TableRows) -> TableRows:
    return [row for row in rows if row["layer_a"] == row["layer_b"]]


def _heat_map(axes: Axes, grid: np.ndarray) -> None:
    image = axes.imshow(grid, vmin=0, vmax=1, cmap="cividis", origin="lower")
    axes.set_xlabel("layer")
    axes.set_ylabel("layer")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def add_probes(page: Page, tables: Mapping[str, Table]) -> None:
    """Add what probes find in attention and in hidden states."""
    if "dependency_probes" not in tables:
        return
    page.heading("Probes")
    page.paragraph(
        "Small classifiers that read the frozen model. The same classifiers also read an untrained model of the same shape. UAS "
        "is the share of the words whose syntactic head is found, LAS that of the words whose relation is found, too."
    )
    rows = [
        (row["model"] or "–", row["probe"], *(_share(row, name) for name in ("uas", "las")))
        for row in sorted(tables["dependency_probes"].rows(), key=lambda row: -(row["uas"] or 0))
    ]
    page.table(("Model", "Probe", "UAS", "LAS"), rows)
    trees = [row for row in tables["structural_probe"].rows() if row["layer"] is not None]
    chain = _levels({row["model"]: row["uuas"] for row in tables["structural_probe"].rows() if row["layer"] is None})
    curves = {name: _points(own, "uuas") for name, own in _by(trees, "model").items()}
    page.line_chart(curves, "layer", "structural probe: share of the arcs that are found (UUAS)", chain)
    for task, own in _by(tables["layer_probes"].rows(), "task").items():
        models = _by(own, "model")
        curves = {name: _points(layers, "accuracy") for name, layers in models.items()}
        first = next(iter(models))
        curves[f"{first}, control task"] = _points(models[first], "control_accuracy")
        usual = _levels({"usual label of the word": own[0]["usual_label"]})
        page.line_chart(curves, "layer", f"{task}: accuracy", usual)


def _levels(values: dict[str, float | None]) -> dict[str, float]:
    """Return the baselines that the test data define."""
    return {name: value for name, value in values.items() if value is not None}


def _share(row: dict[str, Any], name: str) -> str:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if value is None:
        return "–"
    return percent(value) if low is None else f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _by(rows: TableRows, column: str) -> dict[str, TableRows]:
    """Group rows by the value of a column, in order."""
    groups: dict[str, TableRows] = {}
    for row in rows:
        groups.setdefault(str(row[column]), []).append(row)
    return groups


def _points(rows: TableRows, column: str, layer: str = "layer") -> tuple[list[float], list[float]]:
    kept = [row for row in rows if row[column] is not None]
    return [row[layer] for row in kept], [row[column] for row in kept]
