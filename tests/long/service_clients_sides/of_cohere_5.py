"""The clients that need version 5 of Cohere's: langchain-cohere, and llama-index's for Cohere."""

from __future__ import annotations

from calls import JOB, KEY, gives, refuses
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_core.documents import Document
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.cohere import CohereEmbedding
from llama_index.postprocessor.cohere_rerank import CohereRerank as LlamaRerank

URL, TEXT, TEXTS = f"{JOB['url']}/cohere", JOB["text"], JOB["texts"]
HOSTED = "embed-english-v3.0"
"""llama-index knows only names of hosted models: one of the server's has this name."""


def langchain(model: str = "e5") -> CohereEmbeddings:
    return CohereEmbeddings(model=model, cohere_api_key=KEY, base_url=URL, max_retries=1)


@gives("documents", "query")
def langchain_cohere() -> object:
    return [langchain().embed_documents(TEXTS), langchain().embed_query(TEXTS[0])]


@gives("documents")
async def langchain_cohere_async() -> object:
    return await langchain().aembed_documents(TEXTS)


@gives("ranks")
def langchain_cohere_rerank() -> object:
    return CohereRerank(model="reranker", cohere_api_key=KEY, base_url=URL).rerank(TEXTS, TEXT)


@gives("two ranks")
def langchain_cohere_compress() -> object:
    ranker = CohereRerank(model="reranker", cohere_api_key=KEY, base_url=URL, top_n=2)
    documents = [Document(text, metadata={"number": number}) for number, text in enumerate(TEXTS)]
    return [
        [each.metadata["number"], each.metadata["relevance_score"]]
        for each in ranker.compress_documents(documents, TEXT)
    ]


@refuses("no model has this name")
def langchain_cohere_unknown_model() -> object:
    return langchain("embed-v4.0").embed_query("one")


@gives("documents", "query")
def llama_index_cohere() -> object:
    client = CohereEmbedding(model_name=HOSTED, api_key=KEY, base_url=URL)
    return [client.get_text_embedding_batch(TEXTS), client.get_query_embedding(TEXTS[0])]


@refuses("e5 is not a valid model name")
def llama_index_cohere_other_name() -> object:
    return CohereEmbedding(model_name="e5", api_key=KEY, base_url=URL)


@refuses("no model has this name")
def llama_index_cohere_unknown_model() -> object:
    return CohereEmbedding(model_name="embed-v4.0", api_key=KEY, base_url=URL).get_text_embedding("one")


@gives("two ranks")
def llama_index_cohere_rerank() -> object:
    ranker = LlamaRerank(model="reranker", api_key=KEY, base_url=URL, top_n=2)
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(number))) for number, text in enumerate(TEXTS)]
    return [[int(each.node_id), each.score] for each in ranker.postprocess_nodes(nodes, query_str=TEXT)]


@refuses("no model has this name")
def llama_index_cohere_rerank_unknown_model() -> object:
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    return LlamaRerank(model="rerank-v3.5", api_key=KEY, base_url=URL).postprocess_nodes(nodes, query_str=TEXT)


@refuses("no model has this name")
def langchain_cohere_rerank_unknown_model() -> object:
    return CohereRerank(model="rerank-v3.5", cohere_api_key=KEY, base_url=URL).rerank(TEXTS, TEXT)
