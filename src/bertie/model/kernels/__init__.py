"""Kernels for GPUs, in Triton.

short_attention.py is one operation for short sequences, with short_attention_kernels.py. gated.py has gated activations, with
gated_kernel.py. loss_kernel.py: the loss over the vocabulary.
"""
