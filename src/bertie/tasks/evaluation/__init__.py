"""Evaluations: what predictions.jsonl, scores.json and report.html hold beside the scores.

Read `findings.py` first: an `Evaluation` is the loss of each example and a tuple of findings (tables, charts), which
write themselves as JSON and draw themselves on the page. `folder.py` writes the three files. Each task makes its
`Evaluation`; question answering does so in `span.py`. `calibration.py`, `passages.py` and `ranks.py` hold what
several share.
"""
