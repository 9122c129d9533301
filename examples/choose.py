"""Choose the best of several endings, as in SWAG.

    bertie demo  # once: trains runs/demo/bert
    python examples/choose.py

Questions with several answers, as in RACE or ARC, have the same form: a context, endings, and the number of the right one.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "choices.csv"
CONTEXT = "The waiter brings a bowl of soup to the table."
ENDINGS = [
    "The guest picks up the spoon.",
    "The guest irons the soup.",
    "The spoon drives home.",
    "The bowl sings a song.",
]


def main(model: str, out: str) -> None:
    # The file is small: hold out a quarter of it, not a tenth, to compute the scores, and train in small batches.
    recipe = {"extends": "choose", "dev_share": 0.25, "training": {"batch_size": 8}}
    tuned = bertie.finetune(recipe, DATA, model, out)
    print({metric: round(score, 2) for metric, score in tuned.scores.items()})
    [prediction] = tuned.predict([[CONTEXT, *ENDINGS]])
    print(CONTEXT)
    for ending, probability in zip(ENDINGS, prediction.probabilities, strict=True):
        print(f"  {probability:.2f}  {ending}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run, a model folder or a Hugging Face id")
    parser.add_argument("--out", default="runs/examples/choose", help="the run folder")
    main(**vars(parser.parse_args()))
