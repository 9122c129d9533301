"""The page of an evaluated search: scores with intervals, leaks, and the queries on which the systems differ most."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertie.base.report import Page, TextSpan
from bertie.examples.queries.collection import Collection
from bertie.retrieval.judge import Interval, Judged
from bertie.retrieval.leaks import Leaks
from bertie.tasks.evaluation.passages import shortened

SHOWN = 5  # queries at each end
FOUND = 3  # documents of each query and system
EVEN = 1e-9


def search_page(
    result: dict[str, Any], collection: Collection, systems: list[Judged], leaks: list[Leaks], told: list[str]
) -> str:
    """Return report.html.

    Args:
        result: As `evaluate_search` returns it.
        collection: The collection that the systems searched.
        systems: The model, and the others.
        leaks: What the training data has shown.
        told: Warnings about the scores.
    """
    names = list(result["scores"])
    about = f"{result['queries']:,} queries, {result['documents']:,} documents, in {result['seconds']:,.1f} s."
    page = Page(result["of"], f"{about} In brackets: the 95 % interval over the queries.")
    page.table(("system", *names), [_row(name, table, names) for name, table in result["systems"].items()])
    page.table(("system", "settings"), [(name, table["settings"]) for name, table in result["systems"].items()])
    for sentence in told:
        page.paragraph(sentence)
    page.heading("Differences")
    page.paragraph(
        "The model minus the other, on the same queries. An interval without 0 means a significant difference."
    )
    page.table(("other", *names), [_row(name, table, names) for name, table in result["differences"].items()])
    for leak in leaks:
        _draw_leaks(page, leak, result["leaks"][leak.trained_on], names[0], result["headline"])
    model, other = systems[0], systems[1]
    differences = model.values[:, 0] - other.values[:, 0]
    order = np.argsort(-differences, kind="stable")
    page.heading("Queries")
    counts = [(differences > EVEN).sum(), (abs(differences) <= EVEN).sum(), (differences < -EVEN).sum()]
    page.paragraph(
        f"The model is better than {other.name} on {counts[0]:,}, equal on {counts[1]:,}, worse on {counts[2]:,}."
    )
    series = {f"model − {other.name}": (list(range(1, len(order) + 1)), differences[order].tolist())}
    page.line_chart(series, "queries, by the difference", f"difference in {names[0]}", lines={"equal": 0.0})
    page.legend({"right": "relevant", "wrong": "not relevant, or not judged"})
    for heading, chosen in (("Best", order[:SHOWN]), ("Worst", order[::-1][:SHOWN])):
        page.heading(f"{heading} queries, compared with {other.name}")
        for i in chosen:
            _draw_query(page, collection, list(collection.queries)[i], (model, other), i, names[0])
    return page.html()


def _row(name: str, table: dict[str, Any], names: list[str]) -> list[str]:
    return [name, *(f"{Interval(*table[key])}".replace(", ", ",\N{NO-BREAK SPACE}") for key in names)]


def _draw_leaks(page: Page, leak: Leaks, rows: dict[str, Any], measure: str, headline: str) -> None:
    page.heading("What the training data has shown")
    page.paragraph(f"The row that counts for this model: {headline}.")
    page.paragraph(
        f"Training data: {leak.trained_on}. {leak.near.sum():,} of {len(leak.near):,} queries have a near-equal one in it, "
        f"{leak.equal.sum():,} of them an equal one; {100 * leak.shared_positives:.1f} % of the positives are positives there."
    )
    systems = [name for name in next(iter(list(rows.values())[1:])) if name not in ("queries", "too_few")]
    lines = [
        [name, f"{row['queries']:,}" + " (too few)" * row["too_few"]]
        + [_row(one, row[one], [measure])[1] if one in row else "–" for one in systems]
        for name, row in list(rows.items())[1:]
    ]
    page.table((measure, "queries", *systems), lines)


def _draw_query(
    page: Page, collection: Collection, query: str, systems: tuple[Judged, Judged], i: int, measure: str
) -> None:
    """Add a query with what each system found, and the first relevant document that the model missed."""
    facts = {"query": query} | {f"{measure}, {one.name}": f"{one.values[i, 0]:.4f}" for one in systems}
    texts = [shortened([TextSpan(collection.queries[query])])]
    for one in systems:
        for rank, (document, score) in enumerate(one.found[query][:FOUND], 1):
            texts.append(_document(collection, query, document, f"{one.name} {rank}", f"score {score:.4g}"))
    ranks = {document: rank for rank, (document, _) in enumerate(systems[0].found[query], 1)}
    missed = [document for document in collection.positives[query] if ranks.get(document, FOUND + 1) > FOUND]
    if missed and missed[0] in collection.documents:
        place = f"model {ranks[missed[0]]:,}" if missed[0] in ranks else "not found by the model"
        texts.append(_document(collection, query, missed[0], place))
    page.passage(facts, texts)


def _document(collection: Collection, query: str, document: str, place: str, score: str = "") -> list[TextSpan]:
    """Return a document as a paragraph that begins with its place in a ranking, which is marked if the document is relevant."""
    grade, text = collection.grades[query].get(document), collection.documents[document]
    judged = "not judged" if grade is None else f"grade {grade}"
    note = ", ".join(filter(None, (document, score, judged)))
    return [TextSpan(place, "right" if (grade or 0) > 0 else "wrong", note), *shortened([TextSpan(f" {text}")])]
