"""Encoders beside the Transformer, one file each, and the parts that only they use.

- lstm.py: ELMo, with characters.py (vectors from characters). gru.py: Skip-thoughts. static.py: word vectors.
- xlnet.py and transformer_xl.py, with relative_parts.py.
- reformer.py, reformer_config.py: the Reformer, with reversible.py and axial.py (positions).
- electra.py: ELECTRA's generator.
"""
