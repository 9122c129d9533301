"""Fine-tuning tasks: how examples are read, encoded, predicted, scored and evaluated.

Read `task.py` first: its `Task` protocol is the contract that every task fulfills. `classify.py` is the simplest task;
`regress.py`, `multi_label.py`, `choose.py`, `tag.py`, `span.py`, `relate.py`, `embed.py` and `rerank.py` follow the same order.
The rest supports them:

- `text_options.py` has the options of tasks on texts. `prediction_files.py` reads files of predictions.
- `encoding.py`, `word_alignment.py` and `markers.py` turn examples into sequences; `inference.py` runs the model on them.
- `scale.py` has the scale of the numbers that a head learns.
- `known_positives.py` says which texts are no negatives of a query.
- `classes.py` has what tasks with one class per example share.
- `class_weights.py` has the weights of classes in the loss.
- `tag_schemes.py` finds how tags mark entities; `tag_tokens.py` has the tokens of words, and `aggregation.py` turns predictions
  for them into tags and entities.
- `predictions.py` holds the prediction types. `scoring.py` reads predictions from files and scores them without a model.
  `example_sums.py` has the scores as formulas of sums over examples; `metrics.py`, `label_sets.py`, `entities.py`,
  `relation_metrics.py` and `squad_metrics.py` count for it, or score by themselves. `relevance.py` says how relevant texts are
  to a query.
- `foreign_head.py` describes a head that another library has trained.
- `inspect_data.py` summarizes what a task reads from a file.
- `evaluation/` makes scores.json, predictions.jsonl and report.html.
- `task_json.py` reads and writes the task.json of a fine-tuned model.

To add a task, write one file with a frozen dataclass, add its name to the union below, and add
`configs/finetune/NAME.toml`.
"""

from __future__ import annotations

from bertie.tasks.choose import Choose
from bertie.tasks.classify import Classify
from bertie.tasks.embed import Embed
from bertie.tasks.multi_label import MultiLabel
from bertie.tasks.regress import Regress
from bertie.tasks.relate import Relate
from bertie.tasks.rerank import Rerank
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from bertie.tasks.task import Task

AnyTask = Classify | Regress | MultiLabel | Span | Choose | Tag | Relate | Embed | Rerank | Task
"""The tasks of bertie, and every other class that fulfills the protocol (`base/own_code.py`)."""

__all__ = ["AnyTask", "Choose", "Classify", "Embed", "MultiLabel", "Regress", "Relate", "Rerank", "Span", "Tag", "Task"]
