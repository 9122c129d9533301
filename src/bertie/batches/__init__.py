"""Token shards → packed batches for pre-training.

Read in this order:

1. layouts.py: which spans of the corpus form a sequence. The layouts are in sentence_pairs.py, contiguous.py,
   translations.py and sentences.py. spans.py has what they share.
2. packing.py: which sequences share a row of packed tokens.
3. collate.py: sequences → `Batch`.
4. loader.py: the steps of an epoch, each a few rows, as a pure function of (seed, epoch, step). sections.py divides an epoch
   into groups of shards that are shuffled together. mixture.py: rows of several corpora, by weights.
5. fixed_shape.py: micro-batches of one shape, for a GPU that repeats recorded steps.
6. prefetch.py: worker processes that prepare steps in advance.
"""
