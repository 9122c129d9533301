"""The dialects of the server, one file for each: its messages, the way from its requests to an `Ask` and from what a model
found to its answers, and the form of its errors.

`Dialect` in `serve/exchange.py` says what a dialect is. `v1.py` has bertie's own API, which follows OpenAI's where that
has the same, with the messages of `v1_messages.py`. Every other dialect answers below its base, such as /tei, and without
the base where no other dialect claims the path, or --dialect chooses it:

- `tei.py`: text-embeddings-inference;
- `infinity.py`: infinity;
- `vllm.py`: vLLM;
- `hf.py`: Hugging Face's inference API, with the messages of `hf_messages.py`;
- `cohere.py`: Cohere's API;
- `ollama.py`: Ollama's API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bertie.serve.dialects.cohere import COHERE
from bertie.serve.dialects.hf import HF
from bertie.serve.dialects.infinity import INFINITY
from bertie.serve.dialects.ollama import OLLAMA
from bertie.serve.dialects.tei import TEI
from bertie.serve.dialects.v1 import V1
from bertie.serve.dialects.vllm import VLLM
from bertie.serve.exchange import Dialect, Endpoint

DIALECTS: tuple[Dialect, ...] = (V1, TEI, INFINITY, VLLM, HF, COHERE, OLLAMA)
CLAIMS = [
    (dialect, endpoint, (endpoint.method, endpoint.path)) for dialect in DIALECTS for endpoint in dialect.endpoints
]
"""Every endpoint with its dialect, and with the method and the path that it claims without the base of the dialect."""


def routes(chosen: str | None = None) -> Iterator[tuple[str, Dialect, Endpoint]]:
    """Yield every path with its dialect and endpoint.

    Args:
        chosen: Name of the dialect whose paths are also served without its base where others claim them, too.
    """
    counts = Counter(claim for _, endpoint, claim in CLAIMS if endpoint.bare)
    bertie_paths = {claim for dialect, _, claim in CLAIMS if dialect is V1}
    for dialect, endpoint, claim in CLAIMS:
        yield (dialect.base + endpoint.path).rstrip("/"), dialect, endpoint
        is_free = claim not in bertie_paths and (counts[claim] == 1 or dialect.name == chosen)
        if dialect.base and endpoint.bare and is_free:
            yield endpoint.path, dialect, endpoint


def claimants(method: str, path: str) -> list[Dialect]:
    """Return the dialects that claim a path without their base."""
    claim = (method, path)
    return [dialect for dialect, endpoint, claimed in CLAIMS if dialect.base and endpoint.bare and claimed == claim]
