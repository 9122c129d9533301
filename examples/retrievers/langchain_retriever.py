"""Use an index in LangChain: a retriever for chains and agents.

pip install langchain-core
python examples/search.py  # once: makes runs/examples/search
python examples/retrievers/langchain_retriever.py "when is the ice thick enough"
"""

import argparse
from typing import Any

import bertie

try:
    from langchain_core.documents import Document  # pyright: ignore[reportMissingImports]
    from langchain_core.retrievers import BaseRetriever  # pyright: ignore[reportMissingImports]
except ImportError:
    raise SystemExit("this example needs the package: pip install langchain-core") from None


class BertieRetriever(BaseRetriever):
    """Passages of an index as LangChain's documents, best first."""

    index: Any  # a bertie.Index, whose fields pydantic would check
    top_k: int = 5

    def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:  # noqa: ARG002
        return [
            Document(hit.text, metadata={"source": hit.document, "heading": hit.heading, "score": hit.score})
            for hit in self.index.search(query, self.top_k)
        ]


def main(index: str, query: str) -> None:
    retriever = BertieRetriever(index=bertie.open_index(index), top_k=3)
    for document in retriever.invoke(query):
        print(f"{document.metadata['score']:.3f}  {document.page_content}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("query")
    parser.add_argument("--index", default="runs/examples/search")
    main(**vars(parser.parse_args()))
