"""Answer questions: find the answer in a paragraph, or say that it has none.

    bertie demo  # once: trains runs/demo/bert
    python examples/span.py

The demo's model is too small to learn this from 80 questions: the table in README.md has the scores of a larger one. A
table with the columns `question`, `context` and `answers` works as well as a file in the form of SQuAD.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "questions.json"
CONTEXT = (
    "The school choir was founded in 1962 by Edith Moreau. It has forty singers and meets on Mondays in the gym. "
    "The oldest singer is ninety."
)
QUESTIONS = ["Who founded the choir?", "How many singers does the choir have?", "How much does a ticket cost?"]


def main(model: str, out: str) -> None:
    tuned = bertie.finetune("span", DATA, model, out)
    print({metric: round(score, 2) for metric, score in tuned.scores.items()})
    inputs = [{"question": question, "context": CONTEXT} for question in QUESTIONS]
    for question, prediction in zip(QUESTIONS, tuned.predict(inputs), strict=True):
        print(f"{question} {prediction.answer or '(no answer)'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run, a model folder or a Hugging Face id")
    parser.add_argument("--out", default="runs/examples/span", help="the run folder")
    main(**vars(parser.parse_args()))
