"""Clients of Cohere's API: cohere, haystack, chromadb; and of Ollama's: ollama, langchain, llama-index, haystack, chromadb."""

from __future__ import annotations

import cohere
import ollama
from calls import JOB, KEY, gives, refuses
from chromadb.utils.embedding_functions import CohereEmbeddingFunction, OllamaEmbeddingFunction
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import CohereDocumentEmbedder, CohereTextEmbedder
from haystack_integrations.components.embedders.ollama import OllamaDocumentEmbedder, OllamaTextEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker
from langchain_ollama import OllamaEmbeddings
from llama_index.embeddings.ollama import OllamaEmbedding

COHERE, OLLAMA, TEXT, TEXTS = f"{JOB['url']}/cohere", f"{JOB['url']}/ollama", JOB["text"], JOB["texts"]
FIRST, SECOND = cohere.Client(KEY, base_url=COHERE), cohere.ClientV2(KEY, base_url=COHERE)
LOCAL = ollama.Client(OLLAMA)
SECRET = Secret.from_token(KEY)


@gives("queries")
def cohere_v1_embed() -> object:
    return FIRST.embed(texts=TEXTS, model="e5", input_type="search_query").embeddings


@gives("signs")
def cohere_v1_embed_by_type() -> object:
    found = FIRST.embed(texts=TEXTS, model="e5", embedding_types=["ubinary", "float"], truncate="END")
    return found.embeddings.ubinary


@gives("cut documents")
def cohere_v2_embed() -> object:
    found = SECOND.embed(texts=TEXTS, model="e5", input_type="search_document", output_dimension=8)
    return found.embeddings.float_


@gives("ranks")
def cohere_v1_rerank() -> object:
    return FIRST.rerank(model="reranker", query=TEXT, documents=TEXTS).results


@gives("two ranks")
def cohere_v2_rerank() -> object:
    return SECOND.rerank(model="reranker", query=TEXT, documents=TEXTS, top_n=2).results


@refuses("no model has this name")
def cohere_unknown_model() -> object:
    return SECOND.embed(texts=TEXTS, model="embed-v4.0", input_type="search_query")


@gives("documents", "query")
def haystack_cohere() -> object:
    settings = {"api_key": SECRET, "model": "e5", "api_base_url": COHERE}
    found = CohereDocumentEmbedder(**settings).run([Document(content=text) for text in TEXTS])["documents"]
    return [[each.embedding for each in found], CohereTextEmbedder(**settings).run(TEXTS[0])["embedding"]]


@gives("ranks")
def haystack_cohere_ranker() -> object:
    documents = [Document(content=text, meta={"number": number}) for number, text in enumerate(TEXTS)]
    ranker = CohereRanker(model="reranker", api_key=SECRET, api_base_url=COHERE)
    return [[each.meta["number"], each.score] for each in ranker.run(query=TEXT, documents=documents)["documents"]]


@refuses("no model has this name")
def haystack_cohere_unknown_model() -> object:
    return CohereTextEmbedder(api_key=SECRET, model="embed-v4.0", api_base_url=COHERE).run("one")


@gives("documents")
def chroma_cohere() -> object:
    return [*CohereEmbeddingFunction(api_key=KEY, model_name="e5")(TEXTS)]


@gives("unit")
def ollama_embed() -> object:
    return LOCAL.embed("e5", TEXTS, truncate=True, options={"num_ctx": 512}, keep_alive="5m").embeddings


@gives("cut")
def ollama_embed_dimensions() -> object:
    return LOCAL.embed("e5:latest", TEXTS, dimensions=8).embeddings


@gives("first")
def ollama_embeddings() -> object:
    return LOCAL.embeddings("e5", TEXTS[0]).embedding


@gives("latest names")
def ollama_list() -> object:
    return [each.model for each in LOCAL.list().models]


@gives("capabilities")
def ollama_show() -> object:
    return LOCAL.show("e5").capabilities


@refuses("no model has this name")
def ollama_unknown_model() -> object:
    return LOCAL.embed("llama3", TEXTS)


@gives("unit", "unit first")
def langchain_ollama() -> object:
    client = OllamaEmbeddings(model="e5", base_url=OLLAMA)
    return [client.embed_documents(TEXTS), client.embed_query(TEXTS[0])]


@gives("unit", "unit first")
def llama_index_ollama() -> object:
    client = OllamaEmbedding(model_name="e5", base_url=OLLAMA)
    return [client.get_text_embedding_batch(TEXTS), client.get_query_embedding(TEXTS[0])]


@gives("unit", "unit first")
def haystack_ollama() -> object:
    settings = {"model": "e5", "url": OLLAMA}
    found = OllamaDocumentEmbedder(**settings).run([Document(content=text) for text in TEXTS])["documents"]
    return [[each.embedding for each in found], OllamaTextEmbedder(**settings).run(TEXTS[0])["embedding"]]


@gives("unit")
def chroma_ollama() -> object:
    return [*OllamaEmbeddingFunction(url=OLLAMA, model_name="e5")(TEXTS)]


@refuses("no model has this name")
def chroma_cohere_unknown_model() -> object:
    return CohereEmbeddingFunction(api_key=KEY, model_name="large")(["one"])


@refuses("no model has this name")
def langchain_ollama_unknown_model() -> object:
    return OllamaEmbeddings(model="llama3", base_url=OLLAMA).embed_query("one")


@refuses("no model has this name")
def llama_index_ollama_unknown_model() -> object:
    return OllamaEmbedding(model_name="llama3", base_url=OLLAMA).get_text_embedding("one")


@refuses("no model has this name")
def haystack_ollama_unknown_model() -> object:
    return OllamaTextEmbedder(model="llama3", url=OLLAMA).run("one")


@refuses("no model has this name")
def chroma_ollama_unknown_model() -> object:
    return OllamaEmbeddingFunction(url=OLLAMA, model_name="llama3")(["one"])


@refuses("no model has this name")
def haystack_cohere_ranker_unknown_model() -> object:
    return CohereRanker(model="rerank-v3.5", api_key=SECRET, api_base_url=COHERE).run(TEXT, [Document(content="one")])
