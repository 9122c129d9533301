"""Find entities: tag the words of a sentence as persons, organizations and places.

    bertie demo  # once: trains runs/demo/bert
    python examples/tag.py

The file has a word and its tag per line. JSON lines with `text` and `entities` work as well.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "entities.conll"
TEXTS = ["Anna Berg moved from Lyon to Oslo.", "The Halden Bank has hired Ravi Sousa in Ghent."]


def main(model: str, out: str) -> None:
    tuned = bertie.finetune("tag", DATA, model, out)
    print({metric: round(score, 2) for metric, score in tuned.scores.items()})
    for text, prediction in zip(TEXTS, tuned.predict(TEXTS), strict=True):
        print(text)
        for entity in prediction.entities:
            print(
                f"  {entity.label} {entity.text!r}, characters {entity.start} to {entity.end}, score {entity.score:.2f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run, a model folder or a Hugging Face id")
    parser.add_argument("--out", default="runs/examples/tag", help="the run folder")
    main(**vars(parser.parse_args()))
