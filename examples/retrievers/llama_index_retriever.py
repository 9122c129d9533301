"""Use an index in LlamaIndex: a retriever for query engines.

pip install llama-index-core
python examples/search.py  # once: makes runs/examples/search
python examples/retrievers/llama_index_retriever.py "when is the ice thick enough"
"""

import argparse

import bertie

try:
    from llama_index.core.retrievers import BaseRetriever  # pyright: ignore[reportMissingImports]
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode  # pyright: ignore[reportMissingImports]
except ImportError:
    raise SystemExit("this example needs the package: pip install llama-index-core") from None


class BertieRetriever(BaseRetriever):
    """Passages of an index as LlamaIndex's nodes, best first."""

    def __init__(self, index: bertie.Index, top_k: int = 5):
        self.index, self.top_k = index, top_k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(text=hit.text, metadata={"source": hit.document, "heading": hit.heading}),
                score=hit.score,
            )
            for hit in self.index.search(query_bundle.query_str, self.top_k)
        ]


def main(index: str, query: str) -> None:
    retriever = BertieRetriever(bertie.open_index(index), top_k=3)
    for found in retriever.retrieve(query):
        print(f"{found.score:.3f}  {found.text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("query")
    parser.add_argument("--index", default="runs/examples/search")
    main(**vars(parser.parse_args()))
