"""Look inside a model: what its heads attend to, what its layers know. Every analysis returns tables.

inspect.py runs the analyses that the inputs allow, prune.py disables heads. The files, by topic:

- attention: attention.py shows the probabilities of each head, batch by batch. The analyses read them there and keep only
  sums, so memory does not grow with the text. words.py merges them to words, sentences.py keeps those of a few sentences.
- results: findings.py (of one input), tables.py, intervals.py, measures.py; page.py and page_sections.py draw them.
- inputs: texts.py, treebank.py, mentions.py; readable.py counts what cannot be read.
- heads, from plain text: heads.py reads statistics.py and clusters.py in one pass.
- heads that the loss needs: importance.py, on the batches of head_losses.py.
- heads that find syntax and antecedents: syntax.py reads relations.py and coreference.py. best_heads.py chooses the best
  head. mention_windows.py, pronouns.py and antecedents.py are for coreference.
- layers: layer_geometry.py compares models, from the states that layers.py collects.
- probes: probes.py trains dependency_probes.py, layer_probes.py and structural_probe.py with probe_training.py, on the words
  of probe_data.py. trees.py has distances in trees, head_baselines.py the baselines.
"""
