"""`bertie demo`: every step from text to a fine-tuned model, on a small corpus, in minutes.

`corpus.py` collects the text and poses a classification task, `compare.py` measures the gain from pre-training, `search.py`
trains a search of the text, `main.py` runs the steps, and `page.py` writes the report.
"""
