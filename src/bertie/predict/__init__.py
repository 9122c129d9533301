"""Use a trained model: `bertie.load` returns a `Predictor`.

- load.py, predictor.py: load a model with its task, and everything that it does. engines/ computes its encoder faster.
  shared.py: several ranks share its work.
- token_model.py: probabilities of tokens, for fill_mask.py, word_search.py, likelihood.py and generation.py. next_tokens.py:
  those of the next token, for models that read every token once.
  sentence_pairs.py has next sentence prediction.
- minimal_pairs.py, minimal_pairs_page.py: acceptable sentences against unacceptable ones.
- vectors.py: vectors of texts and words. embed.py writes those of a file, in the formats of vector_files.py. search.py
  finds the nearest of a file, and compares pairs.
- export.py: convert a model. conversion.py reads the source, export_engines.py writes files for an engine,
  transformers_js.py those for JavaScript, export_checks.py judges the result.
- comparison.py: probes, and what running them finds, on the inputs of compared_texts.py. compare_bertie.py has the probes of
  two models of bertie, compare_transformers.py and compare_sentence_transformers.py of another library.
- verify.py: say what a folder is (describe.py), and compare it with another library.
"""
