"""`bertie convert` and `bertie verify`.

- export.py: convert a model. conversion.py reads the source, export_engines.py writes files for an engine, transformers_js.py
  those for JavaScript, export_checks.py judges the result.
- comparison.py: probes, and what running them finds, on the inputs of compared_texts.py. compare_bertie.py has the probes of
  two models of bertie, compare_transformers.py and compare_sentence_transformers.py of another library.
- verify.py: say what a folder is, and compare it with another library.
"""
