"""Predict a number: the similarity of two sentences, from 0 to 5.

    bertie demo  # once: trains runs/demo/bert
    python examples/regress.py

Without a second text, the same recipe predicts a number for a single text, such as a rating or a price.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "pairs.csv"
PAIRS = [
    ("The meeting starts at ten.", "The meeting begins at ten."),
    ("A man is playing the piano.", "A woman is playing the guitar."),
    ("The soup needs more salt.", "The train was late."),
]


def main(model: str, out: str) -> None:
    # The file is small: hold out a quarter of it, not a tenth, to compute the scores, and train in small batches. A model
    # as small as the demo's compares texts better by the mean of all tokens than by [CLS] alone.
    recipe = {"extends": "regress", "dev_share": 0.25, "task": {"pooling": "mean"}, "training": {"batch_size": 8}}
    tuned = bertie.finetune(recipe, DATA, model, out)
    print({metric: round(score, 2) for metric, score in tuned.scores.items()})
    for (first, second), prediction in zip(PAIRS, tuned.predict(PAIRS), strict=True):
        print(f"{prediction.score:4.1f}  {first} | {second}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run, a model folder or a Hugging Face id")
    parser.add_argument("--out", default="runs/examples/regress", help="the run folder")
    main(**vars(parser.parse_args()))
