"""Look inside a model: what its heads attend to, what its layers know. Every analysis returns tables.

inspect.py runs the analyses that the inputs allow. The files, by topic:

- attention.py shows the probabilities of each head, batch by batch. The analyses read them there and keep only sums, so
  memory does not grow with the text. words.py merges them to words.
- heads/: analyses of heads and layers. probes/: classifiers on the hidden states.
- results: tables.py, intervals.py; page.py draws them.
- inputs: texts.py, treebank.py, mentions.py, mention_windows.py. They count what cannot be read.
"""
