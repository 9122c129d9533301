"""BERT on packed batches: `Batch` → `Hidden` → logits and losses.

Read in this order:

1. config.py: the sizes of a BERT.
2. embeddings.py, layers.py, transformer.py: the encoder.
3. attention.py: the implementations of attention; attention_loop.py and attention_groups.py have those for CPUs.
4. heads.py, losses.py, pooling.py: from hidden states to logits, losses and vectors.
5. layer_selection.py, features.py: heads that use other layers than the last one.
6. bert.py: the encoder with its heads.

activation.py and dropout.py have faster versions of torch's functions for CPUs. flops.py counts the operations of a step.
"""
