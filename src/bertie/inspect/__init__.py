"""Look inside a model: what its heads attend to, what its layers know. Every analysis returns tables.

inspect.py runs the analyses that the inputs allow, prune.py disables heads. The files, by topic:

- attention: attention.py shows the probabilities of each head, batch by batch. The analyses read them there and keep only
  sums, so memory does not grow with the text. words.py merges them to words, sentences.py keeps all of them for a
  few sentences.
- results: tables.py, intervals.py, measures.py; page.py draws them.
- inputs: texts.py, treebank.py, mentions.py. They count what cannot be read.
- heads, from plain text: heads.py reads statistics.py and clusters.py in one pass.
- heads that the loss needs: importance.py.
- heads that find syntax and antecedents: heads.py reads relations.py and coreference.py. best_heads.py chooses the best
  head. mention_windows.py is for coreference.
- layers: layers.py collects the states of models and compares them.
- probes: probes.py trains dependency_probes.py, layer_probes.py and structural_probe.py, on the words of
  probe_data.py.
"""
