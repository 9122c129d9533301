"""The task rerank: trained from lists and from scored pairs, loaded as it was, and as sentence-transformers reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.examples.queries.collection import Collection
from bertie.retrieval.evaluate import SearchOptions, evaluate_search
from bertie.tasks.rerank import Rerank
from bertie.tasks.scoring import training_examples

CONFIG = replace(fine_tuning(20), task=Rerank())
WORDS = ["gosomo", "gosomos", "vivegash", "nash", "besh"]
LISTS: list[dict[str, Any]] = [
    {
        "query": WORDS[i % 5],
        "positive": f"and The {WORDS[i % 4]}",
        "negative": [f"in The {WORDS[i % 3]}", f"The {WORDS[i % 2]}"],
    }
    for i in range(40)
]
PAIR = {"query": "a", "document": "b"}


@pytest.mark.parametrize("loss", ["bce", "softmax", "lambda"])
def test_it_learns_to_rank(pretrained: Path, tmp_path: Path, loss: Any) -> None:
    """A text is relevant that begins with "and"."""
    training = replace(CONFIG.training, learning_rate=3e-3)
    config = replace(CONFIG, task=Rerank(loss=loss), training=training)
    found = bertie.finetune(config, LISTS[:30], pretrained, tmp_path / "run", dev=LISTS[30:], threads=1)
    assert found.scores["mrr"] > 0.8
    assert set(found.scores) == {"mrr", "accuracy"}
    loaded = bertie.load(tmp_path / "run")
    assert loaded.task == replace(found.task)
    scores = loaded.rerank("in", ["and The nash", "in The nash"])
    assert scores[0] > scores[1]
    np.testing.assert_allclose(
        scores, [each.score for each in found.predict([("in", "and The nash"), ("in", "in The nash")])]
    )
    library = pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    theirs = library.CrossEncoder(str(tmp_path / "run"))
    logits = theirs.predict([("in", "and The nash"), ("in", "in The nash")])
    np.testing.assert_allclose(logits, scores, atol=1e-4)


def test_scored_pairs(pretrained: Path) -> None:
    rows = [
        {"query": WORDS[i % 5], "document": f"{'and' if i % 2 else 'in'} The {i}", "label": i % 2} for i in range(70)
    ]
    found = bertie.finetune(
        replace(CONFIG, training=replace(CONFIG.training, steps=2)), rows[:60], pretrained, dev=rows[60:]
    )
    assert isinstance(found.task, Rerank)
    assert (found.task.scored, found.task.loss) == (True, "bce")
    assert set(found.scores) == {"spearman", "pearson"}
    taught = [{**row, "scores": [3.0, -1.0, 2.0]} for row in LISTS]
    task, examples = training_examples(Rerank(), taught)
    assert task.fit(examples).loss == "margin_mse"


@pytest.mark.parametrize(
    ("task", "rows", "problem"),
    [
        (Rerank(), [PAIR], "no negative and no score: bertie mine finds negatives"),
        (Rerank(), [LISTS[0], {**LISTS[1], "negative": []}], "no negative and no score"),
        (
            Rerank(loss="lambda"),
            [{**PAIR, "label": i} for i in (0, 1)],
            "compares a text with negatives",
        ),
        (
            Rerank(loss="bce"),
            [{**PAIR, "label": i} for i in (0, 5)],
            "needs scores from 0 to 1: these go to 5",
        ),
        (Rerank(), [{**PAIR, "label": 1}] * 2, "every text has the score 1"),
    ],
)
def test_examples_that_do_not_fit_are_named(task: Rerank, rows: list[dict[str, Any]], problem: str) -> None:
    fitted, examples = training_examples(task, rows)
    with pytest.raises((UserError, UsageError), match=problem):
        fitted.fit(examples)


def test_groups_of_shuffled_examples_and_known_positives(small_tokenizer: Any) -> None:
    """Groups ascend in the order of a batch, and a negative that is right in another row is not trained on."""
    rows = [{"query": "a", "positive": "p", "negative": ["n", "q"]}, {"query": "a", "positive": "q", "negative": "n"}]
    task, examples = training_examples(Rerank(), rows)
    task = task.fit(examples)
    sequences = task.training_sequences(task.encode(examples, small_tokenizer, 32))
    assert [(each.example, each.part, each.target) for each in sequences] == [
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 1),
        (1, 1, 0),
    ]
    shuffled = [*sequences[2:], *sequences[:2]]
    assert task.targets(None, shuffled, np.arange(4)).label.tolist() == [0, 0, 1, 1]


def test_it_is_scored_as_the_evaluated_examples_are(pretrained: Path) -> None:
    found = bertie.finetune(
        replace(CONFIG, training=replace(CONFIG.training, steps=1)), LISTS[:9], pretrained, dev=LISTS[30:]
    )
    pairs = [{**PAIR, "document": f"b {i}", "label": i % 2} for i in range(4)]
    examples = list(found.task.reader.values(pairs, labeled=True))
    assert set(found.task.score(list(found.predict_stream(examples)), examples)) == {"spearman", "pearson"}


def test_a_reranker_that_is_worse_than_its_first_stage_is_told(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first stage has all 30 positives in front, and the reranker reverses it."""
    training = replace(CONFIG.training, steps=1)
    bertie.finetune(
        replace(CONFIG, training=training), LISTS[:9], pretrained, tmp_path / "run", dev=LISTS[30:], threads=1
    )
    assert "the first example as the model reads it: [CLS] " in capsys.readouterr().err
    model = bertie.load(tmp_path / "run")
    documents = {f"{part}{i}": f"{word} The {i}" for i in range(30) for part, word in (("p", "and"), ("n", "in"))}
    queries, grades = {f"q{i}": f"{i}" for i in range(30)}, {f"q{i}": {f"p{i}": 1} for i in range(30)}
    ranked = (f"q{i} Q0 {part}{i} 1 {score} x" for i in range(30) for part, score in (("p", 2), ("n", 1)))
    (tmp_path / "first.trec").write_text("\n".join(ranked))
    reverse: Any = replace(model)
    reverse.__dict__["rerank"] = lambda _, texts, __: np.arange(len(texts), dtype=float)
    options = SearchOptions(first_stage=tmp_path / "first.trec", trained_on=())
    evaluate_search(reverse, Collection(documents, queries, grades), options=options)
    assert "the reranked documents are significantly worse than those of" in capsys.readouterr().err
