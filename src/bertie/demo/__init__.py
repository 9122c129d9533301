"""`bertie demo`: every step from text to a fine-tuned model, on a small corpus, in minutes.

`corpus` collects the text and poses a classification task, `compare` measures the gain from pre-training, `main` runs
the steps, and `page` writes the report.
"""
