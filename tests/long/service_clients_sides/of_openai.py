"""The clients of OpenAI's API: openai, langchain-openai, llama-index, haystack-ai, chromadb."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import chromadb
import llama_index.core
import openai
from calls import JOB, KEY, gives, refuses
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

URL, TEXTS = f"{JOB['url']}/v1", JOB["texts"]
CLIENT = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
# langchain-openai tokenizes with tiktoken, which downloads its table. llama-index brings a copy.
os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache")


@gives("whole")
def openai_default() -> object:
    return [each.embedding for each in CLIENT.embeddings.create(model="e5", input=TEXTS).data]


@gives("whole")
def openai_float() -> object:
    return [each.embedding for each in CLIENT.embeddings.create(model="e5", input=TEXTS, encoding_format="float").data]


@gives("cut")
def openai_dimensions() -> object:
    return [each.embedding for each in CLIENT.embeddings.create(model="e5", input=TEXTS, dimensions=8).data]


@gives("queries")
def openai_input_type() -> object:
    answer = CLIENT.embeddings.create(model="e5", input=TEXTS, extra_body={"input_type": "query"})
    return [each.embedding for each in answer.data]


@gives("whole")
async def openai_async() -> object:
    client = openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
    answers = await asyncio.gather(*(client.embeddings.create(model="e5", input=text) for text in TEXTS))
    return [each.data[0].embedding for each in answers]


@gives("names")
def openai_models() -> object:
    return [each.id for each in CLIENT.models.list()]


@refuses("no model has this name")
def openai_unknown_model() -> object:
    return CLIENT.embeddings.create(model="text-embedding-3-small", input=TEXTS)


@refuses("give a valid key")
def openai_wrong_key() -> object:
    return openai.OpenAI(base_url=URL, api_key="other", max_retries=0).embeddings.create(model="e5", input=TEXTS)


@refuses("token ids need the header X-Vocabulary")
def openai_token_ids() -> object:
    return CLIENT.embeddings.create(model="e5", input=[[101, 102]])


def langchain(**settings: object) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(base_url=URL, api_key=KEY, max_retries=0, **({"model": "e5"} | settings))


@refuses("in LangChain with OpenAIEmbeddings(check_embedding_ctx_length=False)")
def langchain_openai_default() -> object:
    return langchain().embed_documents(TEXTS)


@gives("whole", "first")
def langchain_openai() -> object:
    client = langchain(check_embedding_ctx_length=False)
    return [client.embed_documents(TEXTS), client.embed_query(TEXTS[0])]


@gives("cut")
async def langchain_openai_async_dimensions() -> object:
    return await langchain(check_embedding_ctx_length=False, dimensions=8).aembed_documents(TEXTS)


@refuses("no model has this name")
def langchain_openai_unknown_model() -> object:
    return langchain(check_embedding_ctx_length=False, model="text-embedding-3-small").embed_query("one")


@gives("whole", "first")
def llama_index_openai() -> object:
    client = OpenAIEmbedding(model_name="e5", api_base=URL, api_key=KEY, max_retries=0)
    return [client.get_text_embedding_batch(TEXTS), client.get_query_embedding(TEXTS[0])]


@gives("whole", "first")
def llama_index_openai_like() -> object:
    client = OpenAILikeEmbedding(model_name="e5", api_base=URL, api_key=KEY, max_retries=0)
    return [client.get_text_embedding_batch(TEXTS), client.get_query_embedding(TEXTS[0])]


@gives("cut")
async def llama_index_openai_like_async_dimensions() -> object:
    client = OpenAILikeEmbedding(model_name="e5", api_base=URL, api_key=KEY, max_retries=0, dimensions=8)
    return await client.aget_text_embedding_batch(TEXTS)


@refuses("no model has this name")
def llama_index_openai_unknown_model() -> object:
    return OpenAILikeEmbedding(model_name="ada", api_base=URL, api_key=KEY, max_retries=0).get_text_embedding("one")


@gives("whole", "first")
def haystack_openai() -> object:
    settings = {"api_key": Secret.from_token(KEY), "api_base_url": URL, "model": "e5", "max_retries": 0}
    found = OpenAIDocumentEmbedder(**settings).run([Document(content=text) for text in TEXTS])["documents"]
    return [[each.embedding for each in found], OpenAITextEmbedder(**settings).run(TEXTS[0])["embedding"]]


@refuses("no model has this name")
def haystack_openai_unknown_model() -> object:
    settings = {"api_key": Secret.from_token(KEY), "api_base_url": URL, "model": "ada", "max_retries": 0}
    return OpenAITextEmbedder(**settings).run("one")


@gives("whole")
def chroma_openai() -> object:
    return [*OpenAIEmbeddingFunction(api_key=KEY, api_base=URL, model_name="e5")(TEXTS)]


@gives("nearest")
def chroma_openai_collection() -> object:
    function = OpenAIEmbeddingFunction(api_key=KEY, api_base=URL, model_name="e5")
    store = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False)).create_collection(
        "texts", embedding_function=function, metadata={"hnsw:space": "cosine"}
    )
    store.add(ids=[str(number) for number in range(len(TEXTS))], documents=TEXTS)
    found = store.query(query_texts=[JOB["text"]], n_results=len(TEXTS))
    return [[int(i), 1 - distance] for i, distance in zip(found["ids"][0], found["distances"][0], strict=True)]


@refuses("no model has this name")
def chroma_openai_unknown_model() -> object:
    return OpenAIEmbeddingFunction(api_key=KEY, api_base=URL, model_name="ada")(["one"])
