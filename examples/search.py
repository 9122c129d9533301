"""Search your text: index it, and find passages by the vectors of a model and by words together.

    bertie demo  # once: trains runs/demo/bert
    python examples/search.py

retrievers/ has the same index in LangChain and in LlamaIndex. `bertie serve runs/examples/search` opens it in a browser.
"""

import argparse
from pathlib import Path

import bertie

DATA = Path(__file__).parent / "data" / "text.jsonl"
QUERIES = ["when is the ice thick enough", "bread from the oven"]


def main(model: str, text: str, out: str) -> None:
    # Again after a change of the text: the model then reads only the passages that are new.
    result = bertie.index(text, model, out)
    print(f"{result['passages']} passages of {result['documents']} documents, {result['new']} of them new")
    opened = bertie.open_index(out)  # once, for many queries
    for query in QUERIES:
        print(query)
        for hit in bertie.search(opened, query, top_k=2):
            print(f"  {hit.score:.2f}  {Path(hit.document).name}  {hit.text[:80]} …")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="runs/demo/bert", help="a run, a model folder or a Hugging Face id")
    parser.add_argument("--text", default=str(DATA), help="a file or a folder of text")
    parser.add_argument("--out", default="runs/examples/search", help="the folder of the index")
    main(**vars(parser.parse_args()))
