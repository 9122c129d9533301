"""inspect.html: a map of all heads, attention in sentences, and charts and tables of everything else.

The scripts in `page_assets` draw the interactive part from the numbers of `page_data`. `page_sections` makes the rest, which
needs no script. The page of `bertie serve` draws attention with the same scripts, 1_draw.js and 2_attention.js.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from collections.abc import Sequence as Many
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from bertie.console import plural
from bertie.inspect.findings import InputFindings
from bertie.inspect.measures import measures
from bertie.inspect.page_sections import add_coreference, add_layers, add_probes, add_relations
from bertie.inspect.sentences import SENTENCE_TABLE, Sentence
from bertie.inspect.tables import Table
from bertie.report import Page

FIRST_RELATIONS = ("obj", "dobj", "nsubj", "det")  # the map starts with the first of these that the treebank has
STYLES = ("page.css", "drawing.css")
SCRIPTS = ("1_draw.js", "2_attention.js", "3_heads.js", "4_main.js")


def inspection_page(about: dict[str, Any], parts: Many[InputFindings], sentences: Many[Sentence]) -> str:
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
    add_relations(page, tables)
    add_coreference(page, tables)
    add_layers(page, tables)
    add_probes(page, tables)
    page.heading("All numbers")
    page.paragraph("inspect.json explains their columns. The folder tables has each table as .csv and .parquet:")
    names = [*tables, SENTENCE_TABLE] if sentences else [*tables]
    page.links({f"{name}.csv": f"tables/{name}.csv" for name in names})
    return page.html()


def page_data(about: dict[str, Any], tables: Mapping[str, Table], sentences: Many[Sentence]) -> dict[str, Any]:
    """Return what the scripts draw. Attention is rounded to 1/255, and goes into the page as base64."""
    found = measures(tables)
    relations = [measure.relation for measure in found]
    return {
        "layers": about["layers"],
        "heads": about["heads"],
        "measures": [dataclasses.asdict(measure) for measure in found],
        "first_relation": next((name for name in FIRST_RELATIONS if name in relations), ""),
        "distances": _distances(tables, about["layers"] * about["heads"]),
        "plan": tables["head_map"].plain() if "head_map" in tables else None,
        "sentences": [_sentence(sentence) for sentence in sentences],
    }


def _distances(tables: Mapping[str, Table], heads: int) -> dict[str, Any] | None:
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


def _sentence(sentence: Sentence) -> dict[str, Any]:
    attention = np.rint(255 * sentence.attention).astype(np.uint8)
    encoded = base64.b64encode(attention.tobytes()).decode("ascii")
    arcs = [[arc.relation, arc.word, arc.head] for arc in sentence.arcs]
    return {"tokens": sentence.tokens, "special": sentence.special, "arcs": arcs, "attention": encoded}


def _intro(about: dict[str, Any], parts: Many[InputFindings]) -> str:
    counts = {"text": "texts", "treebank": "sentences", "coreference": "texts"}
    inputs = [
        f"{part.facts[counts[part.name]]:,} {counts[part.name]} of {part.facts['file']}"
        for part in parts
        if part.name in counts and counts[part.name] in part.facts
    ]
    read = f", on {', '.join(inputs)}" if inputs else ""
    size = f"{plural(about['layers'], 'layer')} with {plural(about['heads'], 'attention head')} each"
    return f"{size}{read}. bertie {about['bertie']}."


def _workbench(data: dict[str, Any]) -> str:
    """Return the elements that the scripts fill, with the data."""
    shown = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    parts = [f'<script type="application/json" id="data">{shown}</script>']
    parts += ["<noscript><p>The map of the heads needs JavaScript. Everything below does without.</p></noscript>"]
    if data["measures"]:
        parts += [_MAP, _panel(data), *[_PLAN][: bool(data["plan"])], "</section>"]
    if data["sentences"]:
        parts += [_SENTENCES]
    return "\n".join(parts)


def _panel(data: dict[str, Any]) -> str:
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
_SIMILAR = "Heads with similar attention are close. Number: layer. Color: cluster."
_PLAN = f"<div><h3>Similar heads</h3>{_figure('plan', _SIMILAR)}</div>"
_SENTENCES = f"""<section class="workbench" aria-label="Attention in a sentence">
<header><h2>Attention in a sentence</h2>
<p>The stronger a line, the more attention the token on the left pays to the token on the right. Point at a token on the left,
or use the arrow keys, to see its lines alone.</p>
<label>Sentence <select id="sentence"></select></label>
<label><input type="checkbox" id="special" checked> attention to special tokens</label></header>
<div><h3>All heads</h3>
{_figure("all-heads", "Rows are layers, columns are heads. Attention below 0.1 is not drawn.")}</div>
<div class="panel"><h3 id="lines-title"></h3><p id="arcs"></p>
{_figure("lines", "Attention below 0.02 is not drawn.")}</div>
</section>"""


def _asset(name: str) -> str:
    return resources.files("bertie.inspect").joinpath("page_assets", name).read_text("utf-8")
