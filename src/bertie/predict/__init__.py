"""Use a trained model: `bertie.load` returns a `Predictor`.

`predictor` predicts, evaluates, fills masks and returns hidden states. `vectors` pools hidden states into vectors of
texts and words. `embed` writes the vectors of a file to a file, in the formats of `vector_files`.
"""
