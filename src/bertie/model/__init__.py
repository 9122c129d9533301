"""Encoders on packed batches: `Batch` → `Hidden` → logits and losses.

Read in this order:

1. encoder.py: the encoders and their configurations.
2. config.py, embeddings.py, positions.py, normalization.py, layers.py, transformer.py: the Transformer, which BERT is with the
   default settings.
3. attention.py: the implementations of attention. attention_loop.py and attention_groups.py have those for CPUs.
   short_attention.py has one operation for short sequences on a GPU, with kernels in short_attention_kernels.py.
   flash_attention.py chooses FlashAttention 3 for longer ones. attention_window.py: which keys a query attends to;
   relative_bias.py: biases by distance; attention_probabilities.py shows the probabilities.
4. relative_attention.py, relative_groups.py: attention with embedded distances. segment_memory.py: segments that remember the
   text before them. relative_parts.py, xlnet.py, transformer_xl.py: XLNet and Transformer-XL. disentangled.py and
   convolution.py: DeBERTa. reformer.py, reformer_config.py: the Reformer, with lsh_attention.py (attention by hashing),
   reversible.py and axial.py (positions). lstm.py: ELMo. gru.py and skip_decoders.py: Skip-thoughts. characters.py: vectors
   from characters. static.py: word vectors. electra.py: ELECTRA's generator.
5. heads.py, vocabulary_heads.py, span_boundary.py, losses.py, pooling.py: from hidden states to logits, losses and vectors.
   vector_modules.py: what sentence-transformers computes after pooling. head_facts.py: what other rooms ask a head.
   distillation.py, soft_targets.py: a student beside its teacher.
   chunked_loss.py, loss_slope.py and vocabulary_loss_half.py have losses over the vocabulary in little memory or time.
6. layer_selection.py, features.py, bilstm.py, text_pooling.py: heads that use other layers than the last one, or all tokens.
   pooled_texts.py and max_texts.py: what stands for a text or a pair.
7. model.py: the encoder with its heads.

initialization.py sets the random initial weights, initial_attention.py those with which heads start at neighbors and equal
words. activation.py and dropout.py have faster versions of torch's functions for CPUs. gated.py has gated activations for GPUs;
gated_kernel.py and loss_kernel.py are kernels in Triton. flops.py counts the operations of a step. matrices.py: the matrices of
a layer, which Muon trains.
"""
