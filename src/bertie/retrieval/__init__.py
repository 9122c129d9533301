"""Retrieval: judge how well a model finds documents for queries.

Read `system.py` first: a system gives every document a score for a query. `judge.py` ranks the documents and measures; the
other files are systems, the report of leaks, and the page.
"""
