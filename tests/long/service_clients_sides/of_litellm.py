"""litellm, with the routes that need no hub."""

from __future__ import annotations

import litellm
from calls import JOB, KEY, gives, refuses

URL, TEXT, TEXTS = JOB["url"], JOB["text"], JOB["texts"]
litellm.suppress_debug_info = True


def embedded(model: str, base: str, **settings: object) -> list[list[float]]:
    settings = {"input": TEXTS, "api_key": KEY, "max_retries": 0} | settings
    return [each["embedding"] for each in litellm.embedding(model, api_base=f"{URL}{base}", **settings).data]


def ranked(model: str, base: str, **settings: object) -> object:
    settings = {"query": TEXT, "documents": TEXTS, "api_key": KEY} | settings
    return litellm.rerank(model, api_base=f"{URL}{base}", **settings).results


@gives("whole", "cut")
def litellm_openai() -> object:
    settings = {"dimensions": 8, "allowed_openai_params": ["dimensions"]}
    return [embedded("openai/e5", "/v1"), embedded("openai/e5", "/v1", **settings)]


@refuses("Setting dimensions is not supported")
def litellm_openai_dimensions() -> object:
    return embedded("openai/e5", "/v1", dimensions=8)


@refuses("in LangChain with OpenAIEmbeddings(check_embedding_ctx_length=False)")
def litellm_openai_token_ids() -> object:
    return embedded("openai/e5", "/v1", input=[[101, 102]])


@gives("whole", "cut")
def litellm_hosted_vllm() -> object:
    return [embedded("hosted_vllm/e5", "/v1"), embedded("hosted_vllm/e5", "/v1", dimensions=8)]


@gives("whole")
def litellm_infinity() -> object:
    return embedded("infinity/e5", "/infinity")


@refuses("output_dimension: unknown field")
def litellm_infinity_dimensions() -> object:
    return embedded("infinity/e5", "/infinity", dimensions=8)


@gives("documents", "queries", "cut documents")
def litellm_cohere() -> object:
    base = "/cohere/v2/embed"
    queries = embedded("cohere/e5", base, input_type="search_query")
    return [embedded("cohere/e5", base), queries, embedded("cohere/e5", base, dimensions=8)]


@gives("whole")
def litellm_huggingface() -> object:
    return embedded("huggingface/e5", "/hf/models/e5", input_type="embed")


@refuses("input_type: unknown field")
def litellm_huggingface_sentence_transformers() -> object:
    # With this name, litellm asks for similarities instead of vectors.
    return embedded("huggingface/sentence-transformers/e5", "/hf/models/e5", input_type="embed")


@gives("unit")
def litellm_huggingface_tei() -> object:
    return embedded("huggingface/e5", "/tei/models/e5", input_type="embed")


@gives("unit")
def litellm_ollama() -> object:
    return embedded("ollama/e5", "/ollama")


@gives("ranks")
def litellm_rerank_hosted_vllm() -> object:
    return ranked("hosted_vllm/reranker", "/vllm")


@gives("sigmoid ranks")
def litellm_rerank_infinity() -> object:
    return ranked("infinity/reranker", "/infinity")


@gives("ranks")
def litellm_rerank_cohere() -> object:
    return ranked("cohere/reranker", "/cohere")


@refuses("top_n: unknown field")
def litellm_rerank_huggingface_top_n() -> object:
    return ranked("huggingface/reranker", "/tei/models/reranker", top_n=2)


@gives("sigmoid ranks")
def litellm_rerank_huggingface() -> object:
    return ranked("huggingface/reranker", "/tei/models/reranker")


@gives("ranks")
def litellm_rerank_jina_ai() -> object:
    return ranked("jina_ai/reranker", "/v1/rerank")


@refuses("no model has this name")
def litellm_openai_unknown_model() -> object:
    return embedded("openai/ada", "/v1")


@refuses("no model has this name")
def litellm_vllm_unknown_model() -> object:
    return embedded("hosted_vllm/ada", "/v1")


@refuses("no model has this name")
def litellm_infinity_unknown_model() -> object:
    return embedded("infinity/ada", "/infinity")


@refuses("no model has this name")
def litellm_cohere_unknown_model() -> object:
    return embedded("cohere/ada", "/cohere/v2/embed")


@refuses("no model has this name")
def litellm_huggingface_unknown_model() -> object:
    return embedded("huggingface/ada", "/hf/models/ada", input_type="embed")


@refuses("no model has this name")
def litellm_ollama_unknown_model() -> object:
    return embedded("ollama/ada", "/ollama")


@refuses("no model has this name")
def litellm_rerank_vllm_unknown_model() -> object:
    return ranked("hosted_vllm/ada", "/vllm")


@refuses("no model has this name")
def litellm_rerank_infinity_unknown_model() -> object:
    return ranked("infinity/ada", "/infinity")


@refuses("no model has this name")
def litellm_rerank_cohere_unknown_model() -> object:
    return ranked("cohere/ada", "/cohere")


@refuses("no model has this name")
def litellm_rerank_huggingface_unknown_model() -> object:
    return ranked("huggingface/ada", "/tei/models/ada")
