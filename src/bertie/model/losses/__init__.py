"""Losses as sums over predictions.

losses.py has the plain ones. chunked_loss.py, loss_slope.py and vocabulary_loss_half.py compute those over the vocabulary in
little memory or time, sampled_loss.py over a part of it. soft_targets.py: a teacher's probabilities.
compared.py: vectors of queries and texts. ranking.py: scores of the texts of a query.
"""
