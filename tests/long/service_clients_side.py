"""The part of service_clients.py that runs in the environment of the clients: prints their answers as JSON."""

import json
import sys

import cohere
import ollama

job = json.loads(sys.argv[1])
texts, url = job["texts"], job["url"]
first = cohere.Client("none", base_url=f"{url}/cohere")
second = cohere.ClientV2("none", base_url=f"{url}/cohere")
local = ollama.Client(f"{url}/ollama")
found = {
    "cohere v1 embed": first.embed(texts=texts, model="search", input_type="search_query").embeddings,
    "cohere v1 embed by type": first.embed(
        texts=texts, model="search", embedding_types=["ubinary", "float"], truncate="END"
    ).embeddings.ubinary,
    "cohere v2 embed": second.embed(
        texts=texts, model="search", input_type="search_document", output_dimension=8
    ).embeddings.float_,
}
for name, client in (("v1", first), ("v2", second)):
    ranked = client.rerank(model="reranker", query="a cat", documents=texts, top_n=2).results
    found[f"cohere {name} rerank"] = [{"index": e.index, "relevance_score": e.relevance_score} for e in ranked]
try:
    second.embed(texts=texts, model="embed-v4.0", input_type="search_query")
except cohere.NotFoundError as error:
    found["cohere v2 error"] = error.body["message"]
found["ollama embed"] = local.embed(
    "search", texts, truncate=True, options={"num_ctx": 512}, keep_alive="5m"
).embeddings
found["ollama embed dimensions"] = local.embed("search:latest", texts, dimensions=8).embeddings
found["ollama embeddings"] = local.embeddings("search", texts[0]).embedding
found["ollama list"] = [each.model for each in local.list().models]
found["ollama show"] = local.show("search").capabilities
try:
    local.embed("llama3", texts)
except ollama.ResponseError as error:
    found["ollama error"] = error.error
print(json.dumps(found))
