"""Queries and the texts that are right or wrong for them: `collection.py` reads collections for a search, `tuples.py` pairs and
tuples to train on."""
