"""Examples from files and Python values. A row that cannot be read is returned as an error in its place.

- reader.py: the reader of all tasks, and the contract of a kind of examples. Begin there.
- rows.py: rows as dicts by column, and checks of their values; in_memory.py: frames, datasets and other values in Python;
  cells.py: lists and dicts that are written as text; left_out.py: rows that their annotator left out, or that are skipped
- odd_texts.py: empty texts, and equal ones with different labels
- labels.py: labels that mean that the label is unknown, and labels that are written in several ways
- texts.py, label_sets.py, choices.py, squad.py, relations.py, sentences.py: the kinds of examples
- marked_texts.py: two spans of a text; open_nre.py, semeval.py: forms of relations
- tagged.py: sentences with tags; tag_form.py: how tags mark entities; words.py: the words of a text; annotations.py: spans as
  tags; conll.py, label_studio.py, brat.py: files of sentences
- queries/: queries with right and wrong texts; collections for a search
- unlabeled.py: texts without labels
"""
