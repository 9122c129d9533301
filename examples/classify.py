"""Classify texts: fine-tune on one CSV file in which one of three classes is rare, and predict.

    bertie demo  # once: trains runs/demo/bert
    python examples/classify.py

The run folder has a report with the confusion matrix, and `bertie predict runs/examples/classify "a text"` uses the model.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "reviews.csv"
TEXTS = [
    "The soup was cold and the waiter was rude.",
    "Friendly staff, fair prices, and the best bread in town.",
    "Lovely garden, but the coffee is terrible.",
]


def main(model: str, out: str) -> None:
    # A tenth of the file is held out to compute the scores. Class weights make up for the few "mixed" reviews.
    recipe = {"extends": "classify", "task": {"class_weights": "balanced"}}
    tuned = bertie.finetune(recipe, DATA, model, out)
    print({metric: round(score, 2) for metric, score in tuned.scores.items()})
    for text, prediction in zip(TEXTS, tuned.predict(TEXTS), strict=True):
        print(f"{prediction.label:>8} {prediction.probabilities[prediction.label]:.2f}  {text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run, a model folder or a Hugging Face id")
    parser.add_argument("--out", default="runs/examples/classify", help="the run folder")
    main(**vars(parser.parse_args()))
