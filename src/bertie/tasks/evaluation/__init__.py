"""Evaluations: what predictions.jsonl, scores.json and report.html hold beside the scores.

Read `findings.py` first: an `Evaluation` is the loss of each example and a tuple of findings (tables, charts), which
write themselves as JSON and draw themselves on the page. `folder.py` writes the three files. Each task has a file that
makes its `Evaluation`: `choose.py`, `classify.py`, `embed.py`, `multi_label.py`, `regress.py`, `span.py`, `tag.py`. `classes.py`,
`calibration.py` and `passages.py` hold what they share.
"""
