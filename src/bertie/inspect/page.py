"""inspect.html: a map of all heads, attention in sentences, and charts and tables of everything else.

The scripts in `page_assets` draw the interactive part from the numbers of `page_data`. The rest needs no script. The page of
`bertie serve` draws attention with the same scripts, 1_draw.js and 2_attention.js.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Sequence as Many
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from bertie.base.console import percent, plural
from bertie.base.report import Page
from bertie.inspect.heads.measures import measures
from bertie.inspect.heads.sentences import SENTENCE_TABLE, Sentence
from bertie.inspect.tables import InputFacts, InputFindings, TableRow, Tables

FIRST_RELATIONS = ("obj", "dobj", "nsubj", "det")  # the map starts with the first of these that the treebank has
STYLES = ("page.css", "drawing.css")
DrawnData = dict[str, Any]
SCRIPTS = ("1_draw.js", "2_attention.js", "3_heads.js", "4_main.js")


def inspection_page(about: InputFacts, parts: Many[InputFindings], sentences: Many[Sentence]) -> str:
    """Return inspect.html.

    Args:
        about: Facts about the model and the inputs, as in inspect.json.
        parts: What the analyses found.
        sentences: Sentences whose attention is drawn.
    """
    tables = {table.name: table for part in parts for table in part.tables}
    page = Page(f"Inside {about['model']}", _intro(about, parts))
    data = page_data(about, tables, sentences)
    page.interactive(_workbench(data), "".join(map(_asset, STYLES)), "".join(map(_asset, SCRIPTS)))
    for name, add in _SECTIONS.items():
        if name in tables:
            add(page, tables)
    page.heading("All numbers")
    page.paragraph("inspect.json explains their columns. The folder tables has each table as .csv and .parquet:")
    names = [*tables, SENTENCE_TABLE] if sentences else [*tables]
    page.links({f"{name}.csv": f"tables/{name}.csv" for name in names})
    return page.html()


def page_data(about: InputFacts, tables: Tables, sentences: Many[Sentence]) -> DrawnData:
    """Return what the scripts draw. Attention is rounded to 1/255, and goes into the page as base64."""
    of_heads = measures(tables)
    relations = [measure.relation for measure in of_heads]
    return {
        **{"layers": about["layers"], "heads": about["heads"]},
        "measures": [dataclasses.asdict(measure) for measure in of_heads],
        "first_relation": next((name for name in FIRST_RELATIONS if name in relations), ""),
        "distances": _distances(tables, about["layers"] * about["heads"]),
        "plan": tables["head_map"].plain() if "head_map" in tables else None,
        "sentences": [_sentence(sentence) for sentence in sentences],
    }


def _distances(tables: Tables, heads: int) -> DrawnData | None:
    if "distances" not in tables:
        return None
    columns = tables["distances"].plain()
    count = len(columns["distance"]) // heads
    attention = [None if value is None else round(value, 5) for value in columns["attention"]]
    return {
        "offsets": columns["distance"][:count],
        "uniform": columns["uniform"][:count],
        "attention": [attention[start : start + count] for start in range(0, len(attention), count)],
    }


def _sentence(sentence: Sentence) -> DrawnData:
    attention = np.rint(255 * sentence.attention).astype(np.uint8)
    encoded = base64.b64encode(attention.tobytes()).decode("ascii")
    return {
        **{"text": sentence.text, "tokens": sentence.shown, "pieces": sentence.tokens},
        **{"special": sentence.special, "arcs": sentence.arcs, "attention": encoded},
    }


def _intro(about: InputFacts, parts: Many[InputFindings]) -> str:
    counts = {"text": "texts", "treebank": "sentences", "coreference": "texts"}
    inputs = [
        f"{part.facts[counts[part.name]]:,} {counts[part.name]} of {part.facts['file']}"
        for part in parts
        if part.name in counts and counts[part.name] in part.facts
    ]
    read = f", on {', '.join(inputs)}" if inputs else ""
    size = f"{plural(about['layers'], 'layer')} with {plural(about['heads'], 'attention head')} each"
    return f"{size}{read}. bertie {about['bertie']}."


def _workbench(data: DrawnData) -> str:
    """Return the elements that the scripts fill, with the data."""
    shown = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    parts = [f'<script type="application/json" id="data">{shown}</script>']
    parts += ["<noscript><p>The map of the heads needs JavaScript. Everything below does without.</p></noscript>"]
    if data["measures"]:
        parts += [_MAP, _panel(data), *[_PLAN][: bool(data["plan"])], "</section>"]
    if data["sentences"]:
        parts += [_SENTENCES]
    return "\n".join(parts)


def _panel(data: DrawnData) -> str:
    similar = '<p id="similar"></p>' if data["plan"] else ""
    distances = _figure("distances", _DISTANCES) if data["distances"] else ""
    return f'<div class="panel" aria-live="polite"><h3 id="head-title"></h3>{similar}<div id="numbers"></div>{distances}</div>'


def _figure(name: str, caption: str) -> str:
    return f'<figure id="{name}"><figcaption>{escape(caption)}</figcaption><div class="drawing"></div></figure>'


_DISTANCES = "Mean attention by distance in tokens. Line: a uniform head."
_MAP = """<section class="workbench" aria-label="Heads">
<header><h2>Heads</h2>
<p>Every cell is an attention head. Choose one with the pointer or the arrow keys, and the meaning of the colors from the
list.</p>
</header>
<div><label>Color <select id="measure"></select></label>
<figure id="map"><figcaption id="meaning"></figcaption><div class="drawing"></div></figure></div>
"""
_SIMILAR = "Heads with similar attention are close, as far as their names leave room. Color: cluster."
_PLAN = f'<div><h3>Similar heads</h3>{_figure("plan", _SIMILAR)}<p id="clusters"></p></div>'
_SENTENCES = f"""<section class="workbench" aria-label="Attention in a sentence">
<header><h2>Attention in a sentence</h2>
<p>The stronger a line, the more attention the token on the left pays to the token on the right. Point at a token on the left,
or use the arrow keys, to see its lines alone.</p>
<label>Sentence <select id="sentence"></select></label>
<label><input type="checkbox" id="special" checked> attention to special tokens</label></header>
<div><h3>All heads</h3>
{_figure("all-heads", "Rows are layers, columns are heads. Attention below 10 % is not drawn.")}</div>
<div class="panel"><h3 id="lines-title"></h3><p id="arcs"></p>
{_figure("lines", "Attention below 2 % is not drawn.")}</div>
</section>"""


def _asset(name: str) -> str:
    return resources.files("bertie.inspect").joinpath("page_assets", name).read_text("utf-8")


GAIN = "Gain (points)"  # the interval is in points, too
FEWEST_WORDS = 50  # relations with fewer words are only in tables/
CURVES = 6  # layers that are drawn by step: as many as there are colors
FEWEST_CHECKPOINTS = 3  # fewer checkpoints are drawn as other models are
TableRows = list[TableRow]


def _add_relations(page: Page, tables: Tables) -> None:
    """Add the best head for every frequent relation."""
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
    header = ("Relation", "Words", "Head", "attends to", "Accuracy", "Baseline", "Word at", GAIN, "Interval")
    cells = []
    for row in rows:
        target, offset = row["held_out_direction"].rpartition(" ")[2], _signed(row["held_out_offset"], "d")
        cells.append((row["relation"], row["words"], _head(row), target, *_shares(row), offset, *_gain(row)))
    page.table(header, cells)


def _add_coreference(page: Page, tables: Tables) -> None:
    """Add the best head for every type of mention."""
    page.heading("Coreference")
    page.paragraph(
        "The best head for every type of mention, beside the best rule. Both are chosen on half of the texts and measured on "
        "the other half."
    )
    rows = [row for row in tables["coreference_best"].rows() if row["held_out_mentions"]]
    header = ("Mention", "Mentions", "Head", "Accuracy", "Baseline", "Rule", GAIN, "Interval")
    cells = [
        (row["mention_type"], row["mentions"], _head(row), *_shares(row), row["held_out_rule"], *_gain(row))
        for row in rows
    ]
    page.table(header, cells)


def _shares(row: TableRow) -> tuple[str, str]:
    return percent(row["held_out_accuracy"]), percent(row["held_out_baseline"])


def _head(row: TableRow) -> str:
    return f"{row['held_out_layer']}.{row['held_out_head']}"


def _gain(row: TableRow) -> tuple[str, str]:
    """Return the gain in points, and its interval."""
    gain, low, high = (row[f"held_out_{name}"] for name in ("gain", "gain_low", "gain_high"))
    interval = "–" if low is None else f"{_signed(100 * low, '.1f')} to {_signed(100 * high, '.1f')}"
    return _signed(100 * gain, ".1f"), interval


def _signed(value: float, digits: str) -> str:
    return f"{value:+{digits}}".replace("-", "−")


def _add_layers(page: Page, tables: Tables) -> None:
    """Add anisotropy and similarity of the layers."""
    page.heading("Layers")
    page.paragraph(
        "Layer 0 is the embeddings. Anisotropy is the mean cosine of the hidden states of two random tokens (Ethayarajh 2019). "
        "CKA is 1 for layers whose hidden states are equal up to rotation and scale (Kornblith et al. 2019); here without the "
        "bias of a finite number of tokens."
    )
    others = _by(tables["cka"].rows(), "model_b")
    name, layers = next(iter(others.items()))  # of the model itself
    del others[name]
    steps = _steps(others)
    models = {name: rows for name, rows in _by(tables["anisotropy"].rows(), "model").items() if name not in steps}
    series = {name: _points(rows, "anisotropy") for name, rows in models.items()}
    if len(models) == 1:
        [rows] = models.values()
        series = {"two tokens": _points(rows, "anisotropy"), "same word": _points(rows, "self_similarity")}
    page.line_chart(series, "layer", "mean cosine")
    size = 1 + layers[-1]["layer_a"]
    grid = np.array([row["cka_debiased"] for row in layers], float).reshape(size, size)
    page.heat_map("CKA of two layers", [str(layer) for layer in range(size)], grid.tolist())
    same = {other: [row for row in rows if row["layer_a"] == row["layer_b"]] for other, rows in others.items()}
    if others.keys() - steps:  # the model itself is at 1
        drawn = {name: layers[:: size + 1], **{other: same[other] for other in same if other not in steps}}
        curves = {other: _points(rows, "cka_debiased", "layer_a") for other, rows in drawn.items()}
        page.line_chart(curves, "layer", "CKA with the same layer of another model")
    _add_checkpoints(page, [{**row, "step": steps[other]} for other in steps for row in same[other]])


def _add_checkpoints(page: Page, rows: TableRows) -> None:
    """Draw the similarity of each layer of the model and of its checkpoints, by step."""
    layers = _by(sorted(rows, key=lambda row: row["step"]), "layer_a")
    if layers:
        drawn = sorted(set(np.linspace(0, max(layers), CURVES).round().astype(int).tolist()))
        names = {layer: f"layer {layer}" if layer else "embeddings" for layer in drawn}
        curves = {name: _points(layers[layer], "cka_debiased", "step") for layer, name in names.items()}
        page.line_chart(curves, "step of the checkpoint", "CKA with the same layer of a checkpoint")


def _steps(models: dict[str, TableRows]) -> dict[str, int]:
    """Return the steps of checkpoints of one run, if there are enough to draw them by step."""
    matches = {name: re.fullmatch(r"(?:(.*)[/\\])?step-(\d+)", name) for name in models}
    steps = {name: int(match[2]) for name, match in matches.items() if match}
    folders = {match[1] for match in matches.values() if match}
    return steps if len(steps) >= FEWEST_CHECKPOINTS and len(folders) == 1 else {}


def _add_probes(page: Page, tables: Tables) -> None:
    """Add what probes find in attention and in hidden states."""
    page.heading("Probes")
    page.paragraph(
        "Small classifiers that read the frozen model. The same classifiers also read an untrained model of the same shape. UAS "
        "is the share of the words whose syntactic head is found, LAS the share of those whose relation is found, too."
    )
    rows = [
        (row["model"] or "–", row["probe"], *(_share(row, name) for name in ("uas", "las")))
        for row in sorted(tables["dependency_probes"].rows(), key=lambda row: -(row["uas"] or 0))
    ]
    page.table(("Model", "Probe", "UAS", "LAS"), rows)
    trees = [row for row in tables["structural_probe"].rows() if row["layer"] is not None]
    chain = _levels({row["model"]: row["uuas"] for row in tables["structural_probe"].rows() if row["layer"] is None})
    curves = {name: _points(layers, "uuas") for name, layers in _by(trees, "model").items()}
    page.line_chart(curves, "layer", "structural probe: share of the arcs that are found (UUAS)", chain, shares=True)
    for task, rows_of_task in _by(tables["layer_probes"].rows(), "task").items():
        models = _by(rows_of_task, "model")
        curves = {name: _points(layers, "accuracy") for name, layers in models.items()}
        first = next(iter(models))
        curves[f"{first}, control task"] = _points(models[first], "control_accuracy")
        usual = _levels({"usual label of the word": rows_of_task[0]["usual_label"]})
        page.line_chart(curves, "layer", f"{task}: accuracy", usual, shares=True)


def _levels(values: dict[str, float | None]) -> dict[str, float]:
    """Return the baselines that the test data define."""
    return {name: value for name, value in values.items() if value is not None}


def _share(row: TableRow, name: str) -> str:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if value is None:
        return "–"
    return percent(value) if low is None else f"{percent(value)} ({100 * low:.1f} to {100 * high:.1f})"


def _by(rows: TableRows, column: str) -> dict[Any, TableRows]:
    """Group rows by the value of a column, in order."""
    groups: dict[Any, TableRows] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _points(rows: TableRows, column: str, layer: str = "layer") -> tuple[list[float], list[float]]:
    kept = [row for row in rows if row[column] is not None]
    return [row[layer] for row in kept], [row[column] for row in kept]


_SECTIONS = {
    "relations": _add_relations,
    "coreference_best": _add_coreference,
    "anisotropy": _add_layers,
    "dependency_probes": _add_probes,
}
