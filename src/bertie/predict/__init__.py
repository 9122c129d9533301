"""Using a model: `bertie.load` gives a Predictor."""
