"""Attention on packed sequences.

- attention.py: the implementations. loop.py and groups.py have those for CPUs, flash_attention.py chooses FlashAttention 3.
- window.py: the keys that a query attends to. relative_bias.py: biases by distance. probabilities.py shows the probabilities.
- relative_attention.py, relative_groups.py: embedded distances. disentangled.py: DeBERTa.
- segment_memory.py: segments that remember the text before them. lsh_attention.py: attention by hashing.
"""
