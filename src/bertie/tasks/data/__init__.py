"""Examples from files and Python values. A row that cannot be read is returned as an error in its place.

- rows.py: rows as dicts by column, and checks of their values
- in_memory.py: examples in memory, such as frames and datasets; cells.py: lists and dicts that are written as text
- unknown_labels.py: labels that mean that the label is unknown
- texts.py, label_sets.py, choices.py, conll.py, squad.py: the examples of the tasks
- unlabeled.py: texts without labels
- prediction_files.py: predictions
"""
