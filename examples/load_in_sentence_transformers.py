"""Load a model of bertie in sentence-transformers: both libraries compute the same vectors.

python examples/embed.py  # once: trains runs/examples/embed
pip install sentence-transformers
python examples/load_in_sentence_transformers.py
"""

import argparse

import numpy as np

import bertie

TEXTS = ["Why is the sky blue?", "Air scatters short light waves more than long ones.", "Bikes need a ticket."]


def main(model: str) -> None:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise SystemExit("this example needs the package: pip install sentence-transformers") from None
    theirs = SentenceTransformer(model, device="cpu")
    vectors = theirs.encode(TEXTS)
    print("similarities:", theirs.similarity(vectors[:1], vectors[1:]).numpy().round(3))
    difference = np.abs(vectors - bertie.load(model).embed(TEXTS)).max()
    print(f"largest difference from bertie's vectors: {difference:.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/examples/embed", help="a run of the task embed")
    main(**vars(parser.parse_args()))
