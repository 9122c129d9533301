"""Encoders on packed batches: `Batch` → `Hidden` → logits and losses.

Read in this order:

1. encoder.py: the encoders and their configurations.
2. config.py, embeddings.py, positions.py, normalization.py, layers.py, transformer.py: the Transformer, which BERT is with the
   default settings.
3. attention/: the implementations of attention, and its relatives. encoders/: encoders beside the Transformer.
4. heads/: from hidden states to logits and vectors. losses/: the losses. head_facts.py: what other rooms ask a head.
5. model.py: the encoder with its heads.

initialization.py sets the random initial weights, initial_attention.py lets heads start at neighbors and equal words.
pooling.py, bilstm.py and convolution.py are layers that several use. activation.py and dropout.py have faster versions of
torch's functions for CPUs, kernels/ those for GPUs. flops.py counts the operations of a step. matrices.py: the matrices of
a layer, which Muon trains. distinct_words.py: the words of a batch, which a first layer computes once.
"""
