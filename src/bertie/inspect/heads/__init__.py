"""Analyses of heads and layers.

- from plain text: heads.py reads statistics.py and clusters.py in one pass. sentences.py keeps the attention of a few
  sentences.
- importance.py: heads that the loss needs. prune.py disables heads.
- syntax and antecedents: heads.py reads relations.py and coreference.py. best_heads.py chooses the best head.
- layers.py collects the states of models and compares them. measures.py: the measures.
"""
