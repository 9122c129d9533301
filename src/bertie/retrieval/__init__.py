"""Retrieval: judge how well a model finds documents for queries.

Read `system.py` first: a system gives every document a score for a query. `baselines.py` has those without a neural network.
`judge.py` ranks the documents of a collection and measures the rankings with `measures.py`. `evaluate.py` puts a model beside the
baselines, with the report of `leaks.py`, and writes the files and the page (`page.py`). `mine.py` finds hard negatives.
`index.py` searches a folder: its `passages.py`, their vectors (`vector_store.py`) and their words, put together by `fused.py`.
`own_text.py` makes training pairs from nothing but text.
`distill.py` makes static vectors of a model.
"""
