"""The clients of text-embeddings-inference and of Hugging Face's inference API: langchain-huggingface, llama-index, haystack,
chromadb."""

from __future__ import annotations

from calls import JOB, KEY, gives, refuses
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from huggingface_hub import AsyncInferenceClient, InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

HF, TEI = f"{JOB['url']}/hf/models/e5", f"{JOB['url']}/tei/models"
TEXT, TEXTS = JOB["text"], JOB["texts"]


def langchain(url: str) -> HuggingFaceEndpointEmbeddings:
    found = HuggingFaceEndpointEmbeddings(model="e5", huggingfacehub_api_token=KEY)
    found.client, found.async_client = InferenceClient(url, token=KEY), AsyncInferenceClient(url, token=KEY)
    return found


@gives("whole", "first")
def langchain_huggingface() -> object:
    return [langchain(HF).embed_documents(TEXTS), langchain(HF).embed_query(TEXTS[0])]


@gives("whole")
async def langchain_huggingface_async() -> object:
    return await langchain(HF).aembed_documents(TEXTS)


@gives("unit")
def langchain_huggingface_tei() -> object:
    return langchain(f"{TEI}/e5").embed_documents(TEXTS)


@refuses("must be a HuggingFace repo ID, not a URL")
def langchain_huggingface_with_a_url() -> object:
    return HuggingFaceEndpointEmbeddings(model=HF)


@refuses("no model has this name")
def langchain_huggingface_unknown_model() -> object:
    return langchain(f"{JOB['url']}/hf/models/other").embed_query("one")


@gives("unit", "unit first")
def llama_index_tei() -> object:
    client = TextEmbeddingsInference(model_name="e5", base_url=f"{TEI}/e5", auth_token=KEY)
    return [client.get_text_embedding_batch(TEXTS), client.get_query_embedding(TEXTS[0])]


@gives("unit")
async def llama_index_tei_async() -> object:
    return await TextEmbeddingsInference(
        model_name="e5", base_url=f"{TEI}/e5", auth_token=KEY
    ).aget_text_embedding_batch(TEXTS)


# llama-index and chromadb do not read the status of an answer of text-embeddings-inference, and so show no message.
@refuses("KeyError: 0")
def llama_index_tei_unknown_model() -> object:
    return TextEmbeddingsInference(model_name="e5", base_url=f"{TEI}/other", auth_token=KEY).get_text_embedding("one")


@refuses("Input should be a valid list [type=list_type, input_value={'error': 'no model has")
def llama_index_tei_unknown_model_batch() -> object:
    return TextEmbeddingsInference(model_name="e5", base_url=f"{TEI}/other", auth_token=KEY).get_text_embedding_batch(
        ["one", "two"]
    )


def nodes() -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=text, id_=str(number))) for number, text in enumerate(TEXTS)]


@gives("sigmoid ranks")
def llama_index_tei_rerank() -> object:
    ranker = TextEmbeddingInference(base_url=f"{TEI}/reranker", top_n=3, auth_token=f"Bearer {KEY}")
    return [[int(each.node_id), each.score] for each in ranker.postprocess_nodes(nodes(), query_str=TEXT)]


@refuses("AssertionError")
def llama_index_tei_rerank_unknown_model() -> object:
    return TextEmbeddingInference(base_url=f"{TEI}/other", auth_token=f"Bearer {KEY}").postprocess_nodes(
        nodes(), query_str=TEXT
    )


def haystack(url: str, **settings: object) -> dict[str, object]:
    fixed = {"api_type": "text_embeddings_inference", "api_params": {"url": url}}
    return fixed | {"token": Secret.from_token(KEY)} | settings


@gives("whole", "first")
def haystack_tei() -> object:
    settings = haystack(f"{TEI}/e5")
    found = HuggingFaceAPIDocumentEmbedder(**settings).run([Document(content=text) for text in TEXTS])["documents"]
    return [[each.embedding for each in found], HuggingFaceAPITextEmbedder(**settings).run(TEXTS[0])["embedding"]]


@gives("unit")
def haystack_tei_normalize() -> object:
    found = HuggingFaceAPIDocumentEmbedder(**haystack(f"{TEI}/e5", normalize=True)).run(
        [Document(content=text) for text in TEXTS]
    )
    return [each.embedding for each in found["documents"]]


@gives("minilm")
def haystack_tei_of_a_model_that_normalizes() -> object:
    found = HuggingFaceAPIDocumentEmbedder(**haystack(f"{TEI}/minilm", normalize=None)).run(
        [Document(content=text) for text in TEXTS]
    )
    return [each.embedding for each in found["documents"]]


@refuses("normalize: the files of minilm normalize its vectors: send true, or omit it")
def haystack_tei_default_of_a_model_that_normalizes() -> object:
    return HuggingFaceAPITextEmbedder(**haystack(f"{TEI}/minilm")).run("one")


@refuses("no model has this name")
def haystack_tei_unknown_model() -> object:
    return HuggingFaceAPITextEmbedder(**haystack(f"{TEI}/other")).run("one")


def haystack_rank(url: str) -> object:
    ranker = HuggingFaceTEIRanker(url=url, max_retries=0, token=Secret.from_token(KEY))
    documents = [Document(content=text, meta={"number": number}) for number, text in enumerate(TEXTS)]
    return [[each.meta["number"], each.score] for each in ranker.run(query=TEXT, documents=documents)["documents"]]


@gives("sigmoid ranks")
def haystack_tei_ranker() -> object:
    return haystack_rank(JOB["tei"])


@refuses("several dialects have this path: use /tei/rerank (--dialect tei)")
def haystack_tei_ranker_below_a_path() -> object:
    # It joins its URL with /rerank and drops the path.
    return haystack_rank(f"{TEI}/reranker")


@gives("unit")
def chroma_hugging_face_server() -> object:
    return [*HuggingFaceEmbeddingServer(f"{TEI}/e5/embed", api_key=KEY)(TEXTS)]


@refuses("ValueError: could not convert string to float: 'error'")
def chroma_hugging_face_server_unknown_model() -> object:
    return HuggingFaceEmbeddingServer(f"{TEI}/other/embed", api_key=KEY)(["one", "two"])
