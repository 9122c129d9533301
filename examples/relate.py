"""Find the relation between two marked spans of a text.

    bertie demo  # once: trains runs/demo/bert
    python examples/relate.py

Tags mark the spans (`<e1>…</e1>`), or columns with their positions.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "relations.jsonl"
TEXTS = [
    "Heavy <e1>snow</e1> caused the <e2>accident</e2> on the bridge.",
    "There is a small <e1>museum</e1> in the <e2>village</e2>.",
    "The <e1>wheel</e1> of the <e2>cart</e2> is broken.",
    "The <e1>piano</e1> was built by a <e2>carpenter</e2>.",
]


def main(model: str, out: str) -> None:
    # The file is small: hold out a quarter of it, not a tenth, to compute the scores.
    tuned = bertie.finetune({"extends": "relate", "dev_share": 0.25}, DATA, model, out)
    print({metric: round(score, 2) for metric, score in tuned.scores.items()})
    for text, prediction in zip(TEXTS, tuned.predict(TEXTS), strict=True):
        print(f"{prediction.label:>11} {prediction.probabilities[prediction.label]:.2f}  {text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run, a model folder or a Hugging Face id")
    parser.add_argument("--out", default="runs/examples/relate", help="the run folder")
    main(**vars(parser.parse_args()))
