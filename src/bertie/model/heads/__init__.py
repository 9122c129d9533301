"""From hidden states to logits and vectors.

- heads.py, vocabulary_heads.py, span_boundary.py, skip_decoders.py: the heads. distillation.py: a student beside its teacher.
- layer_selection.py, features.py, text_pooling.py: heads that use other layers than the last one, or all tokens.
  pooled_texts.py, max_texts.py: one vector for a text or a pair.
- pooling_head.py: vectors of texts. vector_modules.py: the modules that sentence-transformers computes after pooling.
"""
