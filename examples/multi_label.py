"""Give a text any number of labels: the topics of a message.

    bertie demo  # once: trains runs/demo/bert
    python examples/multi_label.py

A cell of the file holds several labels (`housing;money`), or none.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "topics.csv"
TEXTS = [
    "Our rent goes up again, and the heating is broken.",
    "Which doctor gives vaccinations to school children?",
    "I found a black umbrella.",
]


def main(model: str, out: str) -> None:
    # The file is small: hold out a quarter of it, not a tenth, to compute the scores, and train in small batches.
    recipe = {"extends": "multi_label", "dev_share": 0.25, "training": {"batch_size": 8}}
    tuned = bertie.finetune(recipe, DATA, model, out)
    print({metric: round(score, 2) for metric, score in tuned.scores.items()})
    for text, prediction in zip(TEXTS, tuned.predict(TEXTS), strict=True):
        likely = sorted(prediction.probabilities, key=prediction.probabilities.__getitem__, reverse=True)[:2]
        print(f"{text}\n  labels: {', '.join(prediction.labels) or 'none'}; most likely: {', '.join(likely)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run, a model folder or a Hugging Face id")
    parser.add_argument("--out", default="runs/examples/multi_label", help="the run folder")
    main(**vars(parser.parse_args()))
