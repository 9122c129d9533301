"""`bertie lab`: compare variants of an experiment.

A lab file has a base experiment (text, pre-training, tasks), axes of variants, seeds and a budget.

    config.py ──▶ plan.py: cells, and the steps that they share ──▶ schedule.py runs worker.py per step ──▶ results.py ──▶ page.py

- lab.py: runs a lab file, and writes its tables and its page
- config.py: the keys of a lab file
- plan.py: which steps the cells need; a step that several cells share exists once
- checks.py: refuses a cell that cannot run, before the first one starts
- dry_run.py: how long the lab would take
- steps.py: the kinds of steps
- schedule.py, launchers.py: run steps in the order of their needs, on this machine, under Slurm or on Ray
- results.py, bootstrap.py: scores by cell, means, differences and their intervals
- parts.py: parts of the dev examples with scores of their own, and given scores
- page.py, charts.py: report.html and results.md
"""
