"""Look inside a model: what its heads attend to, what its layers know. Every analysis returns tables.

`attention.py` shows the probabilities of each head, batch by batch. The analyses read them there and keep only sums, so memory
does not grow with the text.
"""
