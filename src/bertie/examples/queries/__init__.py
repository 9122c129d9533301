"""Queries and the texts that are right or wrong for them: collections for a search, and tuples to train on."""
