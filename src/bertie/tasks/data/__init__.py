"""Examples from files and Python values. A row that cannot be read is returned as an error in its place.

- rows.py: rows as dicts by column, and checks of their values; columns.py: which columns are read as what
- in_memory.py: examples in memory, such as frames and datasets; cells.py: lists and dicts that are written as text
- unknown_labels.py: labels that mean that the label is unknown; spellings.py: labels that are written in several ways;
  left_out.py: rows that their annotator left out
- texts.py with text_layouts.py, label_sets.py, choices.py with endings.py and numbering.py, conll.py, squad.py, relations.py with
  marked_texts.py, open_nre.py and semeval.py: the examples of the tasks
- tagged.py: sentences with tags; tag_form.py: how tags mark entities; words.py: the words of a text
- conll_columns.py, comments.py: columns and comment lines of CoNLL files; tagged_rows.py: rows of words and tags
- annotations.py, label_studio.py, brat.py: spans that annotation tools write
- unlabeled.py: texts without labels
- prediction_files.py: predictions
"""
