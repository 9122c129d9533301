"""infinity_client."""

from __future__ import annotations

from calls import JOB, KEY, gives, refuses
from infinity_client import AuthenticatedClient
from infinity_client.api.default import classify, embeddings, health, models, rerank
from infinity_client.models import ClassifyInput, OpenAIEmbeddingInputText, RerankInput

TEXT, TEXTS = JOB["text"], JOB["texts"]
CLIENT = AuthenticatedClient(base_url=f"{JOB['url']}/infinity", token=KEY, raise_on_unexpected_status=True)


@gives("whole")
def infinity_embeddings() -> object:
    found = embeddings.sync(client=CLIENT, body=OpenAIEmbeddingInputText(TEXTS, model="e5"))
    return [each.embedding for each in found.data]


@gives("cut")
def infinity_dimensions() -> object:
    found = embeddings.sync(client=CLIENT, body=OpenAIEmbeddingInputText(TEXTS, model="e5", dimensions=8))
    return [each.embedding for each in found.data]


@gives("whole")
async def infinity_embeddings_async() -> object:
    found = await embeddings.asyncio(client=CLIENT, body=OpenAIEmbeddingInputText(TEXTS, model="e5"))
    return [each.embedding for each in found.data]


@gives("sigmoid ranks")
def infinity_rerank() -> object:
    return rerank.sync(client=CLIENT, body=RerankInput(TEXT, TEXTS, model="reranker")).results


@gives("classes")
def infinity_classify() -> object:
    [found] = classify.sync(client=CLIENT, body=ClassifyInput([TEXT], model="classes")).data
    return [[each.label, each.score] for each in found]


@gives("names")
def infinity_models() -> object:
    return [each.id for each in models.sync(client=CLIENT).data]


@gives("true")
def infinity_health() -> object:
    return health.sync(client=CLIENT)["unix"] > 0


@refuses("no model has this name")
def infinity_unknown_model() -> object:
    return embeddings.sync(client=CLIENT, body=OpenAIEmbeddingInputText(TEXTS, model="other"))


@gives("message about dimensions")
def infinity_wrong_dimensions() -> object:
    # The client returns errors with status 422, and raises no exception.
    found = embeddings.sync(client=CLIENT, body=OpenAIEmbeddingInputText(TEXTS, model="e5", dimensions=7))
    return found.detail[0].msg
