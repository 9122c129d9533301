"""Encoders on packed batches: `Batch` → `Hidden` → logits and losses.

Read in this order:

1. encoder.py: the encoders and their configurations.
2. config.py, embeddings.py, layers.py, transformer.py: the Transformer, which BERT is with the default settings.
3. attention.py: the implementations of attention. attention_loop.py, attention_groups.py and attention_half.py have those
   for CPUs.
4. xlnet.py, relative_attention.py, relative_groups.py: XLNet.
5. heads.py, vocabulary_heads.py, losses.py, pooling.py: from hidden states to logits, losses and vectors.
   vocabulary_loss_half.py has the masked-LM loss for bf16 on CPUs.
6. layer_selection.py, features.py: heads that use other layers than the last one.
7. model.py: the encoder with its heads.

initialization.py sets the random initial weights. activation.py and dropout.py have faster versions of torch's functions for
CPUs. flops.py counts the operations of a step.
"""
