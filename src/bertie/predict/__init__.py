"""Use a trained model: `bertie.load` returns a `Predictor`.

- load.py, predictor.py: load a model with its task, and everything that it does. describe.py describes a folder, engines/
  computes the encoder faster. shared.py: several ranks share its work.
- token_model.py: probabilities of tokens, for fill_mask.py, word_search.py, likelihood.py and generation.py. next_tokens.py:
  probabilities of the next token, for models that read every token once.
  sentence_pairs.py has next sentence prediction.
- minimal_pairs.py, minimal_pairs_page.py: acceptable sentences against unacceptable ones.
- vectors.py: vectors of texts and words. embed.py writes the vectors of a file, in the formats of
  vector_files.py. pair_similarities.py compares pairs.
- convert/: other formats, and comparisons with other libraries.
"""
